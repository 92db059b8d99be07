"""Lightning on hetcomm: `torchrun --nproc-per-node=2 lightning_fit.py`; the strategy names it."""

import argparse

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard


class Regression(lightning.LightningModule):
    """Two layers, in parts on all ranks if `sharded`."""

    def __init__(self, sharded: bool) -> None:
        super().__init__()
        self.sharded = sharded
        self.model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )
        self.losses: list[float] = []

    def configure_model(self) -> None:
        if self.sharded:
            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = self.model(batch[0]).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="hetcomm")
    parser.add_argument("--sharded", action="store_true")
    asked = parser.parse_args()
    lightning.seed_everything(0)
    module = Regression(asked.sharded)
    data = torch.utils.data.TensorDataset(torch.randn(64, 32))
    ranks = torch.cuda.device_count() or 2
    strategy = (
        ModelParallelStrategy(
            data_parallel_size=ranks, tensor_parallel_size=1, process_group_backend=asked.backend
        )
        if asked.sharded
        else DDPStrategy(process_group_backend=asked.backend)
    )
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=ranks,
        strategy=strategy,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8))
    if trainer.is_global_zero:
        print("backend", dist.get_backend())
        print("losses", *module.losses)
