"""Many inputs, one after the other, in a process that may die: what raises, hangs or kills it is counted.

The work is done by a child with a limit on its memory. It says which input it begins, so that after a death the next
child goes on behind the one that caused it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

SECONDS = 20.0
"""After this long an input counts as a hang; the slowest sound ones take a tenth of a second on an idle core."""
MEMORY = 6 << 30
"""Bytes of address space beyond what the child has before its first input."""
SHOWN = 20
"""Examples that are kept."""

Trial = Callable[[int, int], tuple[str, Callable[[], str | None]]]
"""``trial(seed, number)`` → what the input is, and how to give it, which tells what is wrong (None: nothing)."""


class Hung(BaseException):
    """An input took too long; no ``Exception``, so that nobody takes it for an error of the input."""


@dataclass
class Tally:
    """What became of the inputs."""

    tracebacks: int = 0
    hangs: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, number: int, what: str, why: str) -> None:
        """Count an input that went wrong: a hang, or anything else that is neither success nor a sensible sentence."""
        if kind == "hang":
            self.hangs += 1
        else:
            self.tracebacks += 1
        if len(self.examples) < SHOWN:
            self.examples.append({"kind": kind, "number": number, "input": what, "why": why})


def run_guarded(module: str, count: int, seed: int) -> Tally:
    """Inputs 0 … count − 1 of a module that calls ``serve`` as a program."""
    tally, begun = Tally(), -1
    while begun < count - 1:
        begun = _one_child(module, begun + 1, count, seed, tally)
    return tally


def _one_child(module: str, first: int, count: int, seed: int, tally: Tally) -> int:
    """One child's inputs, up to the last or to its death; the number of the last that it began."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", module, "--first", str(first), "--count", str(count), "--seed", str(seed)]
    with tempfile.TemporaryFile() as words:
        child = subprocess.Popen(
            [*command, "--report", str(writing)],
            pass_fds=[writing],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,  # workers that an input started end with it
        )
        os.close(writing)
        try:
            begun, silent = _listen(reading, first, tally)
        finally:
            os.close(reading)
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        words.seek(0)
        last_words = words.read().decode(errors="replace")[-400:]
    if begun < first:
        raise RuntimeError(f"{module} did not begin: {last_words}")
    if silent or begun < count - 1:
        kind = "hang" if silent else "death"
        tally.add(kind, begun, f"input {begun}", f"the process ended with {code}: {last_words}")
    return begun


def _listen(reading: int, first: int, tally: Tally) -> tuple[int, bool]:
    """What a child reports until it ends: the last input that it began, and whether it fell silent over it."""
    begun, rest = first - 1, b""
    while True:
        patience = 3 * SECONDS + (60 if begun < first else 0)  # it has to import torch first
        if not select.select([reading], [], [], patience)[0]:
            return begun, True  # it hangs in code that no signal interrupts
        piece = os.read(reading, 1 << 16)
        if not piece:
            return begun, False
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if isinstance(said, int):
                begun = said
            else:
                tally.add(said["kind"], said["number"], said["input"], said["why"])


def main(trial: Trial) -> None:
    """The program of a module with trials: all from ``--first`` on for a listening parent, or ``--only`` one to see."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one input, with its traceback")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--report", type=int, help="descriptor on which a parent listens")
    options = parser.parse_args()
    if options.only is None:
        serve(trial, options.first, options.count, options.seed, options.report)
    else:
        what, give = trial(options.seed, options.only)
        print(what)
        print(give() or "fine")


def serve(trial: Trial, first: int, count: int, seed: int, report: int) -> None:
    """The child's side: every input under a timer, with what went wrong on ``report``."""
    _limit_memory()
    signal.signal(signal.SIGALRM, _ring)
    with os.fdopen(report, "w", buffering=1) as out:
        for number in range(first, count):
            out.write(f"{number}\n")
            what, wrong = guarded(trial, seed, number)
            if wrong is not None:
                kind, why = wrong
                out.write(json.dumps({"kind": kind, "number": number, "input": what, "why": why}) + "\n")


def guarded(trial: Trial, seed: int, number: int) -> tuple[str, tuple[str, str] | None]:
    """One input under the timer: what it was, and how it went wrong (None: it did not)."""
    what, give = trial(seed, number)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        wrong = give()
    except Hung:
        return what, ("hang", traceback.format_exc()[-1500:])
    except BaseException:
        return what, ("traceback", traceback.format_exc()[-1500:])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return what, None if wrong is None else ("sentence", wrong)


def _ring(_: int, __: FrameType | None) -> None:
    raise Hung


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
