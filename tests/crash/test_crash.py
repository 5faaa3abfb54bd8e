"""A short soak; ``make soak`` is the long one."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_eight_kills_lose_nothing() -> None:
    command = [sys.executable, "-m", "tests.crash", "--kills", "8", "--rounds", "12"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["kills"] == 8
    assert (found["rounds_lost"], found["bit_differences"]) == (0, 0)
