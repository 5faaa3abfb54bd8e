"""What clients cost: structure against what runs record, staleness by hand, sentences, and the shape of the JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fedkeel import build, config
from fedkeel.algorithms.contract import Algorithm, Problem, Round, Uploads
from fedkeel.algorithms.fedavg import FedAvg
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.algorithms.state import State
from fedkeel.cli.cost import count, size
from fedkeel.costs.calibration import Calibration, calibrate
from fedkeel.costs.estimate import Scale, calls, estimate, limits
from fedkeel.costs.structure import Structure, StructureError, find_structure
from fedkeel.costs.trial import Trial, make_trial
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError
from fedkeel.state.rows import Rows
from tests.test_cli import fedkeel

LOGISTIC = 7850
"""Parameters of a logistic model on 784 pixels."""
VECTOR = 4 * LOGISTIC


def experiment(algorithm: str = "fedavg", **tables: dict[str, Any]) -> config.Experiment:
    training = {"rounds": 6, "participation": 0.25, "steps": 1, "batch_size": 5} | tables.pop("training", {})
    table: dict[str, Any] = {
        "data": {"name": "mnist5k", "samples": 200},
        "partition": {"rule": "iid", "clients": 8},
        "model": {"name": "logistic"},
        "algorithm": {"name": algorithm} | tables.pop("params", {}),
        "training": training,
        "run": {"executor": "serial"},
        **tables,
    }
    return config.expand(table, [])[0]


def found(algorithm: str, **tables: dict[str, Any]) -> tuple[Trial, Structure]:
    trial = make_trial(experiment(algorithm, **tables))
    return trial, find_structure(trial)


def in_bytes(state: Any) -> int:
    """Of a server's state, row by row."""

    def one(value: Any) -> int:
        if isinstance(value, Rows):
            return sum(map(one, value.values()))
        return value.numel() * value.element_size() if isinstance(value, Tensor) else 8

    return sum(map(one, state.server.values())) + one(state.b) + one(state.counted)


def stepped(simulation: Simulation, rounds: int) -> tuple[Any, list[Any]]:
    state, records = simulation.start(), []
    for _ in range(rounds):
        if simulation.algorithm.observes:
            state = simulation.observe(state, simulation.feedback(state))
        state, record = simulation.step(state)
        records.append(record)
    return state, records


PARTIAL = [name for name, cls in ALGORITHMS.items() if not cls.needs & {"full", "one_client"}]


@pytest.mark.parametrize("name", PARTIAL)
def test_what_is_found_in_a_trial_is_what_a_run_records(name: str) -> None:
    """The trial has five or eight clients of two samples, and calls one at a time; the run has 8 clients of 25, and
    calls two."""
    staged = name.removesuffix("m") in ("moon", "fedmlb")  # they look inside the model
    params = {"P": 1} if name == "fedreg" else {}
    trial, structure = found(name, params=params, model={"name": "2nn" if staged else "logistic"})
    simulation = build.make_simulation(trial.experiment, federation=trial.federation)
    state, records = stepped(simulation, 6)
    for record in records:
        assert structure.least_down <= record.bytes_down / 2 <= structure.down
        assert structure.least_up <= record.bytes_up / 2 <= structure.up
    heard = int((state.counted > 0).sum())
    assert in_bytes(state) == structure.server_bytes(8, heard, 6)
    rows = {name: sum(row.numel() * row.element_size() for row in t.values()) for name, t in state.clients.items()}
    assert sum(rows.values()) == heard * structure.client_bytes


@pytest.mark.parametrize("name", ["fedavg", "fedbn"])
def test_batchnorm_statistics_are_counted_as_a_run_counts_them(name: str) -> None:
    """FedAvg averages them, so that they travel; with FedBN each client keeps its own."""
    trial, structure = found(name, model={"name": "mlp_gradma"})
    state, records = stepped(build.make_simulation(trial.experiment, federation=trial.federation), 3)
    assert {(record.bytes_down // 2, record.bytes_up // 2) for record in records} == {(structure.down, structure.up)}
    assert in_bytes(state) == structure.server_bytes(8, int((state.counted > 0).sum()), 3)
    kept = {"beta", "buffers"} if name == "fedbn" else set()
    assert structure.client.keys() == kept
    if kept:
        assert structure.client["buffers"] == trial.task.b0.numel() * 4


def test_a_robust_rule_gets_as_many_clients_as_it_needs() -> None:
    """The median bears two hostile uploads of five; fewer clients a round are refused, also at another scale."""
    robust = {"robust": {"rule": "median", "f": 2}, "faults": {"bad_update": "skip-client"}}
    trial, structure = found("fedavg", **robust, training={"participation": 1.0})
    assert (structure.down, structure.up, structure.own) == (VECTOR, VECTOR, VECTOR)
    with pytest.raises(InputError, match=r"--per-round must be from 5 to the 1,000 clients that there are, got 4"):
        estimate(trial, structure, None, 1000, 4, 1, 10**9, 1)


@pytest.mark.parametrize("name", ["vrlsgd", "centralised"])
def test_algorithms_that_need_all_or_one(name: str) -> None:
    """VRL-SGD's clients keep one vector and one number; with three clients more the server keeps 4 bytes for each."""
    _, structure = found(name, **({"partition": {"clients": 1}} if name == "centralised" else {}))
    assert structure.needs_all
    assert (structure.down, structure.up, structure.own) == (VECTOR, VECTOR, VECTOR)
    assert structure.registered == 4
    assert structure.client_bytes == (VECTOR + 4 if name == "vrlsgd" else 0)


def test_what_some_algorithms_keep_by_hand() -> None:
    """SCAFFOLD sends w and c; its client keeps c_i. MIFA's table has a vector for each client heard, and a weight of 4
    bytes for each registered one beside the last round counted. GradMA-S has w and m, a vector, an entry, a counter and
    an age (8 bytes each) for each client heard, and 8 bytes for each pair."""
    _, scaffold = found("scaffold")
    assert (scaffold.down, scaffold.up, scaffold.client) == (2 * VECTOR, VECTOR, {"c": VECTOR})
    _, mifa = found("mifa")
    assert (mifa.remembered, mifa.registered, mifa.pairs, mifa.vectors) == (VECTOR, 8, 0, 1)
    assert mifa.server_bytes(1000, 10, 7) == VECTOR + 10 * VECTOR + 8000
    _, gradma = found("gradma_s")
    assert (gradma.remembered, gradma.registered, gradma.pairs) == (VECTOR + 24, 4, 8)
    assert gradma.own == 2 * VECTOR + 16  # and the two bounds of its one block


@pytest.mark.parametrize("m", [2, 4])
def test_a_bounded_memory_is_bounded(m: int) -> None:
    """With room for m of eight clients, the table does not grow with the others; m = 2 is full before it could grow."""
    trial, structure = found("gradma_s", params={"m": m})
    state, _ = stepped(build.make_simulation(trial.experiment, federation=trial.federation), 6)
    assert int((state.counted > 0).sum()) > m
    assert in_bytes(state) == structure.server_bytes(8, int((state.counted > 0).sum()), 6)
    assert structure.server_bytes(10**6, 10**6, 6) == structure.server_bytes(10**6, m, 6)
    made = calibrate(trial, structure, turns=1)
    assert estimate(trial, structure, made, 10**6, m, 1000, 10**9, 1).memory.server < 10 * VECTOR + 5 * 10**6
    with pytest.raises(
        InputError, match=rf"--per-round must be at most the {m} clients that GradMA-S remembers, got 5"
    ):
        estimate(trial, structure, made, 10**6, 5, 1000, 10**9, 1)


class Cubes(FedAvg):
    """Remembers as many numbers as the cube of its rounds: nothing that is known here."""

    name = "cubes"

    def server_init(self, problem: Problem) -> State:
        return State(w=problem.w0, seen=problem.sizes.new_zeros(0))

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        w = uploads.y.mean(0)
        return server.replace(w=w, seen=uploads.clients.sizes.new_zeros((round.t + 1) ** 3))


def test_growth_that_is_not_understood_is_an_error() -> None:
    trial = make_trial(experiment())
    odd: Algorithm = Cubes()
    with pytest.raises(StructureError, match=r"does not grow by clients, pairs of clients and rounds: .* bytes"):
        find_structure(Trial(trial.experiment, trial.federation, trial.task, odd))


def test_how_often_clients_are_called_by_hand() -> None:
    """q = 1/2 and three rounds: never 1/8, once 3/8, so 7/8 at least once and 1/2 at least twice; every other round.
    With q = 10^-6 and 1,000 rounds, C(1000, 2)·q² = 4.995·10^-7, less a share of 10^-3: digits that 1 − (1 − q)^R − …
    would have lost."""
    often = calls(10, 5, 3)
    assert (often.wait, often.once, often.twice) == pytest.approx((2, 7 / 8, 1 / 2))
    seldom = calls(10**8, 100, 1000)
    assert seldom.once == pytest.approx(1e-3, rel=1e-3)
    assert seldom.twice == pytest.approx(4.995e-7, rel=1e-3)
    assert calls(10, 10, 2).twice == 1
    assert calls(10, 10, 1).twice == 0


PLAIN = Structure(
    d=10,
    down=40,
    up=40,
    least_down=40,
    least_up=40,
    client={},
    own=40,
    registered=4,
    remembered=0,
    pairs=0,
    grown=0,
    vectors=0,
    most=None,
    needs_all=False,
    one_client=False,
    gradients_a_step=1.0,
    passes_a_round=0.0,
)
"""Of an algorithm that keeps nothing of clients."""


def plain(**changes: Any) -> Structure:
    return replace(PLAIN, **changes)


def test_limits_say_what_stops_and_why() -> None:
    """A million clients of which 10 are called in 100 rounds: 1,000 are heard, and of 40 bytes each a table of 40 kB
    stands against a machine of 10 kB. A client has its turn in 100,000 rounds."""
    scale = Scale(10**6, 10, 100, 10_000, 1)
    often = calls(10**6, 10, 100)
    assert limits("A", plain(), scale, often, 10) == ()
    (table,) = limits("A", plain(remembered=40), scale, often, 10)
    assert (table.what, table.stops) == ("table", True)
    assert "40 kB after 100 rounds, 40 MB when all were heard, more than the 10 kB" in table.why
    assert limits("A", plain(remembered=40, most=100), scale, often, 10) == ()
    rows, unused = limits("A", plain(client={"c": 40}), scale, often, 10)
    assert (rows.what, rows.stops, unused.what, unused.stops) == ("rows", False, "unused", True)
    assert "once in 100,000 rounds" in unused.why
    assert "hardly ever used, and A gains nothing by it." in unused.why
    (full,) = limits("A", plain(needs_all=True), Scale(100, 100, 9, 10_000, 1), calls(100, 100, 9), 10)
    assert (full.what, full.stops) == ("full", True)


TURN = {
    "fixed": 1.0, "client": 0.5, "step": 0.25, "upload": 0.125, "row": 0.01, "row_upload": 0.001, "pair": 1e-4,
    "registered": 1e-3, "commit": 2.0, "commit_client": 0.1, "commit_registered": 1e-4,
    "test": 3.0, "client_score": 0.0,
}  # fmt: skip


def test_times_add_up_by_hand() -> None:
    """N = 100 clients, all S = 100 of them for R = 1 round of two steps: clients 100·(½ + 2·¼) = 100 s; the server
    1 + 100·⅛ + 100·10^-3 = 13.6 s, nothing remembered; the commit 2 + 10 + 0.01 = 12.01 s; the test set 3 s. On four
    times the cores the clients take 25 s. Turns that differ by 10 % either way spread by 10 %."""
    trial, structure = found("fedavg")
    turns = tuple({name: value * factor for name, value in TURN.items()} for factor in (0.9, 1.0, 1.1))
    made = Calibration(turns, 1, "serial", 2.0)
    one = estimate(trial, structure, made, 100, 100, 1, 10**12, 4)
    assert one.round_seconds is not None
    assert one.their_seconds is not None
    assert one.round_seconds.value == pytest.approx(128.61)
    assert one.round_seconds.spread == pytest.approx(12.861)
    assert one.their_seconds.value == pytest.approx(53.61)
    assert (one.down, one.up) == (100 * VECTOR, 100 * VECTOR)


def test_what_is_remembered_takes_time_by_rows_and_pairs() -> None:
    """S = 2, N = 10 and b = 4: 1 + 2·(⅛ + 4·10^-3) + 4·0.01 + 16·10^-4 + 10·10^-3 = 1.3096 s; where b is a mean, the
    mean of its squares counts."""
    made = Calibration((TURN,), 1, "serial", 1.0)
    assert made.server(2, 10, 4).value == pytest.approx(1.3096)
    assert made.server(2, 10, 4, 20.0).value == pytest.approx(1.31)


def test_all_data_in_one_place_takes_everybodys_steps() -> None:
    """Eight clients of 25 samples, batches of 5: for 80 such clients an epoch in one place has 400 steps of ¼ s."""
    work = {"steps": None, "epochs": 1, "participation": 1.0}
    trial, structure = found("centralised", training=work, partition={"rule": "iid", "clients": 8})
    one = estimate(trial, structure, Calibration((TURN,), 1, "serial", 5.0), 80, 8, 1, 10**12, 1)
    beside = 1 + 0.125 + 1e-3 + 2 + 0.1 + 1e-4 + 3
    assert one.round_seconds is not None
    assert one.round_seconds.value == pytest.approx(0.5 + 400 * 0.25 + beside)
    assert one.memory.data > 80 * 25 * 784


def test_more_clients_a_round_than_there_are_is_refused() -> None:
    trial, structure = found("fedavg")
    with pytest.raises(InputError, match=r"--per-round must be at most 10, all clients, got 11"):
        estimate(trial, structure, None, 10, 11, 1, 10**9, 1)


@pytest.mark.parametrize(("text", "value"), [("1e7", 10**7), ("10_000_000", 10**7), ("12", 12), ("2.5e3", 2500)])
def test_numbers_as_people_write_them(text: str, value: int) -> None:
    assert count("--clients", text) == value


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "nan", "inf", "many", "", "1e99", "_", "1e-3"])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--clients must be a whole number of at least 1, such as 1e7 or 10_000_000"):
        count("--clients", text)


def test_sizes_with_units() -> None:
    assert [size("--memory", text) for text in ("64GB", "1.5 tb", "2MiB")] == [64 * 10**9, 15 * 10**11, 2 << 20]
    for text in ("64", "GB", "64 apples", "0GB", "-1GB"):
        with pytest.raises(InputError, match=r"--memory must be a number with a unit, such as 64GB"):
            size("--memory", text)


FILE = """
[data]
name = "mnist5k"
samples = 200
[partition]
rule = "iid"
clients = 8
[model]
name = "logistic"
[training]
rounds = 3
participation = 0.25
[run]
executor = "serial"
[sweep]
algorithm = ["scaffold", "fedavg"]
"""


def test_the_command_tells_programs(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE, encoding="utf-8")
    scale = ("--clients", "1e7", "--per-round", "100", "--rounds", "1000", "--memory", "64GB")
    result = fedkeel("cost", "a.toml", *scale, "--machines-cores", "16", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["runs_in_file"] == 2
    (one,) = told["estimates"]
    assert one["algorithm"] == "scaffold"
    assert (one["clients"], one["clients_a_round"], one["rounds"]) == (10**7, 100, 1000)
    assert one["bytes_a_round"] == {"down": 200 * VECTOR, "up": 100 * VECTOR}
    assert one["bytes_in_all"]["up"] == 100_000 * VECTOR
    assert one["site_bytes"] == VECTOR
    assert [limit["what"] for limit in one["limits"]] == ["unused"]
    assert set(one["seconds"]) == {"round", "all", "all_on_machines"}
    assert one["seconds"]["round"]["value"] > 0
    assert one["calibration"]["executor"] == "serial"


def test_the_command_tells_people_and_makes_tables(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE, encoding="utf-8")
    result = fedkeel("cost", "a.toml", "--clients", "1e6", "--no-time", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "1,000,000 clients, 2 a round, 3 rounds" in result.stdout
    assert "The file stands for 2 runs; this is about the first." in result.stdout
    table = fedkeel("cost", "a.toml", "--algorithms", "mifa,scaffold,fedavg", "--no-time", cwd=tmp_path)
    assert [name for name in ("mifa", "scaffold", "fedavg") if f"\n{name}" in table.stdout]
    wrong = fedkeel("cost", "a.toml", "--algorithms", "mifa,fedavgg", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "Did you mean 'fedavg'" in wrong.stderr
