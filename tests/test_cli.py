"""The command as a person types it: a real process, its output and its exit code."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkeel import api, config
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.cli import demo, main
from fedkeel.cli.main import app
from fedkeel.cli.scenes import SCENES
from fedkeel.runs.store import rounds_done

ROOT = Path(__file__).parents[1]
EXPERIMENT = """\
[partition]
clients = 8
alpha = 0.5

[algorithm]
name = "fedavg"

[training]
rounds = 3
participation = 0.5
batch_size = 50
"""


def fedkeel(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from fedkeel.cli.main import run; run()", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "140"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_faults_are_told(tmp_path: Path) -> None:
    """Bad updates one by one, five at most; everything else in one line at the end."""
    faults = '[faults]\nstragglers = 1.0\nbad_update = "clip"\nmax_update_norm = 0.01\n'
    (tmp_path / "e.toml").write_text(EXPERIMENT.replace("batch_size = 50", "batch_size = 20") + faults)
    said = fedkeel("run", "e.toml", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "warning: round 1: client" in said.stdout
    assert "clipped: an update of norm" in said.stdout
    assert said.stdout.count("warning:") == 5
    assert "faults: 12 × clipped, 12 × straggler" in said.stdout


def test_a_sweep_that_cannot_end_does_not_begin(tmp_path: Path) -> None:
    """The second of two runs is there already: the first is not run, which could have taken hours."""
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    assert fedkeel("run", "e.toml", "--set", "seed=1", "--set", "training.rounds=1", cwd=tmp_path).returncode == 0
    sweep = fedkeel("run", "e.toml", "--set", "sweep={seed=[0, 1]}", cwd=tmp_path)
    assert sweep.returncode == 2
    assert "runs/fedavg-mnist5k-seed1 already holds a run; continue it with --resume" in sweep.stderr
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["fedavg-mnist5k-seed1"]


def test_run_resume_and_read(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    first = fedkeel("run", "e.toml", "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (result,) = json.loads(first.stdout)
    assert result["rounds"] == 3
    folder = tmp_path / result["directory"]
    assert {path.name for path in folder.iterdir()} >= {
        "experiment.toml",
        "environment.json",
        "run.sqlite",
        "model.safetensors",
    }

    again = fedkeel("run", "e.toml", cwd=tmp_path)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr

    resumed = fedkeel("run", "e.toml", "--resume", "--json", cwd=tmp_path)
    assert json.loads(resumed.stdout)[0]["final"] == result["final"]

    changed = fedkeel("run", "e.toml", "--resume", "--set", "training.lr=0.5", cwd=tmp_path)
    assert changed.returncode == 2
    assert "training.lr was 0.1, asked 0.5" in changed.stderr

    loaded = tmp_path / "load.py"
    loaded.write_text(
        "import sys\nfrom safetensors.torch import load_file\nfrom fedkeel.learning import models\n"
        "models.build('2nn').load_state_dict(load_file(sys.argv[1]))\n"
    )
    subprocess.run(
        [sys.executable, str(loaded), str(folder / "model.safetensors")],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT.replace("rounds = 3", "rounds = -3"))
    result = fedkeel("run", "e.toml", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("fedkeel: training.rounds must be a number of at least 1, got -3 (e.toml, line 9).")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_benchmark_of_nothing_known_is_refused(tmp_path: Path) -> None:
    result = fedkeel("bench", "--work", "W9", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("fedkeel: there is no work named 'W9'.")


@pytest.mark.parametrize("command", ["algorithms", "data", "models"])
def test_listings_are_json_on_request(tmp_path: Path, command: str) -> None:
    listed = json.loads(fedkeel(command, "--json", cwd=tmp_path).stdout)
    assert len(listed) > 5
    assert all(entry["name"] for entry in listed)
    assert fedkeel(command, cwd=tmp_path).returncode == 0


def test_every_algorithm_shows_its_box(tmp_path: Path) -> None:
    listed = json.loads(fedkeel("algorithms", "--json", cwd=tmp_path).stdout)
    without = [a["name"] for a in listed if "←" not in a["box"]]
    assert without == []
    shown = fedkeel("algorithms", "feddc", cwd=tmp_path).stdout
    assert "Gao et al." in shown
    assert "alpha" in shown


def test_partition_preview(tmp_path: Path) -> None:
    result = fedkeel("partition", "--clients", "10", "--set", "alpha=0.1", "--out", "p.png", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "10 clients" in result.stdout
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_check_of_an_own_algorithm(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from fedkeel.algorithms.fedavg import FedAvg\n"
        "class Good(FedAvg):\n    name = 'good'\n"
        "class Bad(FedAvg):\n    name = 'bad'\n    def aggregate(self, s, u, r): return s\n"
    )
    assert fedkeel("check", "mine:Good", cwd=tmp_path).returncode == 0
    bad = fedkeel("check", "mine:Bad", cwd=tmp_path)
    assert bad.returncode == 1
    assert "✗ it learns an easy problem" in bad.stdout


def test_a_reader_that_leaves_costs_no_round(tmp_path: Path) -> None:
    """`fedkeel run … | head -1`: no traceback, and what was trained is kept and goes on."""
    (tmp_path / "e.toml").write_text(EXPERIMENT.replace("rounds = 3", "rounds = 30"))
    command = [sys.executable, "-c", "from fedkeel.cli.main import run; run()", "run", "e.toml"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "140"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline().startswith("FedAvg")
        run.stdout.close()
        said = run.stderr.read()
        code = run.wait(timeout=120)
    assert "fedkeel: the output cannot be written: nobody reads it any more; all rounds so far are kept" in said
    assert "Traceback" not in said
    assert code == 141
    (folder,) = (tmp_path / "runs").iterdir()
    assert 0 < rounds_done(folder) < 30
    again = fedkeel("run", "e.toml", "--resume", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)[0]["rounds"] == 30


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("words", [["run", "e.toml"], ["run", "e.toml", "--json"], ["algorithms"]])
def test_output_to_a_full_disk_is_told_of_in_a_sentence(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-c", "from fedkeel.cli.main import run; run()", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith("fedkeel: the output cannot be written: No space left on device")
    assert len(ended.stderr.splitlines()) == 1


def test_a_demo_after_one_that_was_killed(tmp_path: Path) -> None:
    """It starts anew, whenever the first was killed: here as soon as its first run has a folder."""
    command = [sys.executable, "-c", "from fedkeel.cli.main import run; run()", "demo", "--rounds", "500", "--quiet"]
    first = subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    folder, give_up = tmp_path / "demo" / "papers", time.monotonic() + 120
    while not folder.exists() and time.monotonic() < give_up:
        time.sleep(0.01)
    first.kill()
    first.wait()
    assert folder.exists()
    demo._make_room(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [demo.MARK]


def test_demo_in_small(tmp_path: Path) -> None:
    result = fedkeel("demo", "--rounds", "2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "rounds to 90%" in result.stdout
    assert all(ALGORITHMS[scene.algorithm].title in result.stdout for scene in SCENES)
    assert result.stdout.count("The claim of") == len(SCENES) == 5
    assert (tmp_path / "demo" / "curves.png").stat().st_size > 10_000
    assert (tmp_path / "demo" / "papers.png").stat().st_size > 10_000
    assert "demo/report.html" in result.stdout
    assert "The demo of fedkeel" in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("mine")
    refused = fedkeel("demo", "--rounds", "1", "--out", "precious", cwd=tmp_path)
    assert refused.returncode == 2
    assert (tmp_path / "precious" / "thesis.txt").exists()


TINY = """\
[data]
name = "./sites"

[model]
name = "logistic"

[training]
rounds = 5

[evaluation]
every = 10

[run]
executor = "serial"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment on three tiny clients."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    for client in range(3):
        x = np.arange(20, dtype=np.float32).reshape(10, 2) / 20
        np.savez(tmp_path / "sites" / f"{client}.npz", x=x, y=np.arange(10) % 2)
    (tmp_path / "e.toml").write_text(TINY)
    return tmp_path


def typed(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The same command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["fedkeel", *words])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_run_of_which_nothing_was_evaluated(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tenth round and the last are evaluated; this one was stopped at 3, which then became the last."""
    (experiment,) = config.read(here / "e.toml")
    asked = iter([False, False, True])
    assert api.run(experiment, here / "runs" / experiment.label, stop=lambda: next(asked)).ended == "stopped"
    resume = ("run", "e.toml", "--resume", "--set", "training.rounds=3")
    assert typed(*resume, "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)[0]["final"] is None
    assert typed(*resume, monkeypatch=monkeypatch) == 0
    assert "–" in capsys.readouterr().out


def test_names_are_text_and_nothing_else(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither rich's markup nor a terminal's escape sequences in them do anything."""
    out = "res[/x][bold]\x1b[31m\u202e"
    assert typed("run", "e.toml", "--out", out, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "res[/x][bold]\\x1b[31m\\u202e" in "".join(said.split("\n"))
    assert "\x1b" not in said
    assert typed("run", "e.toml", "--out", out, monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedkeel: res[/x][bold]\\x1b[31m\\u202e/")
    assert said.count("\n") == 1
    assert typed("run", "e.toml", "--out", "\x9b[/x]", "--json", monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "\x9b" not in said
    assert json.loads(said)[0]["directory"].startswith("\x9b[/x]/")


@pytest.mark.parametrize(
    ("words", "begins", "ends"),
    [
        (["nonsense"], "no such command 'nonsense'", "see fedkeel --help."),
        (["run"], "missing argument", "see fedkeel run --help."),
        (["run", "e.toml", "--speed"], "no such option", "see fedkeel run --help."),
        (["demo", "--rounds", "x"], "invalid value for '--rounds'", "see fedkeel demo --help."),
        (["data", "\x1b[1m\n"], "got unexpected extra argument", "see fedkeel data --help."),
    ],
)
def test_a_mistyped_command_is_one_line_and_exit_code_2(
    words: list[str], begins: str, ends: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words, monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fedkeel: {begins}")
    assert said.endswith(f"; {ends}\n")
    assert said.removesuffix("\n").isprintable()


def test_data_files_that_are_there_are_not_called_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)

    def there(*words: str) -> set[str]:
        listed = json.loads(CliRunner().invoke(app, ["data", "--json", *words]).stdout)
        return {one["name"] for one in listed if one["download"] and one["there"]}

    assert there() == set()
    files = {
        "mnist": ["train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz", "t10k-images.idx3-ubyte"],
        "cifar-10-binary": ["cifar-10-binary.tar.gz"],
        "tiny-imagenet": ["tiny-imagenet-200.zip"],
    }
    for folder, names in files.items():
        (tmp_path / "data" / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / "data" / folder / name).touch()
    assert there("--data-dir", str(tmp_path / "data")) == {"cifar10", "tiny_imagenet"}
    (tmp_path / "data/mnist/t10k-labels-idx1-ubyte").touch()
    found = {"cifar10", "tiny_imagenet", "mnist", "mnist_even_odd"}
    assert there("--data-dir", str(tmp_path / "data")) == found
    assert there() == set()


def test_what_the_system_refuses_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["run", "x" * 5000], ["verify", "x" * 5000], ["run", "e.toml", "--out", "x" * 5000]):
        assert typed(*words, monkeypatch=monkeypatch) == 2
        said = capsys.readouterr().err
        assert said.startswith("fedkeel: ")
        assert len(said) < 1000


SWEEP = EXPERIMENT + "[sweep]\ntraining.lr = [0.1, 0.2]\nseed = [0, 1]\n"


def test_a_sweep_says_what_it_sweeps(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(SWEEP)
    said = fedkeel("run", "e.toml", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "run 3 of 4 · FedAvg" in said.stdout
    assert "seed 0 · lr 0.2" in said.stdout
    assert "executor auto: " in said.stdout
    assert "sweep " in said.stdout
    assert "Mean ± standard deviation over seeds" in said.stdout
    assert said.stdout.count(" ± ") == 1 + 2 * 3  # the heading, and of each learning rate last, late and best
    again = fedkeel("run", "e.toml", "--resume", "--json", cwd=tmp_path)
    results = json.loads(again.stdout)
    assert [r["swept"] for r in results] == [{"training.lr": lr, "seed": s} for lr in (0.1, 0.2) for s in (0, 1)]
    finals = [r["final"]["accuracy"] for r in results]
    assert results[0]["over_seeds"]["final"]["mean"] == pytest.approx((finals[0] + finals[1]) / 2)
    assert results[2]["over_seeds"]["final"]["count"] == 2
    assert all(r["executor"].startswith("auto: ") for r in results)
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {Path(r["directory"]).name for r in results}


def test_numbered_folders_of_earlier_versions_are_resumed(tmp_path: Path) -> None:
    """Found by their settings, whatever their number."""
    (tmp_path / "e.toml").write_text(SWEEP.replace("seed = [0, 1]\n", ""))
    runs = config.read(tmp_path / "e.toml")
    for number, run in ((2, runs[0]), (7, runs[1])):
        name = f"fedavg-mnist5k-seed0-{number}"
        api.run(run.model_copy(update={"name": name}), tmp_path / "runs" / name)
    resumed = fedkeel("run", "e.toml", "--resume", "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    found = {r["swept"]["training.lr"]: r["directory"] for r in json.loads(resumed.stdout)}
    assert found == {0.1: "runs/fedavg-mnist5k-seed0-2", 0.2: "runs/fedavg-mnist5k-seed0-7"}
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_run_that_diverges_does_not_end_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT + "[sweep]\ntraining.lr = [1e30, 0.1]\nseed = [0, 1]\n")
    said = fedkeel("run", "e.toml", "--json", cwd=tmp_path)
    assert said.returncode == 1
    assert "fedavg-mnist5k-seed0-lr=1e+30: FedAvg diverged in round 1" in said.stderr
    assert "2 of 4 runs diverged" in said.stderr
    results = json.loads(said.stdout)
    assert ["error" in r for r in results] == [True, True, False, False]
    assert results[0]["over_seeds"]["final"] is None
    assert results[3]["rounds"] == 3
    shown = fedkeel("run", "e.toml", "--resume", "--quiet", cwd=tmp_path)
    assert shown.returncode == 1
    assert shown.stdout.count("diverged") == 2
    assert "0 of 2" in shown.stdout
