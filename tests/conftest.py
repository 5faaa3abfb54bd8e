"""One thread for torch: the tests' tensors are tiny, and two workers share two cores."""

import os
import signal

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


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """With several processes, tests of one ``xdist_group`` share one: some need a cluster, of which one is enough."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadgroup"
    if hasattr(config, "workerinput"):  # a process of the suite reads its options for itself
        config.option.loadgroup = True
