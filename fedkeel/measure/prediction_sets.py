"""Prediction sets of the model that a run has come to."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkeel.engine.randomness import Purpose, part_seeds
from fedkeel.engine.rounds import RunState
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError, ModelError, invalid, unknown
from fedkeel.measure.conformal import Conformal, Labels, conformal

On = Literal["test", "clients"]


def prediction_sets(
    simulation: Simulation, state: RunState, *, on: On | None = None, model: str | None = None, **options: Any
) -> Conformal:
    """Calibrate and measure prediction sets of a global model; ``options`` are those of ``conformal.conformal``.

    ``on`` is the test set, or all clients' own test samples, which thresholds over clients need (and then the default).
    ``model`` is one of the candidates that the algorithm offers, by default its first.
    """
    by = options.get("by", "pooled")
    on = on or ("test" if by == "pooled" else "clients")
    if on not in ("test", "clients"):
        raise invalid("on", "'test' or 'clients'", on)
    if on == "test" and by != "pooled":
        raise invalid("on", f"'clients' where the threshold is {by}", on)
    candidates = simulation.candidates(state)
    if model is not None and model not in candidates:
        raise unknown("candidate model", model, list(candidates))
    w, b = candidates[model] if model is not None else next(iter(candidates.values()))
    x, y, owners = _samples(simulation, on)
    outputs = simulation.task.answers(w, b, x, part_seeds(simulation.seed, Purpose.EVALUATION, state.t))
    if y.is_floating_point() or y.dim() != 1 or outputs.dim() != 2 or outputs.shape[1] < 2:
        raise ModelError(
            "prediction sets need one label for a sample and a score for each of at least two classes, got outputs "
            f"{list(outputs.shape)} for targets {list(y.shape)} under the loss {simulation.task.loss.name}."
        )
    probabilities = torch.softmax(outputs.double(), dim=1).numpy()
    return conformal(probabilities, y.cpu().numpy(), clients=owners, **options)


def _samples(simulation: Simulation, on: On) -> tuple[Tensor, Tensor, Labels | None]:
    """Inputs, targets and, where they are clients' own, whose they are."""
    federation, samples = simulation.federation, simulation.samples
    if on == "test":
        return *samples.test, None
    tests = federation.client_tests if federation.held_tests is None else federation.held_tests
    if tests is None:
        raise InputError(
            "there are no test samples of clients to calibrate on: hold some out (data.client_test = 0.2, in Python "
            "federation.hold_out_tests(0.2)), or use the test set with by = 'pooled'."
        )
    rows = np.concatenate(tests)
    if len(np.unique(rows)) != len(rows):
        raise InputError(
            "clients share test samples, so that some would calibrate and be judged at once; use the test set with "
            "by = 'pooled'."
        )
    owners = np.repeat(np.arange(len(tests)), [len(part) for part in tests])
    parts = [samples.client_test(client) for client in range(len(tests)) if len(tests[client])]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), owners
