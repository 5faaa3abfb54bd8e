"""Uploads of which some may be hostile, as an algorithm may use them; and which algorithms may.

Every row of every uploaded value is replaced by what a robust rule makes of all of them, and every client counts
equally. So each mean in ``Algorithm.aggregate`` is the robust one, whatever the algorithm does with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Uploads
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.algorithms.robust import RULES, buckets, trimmed_mean
from fedkeel.algorithms.state import Message
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.engine.schedule import round_half_up
from fedkeel.engine.settings import Faults, Robust, Training
from fedkeel.errors import InputError, invalid


def resistant(robust: Robust, uploads: Uploads, seed: int, t: int) -> Uploads:
    """The uploads of round t (from 0) with the robust estimate in the place of every client's."""
    n = len(uploads.clients.ids)
    order: Sequence[int] = generator(seed, Purpose.BUCKETS, t).permutation(n).tolist() if robust.bucket else ()
    values = {name: _estimate(robust, name, value, order) for name, value in uploads.message.items()}
    message = Message(**{name: value.expand(n, *value.shape) for name, value in values.items()})
    return replace(uploads, message=message, clients=uploads.clients.as_equals(), losses_at=_no_losses)


def resistant_buffers(robust: Robust, buffers: Tensor) -> Tensor:
    """The buffers [m] that stand for those of n clients [n, m], by the trimmed mean whatever the rule for models.

    So every number of them is within the range of honest ones: a variance stays positive, which no rule that looks at
    whole vectors can promise.
    """
    assert robust.f is not None
    return trimmed_mean(buffers, robust.f)


def check_robust(algorithm: type[Algorithm], robust: Robust, policy: Faults) -> None:
    """Refuse a robust rule where it could not do what it is meant for."""
    if robust.rule is None:
        return
    if not takes_any_mean(algorithm):
        names = ", ".join(name for name, known in ALGORITHMS.items() if takes_any_mean(known))
        allowed = f"absent with {algorithm.name}, whose server needs more of the uploads than a mean, or its exact one"
        hint = f"These allow it: {names}; a class of your own says any_mean = True."
        raise invalid("robust.rule", allowed, robust.rule, hint)
    if policy.bad_update == "stop":
        allowed = "'skip-client' or 'clip' with robust.rule"
        hint = "Otherwise a single hostile client could stop the run by a number that is not finite."
        raise invalid("faults.bad_update", allowed, policy.bad_update, hint)


def check_cohort(robust: Robust, training: Training, N: int) -> None:
    """Refuse a robust rule that no round can have enough uploads for, even if everybody answers."""
    exact = training.participation < 1 and training.sampling == "exact"
    most = max(1, round_half_up(training.participation * N)) if exact else N
    if robust.rule is not None and most < robust.least:
        got = f"{most} of {N} clients" if exact else f"{N} clients"
        raise InputError(
            f"robust.rule must have at least {needs(robust)} in a round, got {got}; take a smaller f"
            f"{' or bucket' if robust.bucket else ''}, or more clients."
        )


def needs(robust: Robust) -> str:
    """How many uploads a rule needs, and why."""
    grouped = f" in buckets of {robust.bucket}" if robust.bucket else ""
    return f"{robust.least} uploads for {robust.rule} with f = {robust.f}{grouped}"


def counts_equally(robust: Robust, sizes: Tensor) -> list[str]:
    """What to tell about samples that do not count, where clients have different numbers [N] of them."""
    least, most = int(sizes.min()), int(sizes.max())
    if robust.rule is None or least == most:
        return []
    return [
        f"with robust.rule = {robust.rule!r} every client counts equally, although they have {least} to {most} "
        "samples: how many is what a client says itself"
    ]


def takes_any_mean(algorithm: type[Algorithm]) -> bool:
    """Whether an algorithm says ``any_mean``: one of somebody's own for itself, whatever it is derived from."""
    saying = next(cls for cls in algorithm.__mro__ if "any_mean" in vars(cls))
    own = not algorithm.__module__.startswith("fedkeel.")
    return algorithm.any_mean and not (own and saying.__module__.startswith("fedkeel."))


def _estimate(robust: Robust, name: str, value: Tensor, order: Sequence[int]) -> Tensor:
    """What stands for a value of n uploads [n, ...], without the first dimension."""
    assert robust.rule is not None
    assert robust.f is not None
    if not value.is_floating_point():
        raise InputError(f"a robust rule takes means, but value {name} of the uploads is {value.dtype}; send numbers.")
    rows = value.reshape(len(value), -1)
    rows = buckets(rows, order, robust.bucket) if robust.bucket else rows
    return RULES[robust.rule].estimate(rows, robust.f, robust.radius).reshape(value.shape[1:])


def _no_losses(w: Tensor) -> Tensor:
    raise InputError(
        "an algorithm that asks clients for their losses must not say any_mean = True: no robust rule checks these."
    )
