"""The command: where it listens, what it refuses, and that it ends when it is asked to."""

import http.client
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("starlette", reason="the page needs the extra ui")

from fedkeel.cli import main
from fedkeel.errors import FedkeelError, InputError
from fedkeel.ui.serve import listening

LIMIT = 120


@contextmanager
def started(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """The command as a process: it, the host and the port that it printed."""
    command = [sys.executable, "-m", "fedkeel", "ui", str(folder), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.fullmatch(r"http://(.+):(\d+)/\n", server.stdout.readline())
            assert found is not None
            yield server, found[1], int(found[2])
        finally:
            server.kill()


def test_it_answers_and_ends_although_a_page_follows(folder: Path) -> None:
    with started(folder) as (server, host, port):
        assert host == "127.0.0.1"
        connection = http.client.HTTPConnection(host, port, timeout=LIMIT)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 200
        assert b"feddc-mnist5k-seed0" in answer.read()
        assert answer.getheader("server") is None
        following = http.client.HTTPConnection(host, port, timeout=LIMIT)
        following.request("GET", "/events")
        stream = following.getresponse()
        assert stream.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert stream.readline() == b"event: changed\n"
        server.send_signal(signal.SIGINT)
        assert server.wait(LIMIT) == 0
        assert server.stdout is not None
        assert server.stdout.read() == ""


def test_beyond_this_machine_a_token_is_made(folder: Path) -> None:
    with started(folder, "--host", "0.0.0.0") as (server, _, port):
        assert server.stdout is not None
        assert re.fullmatch(r"token: [\w-]{32}\n", server.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("location")) == (303, "/login")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "there is no folder nowhere"),
        ([".", "--token", "short"], "at least 16 printable characters"),
        ([".", "--host", "no.such.host.invalid"], "is no address of this machine"),
    ],
)
def test_what_cannot_be_is_a_sentence(words: list[str], complaint: str) -> None:
    result = CliRunner().invoke(main.app, ["ui", *words])
    assert isinstance(result.exception, FedkeelError)
    assert complaint in str(result.exception)


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="choose another with --port"):
            listening("127.0.0.1", taken.getsockname()[1])


def test_a_missing_package_is_a_sentence() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; sys.argv = ['fedkeel', 'ui']; "
    code += "from fedkeel.cli.main import run; run()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("fedkeel: `fedkeel ui` needs uvicorn")
    assert "pip install 'fedkeel[ui]'" in result.stderr
