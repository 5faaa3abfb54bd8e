"""One thread for torch: the tests' tensors are tiny, and two workers share two cores."""

import os
import signal
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# Tests interrupt themselves; a shell that starts the suite in the background has this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, however slow the machine: what is new is looked for by `make fuzz` and `make hostile`.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


ON_RAY = ("tests/engine/test_ray.py", "tests/papers/test_fleet.py")
"""Files whose tests start Ray clusters: one process of the suite has them all, and one cluster at a time."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests go to whoever is free, as with ``--dist load``, but for those on Ray."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class OneHasRay(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "ray" if nodeid.startswith(ON_RAY) else nodeid

    return OneHasRay(config, log)
