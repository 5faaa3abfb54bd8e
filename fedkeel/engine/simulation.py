"""A federated simulation: rounds over a federation whose clients all live in this process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm, Problem
from fedkeel.data.dataset import Federation
from fedkeel.data.digest import digests
from fedkeel.engine.client import Equipment
from fedkeel.engine.exchange import Respondents
from fedkeel.engine.executors import Executor, Job, Serial
from fedkeel.engine.faults import Faulty, check_needs
from fedkeel.engine.fitting import check_model, some_samples
from fedkeel.engine.residents import Residents
from fedkeel.engine.rounds import DataRecord, Rounds, RunState
from fedkeel.engine.samples import Samples
from fedkeel.engine.schedule import RandomSchedule, Schedule
from fedkeel.engine.server import Server
from fedkeel.engine.settings import Faults, Robust, Training
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
    ) -> None:
        self.federation = federation
        self.executor: Executor = executor or Serial()
        self.faults = faults or Faults()
        check_needs(type(algorithm), self.faults)
        check_model(task, federation)
        seed = check_seed("seed", seed)
        schedule = schedule or RandomSchedule(training, seed)
        self.samples = Samples(federation, task.dtype, task.channels_last, task.device)
        sizes = torch.from_numpy(np.asarray(federation.sizes))
        average_size = -(-int(sizes.sum()) // len(sizes))
        problem = Problem(task.w0, task.layout, sizes, training.local_steps(average_size), task.b0)
        layout, robust = task.buffer_layout, robust or Robust()
        super().__init__(Server(algorithm, problem, training, schedule, seed, self.faults, layout, robust), task)
        self.equipment = Equipment(algorithm, task, training, schedule, self.seed, self.faults.max_update_norm)
        self._first = self.equipment.first_state(problem.N, problem.common_steps)

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
        return replace(super().start(), clients={name: Rows() for name in self._first})

    def who(self, state: RunState) -> Respondents:
        """The clients of the federation, to whom things may happen."""
        return Faulty(self.residents(state), self.faults, self.seed)

    def data(self) -> DataRecord:
        federation = self.federation
        return DataRecord(federation.dataset.name, federation.N, digests(federation))

    def few_samples(self) -> tuple[Tensor, Tensor]:
        return some_samples(self.federation, self.task, self.task.channels_last)

    def job(self, state: RunState) -> Job:
        """The next round, before anything is computed."""
        return self.residents(state).job(self.server.open(state.at_server))

    def residents(self, state: RunState) -> Residents:
        """The clients of the federation as they are in a state."""
        return Residents(self.equipment, self.samples, self.executor, self._first, state.clients, state.client_buffers)
