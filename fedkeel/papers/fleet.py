"""Whole runs on the machines of a Ray cluster: a worker process on each, and somebody here who hears of all of them.

An actor holds a worker process (``process``) and passes on what is said; when the actor goes, so does the process. What
a run has done lies in its folder, which all machines must see: a run whose actor or machine was lost goes on elsewhere,
after its last whole round.
"""

from __future__ import annotations

import platform
import secrets
import selectors
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedkeel.engine import ray_cluster
from fedkeel.engine.ray_cluster import ClusterError, software
from fedkeel.papers.crew import Office
from fedkeel.papers.process import LOGS, Process
from fedkeel.papers.worker import Job, SweepJob

ATTEMPTS = 3
"""How often a run is begun before it is given up because whoever has it keeps being lost."""
LOOK = 0.5
"""Seconds for which an actor waits for news before it says that there are none."""
PATIENCE = 120.0
"""Seconds for which no actor may be there."""
Run = TypeVar("Run", bound=Hashable)


class Ship:
    """An actor: a worker process on its machine."""

    def __init__(self) -> None:
        self._process: Process[bool] | None = None

    def board(self, out: str, name: str, token: str, wanted: dict[str, str]) -> str:
        """Whether the folder of the runs is here too, and the same software; what is wrong, if something is."""
        place = Path(out)
        for part, version in software().items():
            if wanted.get(part) != version:
                return (
                    f"the machine {platform.node()} of the Ray cluster has {part} {version}, this one has "
                    f"{wanted.get(part)}; install the same on all."
                )
        try:
            found = (place / name).read_text(encoding="utf-8") == token
        except OSError:
            found = False
        if not found:
            return (
                f"the machine {platform.node()} of the Ray cluster does not see the folder {out} of this one; runs on "
                "a cluster need a folder that all its machines share (--out)."
            )
        self._process = Process(place / LOGS, f"-{platform.node()}-{secrets.token_hex(4)}")
        return ""

    def give(self, job: Job | SweepJob) -> None:
        """Let the process do a run."""
        assert self._process is not None
        self._process.give(True, job)

    def ask_to_stop(self) -> None:
        """After the round that it is at."""
        assert self._process is not None
        self._process.ask_to_stop()

    def news(self) -> tuple[list[dict[str, Any]], str]:
        """What was said since, after a while at most; and how the process ended, if it did."""
        process = self._process
        assert process is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.output, selectors.EVENT_READ)
            heard = list(process.news()) if selector.select(LOOK) else []
        return heard, process.obituary() if process.has_ended else ""

    def sink(self) -> None:
        """Let the process go."""
        if self._process is not None:
            self._process.close()


@dataclass(eq=False)
class _Crew(Generic[Run]):
    """An actor as it is seen from here."""

    handle: Any
    waiting_for: Any
    """What it will say next."""
    boarded: bool = False
    run: Run | None = None
    job: Any = None


@dataclass
class _Fleet(Generic[Run]):
    ray: Any
    office: Office[Run]
    out: Path
    crews: list[_Crew[Run]] = field(default_factory=list)
    again: list[tuple[Run, Any]] = field(default_factory=list)
    """Runs whose actor was lost."""
    tries: dict[Run, int] = field(default_factory=dict)
    lost_before: int = 0
    """Actors that were lost before they had done anything, one after the other."""

    def launch(self, name: str, token: str) -> None:
        """One more actor."""
        kind = self.ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Ship)
        handle = kind.remote()
        self.crews.append(_Crew(handle, handle.board.remote(str(self.out), name, token, software())))

    def give(self, crew: _Crew[Run], found: tuple[Run, Any]) -> None:
        crew.run, crew.job = found
        crew.handle.give.remote(crew.job)
        crew.waiting_for = crew.handle.news.remote()

    def hear(self, crew: _Crew[Run]) -> bool:
        """Take in what an actor said; whether it is still there."""
        errors = self.ray.exceptions
        try:
            answer = self.ray.get(crew.waiting_for, timeout=PATIENCE)
        except errors.RayTaskError as error:
            reason = " ".join(str(error).split())[-300:]
            raise ClusterError(f"an actor of the Ray cluster failed: {reason}") from error
        except errors.LocalRayletDiedError as error:
            raise ClusterError("the Ray cluster broke down; every whole round is kept.") from error
        except errors.RayError:
            self._lost(crew)
            return False
        if not crew.boarded:
            if answer:
                raise ClusterError(answer)
            crew.boarded, crew.waiting_for = True, None
            return True
        heard, ended = answer
        crew.waiting_for = None
        for news in heard:
            if crew.run is not None and self.office.told(crew.run, news):
                crew.run = None
        if ended:
            self._lost(crew, ended)
            return False
        if crew.run is not None:
            crew.waiting_for = crew.handle.news.remote()
        return True

    def _lost(self, crew: _Crew[Run], why: str = "its actor or machine was lost again and again.") -> None:
        self.crews.remove(crew)
        self.kill(crew)
        if crew.run is None:
            self.lost_before += 1
            if self.lost_before > ATTEMPTS:
                raise ClusterError("actors of the Ray cluster keep dying before they have done anything.")
            return
        self.lost_before = 0
        self.tries[crew.run] = self.tries.get(crew.run, 0) + 1
        if self.tries[crew.run] >= ATTEMPTS:
            self.office.failed(crew.run, why)
        else:
            job = replace(crew.job, resume=True) if isinstance(crew.job, SweepJob) else crew.job
            self.again.append((crew.run, job))

    def kill(self, crew: _Crew[Run]) -> None:
        try:
            self.ray.kill(crew.handle)
        except Exception:  # it is gone, or the cluster is
            return


def sail(
    office: Office[Run], runs: int, out: Path, address: str | None, workers: int | None, stop: Callable[[], bool]
) -> bool:
    """Get an office's runs done on the cluster at an address, or on one of our own; whether somebody asked to stop.

    ``workers`` of them at once, by default one for each processor of the cluster. ``out`` must be an absolute path.
    """
    if not runs:
        return stop()
    out.mkdir(parents=True, exist_ok=True)
    name, token = f".fedkeel-{secrets.token_hex(8)}", secrets.token_hex(16)
    ray = ray_cluster.join(address)
    fleet = _Fleet(ray, office, out)
    try:
        (out / name).write_text(token, encoding="utf-8")
        there = ray_cluster.processors(ray)
        return _sail(fleet, min(workers or there, there, runs), name, token, stop)
    finally:
        (out / name).unlink(missing_ok=True)
        for crew in fleet.crews:
            fleet.kill(crew)
        ray_cluster.leave()


def _sail(fleet: _Fleet[Run], count: int, name: str, token: str, stop: Callable[[], bool]) -> bool:
    asked, seen = False, time.monotonic()
    waiting: tuple[Run, Any] | None = None
    while True:
        if stop() and not asked:
            asked = True
            for crew in fleet.crews:
                if crew.run is not None:
                    crew.handle.ask_to_stop.remote()
        while not asked:
            waiting = waiting or (fleet.again.pop(0) if fleet.again else fleet.office.next())
            if waiting is None:
                break
            while len(fleet.crews) < count:
                fleet.launch(name, token)
            idle = next((crew for crew in fleet.crews if crew.boarded and crew.run is None), None)
            if idle is None:
                break
            fleet.give(idle, waiting)
            waiting = None
        if not any(crew.run is not None for crew in fleet.crews) and (asked or waiting is None):
            return asked
        refs = {crew.waiting_for: crew for crew in fleet.crews if crew.waiting_for is not None}
        ready, _ = fleet.ray.wait(list(refs), num_returns=1, timeout=LOOK)
        for ref in ready:
            fleet.hear(refs[ref])
        if any(crew.boarded for crew in fleet.crews):
            seen = time.monotonic()
        elif time.monotonic() - seen > PATIENCE:
            raise ClusterError(
                f"no actor could start in the Ray cluster within {PATIENCE:.0f} s; end what else runs there."
            )
