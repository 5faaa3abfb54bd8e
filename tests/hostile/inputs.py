"""Random settings and calls against the error contract: success, or a ``FedkeelError`` with a sentence to act on.

No traceback, no hang, no death, whatever is given: experiments, ``--set``, commands, and every argument of the Python
interface. Input ``number`` of a seed is always the same:

    python -m tests.hostile.inputs --seed 0 --only 1234
"""

from __future__ import annotations

import random
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedkeel.errors import FedkeelError
from tests.hostile import guarded
from tests.hostile.calls import (
    algorithm_call,
    constructed,
    from_arrays,
    from_clients,
    from_elsewhere,
    load_call,
    load_model_call,
    partition_call,
    train_call,
)
from tests.hostile.commands import command_line, paper_command
from tests.hostile.experiments import experiment_file, experiment_run, resumed, run_call, set_strings
from tests.hostile.given import Give, Input, clean_folder, scratch

LONGEST = 2000
"""Characters of a sentence that somebody still reads."""
_SENSELESS = re.compile(
    r"Traceback|pydantic\.dev|object at 0x|\bNoneType\b|object has no attribute|unhashable|not subscriptable"
)


def run(count: int, seed: int) -> dict[str, Any]:
    """Give ``count`` inputs; how many there were, how many gave tracebacks (or died) and hung, and examples."""
    found = asdict(guarded.run_guarded("tests.hostile.inputs", count, seed))
    for example in found["examples"]:
        example["repeat"] = f"python -m tests.hostile.inputs --seed {seed} --only {example['number']}"
    return {"inputs": count} | found


def trial(seed: int, number: int) -> tuple[str, Callable[[], str | None]]:
    """Input ``number`` of a seed, and how to give it."""
    rng = random.Random(f"{seed}/{number}")
    kinds = list(_KINDS)
    kind = rng.choices(kinds, [_KINDS[one] for one in kinds])[0]
    folder = clean_folder()
    made = kind(rng, folder)
    what = f"{kind.__name__.strip('_')}: {made.what}"
    return what, lambda: _answered(made.give)


def _answered(give: Give) -> str | None:
    """What is wrong with the answer, apart from exceptions that are not ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            give()
    except FedkeelError as error:
        return senseless(str(error))
    return None


def senseless(sentence: str) -> str | None:
    """Why a person could do nothing with a sentence."""
    if not sentence.strip():
        return "an error without a word"
    if len(sentence) > LONGEST:
        return f"a sentence of {len(sentence)} characters: {sentence[:200]}"
    if found := _SENSELESS.search(sentence):
        return f"a sentence that speaks of {found[0]!r}: {sentence}"
    return None


_KINDS: dict[Callable[[random.Random, Path], Input], float] = {
    experiment_file: 20,
    set_strings: 10,
    experiment_run: 8,
    resumed: 2,
    run_call: 3,
    train_call: 14,
    algorithm_call: 8,
    from_arrays: 6,
    from_clients: 5,
    from_elsewhere: 5,
    load_call: 2,
    partition_call: 6,
    constructed: 4,
    load_model_call: 2,
    command_line: 8,
    paper_command: 4,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        guarded.main(trial)
    finally:
        shutil.rmtree(scratch(), ignore_errors=True)
