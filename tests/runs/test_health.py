"""A run that goes wrong is told once; the noise of few and unlike clients is not."""

import json
import math
import random
import sqlite3
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import fedkeel
from fedkeel import config
from fedkeel.engine.settings import Training
from fedkeel.notices import FedkeelWarning
from fedkeel.runs import health
from fedkeel.runs.history import History, Measured, RoundSummary


def history(
    accuracies: list[float] | None = None,
    drifts: list[float] | None = None,
    lrs: list[float] | None = None,
    steps: list[int] | None = None,
) -> History:
    """A run with these curves; what is not given is uneventful."""
    rounds = max(len(accuracies or []), len(drifts or []))
    made = History()
    for t in range(1, rounds + 1):
        drift = drifts[t - 1] if drifts else 1.0
        work = steps[t - 1] if steps else 10
        made.rounds.append(RoundSummary(t, lrs[t - 1] if lrs else 0.1, 2, 2 * work, 100, 0.5, drift, 1, 1, 0.1))
        if accuracies:
            made.measured.append(Measured(t, "global", "test", accuracies[t - 1], 0.5))
    return made


def told(made: History) -> list[health.Concern]:
    """Everything that is told in the course of a run."""
    remembered, concerns = health.Seen(), []
    for summary in made.rounds:
        remembered, new = remembered.after(summary, [m for m in made.measured if m.round == summary.round])
        concerns += new
    assert remembered == health.seen(made)
    return concerns


def learning(rounds: int, top: float = 0.9) -> list[float]:
    return [top * (1 - math.exp(-t / 8)) for t in range(1, rounds + 1)]


def test_a_collapse_is_told_once_with_both_levels() -> None:
    """SCAFFOLD without clipping: 85.8 %, then 29.8 %."""
    curve = [*learning(40, 0.858), *(0.858 - 0.056 * t for t in range(1, 11)), *[0.298] * 30]
    (concern,) = told(history(curve))
    assert concern.kind == "collapse"
    assert concern.was == pytest.approx(0.855, abs=0.01)
    assert 45 < concern.round < 60
    assert 36 <= concern.best_round <= 44


@pytest.mark.parametrize("seed", range(40))
def test_noise_is_no_collapse(seed: int) -> None:
    """Swings of a run whose few clients know one label each: every fifth round loses up to two thirds."""
    rng = random.Random(seed)
    curve = [a * (rng.uniform(0.3, 0.7) if rng.random() < 0.2 else rng.uniform(0.85, 1.05)) for a in learning(200)]
    assert not told(history(curve))
    calm = [a * rng.uniform(0.75, 1.05) for a in learning(200)]
    assert not told(history(calm))


@pytest.mark.parametrize("level", [0.02, 0.1])
def test_a_run_that_never_learnt_has_nothing_to_lose(level: float) -> None:
    rng = random.Random(0)
    assert not told(history([level * rng.uniform(0.5, 1.5) for _ in range(100)]))


def test_an_explosion_of_drift_is_told_once() -> None:
    drifts = [1.0] * 20 + [1.3**t for t in range(1, 30)]
    (concern,) = told(history(drifts=drifts))
    assert concern.kind == "explosion"
    assert concern.now >= health.FACTOR
    assert concern.round < 40


RECORDED = json.loads((Path(__file__).parent / "histories.json").read_text())
"""Real runs on MNIST-5k (50 clients, 2NN, lr 0.1): round, accuracy, training loss, drift, steps, clients."""


def recorded(name: str) -> History:
    made = History()
    for t, accuracy, train_loss, drift, steps, clients in RECORDED[name]:
        made.rounds.append(RoundSummary(t, 0.1, clients, steps, 100, train_loss, drift, 1, 1, 0.1))
        made.measured.append(Measured(t, "global", "test", accuracy, 0.5))
    return made


@pytest.mark.parametrize(
    ("name", "by"), [("scaffold without clipping, diverged in round 77", 66), ("vrlsgd, diverged in round 17", 13)]
)
def test_real_runs_that_diverge_are_told_of_before(name: str, by: int) -> None:
    concern, *_ = told(recorded(name))
    assert concern.kind == "explosion"
    assert concern.round <= by


@pytest.mark.parametrize("name", ["fedavg, one client a round", "feddyn"])
def test_real_runs_that_are_sound_are_silent(name: str) -> None:
    """The wildest of two dozen."""
    assert not told(recorded(name))


def test_a_loss_or_a_drift_that_leaps_alone_is_silent() -> None:
    made = history(drifts=[1.0] * 20 + [4.5] + [1.0] * 20)
    assert not told(made)
    made.rounds = [replace(one, drift=1.0, train_loss=50.0 if one.round == 21 else 0.5) for one in made.rounds]
    assert not told(made)


def test_where_no_answer_is_right_or_wrong_nothing_collapses() -> None:
    assert not told(history([math.nan] * 30))


def test_a_deep_fall_is_told_sooner() -> None:
    (concern,) = told(history([*learning(40, 0.858), *[0.298] * 8]))
    assert (concern.kind, concern.round) == ("collapse", 45)


def test_ordinary_drift_is_silent() -> None:
    rng = random.Random(1)
    rounds = 100
    falling = [3 * math.exp(-t / 40) * rng.uniform(0.5, 2) for t in range(rounds)]
    assert not told(history(drifts=falling))
    longer_work = [1 + t for t in range(rounds)]
    assert not told(history(drifts=[0.1 * k for k in longer_work], steps=longer_work))
    warm_up = [0.001 * 2 ** min(t, 10) for t in range(rounds)]
    assert not told(history(drifts=[10 * lr for lr in warm_up], lrs=warm_up))
    fading = [0.1 * 0.9**t for t in range(rounds)]
    assert not told(history(drifts=[math.sqrt(lr) for lr in fading], lrs=fading))
    assert not told(history(drifts=[math.nan] * rounds))


def test_a_resumed_run_does_not_repeat_itself() -> None:
    whole = history([*learning(40), *[0.1] * 20])
    assert health.seen(whole).told == {"collapse"}
    remembered, new = health.seen(whole).after(whole.rounds[-1], [Measured(61, "global", "test", 0.1, 3.0)])
    assert not new
    assert remembered.told == {"collapse"}


def test_the_advice_fits_the_settings() -> None:
    concern = health.Concern("collapse", 60, 0.858, 0.298, 41)
    said = health.advice(concern, Training(lr=0.1, epochs=5))
    assert said == (
        "round 60: accuracy fell to 29.8% and stays there; around round 41 it was 85.8%. "
        "Try training.clip = 10, training.lr below 0.1 or fewer training.epochs."
    )
    assert "training.clip below 10, training.lr below 0.1 or" in health.advice(concern, Training(clip=10, epochs=2))
    one_step = health.advice(health.Concern("explosion", 9, 1.0, 7.2), Training(steps=1))
    assert one_step.endswith("as in the rounds before. Try training.clip = 10 or training.lr below 0.1.")


def test_what_is_found_is_a_warning_and_a_line_in_the_diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold that every run is below: as fk.train tells it, and as the store keeps it, once for a run."""
    monkeypatch.setattr(health, "LOST", 2.0)
    monkeypatch.setattr(health, "LEAST_LOSS", 0.0)
    training = {"rounds": 9, "participation": 0.5}
    data = fedkeel.data.load("mnist5k").partition("dirichlet", clients=8, seed=0, alpha=0.5)
    with pytest.warns(FedkeelWarning, match=r"round 8: accuracy fell to .* Try training\.clip = 10"):
        fedkeel.train("fedavg", data=data, executor="serial", **training)
    table = {"partition": {"clients": 8}, "run": {"executor": "serial"}, "training": training | {"rounds": 8}}
    for rounds, resume in ((8, False), (9, True)):
        (experiment,) = config.expand(table, [f"training.rounds={rounds}"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fedkeel.run(experiment, tmp_path / "run", resume=resume)
    with closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as database:
        kinds = [kind for (kind,) in database.execute("SELECT kind FROM events")]
    assert kinds.count("health") == 1
