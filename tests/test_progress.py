"""What a person sees of a run that goes on in a notebook or program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel import progress_bar as module


@pytest.fixture(scope="module")
def federation() -> fk.data.Federation:
    return fk.data.load("mnist5k").partition("dirichlet", clients=5, alpha=0.5, seed=0)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.0)


def trained(federation: fk.data.Federation, **options: object) -> fk.Run:
    settings = {"model": "logistic", "data": federation, "rounds": 3, "steps": 1, "executor": "serial"}
    return fk.train("fedavg", **settings | options)  # type: ignore[arg-type]


def test_every_round_is_shown_in_place_with_the_accuracy_and_the_end(federation: fk.data.Federation) -> None:
    shown: list[tuple[str, str]] = []
    run = trained(federation, watch=fk.progress(lambda html, text: shown.append((html, text))))
    texts = [text for _, text in shown]
    assert [re.search(r"round \d of 3", text)[0] for text in texts] == [  # type: ignore[index]
        "round 1 of 3",
        "round 2 of 3",
        "round 3 of 3",
        "round 3 of 3",
    ]
    assert f"accuracy {run.accuracy:.2%}" in texts[-1]
    assert "about 0 s left" in texts[2]
    assert re.search(r"finished after \d+ s$", texts[-1])
    assert 'value="3" max="3"' in shown[-1][0]


def test_a_run_that_goes_on_counts_its_own_rounds_only(federation: fk.data.Federation, tmp_path: Path) -> None:
    trained(federation, directory=tmp_path / "<b>run</b>", rounds=2)
    shown: list[tuple[str, str]] = []
    watch = fk.progress(lambda html, text: shown.append((html, text)))
    trained(federation, directory=tmp_path / "<b>run</b>", rounds=4, resume=True, watch=watch)
    assert "round 3 of 4" in shown[0][1]
    assert "<b>" not in shown[0][0]


def test_without_a_terminal_only_the_end_is_written(
    federation: fk.data.Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(federation, watch=fk.progress())
    (line,) = capsys.readouterr().err.splitlines()
    assert "round 3 of 3" in line


def test_an_error_is_the_end_too(federation: fk.data.Federation) -> None:
    shown: list[str] = []

    def fail(_: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        trained(federation, watch=[fk.progress(lambda html, text: shown.append(text)), fail])
    assert "failed after" in shown[-1]


def test_in_a_notebook_it_is_a_bar_that_is_updated(federation: fk.data.Federation) -> None:
    """In a kernel without a frontend: what would be sent to it is collected."""
    pytest.importorskip("ipykernel", reason="needs ipykernel, which comes with Jupyter")
    from ipykernel.inprocess.manager import InProcessKernelManager

    manager = InProcessKernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.execute("import fedkeel.progress_bar as p; s = p._notebook(); s('<b>1</b>', ''); s('<b>2</b>', '')")
        sent = []
        while client.iopub_channel.msg_ready():
            sent.append(client.get_iopub_msg(timeout=1))
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    kinds = [m["msg_type"] for m in sent if "display" in m["msg_type"]]
    assert kinds == ["display_data", "update_display_data", "update_display_data"]
    shown = [m["content"]["data"]["text/html"] for m in sent if "display" in m["msg_type"]]
    assert shown[1:] == ["<b>1</b>", "<b>2</b>"]
