"""The parameters that ask for another reading of a paper than the default one, paper by paper."""

from __future__ import annotations

from typing import Literal

from fedkeel.algorithms.contract import AlgorithmParams, reading


class FedDCReadings(AlgorithmParams):
    modes = {
        # The print: no scaling by size, the last update itself as linear term, one data-weighted sum of y + h.
        "literal": {
            "alpha_scaled": False,
            "c_scaled": False,
            "g": "last_update",
            "agg": "eq7",
            "c_lr": "initial",
            "c_steps": "common",
        },
        # The authors' program divides by the average client's steps and the learning rate of round 0.
        "code": {"c_lr": "initial", "c_steps": "common"},
    }
    linear: bool = reading(True, "the SCAFFOLD-like linear term")
    use_h: bool = reading(True, "add the drift before averaging")
    alpha_scaled: bool = reading(True, "α_i = α/ω_i; false: α for everybody, as printed")
    c_scaled: bool = reading(True, "c/ω_i in the step and ω_i Δc_i in the mean of c")
    g: Literal["recursion", "last_update"] = reading("recursion", "the linear term: SCAFFOLD's or as printed")
    agg: Literal["repo", "eq7"] = reading("repo", "mean_S y + mean_N h, or Σ_S p_i (y_i + h_i) as printed")
    c_lr: Literal["current", "initial"] = reading("current", "learning rate in the update of c_i")
    c_steps: Literal["true", "common"] = reading("true", "steps in the update of c_i: K_i or the average's")
    traffic: Literal["min", "paper"] = reading("min", "paper: Δc_i is uploaded although it can be derived")


class LocalReadings(AlgorithmParams):
    """Of the local steps of FedGVRGM and its ablations."""

    restart: bool = reading(False, "every local step starts from w again, as printed; only the last counts")


class ControlReadings(LocalReadings):
    """Of FedGVR's control variates and their weight ε."""

    modes = {
        "literal": {
            "weights": "uniform",
            "restart": True,
            "acc_unit": "fraction",
            "eps_clipped": False,
            "c_update": "scaffold",
            "c_factor": "printed",
        }
    }
    acc_unit: Literal["percent", "fraction"] = reading(
        "percent", "fraction: accuracy in [0, 1], as printed, which all but switches the correction off"
    )
    eps_clipped: bool = reading(True, "keep ε within [0, 1]; false as printed")
    c_update: Literal["exact", "scaffold"] = reading(
        "exact", "scaffold: c_k⁺ = c_k − c + (w − y)/(K_k η), as printed, which undoes ε over time"
    )
    c_factor: Literal["steps", "printed"] = reading(
        "steps", "factor on w − y in c_k⁺: 1/(K_k η), or the printed η/E with E local epochs"
    )
    c_sign: Literal["alg", "eq7"] = reading("alg", "sign of w − y in c_k⁺: Algorithm 1's, or equation 7's opposite")
    weights_c: Literal["same", "uniform", "omega"] = reading(
        "same", "weights in the mean of δ_k: as the model's, 1, or ω_k = N n_k/n"
    )
    traffic: Literal["min", "paper"] = reading("min", "paper: δ_k is uploaded also where it can be derived")


class MomentumReadings(LocalReadings):
    """Of GM, momentum at the server."""

    modes = {"literal": {"weights": "uniform", "restart": True, "gm": "printed", "scale": "participation"}}
    scale: Literal["participation", "unit"] = reading(
        "unit",
        "unit: the model's step as it is; participation: times S/N, as printed (slower than FedAvg)",
    )
    gm: Literal["velocity", "printed"] = reading(
        "velocity", "momentum collects steps; printed: it collects the model itself, which cannot train"
    )


class FedGVRGMReadings(MomentumReadings, ControlReadings):
    modes = {
        "literal": ControlReadings.modes["literal"]
        | {"gm": "printed", "c_momentum": "heavy_ball", "scale": "participation"}
    }
    c_momentum: Literal["none", "damp", "heavy_ball"] = reading(
        "none", "momentum on c: none, with the step times 1 − β, or as on w (as printed)"
    )


class FedVecaReadings(AlgorithmParams):
    modes = {"literal": {"accept": "local", "beta": "full", "L0": True, "tau_bar": "printed"}}
    accept: Literal["off", "local", "global"] = reading(
        "off",
        "keep a round only if its loss is the lowest yet; local: Σ p_i F_i(y_i), as printed, which "
        "rejects nearly everything; global: Σ p_i F_i(w⁺), one more exchange",
    )
    beta: Literal["same_batch", "full"] = reading(
        "same_batch", "gradient at w in β: on the step's minibatch; full: r_i, as printed, adds noise"
    )
    delta: Literal["printed", "normalised"] = reading(
        "printed", "δ grows like τ as printed; normalised divides by (λ + 1)² in place of λ + 1"
    )
    grad_norm: Literal["previous", "current"] = reading(
        "previous", "γ from the round before, as printed, or from this round's gradients"
    )
    alpha_cap: bool = reading(False, "keep α below 2L/min A, as Theorem 2 asks")
    tau_bar: Literal["used", "printed"] = reading(
        "used", "τ̄ from the steps taken; printed: from τ before it is raised to τ_min"
    )
    L0: bool = reading(False, "let L start from ‖∇F(w_0)‖/‖w_0‖, as printed")
    traffic: Literal["min", "paper"] = reading("min", "paper: ∇F(w_{k−1}) travels, not only its norm")


class FedPMVRReadings(AlgorithmParams):
    modes = {
        "literal": {"variant": "alg1", "weights": "uniform"},
        # The program's test on a list index is never true; it would name the last layer only.
        "code": {"variant": "repo_dead", "weights": "uniform", "mask": "last1"},
    }
    variant: Literal["shrink", "ema", "alg1", "step", "repo", "repo_dead"] = reading(
        "step", "which of the paper's descriptions; see the box"
    )


# GradMA's authors' program weights d by samples, solves one problem per tensor, decays weights (in all three gradients)
# before the projection, draws dropout anew for each gradient, and lets a new worker start from the received model.
_CODE = {"weights": "n", "blocks": "tensor", "decay": "weights"}
_CODE_WORKER = _CODE | {"dropout": "own", "unseen": "global"}


class GradMAServerReadings(AlgorithmParams):
    modes = {"literal": {"blocks": "tensor"}, "code": _CODE}
    decay: Literal["all", "weights"] = reading(
        "all", "training.weight_decay: on all after the projection, or before it where no 'bias' is named"
    )


class GradMAWorkerReadings(GradMAServerReadings):
    # Here the authors' program does keep the local model.
    modes = {"literal": {"blocks": "tensor"}, "code": _CODE_WORKER}
    prev_init: Literal["stored", "global"] = reading(
        "stored", "x_{−1}, the previous point of a first step: the worker's last model, or the global one"
    )
    unseen: Literal["initial", "global"] = reading(
        "initial", "the last model of a worker without one: the initial model, or the received one"
    )
    dropout: Literal["shared", "own"] = reading("shared", "whether the three gradients of a step drop the same units")


class GradMAReadings(GradMAWorkerReadings):
    modes = {
        # The slides lost the details; literal fills them from the program, which keeps no local model here.
        "literal": {"prev_init": "global", "blocks": "tensor"},
        "code": _CODE_WORKER | {"prev_init": "global"},
    }
