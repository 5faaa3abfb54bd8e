"""How far the clients of a round drift apart. Looking changes nothing: runs have the same bits with and without it.

With w the model that clients start the round from, g_i = ∇F_i(w) over all of client i's samples in evaluation mode, and
p_i the weights of clients by samples, summing to one over those measured:

    gamma            Γ = √(Σ p_i‖g_i‖² / ‖Σ p_i g_i‖²), the drift degree of FedGVRGM (equation 4). It is 1 if all
                     gradients are equal, and grows without bound towards a stationary point: so ``gamma_numerator`` and
                     ``gamma_denominator`` stand beside it, and it is cut at 10⁶. NaN if all gradients are 0.
    control_error    √(Σ p_i‖c_i − g_i‖² / Σ p_i‖g_i‖²) of the control variates c_i that clients start the round with:
                     0 if they are exact, 1 if they are no better than none
    variance_before  Σ p_i‖g_i − ḡ‖² over the cohort, ḡ = Σ p_i g_i
    variance_after   the same of what clients follow in place of g_i: q_i = g_i + their correction at w

and with Δ_i = y_i − w the updates that counted, Δ̄ their plain mean:

    angle_of         of each client, the angle between Δ_i and Δ̄ in degrees; NaN if one of them is 0
    angle            the mean of these
    distance_of      ‖Δ_i‖ of each client
    drift/NAME       the mean over clients of ‖Δ_i‖ within one parameter of the model
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from fedkeel.algorithms.contract import Algorithm
from fedkeel.algorithms.state import State
from fedkeel.engine.client import Work, local_of
from fedkeel.engine.devices import CPU
from fedkeel.engine.names import MEASURED, Noted
from fedkeel.engine.randomness import Moment, Purpose, generator, torch_seed
from fedkeel.engine.residents import Residents
from fedkeel.engine.rounds import Rounds, RunState, Seen
from fedkeel.engine.samples import full_batches
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import FedkeelError
from fedkeel.learning.drawing import keyed_if
from fedkeel.learning.layout import Layout
from fedkeel.measure.settings import Measuring
from fedkeel.notices import notice

FLOOR = 1e-12
"""Share of Γ's numerator below which its denominator is not taken: Γ is at most 10⁶."""


class MeasureError(FedkeelError):
    """Something cannot be measured."""


class Moments:
    """Weighted means of vectors and of their squared lengths, in double precision."""

    def __init__(self) -> None:
        self._weight, self._squares = 0.0, 0.0
        self._sum: Tensor | None = None

    def add(self, weight: float, vector: Tensor) -> None:
        vector = vector.double()
        self._weight += weight
        self._squares += weight * float(vector @ vector)
        self._sum = weight * vector if self._sum is None else self._sum.add_(vector, alpha=weight)

    @property
    def mean_square(self) -> float:
        """The mean of ‖v‖²."""
        return self._squares / self._weight if self._weight else math.nan

    @property
    def square_of_mean(self) -> float:
        """‖mean of v‖²."""
        if self._sum is None or not self._weight:
            return math.nan
        mean = self._sum / self._weight
        return float(mean @ mean)

    @property
    def variance(self) -> float:
        """The mean of ‖v − mean‖²."""
        left = self.mean_square - self.square_of_mean
        return left if math.isnan(left) else max(0.0, left)


def drift_degree(numerator: float, denominator: float) -> float:
    """Γ from the mean of ‖g_i‖² and ‖mean of g_i‖²."""
    return math.sqrt(_ratio(numerator, max(denominator, FLOOR * numerator)))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


class DriftWatch:
    """Looks at every so many rounds (``engine.rounds.Look``)."""

    def __init__(self, rounds: Rounds, settings: Measuring) -> None:
        self._rounds = rounds
        self._settings = settings
        self._told: set[str] = set()

    def __call__(self, seen: Seen) -> dict[str, Noted]:
        if seen.record.t % self._settings.every:
            return {}
        found = self._of_gradients(seen) | self._of_uploads(seen)
        return {f"{MEASURED}{name}": value for name, value in found.items()}

    def _of_gradients(self, seen: Seen) -> dict[str, Noted]:
        if not isinstance(self._rounds, Simulation):
            self._tell(
                "gradients of clients are not measured, since their samples are not here: there is no measure.gamma, "
                "measure.control_error or measure.variance"
            )
            return {}
        return of_gradients(self._rounds, seen, self._measured(seen.before))

    def _measured(self, state: RunState) -> list[int]:
        """The clients whose gradients are taken before a round."""
        N, n = self._rounds.N, self._settings.clients
        if n is None or n >= N:
            return list(range(N))
        draw = generator(self._rounds.server.seed, Purpose.MEASURE, state.t)
        return sorted(draw.choice(N, size=n, replace=False).tolist())

    def _of_uploads(self, seen: Seen) -> dict[str, Noted]:
        if seen.outcome is None:
            return {}
        w, y = seen.before.server.w, seen.outcome.message.get("y")
        if not isinstance(y, Tensor) or y.shape != (len(seen.record.cohort), len(w)):
            self._tell(
                f"the clients of {self._rounds.algorithm.title} do not upload whole models: there is no measure.angle, "
                "measure.distance_of or measure.drift"
            )
            return {}
        places = {client: row for row, client in enumerate(seen.call.clients.ids)}
        starts = [seen.call.start(w, places[client]) for client in seen.record.cohort]
        return of_uploads(seen.record.cohort, y, starts, self._rounds.task.layout)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            notice("measure", text)


def of_uploads(cohort: tuple[int, ...], y: Tensor, starts: Sequence[Tensor], layout: Layout) -> dict[str, Noted]:
    """Angles and distances of the models y [S, d] that a cohort made of what each was sent, S vectors [d]."""
    mean = torch.zeros_like(starts[0], dtype=torch.float64)
    for row, start in zip(y, starts, strict=True):
        mean += (row.double() - start.double()) / len(y)
    angles, distances = {}, {}
    drifts = {entry.name: 0.0 for entry in layout}
    for client, row, start in zip(cohort, y, starts, strict=True):
        delta = row.double() - start.double()
        angles[client], distances[client] = angle(delta, mean), float(torch.linalg.vector_norm(delta))
        for entry in layout:
            drifts[entry.name] += float(torch.linalg.vector_norm(delta[entry.start : entry.stop])) / len(y)
    known = [one for one in angles.values() if not math.isnan(one)]
    return {
        "angle": math.fsum(known) / len(known) if known else math.nan,
        "angle_of": angles,
        "distance_of": distances,
        **{f"drift/{name}": value for name, value in drifts.items()},
    }


def angle(one: Tensor, other: Tensor) -> float:
    """Between two vectors, in degrees; NaN if one of them is 0.

    The arc cosine would lose half of the digits near 0° and 180°.
    """
    lengths = torch.linalg.vector_norm(one), torch.linalg.vector_norm(other)
    if not all(lengths):
        return math.nan
    a, b = one / lengths[0], other / lengths[1]
    halves = torch.linalg.vector_norm(a - b), torch.linalg.vector_norm(a + b)
    return math.degrees(2 * math.atan2(*map(float, halves)))


def of_gradients(simulation: Simulation, seen: Seen, measured: Iterable[int]) -> dict[str, Noted]:
    """What gradients where a round starts say: of some clients, and of the cohort where that is corrected."""
    residents, measured = simulation.residents(seen.before), set(measured)
    corrections = _Corrections(residents, seen)
    everyone, before, after = Moments(), Moments(), Moments()
    missed = explained = 0.0
    controlled = False
    for client, g in gradients(residents, seen, sorted(measured | corrections.clients)):
        n = float(simulation.problem.sizes[client])
        if client in measured:
            everyone.add(n, g)
            found = _control_error(residents, seen.before, client, g)
            if found is not None:
                controlled, missed, explained = True, missed + n * found[0], explained + n * found[1]
        if client in corrections.clients:
            before.add(n, g)
            after.add(n, corrections.corrected(client, g))
    numerator, denominator = everyone.mean_square, everyone.square_of_mean
    values: dict[str, Noted] = {
        "gamma": drift_degree(numerator, denominator),
        "gamma_numerator": numerator,
        "gamma_denominator": denominator,
    }
    if corrections.clients:
        values |= {"variance_before": before.variance, "variance_after": after.variance}
    if controlled:
        values["control_error"] = math.sqrt(_ratio(missed, explained))
    return values


def gradients(residents: Residents, seen: Seen, clients: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
    """∇F_i at the w of a round's call over all of a client's samples, in evaluation mode, client by client [d].

    At the server's own w where the call has none, and for whoever is not called where each is sent another. Clients
    that keep BatchNorm statistics of their own use these.
    """
    task, seed = residents.equipment.task, residents.equipment.seed
    state, places = seen.before, {client: row for row, client in enumerate(seen.call.clients.ids)}
    for client in clients:
        w = seen.call.start(state.server.w, places.get(client)).to(task.device).unsqueeze(0)
        b = residents.buffers_of(client, state.b).to(task.device).unsqueeze(0)
        key = None if task.draws_nothing else torch_seed(seed, Purpose.MEASURE, state.t, client)
        total = torch.zeros_like(w)
        with keyed_if(key, task.device, [] if key is None else task.generators):
            for batch in full_batches(residents.samples.data_of(client), task.samples_of_a_pass):
                total += task.gradient(w, b, batch, train=False)[0]
        yield client, total[0].to(CPU)


class _Corrections:
    """What the algorithm adds to the gradients of a round's cohort, if it adds something that can be named."""

    def __init__(self, residents: Residents, seen: Seen) -> None:
        algorithm = residents.equipment.algorithm
        named = type(algorithm).correction is not Algorithm.correction
        self.clients: frozenset[int] = frozenset(seen.record.cohort if named else ())
        self._places = {client: row for row, client in enumerate(seen.call.clients.ids)}
        self._work: Work | None = residents.job(seen.call).on(residents.equipment.task.device) if self.clients else None

    def corrected(self, client: int, g: Tensor) -> Tensor:
        """What a client follows at the global model in place of its gradient g [d], at the steps that are corrected."""
        assert self._work is not None
        with nullcontext() if self._work.draws_nothing else self._work.keyed(client):
            local = local_of(self._work, self._places[client])
            correction = self._work.algorithm.correction(local)
            if correction is None:
                return g
            q = g.to(local.w.device, copy=True).unsqueeze(0)
            replace(correction, when=None).add_to(q, local.w, 0)
            if correction.decay is not None:
                q += correction.decay * local.w
            return q[0].to(CPU)


def _control_error(residents: Residents, state: RunState, client: int, g: Tensor) -> tuple[float, float] | None:
    """‖c_i − g_i‖² and ‖g_i‖² where the client has a control variate c_i."""
    equipment = residents.equipment
    algorithm = equipment.algorithm
    if type(algorithm).controls is Algorithm.controls:
        return None
    own = {name: rows.take([client], residents.first[name]) for name, rows in residents.states.items()}
    with equipment.keyed(Moment.CONTROLS, state.t):
        found = algorithm.controls(state.server, State(**own))
    if found is None:
        return None
    g = g.double() if found.where is None else g[found.where].double()
    if found.c.shape != (1, len(g)):
        raise MeasureError(
            f"{algorithm.name}.controls must give a control variate [K, {len(g)}] for each of K clients, got "
            f"{list(found.c.shape)} for one."
        )
    missed = found.c[0].double() - g
    return float(missed @ missed), float(g @ g)
