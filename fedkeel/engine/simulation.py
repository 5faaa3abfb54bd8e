"""A federated simulation: rounds over a federation whose clients all live in this process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Problem
from fedkeel.data.dataset import Federation
from fedkeel.data.digest import digests
from fedkeel.engine.averaging import Averaging
from fedkeel.engine.buffered import Buffered
from fedkeel.engine.client import Equipment
from fedkeel.engine.clock import Clock, check_clock, make_devices
from fedkeel.engine.exchange import Call, Respondents
from fedkeel.engine.executors import Executor, Job, Serial
from fedkeel.engine.faults import Faulty, check_needs
from fedkeel.engine.fitting import check_model, some_samples
from fedkeel.engine.residents import Residents
from fedkeel.engine.rounds import DataRecord, Rounds, RunState
from fedkeel.engine.samples import Samples
from fedkeel.engine.schedule import RandomSchedule, Schedule
from fedkeel.engine.server import Server
from fedkeel.engine.settings import Faults, Robust, Training
from fedkeel.engine.timing import Synchronous
from fedkeel.errors import check_seed
from fedkeel.learning.task import Task
from fedkeel.state.rows import Rows


class Simulation(Rounds):
    """An algorithm, a task and a federation; ``start`` gives the first state, ``step`` the one after a round."""

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        federation: Federation,
        training: Training,
        seed: int = 0,
        executor: Executor | None = None,
        schedule: Schedule | None = None,
        faults: Faults | None = None,
        robust: Robust | None = None,
        averaging: Averaging | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.federation = federation
        self.executor: Executor = executor or Serial()
        self.faults = faults or Faults()
        self.clock = clock or Clock()
        check_needs(type(algorithm), self.faults)
        check_clock(type(algorithm), self.clock, self.faults, training)
        check_model(task, federation)
        seed = check_seed("seed", seed)
        schedule = schedule or RandomSchedule(training, seed)
        self.samples = Samples(federation, task.dtype, task.channels_last, task.device)
        sizes = torch.from_numpy(np.asarray(federation.sizes))
        average_size = -(-int(sizes.sum()) // len(sizes))
        problem = Problem(task.w0, task.layout, sizes, training.local_steps(average_size), task.b0)
        layout, robust = task.buffer_layout, robust or Robust()
        policy = self.faults
        server = Server(algorithm, problem, training, schedule, seed, policy, layout, robust, averaging)
        super().__init__(server, task)
        self.equipment = Equipment(algorithm, task, training, schedule, self.seed, self.faults.max_update_norm)
        self._first = self.equipment.first_state(problem.N, problem.common_steps)
        self._devices = make_devices(self.clock, problem.N, self.seed) if self.clock.is_on else None
        if self._devices is not None:
            self._timetable()

    @property
    def schedule(self) -> Schedule:
        """Who takes part, and which samples each step sees."""
        return self.server.schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self.server = replace(self.server, schedule=schedule)
        self.equipment = replace(self.equipment, schedule=schedule)

    def start(self) -> RunState:
        """The state before the first round."""
        timetable = self._timetable()
        first = replace(super().start(), clients={name: Rows() for name in self._first})
        return first if timetable is None else replace(first, clock=timetable.start())

    def opened(self, state: RunState) -> tuple[Call, Respondents]:
        """The call of the next round, and whoever answers it: by the clock, if there is one."""
        timetable = self._timetable()
        if timetable is None:
            return super().opened(state)
        return timetable.opened(state.at_server, state.clock, self.who(state))

    def _timetable(self) -> Synchronous | Buffered | None:
        """Who is called when, made anew for every schedule."""
        if self._devices is None:
            return None
        if self._made is None or self._made.server is not self.server:
            first = {name: Rows() for name in self._first}
            nobody = Residents(self.equipment, self.samples, self.executor, self._first, first, Rows())
            self._made = (Buffered if self.clock.is_buffered else Synchronous)(self.server, self._devices, nobody)
        return self._made

    _made: Synchronous | Buffered | None = None

    def who(self, state: RunState) -> Respondents:
        """The clients of the federation, to whom things may happen."""
        return Faulty(self.residents(state), self.faults, self.seed)

    def data(self) -> DataRecord:
        federation = self.federation
        files = {} if self._devices is None else self._devices.digests
        return DataRecord(federation.dataset.name, federation.N, digests(federation) | files)

    def few_samples(self) -> tuple[Tensor, Tensor]:
        return some_samples(self.federation, self.task, self.task.channels_last)

    def job(self, state: RunState) -> Job:
        """The next round, before anything is computed."""
        return self.residents(state).job(self.opened(state)[0])

    def residents(self, state: RunState) -> Residents:
        """The clients of the federation as they are in a state."""
        return Residents(self.equipment, self.samples, self.executor, self._first, state.clients, state.client_buffers)
