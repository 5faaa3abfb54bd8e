"""Which values to try next: a function of the trials so far, and of nothing else.

Trial 0 is the algorithm as it is. The others are Optuna's (TPE), whose study is made anew from the records each time,
with a sampler seeded by algorithm and number: whatever is killed, the same trials follow, and there is no second store
that could disagree with the records. Until the sampler learns, its seed is the number alone and the common fields are
drawn first, so that everybody tries the same η, decay and clipping: nobody has better luck than others with these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.errors import InputError
from fedkeel.tuning.contest import TUNING_SEED, Contest, searched
from fedkeel.tuning.records import Tried
from fedkeel.tuning.spaces import Dimension, Value

STARTUP = 5
"""Trials, the first included, before the sampler learns from earlier ones; until then it draws at random."""


def propose(contest: Contest, algorithm: str, earlier: Sequence[Tried]) -> dict[str, Value]:
    """The values of the trial that follows the earlier ones, by field."""
    space, start = searched(contest, algorithm)
    number = len(earlier)
    if number == 0:
        return start
    optuna = _optuna()
    kinds = {name: _distribution(optuna, dimension) for name, dimension in space.items()}
    sampler = optuna.samplers.TPESampler(seed=seed_of(algorithm, number), n_startup_trials=STARTUP, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=optuna.pruners.NopPruner())
    for one in earlier:
        study.add_trial(optuna.trial.create_trial(params=one.chosen, distributions=kinds, value=one.value))
    asked: Mapping[str, Any] = study.ask(kinds).params
    return {name: dimension.rounded(asked[name]) for name, dimension in space.items()}


def seed_of(algorithm: str, number: int) -> int:
    """Of the sampler, for one trial: everybody's at first, then the algorithm's own."""
    text = f"{TUNING_SEED} {'' if number < STARTUP else algorithm} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("tuning needs Optuna, which is not installed: pip install 'fedkeel[tune]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    if dimension.choices:
        return optuna.distributions.CategoricalDistribution(dimension.choices)
    log = dimension.scale == "log"
    if dimension.is_whole:
        return optuna.distributions.IntDistribution(dimension.low, dimension.high, log=log)
    return optuna.distributions.FloatDistribution(float(dimension.low or 0), float(dimension.high or 0), log=log)
