"""The planner's part of the demo: layouts by hand as the trainer runs them, its page and JSON."""

import json
from io import StringIO
from pathlib import Path

import pytest
from launching import Launch
from rich.console import Console

from hetcomm.demo import planning, runs
from hetcomm.demo.launcher import Launcher
from hetcomm.demo.plan_plot import draw_plan
from hetcomm.demo.plan_report import describe_layout, plan_facts, render_plan
from hetcomm.demo.planning import Case, Plan
from hetcomm.demo.training import Comparison, Training
from hetcomm.emulate import Cluster, Host, Nic, load, run
from hetcomm.plan import Layout, Replica, Stage

CLUSTER = load(runs.HERE / "cluster.toml")
SMALL = {"width": 32, "heads": 2, "context": 16}


def one_each(*ranks: int) -> tuple[Replica, ...]:
    return tuple(Replica((rank,)) for rank in ranks)


TWO_STAGES = Layout(
    (Stage(((0, 2),), one_each(0, 1)), Stage(((2, 6),), one_each(2, 3))),
    batch=16,
    micro_batch=4,
    gradients="cluster",
    optimizer_states="cluster",
    overlap_optimizer=True,
)


def training(layout: str, seconds: float) -> Training:
    return Training(layout, "hetcomm", [5.0, 4.0], [seconds] * 2, [10**6] * 2, 4_000_000)


def plan(planned: float = 0.1, is_shaped: bool = True) -> Plan:
    """Predicted 90 ms. By hand: 200 ms and 150 ms, predicted as measured."""
    by_hand = [
        Case(TWO_STAGES, seconds, training(name, seconds))
        for name, seconds in (("ddp", 0.2), ("pipeline", 0.15))
    ]
    case = Case(TWO_STAGES, 0.09, training("planned", planned))
    comparison = Comparison(by_hand[0].training, case.training, 1e-4)
    return Plan(case, by_hand, 0.01, 2.0, comparison, CLUSTER, is_shaped)


def shown(made: Plan) -> str:
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_plan(made))
    return console.export_text()


def test_the_page_has_layout_errors_and_speed_ups() -> None:
    text = shown(plan())
    assert "layers 0 to 1 on ranks 0, 1 (north); layers 2 to 5 on ranks 2, 3 (south)" in text
    assert "2 micro-batches of 4 on each of 2 replicas, schedule 1f1b" in text
    assert "The 4 ranks share 2.00 processors." in text
    for expected in ("90 ms", "100 ms", "-10%", "+0%", "2.00x as fast", "1.50x as fast"):
        assert expected in text
    assert "The planned layout is the fastest: 2.00x as fast as ddp, 1.50x" in text


def test_a_slower_plan_says_so() -> None:
    text = shown(plan(planned=0.16))
    assert "slower than pipeline here: 1.25x as fast as ddp, 0.94x as fast as pipeline" in text
    assert "is the fastest" not in text


def test_without_shaped_links_predictions_are_left_out() -> None:
    made = plan(is_shaped=False)
    assert "90 ms" not in shown(made) and "no link is shaped" in shown(made)
    assert plan_facts(made)["steps"]["planned"]["predicted_seconds"] is None


def test_json_has_predicted_and_measured_seconds() -> None:
    facts = json.loads(json.dumps(plan_facts(plan())))
    assert set(facts["steps"]) == {"ddp", "pipeline", "planned"}
    assert facts["steps"]["planned"]["error"] == pytest.approx(-0.1)
    assert facts["steps"]["ddp"]["speed_up_of_plan"] == pytest.approx(2)
    assert (facts["processors"], facts["agrees"], facts["tolerance"]) == (2.0, True, 1e-4)


@pytest.mark.parametrize("is_shaped", [True, False])
def test_the_picture_has_bars_and_layers(is_shaped: bool, tmp_path: Path) -> None:
    from hetcomm.demo.plot import pyplot

    figure = pyplot.figure()
    draw_plan(figure, plan(is_shaped=is_shaped))
    times, layers = figure.axes
    assert len(times.containers) == (9 if is_shaped else 6)
    assert len(layers.patches) == 4
    figure.savefig(tmp_path / "plan.png")
    pyplot.close(figure)


def test_a_stage_of_chunks_and_one_rank_is_described() -> None:
    stages = (
        Stage(((0, 1), (2, 3)), one_each(0)),
        Stage(((1, 2), (3, 6)), one_each(1)),
    )
    first, second = describe_layout(Layout(stages, 4, 2, schedule="interleaved"), CLUSTER)
    assert first.startswith("layers 0 and 2 on rank 0 (north); layers 1 and 3 to 5 on rank 1")
    assert second.startswith("2 micro-batches of 2 on each of 1 replica, schedule interleaved")


def test_layouts_by_hand_are_those_of_the_trainer() -> None:
    cluster = Cluster(CLUSTER.hosts, order="interleaved")
    settings = runs.Settings(Launcher(run), cluster, 1, 0, 60)
    model = planning.model_of(settings)
    ddp, _ = planning.data_parallel(model, cluster, settings.batch)
    assert (ddp.replicas, ddp.micro_batch, ddp.micro_batches[0]) == (4, 2, 1)
    pipeline, _ = planning.two_stages(model, cluster, settings.batch)
    assert [s.chunks for s in pipeline.stages] == [((0, 3),), ((3, 6),)]
    assert [[r.ranks for r in s.replicas] for s in pipeline.stages] == [
        [(0,), (2,)], [(1,), (3,)],
    ]  # fmt: skip
    assert (pipeline.micro_batch, pipeline.micro_batches) == (1, (4, 4))


@pytest.mark.slow
def test_a_planned_layout_trains_as_the_whole_model_does(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "layout.json"
    TWO_STAGES.save(file)
    *whole, _ = launch(1, "ddp")
    *planned, summary = launch(4, "planned", "--plan", str(file), "--backend", "hetcomm")
    assert [line["loss"] for line in planned] == pytest.approx(
        [line["loss"] for line in whole], abs=1e-5
    )
    assert "parameters" in summary


@pytest.mark.parametrize(
    ("layout", "extra", "expected"),
    [
        ("planned", (), "expected --plan FILE with the layout planned"),
        ("ddp", ("--plan", "layout.json"), "expected --plan FILE with the layout planned"),
        ("planned", ("--plan", "nowhere.json"), "nowhere.json"),
    ],
)
def test_the_trainer_needs_a_plan_for_planned_alone(
    layout: str, extra: tuple[str, ...], expected: str, launch: Launch
) -> None:
    with pytest.raises(RuntimeError, match=expected):
        launch(1, layout, *extra)


def test_a_cluster_without_rates_has_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is left out with its reason, and the demo goes on."""
    from hetcomm import _core
    from hetcomm.demo import command

    def refuse(*_: object) -> None:
        raise _core.InvalidArgumentError("a NIC 0: expected a rate")

    monkeypatch.setattr(command, "make_plan", refuse)
    settings = runs.Settings(Launcher(run), CLUSTER, 1, 0, 60)
    assert command.planned(Console(file=StringIO()), settings, [], 1e-4, tmp_path, tmp_path) == (
        "No layout was planned: a NIC 0: expected a rate."
    )


def test_a_failed_measurement_is_quoted(tmp_path: Path) -> None:
    cluster = Cluster((Host("a", 1, (Nic(10**9, 10**9),)),))
    from hetcomm.demo import loopback

    settings = runs.Settings(Launcher(loopback.run), cluster, 1, 0, 60)
    with pytest.raises(runs.RunError, match=r"hetcomm profile: rank 0.*(?s:.*)--no-such-option"):
        planning.run_command(
            Console(file=StringIO()), settings, ["profile", "--no-such-option"], tmp_path
        )
