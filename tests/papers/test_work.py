"""Runs of papers in processes of their own: what is used again, what survives a kill, what a failure costs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel.cli.main import app
from fedkeel.cli.screen import console
from fedkeel.engine.settings import Until
from fedkeel.errors import InputError
from fedkeel.papers import crew
from fedkeel.papers.format import Paper, papers, read
from fedkeel.papers.plan import Planned, plan, planned
from fedkeel.papers.records import Record, Records, path_of
from fedkeel.papers.sharing import Work
from fedkeel.papers.work import News, work
from fedkeel.papers.worker import kept_values, with_work
from fedkeel.runs.history import History
from fedkeel.runs.recorded import as_json

ROOT = Path(__file__).parents[2]
SMALL = """
[paper]
title = "T"
authors = "A"
venue = "V"
own = ["feddc"]
[settings.small]
where = "here"
data = { name = "mnist5k", samples = 300 }
partition = { rule = "dirichlet", clients = 4, alpha = 0.5 }
model = { name = "logistic" }
training = { rounds = 4, lr = 0.1, batch_size = 20 }
[settings.twin]
base = "small"
[settings.wild]
base = "small"
training = { lr = 1e30, weight_decay = 1.0 }
[settings.seldom]
base = "small"
evaluation = { every = 2 }
[settings.nowhere]
base = "small"
data = { name = "cifar100", samples = 10 }
[settings.sets]
base = "small"
sets = { method = "lac" }
[methods.fedveca]
[methods.fedavg]
[methods.sharing]
algorithm = "fedavg"
work_of = "fedveca"
"""


@pytest.fixture(scope="module")
def paper() -> Paper:
    return read("small", SMALL)


def test_every_smoke_scale_runs(tmp_path: Path) -> None:
    """One command for all papers: what is the same at smoke scale is computed once."""
    whole = plan([one for paper in papers().values() for one in paper.exhibits.values()], "smoke")
    outcome = work(whole.runs, tmp_path, workers=0)
    assert outcome.failures == {}
    assert len(outcome.records) == len(whole.runs)
    found = Records.of(tmp_path)
    assert len(found) == len(whole.runs)
    for cell in whole.cells:
        assert cell.why_not or all(run.served_by(outcome.of(run)) for run in cell.runs)


def told(runs: list[Planned], out: Path, **options: Any) -> list[tuple[str, str]]:
    heard: list[News] = []
    work(runs, out, 0, hear=heard.append, **options)
    return [(news.kind, news.run.name) for news in heard if news.kind not in ("round", "began")]


def test_runs_of_one_key_are_one_run_and_records_are_used_again(paper: Paper, tmp_path: Path) -> None:
    runs = [planned(paper, setting, "fedavg") for setting in ("small", "twin")]
    assert runs[0].key == runs[1].key
    assert told(runs, tmp_path) == [("done", "small--fedavg--seed0"), ("done", "twin--fedavg--seed0")]
    assert [folder.name for folder in (tmp_path / "runs" / "small").iterdir()] == ["small--fedavg--seed0"]
    assert told(runs, tmp_path) == [("kept", "small--fedavg--seed0"), ("kept", "twin--fedavg--seed0")]
    path_of(tmp_path / "records", outcome_of(runs[1], tmp_path)).unlink()
    assert told(runs, tmp_path) == [("kept", "small--fedavg--seed0"), ("done", "twin--fedavg--seed0")]


def test_what_is_published_is_used_again_only_where_asked_for(paper: Paper, tmp_path: Path) -> None:
    runs = [planned(paper, "small", "fedavg", seed=seed) for seed in (0, 1)]
    work(runs[:1], tmp_path / "theirs", workers=0)
    heard: list[tuple[str, int]] = []
    published = tmp_path / "theirs" / "records"
    outcome = work(
        runs, tmp_path / "mine", workers=0, hear=lambda n: heard.append((n.kind, n.run.seed)), published=published
    )
    assert [one for one in heard if one[0] in ("kept", "done")] == [("kept", 0), ("done", 1)]
    assert len(outcome.records) == 2
    assert [one.seed for one in Records.of(tmp_path / "mine")] == [1], "published records stay where they are"
    assert told(runs[:1], tmp_path / "mine") == [("done", "small--fedavg--seed0")]
    stale = outcome_of(runs[0], tmp_path / "theirs").model_copy(update={"key": "0" * 64})
    path_of(published, stale).write_text(as_json(stale), encoding="utf-8")
    with pytest.raises(InputError, match=r"in .*/theirs/records is not one of .*; leave --published out"):
        work(runs[:1], tmp_path / "third", workers=0, published=published)


def outcome_of(run: Planned, out: Path) -> Record:
    found = Records.of(out).get(run.paper, run.setting, run.method, run.seed, run.scale)
    assert found is not None
    return found


def test_a_run_that_had_reached_its_target_goes_on_when_more_is_wanted(paper: Paper, tmp_path: Path) -> None:
    from dataclasses import replace

    whole = planned(paper, "small", "fedavg")
    easy = replace(whole, until=Until(accuracy=0.05))
    work([easy], tmp_path, 0)
    assert (outcome_of(easy, tmp_path).rounds, outcome_of(easy, tmp_path).ended) == (1, "until")
    work([whole], tmp_path, 0)
    longer = outcome_of(whole, tmp_path)
    assert (longer.rounds, longer.ended) == (4, "finished")
    work([whole], tmp_path / "undisturbed", 0)
    assert same(longer) == same(outcome_of(whole, tmp_path / "undisturbed"))
    assert told([easy], tmp_path) == [("kept", whole.name)]


def test_the_first_rounds_are_kept_and_gone_on_with(paper: Paper, tmp_path: Path) -> None:
    """Evaluated after rounds 2 and 4: asked for three, two are run, so that the record is a whole run's."""
    from fedkeel.papers.plan import _first_rounds

    whole = planned(paper, "seldom", "fedavg")
    first = _first_rounds(whole, 3)
    work([first], tmp_path, 0)
    assert (outcome_of(first, tmp_path).rounds, outcome_of(first, tmp_path).ended) == (2, "finished")
    assert _first_rounds(whole, 1).rounds == 2
    assert _first_rounds(whole, 5) == whole
    work([whole], tmp_path, 0)
    work([whole], tmp_path / "undisturbed", 0)
    assert same(outcome_of(whole, tmp_path)) == same(outcome_of(whole, tmp_path / "undisturbed"))
    assert told([first], tmp_path) == [("kept", whole.name)]


def same(one: Record) -> dict[str, Any]:
    """A record without what differs between two equal runs."""
    return one.model_dump(exclude={"seconds"})


def test_a_run_that_diverges_is_recorded_and_not_tried_again(paper: Paper, tmp_path: Path) -> None:
    run = planned(paper, "wild", "fedavg")
    assert told([run], tmp_path) == [("done", run.name)]
    ended = outcome_of(run, tmp_path)
    assert ended.ended == "diverged"
    assert ended.diverged
    assert ended.rounds < 4
    assert told([run], tmp_path) == [("kept", run.name)]


def test_what_fails_in_one_run_is_a_sentence_and_the_rest_goes_on(
    paper: Paper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for proxy in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # whatever is asked for cannot be downloaded
    runs = [planned(paper, setting, "fedavg") for setting in ("nowhere", "small")]
    outcome = work(runs, tmp_path, 0)
    assert list(outcome.records) == ["small/small--fedavg--seed0"]
    assert list(outcome.failures) == ["small/nowhere--fedavg--seed0"]
    assert "cifar" in outcome.failures["small/nowhere--fedavg--seed0"].lower()


def test_the_work_of_another_is_shared_by_the_clients_data(paper: Paper, tmp_path: Path) -> None:
    """E = τ_all/rounds·B/n: client i takes ⌊E·n_i/B⌋ steps in each round, at least one."""
    from fedkeel import build

    run = planned(paper, "small", "sharing")
    assert run.like is not None
    outcome = work([run.like, run], tmp_path, 0)
    leader, own = outcome.of(run.like), outcome.of(run)
    assert leader is not None
    assert own is not None
    sizes = build.make_federation(run.experiment).sizes
    per_round = [max(1, int(leader.steps / 4 * n / 300 * (1 + 1e-9))) for n in sizes]
    assert own.steps == 4 * sum(per_round)
    assert own.experiment["training"]["epochs"] == pytest.approx(leader.steps / 4 * 20 / 300)


def test_prediction_sets_are_measured_after_the_last_round(paper: Paper, tmp_path: Path) -> None:
    """They are those of the same run elsewhere. A record without them is not enough; nothing is trained again."""
    run = planned(paper, "sets", "fedavg")
    assert run.key != planned(paper, "small", "fedavg").key
    record = work([run], tmp_path, 0).of(run)
    assert record is not None
    expected = fk.run(run.experiment, tmp_path / "elsewhere").conformal("lac").curve
    assert record.sets == tuple(
        (pytest.approx(1 - one.alpha), pytest.approx(one.coverage, rel=1e-5), pytest.approx(one.size, rel=1e-5))
        for one in expected
    )
    bare = record.model_copy(update={"sets": ()})
    assert not run.served_by(bare)
    path_of(tmp_path / "records", record).write_text(as_json(bare))
    assert told([run], tmp_path) == [("done", run.name)]
    again = outcome_of(run, tmp_path)
    assert (again.sets, again.series, again.seconds) == (record.sets, record.series, record.seconds)


def test_a_single_client_takes_all_of_the_work(paper: Paper) -> None:
    experiment = planned(paper, "small", "sharing").experiment
    one = Work(steps=119, rounds=4, clients=1, samples=300)
    assert with_work(experiment, one).training.steps == 30


def test_who_shares_the_work_of_a_run_that_failed_says_so(paper: Paper, tmp_path: Path) -> None:
    run = planned(paper, "wild", "sharing")
    assert run.like is not None
    outcome = work([run.like, run], tmp_path, 0)
    assert "shares the work of fedveca: it diverged" in outcome.failures["small/wild--sharing--seed0"]


def test_a_record_of_another_configuration_is_refused(paper: Paper, tmp_path: Path) -> None:
    run = planned(paper, "small", "fedavg")
    work([run], tmp_path, 0)
    other = read("small", SMALL.replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(InputError, match=r"not one of small\.toml as it is now: it is of another configuration"):
        work([planned(other, "small", "fedavg")], tmp_path, 0)


def test_a_worker_that_is_killed_costs_its_run_only(
    paper: Paper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is killed when it has its first run; another takes the rest."""
    killed: list[int] = []
    give = crew.Process.give

    def give_and_kill(self: Any, run: Planned, job: Any) -> None:
        if not killed:
            killed.append(self._process.pid)
            os.kill(self._process.pid, signal.SIGKILL)
        give(self, run, job)

    monkeypatch.setattr(crew.Process, "give", give_and_kill)
    runs = [planned(paper, "small", "fedavg", seed=seed) for seed in range(2)]
    outcome = work(runs, tmp_path, 1)
    assert list(outcome.records) == ["small/small--fedavg--seed1"]
    assert "ended by signal 9" in outcome.failures["small/small--fedavg--seed0"]
    assert work(runs, tmp_path, 1).failures == {}


def test_stopping_keeps_whole_rounds(paper: Paper, tmp_path: Path) -> None:
    runs = [planned(paper, "small", "fedavg", seed=seed) for seed in range(2)]
    heard: list[News] = []
    outcome = work(runs, tmp_path, 0, hear=heard.append, stop=lambda: any(news.kind == "round" for news in heard))
    assert outcome.stopped
    assert [news.kind for news in heard][-1] == "stopped"
    assert not outcome.records
    assert set(work(runs, tmp_path, 0).records) == {"small/small--fedavg--seed0", "small/small--fedavg--seed1"}


def started(out: Path, *words: str) -> subprocess.Popen[bytes]:
    """A real ``fedkeel paper run`` in a group of its own."""
    command = [sys.executable, "-c", "from fedkeel.cli.main import run; run()", "paper", "run", *words]
    return subprocess.Popen(
        [*command, "--scale", "smoke", "--workers", "1", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


EXHIBIT = ("fedveca.figure9", "--only", "loss")
"""Three runs at smoke scale."""


def test_a_killed_command_goes_on_to_the_same_records(tmp_path: Path) -> None:
    """SIGKILL to the whole group at two random instants while runs go on; then once to the end."""
    rng = random.Random(os.urandom(8))
    for _ in range(2):
        process = started(tmp_path / "killed", *EXHIBIT)
        deadline = time.monotonic() + 60
        before = stores(tmp_path / "killed")
        while stores(tmp_path / "killed") == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(rng.random() * 0.5)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for folder in ("killed", "undisturbed"):
        process = started(tmp_path / folder, *EXHIBIT)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    killed, undisturbed = (without_seconds(tmp_path / folder) for folder in ("killed", "undisturbed"))
    assert len(killed) == 3
    assert killed == undisturbed


def stores(out: Path) -> list[tuple[str, int]]:
    """What has been written of runs so far."""
    return sorted((str(path), path.stat().st_mtime_ns) for path in out.glob("runs/*/*/*") if path.is_file())


def without_seconds(out: Path) -> dict[str, list[str]]:
    """The lines of all records but the one that is about time."""
    return {
        path.name: [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith('"seconds"')]
        for path in sorted(out.glob("records/*/*.json"))
    }


def test_workers_of_a_command_that_was_killed_end_with_it(tmp_path: Path) -> None:
    process = started(tmp_path, *EXHIBIT)
    deadline = time.monotonic() + 60
    while not stores(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()  # this one alone: its workers notice
    process.communicate()
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a worker outlived its command by a minute")


def test_a_record_has_the_values_of_single_clients_that_figures_show() -> None:
    """FedVeca's show τ, β, δ and A of every client, and numbers of the server."""
    fedveca = papers()["fedveca"]
    assert set(fedveca.drawn_values) == {"premise", "tau", "tau_bar", "L", "beta", "delta", "A"}
    assert papers()["gradma"].drawn_values == ()
    assert planned(fedveca, "svm", "fedveca").drawn == fedveca.drawn_values
    each = dict.fromkeys(range(3), 1.0)
    history = History(noted={1: {"tau": each, "L": 0.5, "own": each}, 2: {"own": each, "active": 3.0}})
    assert kept_values(history, fedveca.drawn_values).keys() == {"tau", "L", "active"}
    assert kept_values(history, ()).keys() == {"L", "active"}


def test_a_commands_plain_lines_fit_their_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 80)

    def said(*more: str) -> str:
        found = CliRunner().invoke(app, ["paper", *more])
        assert found.exit_code == 0, found.output
        return found.stdout

    ran = said("run", *EXHIBIT, "--scale", "smoke", "--workers", "1")
    assert "[3/3]" in ran
    results = said("run", *EXHIBIT, "--scale", "smoke", "--workers", "1", "--quiet")
    assert results == ran.partition("[3/3]")[2].partition("\n")[2]  # the table, and nothing of how it came about
    listed = said("list")
    assert all(len(line) <= 80 for line in listed.splitlines())
    rows = {row["id"]: row for row in json.loads(said("list", "--json"))}
    assert rows.keys() == {one.id for paper in papers().values() for one in paper.exhibits.values()}
    table = rows["feddc.table1"]
    assert (table["kind"], table["cells"], table["run"]) == ("table", 150, 0)
    assert table["scales"] == ["smoke", "reduced", "full"]
    assert table["seconds"] > 0
    assert rows["feddc.figure1"]["seconds"] is None
    column = ("run", "feddc.table1", "--only", "mnist-d1-all", "--scale", "smoke", "--workers", "1")
    *_, numbers, last = said(*column, "--rounds", "1").splitlines()
    assert numbers.split()[1:] == [">1"] * 5
    assert last == "5 runs only up to round 1; the same command without --rounds goes on."
    shown = said(*column)
    assert "mnist-d1-all" in shown
    assert shown.splitlines()[-1].split()[1:] == [">2"] * 5  # 98 % is not reached in two rounds
    assert all(len(line) <= 80 for line in shown.splitlines()[-3:])


def test_python_runs_what_the_command_runs(tmp_path: Path) -> None:
    import fedkeel.papers as fp

    for _ in range(2):  # also when everything is imported already
        outcome = fp.run(
            "feddc.table1", scale="smoke", only=["mnist-d2-15"], algorithms=["feddc"], out=tmp_path, workers=0
        )
        assert list(outcome.records) == ["feddc/mnist-d2-15--feddc--seed0--smoke"]
    assert "feddc.table1" in fp.exhibits()
    with pytest.raises(InputError, match="no scale named 'small'"):
        fp.run("feddc", scale="small")
    with pytest.raises(InputError, match=r"feddc\.table1"):
        fp.run("feddc.table11")


def test_tables_fit_any_width() -> None:
    from fedkeel.cli.paper_run import Row, grid

    methods = [f"method{i}" for i in range(16)]
    alike = [Row(f"column-{i}", [(name, "98.76") for name in methods]) for i in range(3)]
    unlike = [*alike, Row("column-4", [("another", "▸50%")])]
    for width in (40, 60, 80, 120, 300):
        for rows in (alike, unlike):
            lines = grid(rows, width)
            assert all(len(line) <= width for line in lines)
            shown = " ".join(lines)
            assert shown.count("98.76") == 48
            assert all(name in shown for name in methods)
    assert len(grid(alike, 300)) == 4  # a heading and three rows
    assert grid([], 80) == []
