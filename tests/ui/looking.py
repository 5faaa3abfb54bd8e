"""Runs to look at, and a client that behaves like a browser on the page itself."""

import re
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from fedkeel import config
from fedkeel.ui.app import Site, build
from fedkeel.ui.guard import Guard

PORT = 8423
BASE = f"http://127.0.0.1:{PORT}"


def experiment(**changed: Any) -> config.Experiment:
    table: dict[str, Any] = {
        "partition": {"clients": 5, "alpha": 0.5},
        "model": {"name": "logistic"},
        "training": {"rounds": 3, "participation": 0.6, "steps": 2},
        "evaluation": {"clients": True},
        "run": {"executor": "serial", "checkpoint_every": 1},
    }
    return config.expand(table | changed, [])[0]


def site_of(folder: Path, token: str | None = None, **more: Any) -> Site:
    return Site(folder, Guard.of("127.0.0.1", PORT, token), **more)


def client_of(site: Site, **more: Any) -> TestClient:
    return TestClient(build(site), base_url=BASE, follow_redirects=False, **more)


def text_of(client: TestClient, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return answer.text


def keys(client: TestClient, address: str = "/") -> dict[str, str]:
    """The runs of a list: name and key, in order."""
    found = re.findall(r'<a id="r([0-9a-f]{32})" href="/run/\1">(.*?)</a>', text_of(client, address))
    return {name: key for key, name in found}


def csrf_of(client: TestClient) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', text_of(client, "/new"))
    assert found is not None
    return found[1]
