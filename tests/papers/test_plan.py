"""What has to be run for which table, derived by hand; and that the key of a run is what decides its numbers."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from fedkeel import config
from fedkeel.errors import InputError
from fedkeel.papers.api import MOST_SEEDS, plan_of
from fedkeel.papers.format import SCALES, Exhibit, Measure, Scale, exhibit, exhibits, papers, read, sections_of
from fedkeel.papers.plan import Plan, key, plan, planned, target
from tests.papers.test_format import PAPER, record

EXPERIMENT: dict[str, Any] = {
    "seed": 0,
    "data": {"name": "mnist5k", "samples": 500},
    "partition": {"rule": "dirichlet", "clients": 4, "alpha": 0.5},
    "model": {"name": "logistic"},
    "algorithm": {"name": "feddc", "alpha": 0.1},
    "training": {"rounds": 3, "epochs": 2, "lr": 0.1, "participation": 0.5},
    "evaluation": {"every": 2},
}


def made(table: dict[str, Any]) -> config.Experiment:
    (experiment,) = config.expand(table, [])
    return experiment


def changed(path: str, value: object) -> config.Experiment:
    *inside, last = path.split(".")
    whole = copy.deepcopy(EXPERIMENT)
    table: Any = whole
    for part in inside:
        table = table.setdefault(part, {})
    table[last] = value
    return made(whole)


def test_a_key_does_not_depend_on_the_order_of_fields() -> None:
    rng = random.Random(0)

    def shuffled(table: dict[str, Any]) -> dict[str, Any]:
        items = list(table.items())
        rng.shuffle(items)
        return {name: shuffled(value) if isinstance(value, dict) else value for name, value in items}

    assert {key(made(shuffled(EXPERIMENT))) for _ in range(20)} == {key(made(EXPERIMENT))}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", 1),
        ("data.name", "mnist"),
        ("data.samples", 501),
        ("data.normalise", "unit"),
        ("partition.rule", "dirichlet_fedmlb"),
        ("partition.clients", 5),
        ("partition.alpha", 0.6),
        ("partition.seed", 7),
        ("model.name", "mlp_2nn"),
        ("model.seed", 7),
        ("algorithm.name", "feddyn"),
        ("algorithm.alpha", 0.2),
        ("training.epochs", 2.5),
        ("training.lr", 0.2),
        ("training.lr_decay", 0.9),
        ("training.participation", 0.75),
        ("training.sampling", "bernoulli"),
        ("training.batch_size", 10),
        ("training.momentum", 0.9),
        ("training.clip", 1.0),
        ("faults.dropout", 0.1),
        ("evaluation.every", 1),
        ("evaluation.train", True),
    ],
)
def test_whatever_decides_a_number_changes_the_key(path: str, value: object) -> None:
    assert key(changed(path, value)) != key(made(EXPERIMENT))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("run.executor", "serial"),
        ("run.threads", 2),
        ("training.rounds", 9),
        ("training.until", {"accuracy": 0.9}),
        ("training.epochs", 2.0),
        ("data.subset_ok", False),  # the default, spelt out
    ],
)
def test_what_decides_only_how_much_is_computed_does_not(path: str, value: object) -> None:
    assert key(changed(path, value)) == key(made(EXPERIMENT))


def test_rounds_count_where_the_learning_rate_follows_them() -> None:
    table = copy.deepcopy(EXPERIMENT)
    table["training"] |= {"lr_schedule": "cosine"}
    longer = copy.deepcopy(table)
    longer["training"]["rounds"] = 4
    assert key(made(table)) != key(made(longer))


def test_a_run_that_shares_anothers_work_depends_on_it() -> None:
    paper = papers()["fedveca"]
    one, other = (planned(paper, setting, "fedavg") for setting in ("svm", "svm-case1"))
    assert one.like is not None
    assert one.like.method == "fedveca"
    assert key(one.experiment) != one.key
    assert key(one.experiment, one.like) == one.key != other.key


def count(whole: Plan) -> tuple[int, int, int]:
    return len(whole.cells), len(whole.runs), len({(run.key, run.rounds) for run in whole.runs})


def test_feddc_table_1_has_five_methods_in_thirty_columns() -> None:
    """5 data sets × 2 participations × 3 partitions × 5 methods = 150 cells; 12 columns (60 cells) need a GPU.

    Of the 18 others the three of MNIST, 15 %, have 3 seeds: 15·5 + 3·5·3 = 120 runs; with --seeds 1: 90.
    """
    whole = plan([exhibit("feddc.table1")])
    assert count(whole) == (150, 120, 120)
    assert sum(bool(cell.why_not) for cell in whole.cells) == 60
    assert count(plan([exhibit("feddc.table1")], seeds=1))[1] == 90


def test_tables_and_figures_share_their_runs() -> None:
    """Tables 1 and 3: 18 + 14 columns can be run here, of which six (MNIST iid, D1, D2, twice) are in both: 26·5."""
    whole = plan([exhibit("feddc.table1"), exhibit("feddc.table3")], seeds=1)
    assert count(whole)[1] == 26 * 5
    alone = {run.name: run for run in plan([exhibit("feddc.table1")], seeds=1).runs}
    together = {run.name: run for run in whole.runs}
    assert alone["mnist-d2-15--feddc--seed0"].until is not None
    assert together["mnist-d2-15--feddc--seed0"].until is None  # Table 3 wants all rounds
    assert together["emnist-d2-15--feddc--seed0"].until == alone["emnist-d2-15--feddc--seed0"].until


def test_what_is_named_is_run_without_what_it_needs() -> None:
    (cell,) = plan([exhibit("feddc.table1")], only=["cifar10-d2-15"], methods=["feddc"]).cells
    assert not cell.why_not
    assert len(cell.runs) == 1
    all_cells = plan([exhibit("feddc.table1")], methods=["feddc"], seeds=1).cells
    (other,) = [cell for cell in all_cells if cell.part == "cifar10-d2-15"]
    assert "a GPU" in other.why_not


def test_those_whose_work_is_shared_come_first_and_go_to_their_end() -> None:
    whole = plan([exhibit("fedveca.table1")], only=["svm"], methods=["fedavg"], seeds=2)
    assert [(run.method, run.seed) for run in whole.runs] == [
        ("fedveca", 0),
        ("fedveca", 1),
        ("fedavg", 0),
        ("fedavg", 1),
    ]
    assert all(run.until is None for run in whole.runs)


@pytest.mark.parametrize(
    ("only", "methods", "said"),
    [(["mnist-d2-51"], [], "mnist-d2-15"), ([], ["fedc"], "feddc")],
)
def test_names_that_are_not_there_are_refused(only: list[str], methods: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan([exhibit("feddc.table1")], only=only, methods=methods)


def test_the_hardest_target_contents_all() -> None:
    def to(value: float, metric: str = "accuracy") -> Measure:
        return Measure.model_validate({"kind": "rounds_to", "metric": metric, "target": value})

    both = target([to(0.8), to(0.9)])
    assert both is not None
    assert both.accuracy == 0.9
    losses = target([to(0.8, "loss"), to(0.45, "loss")])
    assert losses is not None
    assert losses.loss == 0.45
    assert target([to(0.8), Measure(kind="best")]) is None
    assert target([to(0.8, "train_loss")]) is None
    best_of = Measure.model_validate({"kind": "rounds_to", "target": {"best_of": "fedavg"}})
    assert target([best_of]) is None


def test_a_record_serves_if_it_has_all_rounds_or_met_the_target() -> None:
    run = plan([exhibit("feddc.table1")], only=["mnist-d2-15"], methods=["feddc"], seeds=1).runs[0]
    names: dict[str, Any] = {"key": run.key, "ended": "until", "rounds": 60}
    reached = {"accuracy": ((59, 60), (0.97, 0.981)), "loss": ((59, 60), (0.1, 0.1))}
    short = {"accuracy": ((59, 60), (0.97, 0.979)), "loss": ((59, 60), (0.1, 0.1))}
    assert run.served_by(record(**names, series=reached))
    assert not run.served_by(record(**names, series=short))
    assert not run.served_by(record(**names | {"key": "other"}, series=reached))
    assert run.served_by(record(**names | {"rounds": 600, "ended": "finished"}, series=short))
    assert run.served_by(record(**names | {"ended": "diverged"}, series=short))
    assert not run.served_by(None)


def test_the_first_rounds_alone_are_the_same_run() -> None:
    only, methods = ["mnist-d2-15"], ["feddc"]
    whole = plan([exhibit("feddc.table1")], only=only, methods=methods, seeds=1).runs[0]
    first = plan([exhibit("feddc.table1")], only=only, methods=methods, seeds=1, rounds=50).runs[0]
    assert (whole.rounds, first.rounds, first.key, first.name) == (600, 50, whole.key, whole.name)
    assert (whole.budget, first.budget) == (600, 600)
    begun = record(key=whole.key, rounds=50)
    assert first.served_by(begun)
    assert not whole.served_by(begun)
    assert plan([exhibit("feddc.table1")], only=only, methods=methods, seeds=1, rounds=900).runs[0] == whole


def test_a_run_whose_numbers_depend_on_its_length_is_not_cut() -> None:
    """Prediction sets are those of the last round."""
    with pytest.raises(InputError, match="cannot be cut after round 10"):
        plan([exhibit("fedpmvr.figure5")], rounds=10)


def test_scales_replace_what_they_say() -> None:
    paper = papers()["feddc"]
    full, reduced, smoke = (
        planned(paper, "cifar10-d2-15", "feddc", scale).experiment for scale in ("full", "reduced", "smoke")
    )
    assert (full.training.rounds, full.training.epochs, full.data.samples) == (1000, 5, None)
    assert (reduced.training.rounds, reduced.training.epochs, reduced.data.samples) == (40, 2, 10000)
    assert reduced.data.augment == full.data.augment == "flip_crop_half"
    assert (smoke.data.name, smoke.data.augment, smoke.model.name) == ("mnist5k", None, "logistic")
    assert full.algorithm_params() == {"alpha": 0.01}  # said at cifar10, for all that inherit from it
    assert planned(paper, "mnist-d2-15", "feddc").experiment.algorithm_params() == {"alpha": 0.1}


def test_what_needs_no_reduction_is_run_in_full() -> None:
    (run,) = plan([exhibit("fedveca.figure8")], "reduced", only=["tau"]).runs
    assert run.scale == "full"
    assert run.name == "svm--fedveca--seed0"


def test_a_method_has_the_last_word() -> None:
    """The setting's lr is 0.2 (its own over its base's 0.1), the method's 0.3, its own at the setting 0.4."""
    text = PAPER.replace("[methods.feddc]", "[methods.feddc]\ntraining = { lr = 0.3 }")
    assert sections_of(read("p", PAPER), "child", "feddc")["training"]["lr"] == 0.2
    assert sections_of(read("p", text), "child", "feddc")["training"]["lr"] == 0.3
    text = text.replace("[methods.fedavg]", "[methods.feddc.at.base]\ntraining = { lr = 0.4 }\n[methods.fedavg]")
    assert sections_of(read("p", text), "child", "feddc")["training"]["lr"] == 0.4
    assert sections_of(read("p", text), "child", "fedavg")["training"]["lr"] == 0.2


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('data = { name = "mnist", normalise = "unit" }', 'data = { name = "minst" }', "mnist"),
        ("lr = 0.2", "rate = 0.2", "rate"),
        ("[methods.feddc]", "[methods.feddc]\nparams = { alhpa = 1.0 }", "alpha"),
        ("[methods.feddc]", '[methods.feddc]\nmodel = { name = "mpl_2nn" }', "mlp_2nn"),
    ],
)
def test_what_cannot_be_run_is_named_with_its_file_setting_and_method(was: str, now: str, said: str) -> None:
    assert was in PAPER
    setting = "base" if "mnist" in was else "child"
    with pytest.raises(InputError, match=f"slip.toml: settings.{setting} with methods.feddc") as caught:
        planned(read("slip", PAPER.replace(was, now, 1)), setting, "feddc")
    assert said in str(caught.value)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("one", exhibits().values(), ids=list(exhibits()))
def test_every_exhibit_can_be_planned_at_every_scale(one: Exhibit, scale: Scale) -> None:
    whole = plan([one], scale, only=[part.id for part in one.parts], seeds=1)
    assert len(whole.cells) == sum(len(part.lines) for part in one.parts)
    assert all(cell.runs or cell.why_not for cell in whole.cells)


def test_more_seeds_than_anybody_means_are_refused_before_they_are_planned() -> None:
    """Ten million of them would be made one by one."""
    for seeds in (0, MOST_SEEDS + 1, 10_000_000):
        with pytest.raises(InputError, match=rf"seeds must be a whole number from 1 to {MOST_SEEDS}, got {seeds}"):
            plan_of("fedveca.figure10", seeds=seeds)
