"""The command as a person types it: a real process, its output and its exit code."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedkeel.cli import demo

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


def test_a_demo_after_one_that_was_killed(tmp_path: Path) -> None:
    """It starts anew, whenever the first was killed: here as soon as its first run has a folder."""
    command = [sys.executable, "-c", "from fedkeel.cli.main import run; run()", "demo", "--rounds", "500", "--quiet"]
    first = subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    folder, give_up = tmp_path / "demo" / "fedavg", time.monotonic() + 120
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
    assert (tmp_path / "demo" / "curves.png").stat().st_size > 10_000
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("mine")
    refused = fedkeel("demo", "--rounds", "1", "--out", "precious", cwd=tmp_path)
    assert refused.returncode == 2
    assert (tmp_path / "precious" / "thesis.txt").exists()
