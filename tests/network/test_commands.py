"""``fedkeel network`` with wrong arguments: one sentence, exit code 2, no traceback, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedkeel import config
from fedkeel.cli import main
from fedkeel.network import places
from fedkeel.network.children import Children
from tests.network.in_memory import experiment

CUSTOM = "[algorithm]\nname = 'fedavg'\n[partition]\nclients = 3\n[training]\nrounds = 2\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network of three sites, an experiment for them, and nobody who serves it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDKEEL_NETWORK", raising=False)
    places.make(tmp_path / "network", 3, ["localhost"], 39_443, 38_000, 1)
    (tmp_path / "e.toml").write_text(CUSTOM)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Any, str]:
    """Exit code, and what stands on standard error, of the command as it is started."""
    monkeypatch.setattr(sys, "argv", ["fedkeel", "network", *words])
    with pytest.raises(SystemExit) as ended:
        main.run()
    return ended.value.code, capsys.readouterr().err


def _started(*_: Any) -> int:
    raise AssertionError("a process was started, although the arguments were wrong")


INIT = ("init", "--sites", "2", "--host", "localhost", "--out", "new")
LOCAL = ("local", "e.toml", "--sites", "3")
SITE = ("site", "network/sites/client-0", "--data")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("init", "--sites", "2"), "missing option '--host'"),
        (("init", "--host", "localhost"), "missing option '--sites'"),
        ((*INIT, "--sites", "0"), "invalid value for '--sites': 0 is not in the range"),
        ((*INIT, "--sites", "1000000"), "--sites must be a number from 1 to 10,000"),
        ((*INIT, "--host", "a:1"), "--host must be a host name or an address, without a port, got 'a:1'"),
        ((*INIT, "--port", "70000"), "invalid value for '--port'"),
        ((*INIT, "--link-port", "70000"), "--link-port must be"),
        ((*INIT, "--port", "8000"), "--port must be another one than Flower's own (8000)"),
        ((*INIT, "--days", "0"), "invalid value for '--days'"),
        ((*INIT, "--days", "99999999"), "--days must be a number from 1 to 36,500"),
        ((*INIT, "--out", "network"), "network is there already"),
        ((*INIT, "--out", "e.toml"), "e.toml is there already"),
        ((*INIT, "--out", "e.toml/x"), "e.toml/x"),
        (("server", "nowhere"), "nowhere is not the folder of a server: it has no network.toml"),
        (("server", "network/sites/client-0"), "client-0 is not the folder of a server"),
        (("site", "network/server", "--data", "x.npz"), "server is not the folder of a site: it has no site.toml"),
        (("site", "nowhere", "--data", "x.npz"), "nowhere is not the folder of a site"),
        (("site", "network/sites/client-0"), "missing option '--data'"),
        ((*SITE, "nonsense"), "--data must be an experiment (experiment.toml), arrays (mine.npz) or a function"),
        ((*SITE, ":f"), "--data ':f' cannot be imported"),
        ((*SITE, "no_such_module:f"), "cannot be imported: No module named 'no_such_module'"),
        ((*SITE, "missing.npz"), "missing.npz"),
        ((*SITE, "missing.toml"), "there is no experiment file missing.toml"),
        ((*SITE, "e.toml", "--test", "t.npz"), "--test must be absent beside an experiment"),
        ((*SITE, "good.npz", "--targets", "nonsense"), "targets must be 'labels' or 'real', got 'nonsense'"),
        ((*SITE, "good.npz", "--model", "nonsense"), "--model 'nonsense' cannot be made"),
        ((*SITE, "good.npz", "--model", "no_such_module:f"), "--model 'no_such_module:f' cannot be made"),
        ((*SITE, "good.npz", "--model", "builtins:dict"), "must return a torch.nn.Module, got {}"),
        (("run", "e.toml", "--network", "nowhere"), "nowhere is not the folder of a server"),
        (("run", "e.toml", "--network", "network/sites/client-0"), "is not the folder of a server"),
        (("run", "e.toml", "--wait", "0"), "the server of network/server does not answer on this machine; start it"),
        (("run", "e.toml", "--quorum", "2"), "invalid value for '--quorum': 2.0 is not in the range 0<=x<=1"),
        (("run", "e.toml", "--quorum", "nan"), "--quorum must be a finite number, got nan"),
        (("run", "e.toml", "--deadline", "0"), "invalid value for '--deadline'"),
        (("run", "e.toml", "--wait", "-1"), "invalid value for '--wait'"),
        (("run", "e.toml", "--wait", "nan"), "--wait must be a finite number, got nan"),
        (("run", "e.toml", "--deadline", "inf"), "--deadline must be a finite number, got inf"),
        (("status", "--network", "nowhere"), "nowhere is not the folder of a server"),
        (("local", "missing.toml"), "there is no experiment file missing.toml"),
        (("local", "e.toml"), "partition.clients must be the number of sites, 5, got 3"),
        ((*LOCAL, "--sites", "0"), "invalid value for '--sites'"),
        ((*LOCAL, "--set", "algorithm.name=nonsense"), "there is no algorithm named 'nonsense'"),
        ((*LOCAL, "--set", "algorithm.name=centralised"), "pools all samples in one place"),
        ((*LOCAL, "--set", "faults.dropout=0.1"), "faults.dropout must be 0 over sites, got 0.1"),
        ((*LOCAL, "--set", "measure.every=1"), "measure.every must be 0 over sites, got 1"),
        ((*LOCAL, "--set", "run.executor=pool"), "run.executor and run.workers must be absent over sites"),
        ((*LOCAL, "--set", "run.device=cuda"), "run.device must be absent over sites"),
        ((*LOCAL, "--set", "training.rounds=0"), "training.rounds must be"),
        (("local", "own.toml"), "data.name must be another one for `network local`, got 'sites'"),
        (
            ("local", "folded.toml", "--sites", "3"),
            "synthetic_feddyn comes with 5 clients, got 3 sites; give --sites 5",
        ),
        ((*LOCAL, "--network", "other"), "other is a network of 2 sites, not of 3"),
        ((*LOCAL, "--network", "e.toml"), "e.toml"),
        (("nonsense",), "no such command 'nonsense'"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    words: tuple[str, ...],
    sentence: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    np.savez(folder / "good.npz", x=np.ones((4, 2)), y=np.arange(4) % 2)
    (folder / "own.toml").write_text(config.dump(experiment(data={"name": "sites"})))
    (folder / "folded.toml").write_text(config.dump(experiment()))
    if "other" in words:
        places.make(folder / "other", 2, ["localhost"], 39_444, 38_001, 1)
    monkeypatch.setattr(Children, "start", _started)
    code, said = told(capsys, monkeypatch, *words)
    assert code == 2
    assert said.startswith("fedkeel: ")
    assert said.count("\n") == 1, said
    assert sentence in said
    assert not (folder / "new").exists()
    assert not (folder / "runs").exists()


def test_nobody_waits_for_a_server_without_a_word(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedkeel", "network", "run", "e.toml", "--wait", "0.2"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "does not answer on this machine; waiting 0.2 s for it (--wait)" in " ".join(said.out.split())
    assert "start it: fedkeel network server" in said.err


def test_init_makes_a_network_that_can_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = told(capsys, monkeypatch, *INIT, "--host", "192.0.2.1", "--port", "1234")
    assert (code, said) == (0, "")
    place = places.ServerPlace.at(folder / "new" / "server")
    assert place.settings.hosts == ("localhost", "192.0.2.1")
    assert (place.settings.port, len(place.public_keys())) == (1234, 2)


def test_status_of_a_server_that_is_down(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedkeel", "network", "status", "--json"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert '"server": "down"' in out
    assert out.count('"unknown"') == 3


def test_an_experiment_for_sites_is_no_simulation(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "s.toml").write_text(config.dump(experiment(data={"name": "sites"})))
    monkeypatch.setattr(sys, "argv", ["fedkeel", "run", "s.toml"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 2
    assert "every site of a network holds its own data; run it with fedkeel network run" in capsys.readouterr().err
