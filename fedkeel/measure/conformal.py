"""Prediction sets that hold the right label with a promised probability, whatever the model (split conformal).

A score s(x, y) says how badly label y fits sample x. From n samples that the model was not trained on comes a threshold
q, and the set of x is every label with s(x, y) ≤ q. With π the model's probabilities, sorted from the largest, r(y) the
rank of y among them and U uniform on (0, 1), one for each sample:

    LAC    s = 1 − π_y                                                  (Sadinle et al., 2019)
    APS    s = π_(1) + … + π_(r−1) + U·π_(r)                            (Romano et al., 2020)
    RAPS   APS + λ·max(0, r − k_reg)                                    (Angelopoulos et al., 2021)

Without randomisation U = 1: the promises are the same, sets larger on the whole. Sets may be empty either way.

Miscoverage α gives one of three thresholds:

    pooled      q = the ⌈(n + 1)(1 − α)⌉-th smallest of all n scores, ∞ if there are fewer. A sample exchangeable with
                those n is covered with probability at least 1 − α, and at most 1 − α + 1/(n + 1) if no scores are tied.
    federated   q = the smallest with Σ_k v_k·#{scores of client k ≤ q}/(n_k + 1) ≥ 1 − α, ∞ if none has it. A sample of
                a client drawn with probability v_k, exchangeable with that client's own, is covered with probability at
                least 1 − α; clients need not be alike. By default v_k ∝ n_k + 1, which makes q the
                ⌈(N + K)(1 − α)⌉-th smallest of the N scores of K clients (Lu et al., 2023).
    client      for every client the pooled threshold of its own scores: 1 − α for each of them, at the price of larger
                sets; a client with fewer than (1 − α)/α samples gets all labels.

These promises are about the mean over calibrations. They need tuning (k_reg, λ, temperature) on samples that serve for
nothing else, which is why there is a third split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedkeel import arguments
from fedkeel.engine.randomness import Purpose, generator
from fedkeel.errors import InputError, check_seed, invalid, unknown

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Truth = npt.NDArray[np.bool_]
Method = Literal["lac", "aps", "raps"]
By = Literal["pooled", "federated", "client"]

PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)
"""The λ among which RAPS chooses."""
LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 11))
"""Miscoverages of a curve: 0.05, 0.1, …, 0.5."""
ROUNDING = 1e-5
"""How far a sum of probabilities may be from 1: single precision over a thousand classes."""
_SPLIT, _U = 0, 1


# -- Scores


def ranked(probabilities: Array) -> tuple[Labels, Array]:
    """Ranks from 1 for the likeliest label [n, C], equal ones by number; and what all likelier labels have [n, C]."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    places = np.arange(1, probabilities.shape[1] + 1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(places, order.shape), axis=1)
    likely = np.take_along_axis(probabilities, order, axis=1)
    before = np.zeros_like(likely)
    np.cumsum(likely[:, :-1], axis=1, out=before[:, 1:])
    above = np.empty_like(before)
    np.put_along_axis(above, order, before, axis=1)
    return ranks, above


def scores(probabilities: Array, method: Method, u: Array | None = None, k_reg: int = 0, penalty: float = 0.0) -> Array:
    """How badly every label fits every sample [n, C]; ``u`` [n] randomises, None does not (LAC has no use for it)."""
    if method == "lac":
        return 1.0 - probabilities
    ranks, above = ranked(probabilities)
    found = above + (probabilities if u is None else u[:, None] * probabilities)
    return found + penalty * np.maximum(0, ranks - k_reg) if method == "raps" else found


def true_of(values: npt.NDArray[Any], labels: Labels) -> npt.NDArray[Any]:
    """Of each row the value of its label [n]."""
    return values[np.arange(len(labels)), labels]


# -- Thresholds


def quantile(found: Array, alpha: float) -> float:
    """The ⌈(n + 1)(1 − α)⌉-th smallest of n scores, ∞ if there are fewer.

    α is taken as the decimal that it is written as: (9 + 1)(1 − 0.7) is 3, not a little more.
    """
    if not len(found):
        raise InputError("a threshold needs at least one calibration sample, got none; raise the calibration share.")
    rank = math.ceil((len(found) + 1) * (1 - _exact(alpha)))
    return float(np.partition(found, rank - 1)[rank - 1]) if rank <= len(found) else math.inf


def federated_quantile(by_client: Sequence[Array], alpha: float, shares: Sequence[float] | None = None) -> float:
    """The federated threshold of clients' scores; ``shares`` are the v_k up to a factor, by default n_k + 1."""
    if not by_client or not all(len(one) for one in by_client):
        raise InputError("a federated threshold needs at least one calibration sample of every client.")
    sizes = [len(one) for one in by_client]
    given = [Fraction(n + 1) for n in sizes] if shares is None else [Fraction(share) for share in shares]
    if len(given) != len(sizes) or min(given) <= 0:
        raise invalid("shares", f"{len(sizes)} numbers above 0, one for each client", shares)
    each = [share / sum(given) / (n + 1) for share, n in zip(given, sizes, strict=True)]
    common = math.lcm(*(weight.denominator for weight in each))  # whole numbers: sums are exact
    weights = [weight.numerator * (common // weight.denominator) for weight in each]
    needed, total = common * (1 - _exact(alpha)), 0
    owners = np.repeat(np.arange(len(sizes)), sizes)
    together = np.concatenate(by_client)
    for at in np.argsort(together, kind="stable"):
        total += weights[owners[at]]
        if total >= needed:
            return float(together[at])
    return math.inf


def _exact(alpha: float) -> Fraction:
    return Fraction(repr(float(alpha)))


# -- Tuning


def tuned_rank(probabilities: Array, labels: Labels, alpha: float) -> int:
    """k_reg: the (1 − α)-quantile of the true labels' ranks, by the same rule as a threshold; at most C."""
    ranks, _ = ranked(probabilities)
    found = quantile(true_of(ranks, labels).astype(np.float64), alpha)
    return int(min(found, probabilities.shape[1]))


def tuned_penalty(probabilities: Array, labels: Labels, alpha: float, k_reg: int, u: Array | None = None) -> float:
    """λ: the one of ``PENALTIES`` with the smallest sets on these samples, the smallest of equals."""

    def size(penalty: float) -> float:
        found = scores(probabilities, "raps", u, k_reg, penalty)
        return float((found <= quantile(true_of(found, labels), alpha)).sum(axis=1).mean())

    return min(PENALTIES, key=size)


def tuned_temperature(probabilities: Array, labels: Labels) -> float:
    """T with the smallest mean −log of the true label's probability, π^(1/T) normalised, within [0.01, 100].

    That mean is convex in 1/T, so halving the interval of its slope finds it.
    """
    logs = _logs(probabilities)
    low, high = math.log(0.01), math.log(100.0)  # of 1/T
    for _ in range(60):
        middle = (low + high) / 2
        slope = ((_softmax(math.exp(middle) * logs) * logs).sum(axis=1) - true_of(logs, labels)).mean()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def tempered(probabilities: Array, temperature: float) -> Array:
    """Probabilities at another temperature: π^(1/T), normalised."""
    return probabilities if temperature == 1 else _softmax(_logs(probabilities) / temperature)


def _logs(probabilities: Array) -> Array:
    return np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


# -- The whole


@dataclass(frozen=True)
class Measured:
    """Sets of some samples: how many samples, the share whose set has the right label, and the mean size of sets."""

    samples: int
    coverage: float
    size: float


@dataclass(frozen=True)
class Level:
    """Sets at one miscoverage, with what was tuned for it."""

    alpha: float
    coverage: float
    size: float
    threshold: float | dict[int, float]
    """By client where every client has its own; ∞ where there were too few samples: then sets hold every label."""
    k_reg: int | None = None
    penalty: float | None = None


@dataclass(frozen=True, repr=False)
class Conformal:
    """Prediction sets of a model, measured on samples that neither tuned nor calibrated them."""

    method: Method
    randomised: bool
    by: By
    alpha: float
    labels: int
    """C, how many there are."""
    samples: dict[str, int]
    """How many served for ``tuning``, ``calibration`` and ``evaluation``."""
    temperature: float
    """1: the model's own probabilities."""
    at: Level
    """The level that was asked for."""
    by_class: dict[int, Measured]
    by_client: dict[int, Measured]
    """Empty where samples belong to no clients."""
    curve: tuple[Level, ...]
    """Coverage and size over a grid of levels."""
    seed: int

    @property
    def coverage(self) -> float:
        """The share of samples whose set has the right label."""
        return self.at.coverage

    @property
    def size(self) -> float:
        """The mean number of labels in a set."""
        return self.at.size

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them: a threshold of ∞ is None."""
        table = asdict(self)
        for level in (table["at"], *table["curve"]):
            found = level["threshold"]
            level["threshold"] = (
                {client: _finite(one) for client, one in found.items()} if isinstance(found, dict) else _finite(found)
            )
        return table

    def __repr__(self) -> str:
        kind = self.method.upper() + (
            "" if self.method == "lac" else f", {'' if self.randomised else 'not '}randomised"
        )
        lines = [
            f"Conformal({kind}; calibrated {_SAID[self.by]} on {self.samples['calibration']:,} samples, "
            f"measured on {self.samples['evaluation']:,})",
            f"  coverage {self.coverage:.1%} (asked for: {1 - self.alpha:.1%}), mean set size {self.size:.2f} "
            f"of {self.labels} labels",
        ]
        for name, parts in (("class", self.by_class), ("client", self.by_client)):
            if parts:
                worst = min(parts, key=lambda one: parts[one].coverage)
                lines.append(f"  worst {name}: {worst}, coverage {parts[worst].coverage:.1%}")
        return "\n".join(lines)


_SAID = {"pooled": "pooled", "federated": "over clients", "client": "client by client"}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def conformal(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    method: Method = "raps",
    alpha: float = 0.1,
    randomised: bool = True,
    calibration: float = 0.5,
    tuning: float = 0.2,
    temperature: bool = False,
    clients: npt.ArrayLike | None = None,
    by: By = "pooled",
    levels: Sequence[float] = LEVELS,
    seed: int = 0,
) -> Conformal:
    """Split samples, calibrate prediction sets on one part and measure them on the other.

    ``probabilities`` [n, C] are a model's on samples that it was not trained on, with their ``labels`` [n].
    ``calibration`` is the share that calibrates; of this, the share ``tuning`` tunes k_reg and λ of RAPS, for each
    level anew, and the temperature if it is asked for (other methods tune nothing and calibrate with all of it).
    ``clients`` [n] says whose a sample is; ``by`` is whose scores make the threshold, see above: ``federated`` and
    ``client`` split every client's samples. Splits and U depend on ``seed`` alone.
    """
    pi, y = _checked(probabilities, labels)
    method, by = _known("method", method, Method), _known("by", by, By)
    alpha, calibration = arguments.share("alpha", alpha), arguments.share("calibration", calibration)
    tuning, seed = arguments.share("tuning", tuning), check_seed("seed", seed)
    grid = [arguments.share("levels", level) for level in arguments.listed("levels", levels, "a list of shares")]
    randomised = arguments.flag("randomised", randomised) and method != "lac"
    temperature = arguments.flag("temperature", temperature)
    owners = None if clients is None else _owners(clients, len(y))
    if by != "pooled" and owners is None:
        raise invalid("clients", f"given where the threshold is {by}", None, "Say whose every sample is.")
    groups = [np.arange(len(y))] if by == "pooled" else [np.flatnonzero(owners == one) for one in np.unique(owners)]  # type: ignore[arg-type]
    tunes = tuning if method == "raps" or temperature else 0.0
    tune, calibrate, judge = _split(groups, calibration, tunes, seed)
    u = generator(seed, Purpose.PREDICTION_SETS, part=_U).random(len(y)) if randomised else None
    heat = tuned_temperature(pi[tune], y[tune]) if temperature else 1.0
    pi = tempered(pi, heat)
    case = _Case(pi, y, u, method, by, owners, tune, calibrate, judge)
    at, inside = case.level(alpha)
    by_class = _parts(inside, y[judge], y[judge])
    by_client = {} if owners is None else _parts(inside, y[judge], owners[judge])
    counts = {"tuning": len(tune), "calibration": len(calibrate), "evaluation": len(judge)}
    curve = tuple(case.level(level)[0] for level in grid)
    return Conformal(method, randomised, by, alpha, pi.shape[1], counts, heat, at, by_class, by_client, curve, seed)


@dataclass(frozen=True)
class _Case:
    pi: Array
    y: Labels
    u: Array | None
    method: Method
    by: By
    owners: Labels | None
    tune: Labels
    calibrate: Labels
    judge: Labels

    def level(self, alpha: float) -> tuple[Level, Truth]:
        """Results at a level, and which labels are in the sets of the judged samples [n, C]."""
        k_reg, penalty = 0, 0.0
        if self.method == "raps":
            pi, y, u = self.pi[self.tune], self.y[self.tune], None if self.u is None else self.u[self.tune]
            k_reg = tuned_rank(pi, y, alpha)
            penalty = tuned_penalty(pi, y, alpha, k_reg, u)
        found = scores(self.pi, self.method, self.u, k_reg, penalty)
        own = true_of(found, self.y)[self.calibrate]
        threshold = self._threshold(own, alpha)
        if isinstance(threshold, dict):
            assert self.owners is not None
            limits = np.array([threshold[int(one)] for one in self.owners[self.judge]])[:, None]
        else:
            limits = np.full((len(self.judge), 1), threshold)
        inside = found[self.judge] <= limits
        measured = _measured(inside, self.y[self.judge])
        tuned = (k_reg, penalty) if self.method == "raps" else (None, None)
        return Level(alpha, measured.coverage, measured.size, threshold, *tuned), inside

    def _threshold(self, own: Array, alpha: float) -> float | dict[int, float]:
        if self.by == "pooled" or self.owners is None:
            return quantile(own, alpha)
        owners = self.owners[self.calibrate]
        by_client = {int(one): own[owners == one] for one in np.unique(owners)}
        if self.by == "federated":
            return federated_quantile(list(by_client.values()), alpha)
        return {client: quantile(found, alpha) for client, found in by_client.items()}


def _split(groups: Sequence[Labels], calibration: float, tuning: float, seed: int) -> tuple[Labels, Labels, Labels]:
    """Of every group a share for tuning, one for calibration and the rest to be judged; at least one for each."""
    parts: tuple[list[Labels], list[Labels], list[Labels]] = ([], [], [])
    for number, group in enumerate(groups):
        order = generator(seed, Purpose.PREDICTION_SETS, client=number, part=_SPLIT).permutation(group)
        least = 3 if tuning else 2
        if len(group) < least:
            whose = "" if len(groups) == 1 else " of every client"
            raise InputError(f"prediction sets need at least {least} samples{whose}, got {len(group)}.")
        used = min(max(round(calibration * len(group)), least - 1), len(group) - 1)
        first = min(max(round(tuning * used), 1), used - 1) if tuning else 0
        for part, rows in zip(parts, (order[:first], order[first:used], order[used:]), strict=True):
            part.append(rows)
    tune, calibrate, judge = (np.sort(np.concatenate(part)).astype(np.int64) for part in parts)
    return tune, calibrate, judge


def _measured(inside: Truth, labels: Labels) -> Measured:
    return Measured(len(labels), float(true_of(inside, labels).mean()), float(inside.sum(axis=1).mean()))


def _parts(inside: Truth, labels: Labels, groups: Labels) -> dict[int, Measured]:
    return {int(one): _measured(inside[groups == one], labels[groups == one]) for one in np.unique(groups)}


def _known(name: str, value: object, kinds: Any) -> Any:
    if value not in get_args(kinds):
        raise unknown(name, value, list(get_args(kinds)), f"Known: {', '.join(get_args(kinds))}.")
    return value


def _checked(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Array, Labels]:
    try:
        pi, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    except (TypeError, ValueError):
        raise invalid("probabilities", "an array of numbers [n, C]", type(probabilities).__name__) from None
    if pi.ndim != 2 or pi.shape[1] < 2 or not len(pi):
        raise invalid("probabilities", "an array [n, C] with samples and at least two classes", list(pi.shape))
    wrong = np.flatnonzero(~np.isfinite(pi).all(axis=1))
    if wrong.size:
        raise invalid("probabilities", "finite numbers", f"NaN or infinity in sample {wrong[0]}")
    total = pi.sum(axis=1)
    wrong = np.flatnonzero((pi.min(axis=1) < 0) | (np.abs(total - 1) > ROUNDING))
    if wrong.size:
        hint = "Logits become probabilities by a softmax."
        got = f"sample {wrong[0]} with a smallest of {pi[wrong[0]].min():.6g} and a sum of {total[wrong[0]]:.6g}"
        raise invalid("probabilities", "at least 0 and 1 in sum", got, hint)
    if y.shape != (len(pi),) or not np.issubdtype(y.dtype, np.integer):
        raise invalid("labels", f"{len(pi)} whole numbers, one for each sample", f"{y.dtype} {list(y.shape)}")
    if y.min() < 0 or y.max() >= pi.shape[1]:
        raise invalid("labels", f"from 0 to {pi.shape[1] - 1}", int(y.min() if y.min() < 0 else y.max()))
    return pi, y.astype(np.int64)


def _owners(clients: npt.ArrayLike, samples: int) -> Labels:
    found = np.asarray(clients)
    if found.shape != (samples,) or not np.issubdtype(found.dtype, np.integer):
        raise invalid("clients", f"{samples} whole numbers, one for each sample", f"{found.dtype} {list(found.shape)}")
    return found.astype(np.int64)
