"""What FedGVR, FedGM and FedGVRGM share: FedProx's local step, and GM, momentum at the server.

GM moves x, the model or the server's control variate, by a step that plain averaging would take:

    v ← β v + step;   x ← x + v

As printed it accumulates x itself, x ← x + step, v ← v + x, x ← x − β v, which turns x around 0 for ever.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import AlgorithmParams, Local, Paper, Uploads
from fedkeel.algorithms.corrections import pull
from fedkeel.algorithms.server_steps import average
from fedkeel.learning.correction import Correction

PAPER = Paper("Accelerating Federated Learning with Two-phase Gradient Adjustment", "Wang et al.", "ICPADS", 2022)


class ProximalParams(AlgorithmParams):
    """The local step and the average."""

    mu: float = Field(0.1, ge=0, description="μ, strength of (μ/2)‖y − w‖²; 0.1 in the paper")
    eta_g: float = Field(1.0, gt=0, description="η_g, server learning rate; 1 in the paper")
    weights: Literal["n", "uniform"] = Field("n", description="weights of the averages: samples, or equal")
    restart: bool = Field(False, description="every local step starts from w again, as printed; only the last counts")


class MomentumParams(AlgorithmParams):
    """GM."""

    beta: float = Field(0.9, ge=0, lt=1, description="β, momentum of the server; 0.9 in the paper")
    scale: Literal["participation", "unit"] = Field(
        "unit",
        description="unit: the model's step as it is; participation: times S/N, as printed (slower than FedAvg)",
    )
    gm: Literal["velocity", "printed"] = Field(
        "velocity", description="momentum collects steps; printed: it collects the model itself, which cannot train"
    )


def proximal(params: ProximalParams, local: Local) -> Correction:
    """μ (y − w), at every local step."""
    # y − η (q + (y − w)/η) = w − η q: starting from w again is a pull of strength 1/η.
    restart = 1 / local.round.lr if params.restart else 0.0
    return pull(params.mu + restart, towards=local.w)


def mean_step(params: ProximalParams, w: Tensor, uploads: Uploads) -> Tensor:
    """Δ̄, the weighted mean of y_i − w [d]."""
    return average(uploads.y, uploads.clients.weights(params.weights)) - w


def global_momentum(params: MomentumParams, x: Tensor, v: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """GM: the moved x and the new v."""
    if params.gm == "printed":
        x = x + step
        v = v + x
        return x - params.beta * v, v
    v = params.beta * v + step
    return x + v, v


def model_scale(params: MomentumParams, uploads: Uploads) -> float:
    """The factor on the model's mean step: S/N with this round's S, or 1."""
    return uploads.clients.S / uploads.clients.N if params.scale == "participation" else 1.0
