"""Where clients compute: the processor, or an accelerator.

Only local training and evaluation go to an accelerator, with the samples. The server's state, what clients remember and
aggregation stay in main memory, so that neither the number of clients nor the store is bound by a card.
"""

from __future__ import annotations

import torch

from fedkeel import arguments
from fedkeel.errors import InputError, unknown

KINDS = ("cpu", "cuda", "mps")
CPU = torch.device("cpu")


def find(name: str | torch.device, called: str = "run.device") -> torch.device:
    """The device of a name such as ``cpu``, ``cuda``, ``cuda:1`` or ``mps``, if this machine has it.

    ``called`` is what the person who gave the name calls it.
    """
    name = arguments.text(called, str(name) if isinstance(name, torch.device) else name)
    kind, _, number = name.partition(":")
    if kind not in KINDS or (number and not (number.isascii() and number.isdigit() and len(number) < 4)):
        raise unknown("device", name, [*KINDS, "cuda:1"])
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[kind]
    if there <= int(number or 0):
        raise InputError(
            f"{called} must be a device that torch {torch.__version__} can use here, got {name!r}: "
            f"there {'is' if there == 1 else 'are'} {there or 'no'} {kind} device{'' if there == 1 else 's'}. "
            "Use 'cpu', or install a build of torch for this machine's accelerator."
        )
    return torch.device(name)
