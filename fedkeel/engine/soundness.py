"""Numbers that go wrong: found in what clients return before the server uses it, and in the server before a commit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fedkeel.algorithms.state import State
from fedkeel.engine.exchange import Fault, Outcome
from fedkeel.engine.settings import Faults
from fedkeel.errors import DivergedError
from fedkeel.state.rows import Rows


def examine(
    settings: Faults, ids: tuple[int, ...], outcome: Outcome, where: str, complaints: Mapping[int, str] | None = None
) -> tuple[list[int], list[Fault]]:
    """The rows whose uploads may be used, and what is wrong with the others (or was, before it was scaled down).

    ``where`` begins the sentence of a ``DivergedError``: raised where the policy is to stop, or if no row is left.
    ``complaints`` are what clients found in what they keep to themselves, by id.
    """
    bad = not_finite(outcome)
    for row in [row for row, client in enumerate(ids) if client in (complaints or {})]:
        bad.setdefault(row, (complaints or {})[ids[row]])
    limit, faults = settings.max_update_norm, []
    # Local training has already limited these; unless the policy is to clip, they are bad all the same.
    for row in [] if limit is None else torch.nonzero(outcome.moved > limit).flatten().tolist():
        length = f"an update of norm {float(outcome.moved[row]):.3g}, above faults.max_update_norm = {limit:g}"
        if settings.bad_update != "clip":
            bad.setdefault(row, length)
        elif row not in bad:
            faults.append(Fault(ids[row], "clipped", length))
    if bad and (settings.bad_update == "stop" or len(bad) == len(ids)):
        row = min(bad)
        others = "" if len(bad) == 1 else f" (and {len(bad) - 1} more of {len(ids)} clients are as bad)"
        skip = "" if settings.bad_update != "stop" else ", or faults.bad_update = 'skip-client'"
        raise DivergedError(
            f"{where}: client {ids[row]} has {bad[row]}{others}; try a smaller training.lr, training.clip = 10{skip}."
        )
    faults += [Fault(ids[row], "skipped", bad[row]) for row in sorted(bad)]
    return [row for row in range(len(ids)) if row not in bad], faults


@contextmanager
def representable(where: str) -> Iterator[None]:
    """Torch refuses a factor that its type cannot hold, such as η = 1e308 with float32: that is divergence, too."""
    try:
        yield
    except (RuntimeError, OverflowError) as error:
        if not isinstance(error, OverflowError) and "without overflow" not in str(error):
            raise
        raise DivergedError(
            f"{where}: a rate or parameter is too large for the numbers of the model (training.dtype); try a smaller "
            "training.lr, training.weight_decay or parameter of the algorithm."
        ) from None


def not_finite(outcome: Outcome) -> dict[int, str]:
    """The rows in which something is not finite, and what that is."""
    parts = [(f"value {name} of its upload", value) for name, value in outcome.message.items()]
    parts += [(f"value {name} of its state", value) for name, value in outcome.states.items()]
    parts += [("the buffers of its model", outcome.buffers)]
    found: dict[int, str] = {}
    for name, value in parts:
        if is_finite(value):
            continue
        wrong = value.isfinite().logical_not().reshape(len(value), -1).sum(dim=1)
        for row in wrong.nonzero().flatten().tolist():
            count = f"{int(wrong[row])} numbers that are" if wrong[row] > 1 else "a number that is"
            found.setdefault(row, f"{count} not finite in {name}")
    return found


def check_server(before: State, after: State, b: Tensor, unknown: frozenset[str], where: str) -> None:
    """Raise ``DivergedError`` if aggregation made anything of the server state not finite, or the buffers b [m]."""
    renewed = [
        (f"value {name} of the server", tensor)
        for name, value in after.items()
        if name not in unknown
        for tensor in _renewed(value, before.get(name))
    ]
    for name, tensor in [*renewed, ("the buffers of the global model", b)]:
        if not is_finite(tensor):
            raise DivergedError(
                f"{where}: {name} is no longer finite although every upload was; "
                "try a smaller training.lr, or smaller rates and momenta of the algorithm's server."
            )


def is_finite(x: Tensor) -> bool:
    """Whether every number of a tensor is finite."""
    # One pass without new memory. A sum that is not finite may also have overflowed, which only the slow test can tell.
    return math.isfinite(float(x.sum())) or bool(x.isfinite().all())


def _renewed(value: object, before: object) -> Iterator[Tensor]:
    """The tensors of a value that are not those of the round before."""
    if value is before:
        return
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Rows):
        yield from (row for _, row in value.changed_since(before if isinstance(before, Rows) else Rows()))
