"""transformers' Trainer on hetcomm: `torchrun --nproc-per-node=2 transformers_trainer.py`.

Accelerate, below the Trainer, takes the group that the program has made. Without one it makes
gloo's for CPU, and refuses another name in `ddp_backend`.
"""

import argparse
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="hetcomm")
parser.add_argument("--patched", action="store_true", help="Accelerate has accelerate.patch")
asked = parser.parse_args()
if not asked.patched:
    dist.init_process_group(asked.backend)  # names hetcomm, before TrainingArguments
torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **size, **heads))
tokens = torch.randint(0, 64, (64, 16))
examples: list[dict[str, Any]] = [{"input_ids": one, "labels": one} for one in tokens]
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model,
        TrainingArguments(
            folder,
            use_cpu=not torch.cuda.is_available(),
            ddp_backend=asked.backend if asked.patched else None,
            max_steps=8,
            per_device_train_batch_size=4,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=examples,
    )
    trainer.train()
if dist.get_rank() == 0:
    print("backend", dist.get_backend())
    print("losses", *[entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
dist.destroy_process_group()
