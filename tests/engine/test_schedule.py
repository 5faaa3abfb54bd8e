"""Cohorts and batches: keyed, complete, and the same for every algorithm."""

import numpy as np
import pytest

from fedkeel.algorithms.validate import checked
from fedkeel.engine.randomness import Purpose, generator, torch_seed
from fedkeel.engine.schedule import RandomSchedule, _first_and_others, round_half_up
from fedkeel.engine.settings import Training
from fedkeel.errors import InputError


def schedule(seed: int = 0, **fields: object) -> RandomSchedule:
    return RandomSchedule(Training(**fields), seed)


def test_generators_differ_in_every_part_of_their_key() -> None:
    draws = {
        torch_seed(seed, purpose, round, client)
        for seed in (0, 1)
        for purpose in (Purpose.COHORT, Purpose.BATCHES)
        for round in (0, 1)
        for client in (0, 1)
    }
    assert len(draws) == 16


def test_a_generator_does_not_depend_on_what_was_drawn_before() -> None:
    first = generator(3, Purpose.BATCHES, 5, 7).random(4)
    generator(3, Purpose.BATCHES, 5, 6).random(1000)
    assert np.array_equal(first, generator(3, Purpose.BATCHES, 5, 7).random(4))


def test_exact_sampling_takes_the_share_without_repetition() -> None:
    plan = schedule(participation=0.15)
    cohorts = [plan.cohort(t, 100) for t in range(50)]
    assert all(len(set(cohort)) == 15 and cohort == sorted(cohort) for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) == 50
    assert set().union(*cohorts) == set(range(100))


def test_at_least_one_client_takes_part() -> None:
    assert len(schedule(participation=0.001).cohort(0, 10)) == 1


@pytest.mark.parametrize(("share", "clients"), [(1e-9, 100), (1e-300, 3), (5e-324, 1), (1e-12, 10**6)])
def test_rare_clients_are_not_waited_for(share: float, clients: int) -> None:
    plan = schedule(participation=share, sampling="bernoulli")
    cohorts = [plan.cohort(t, clients) for t in range(20)]
    assert all(len(cohort) == 1 and 0 <= cohort[0] < clients for cohort in cohorts)


def test_a_cohort_without_waiting_has_the_law_of_one_drawn_until_somebody_comes() -> None:
    """Six clients at 20 %: P(first = j) = 0.2·0.8^j / (1 − 0.8⁶), and 1.63 clients on average."""
    share, clients, draws = 0.2, 6, 20_000
    somebody = 1 - 0.8**6
    rng = np.random.default_rng(5)
    cohorts = [_first_and_others(rng, clients, share, somebody) for _ in range(draws)]
    assert all(cohort == sorted(set(cohort)) and cohort[-1] < clients for cohort in cohorts)
    first = np.bincount([cohort[0] for cohort in cohorts], minlength=clients) / draws
    assert np.allclose(first, share * 0.8 ** np.arange(clients) / somebody, atol=0.02)
    assert np.mean([len(cohort) for cohort in cohorts]) == pytest.approx(clients * share / somebody, rel=0.02)


def test_bernoulli_sampling_varies_in_size_and_is_never_empty() -> None:
    plan = schedule(participation=0.05, sampling="bernoulli")
    sizes = [len(plan.cohort(t, 20)) for t in range(300)]
    assert min(sizes) == 1
    assert len(set(sizes)) > 3
    # Twenty clients at 5 % are one on average, 1/(1 − 0.95²⁰) = 1.56 given that somebody came.
    assert 1.4 < np.mean(sizes) < 1.7


def test_full_participation_is_everybody() -> None:
    assert schedule(participation=1.0).cohort(3, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"epochs": 2, "batch_size": 5}, [5, 5, 2, 5, 5, 2]),  # 12 samples: the last batch of an epoch is partial
        ({"epochs": 2, "batch_size": 5, "drop_last": True}, [5, 5, 5, 5]),
        ({"epochs": 3, "batch_size": 50}, [12, 12, 12]),  # smaller than a batch: all of it, once an epoch
        ({"epochs": 1, "batch_size": 50, "drop_last": True}, [12]),
        ({"steps": 4, "batch_size": 5}, [5, 5, 2, 5]),  # ends mid-epoch
        ({"batch_size": 6}, [6, 6]),  # neither given: one epoch
    ],
)
def test_local_work(fields: dict[str, object], sizes: list[int]) -> None:
    plan = schedule(**fields)
    batches = plan.batches(0, 0, 12, plan.training.local_steps(12))
    assert [len(batch) for batch in batches] == sizes


def test_an_epoch_visits_every_sample_once() -> None:
    plan = schedule(epochs=2, batch_size=5)
    batches = plan.batches(4, 2, 12, 6)
    for epoch in (batches[:3], batches[3:]):
        assert sorted(np.concatenate(epoch)) == list(range(12))
    assert not np.array_equal(np.concatenate(batches[:3]), np.concatenate(batches[3:]))


def test_the_learning_rate_decays_by_round() -> None:
    """0.1·0.5² = 0.025."""
    assert schedule(lr=0.1, lr_decay=0.5).lr(2) == pytest.approx(0.025)


def test_halves_round_up() -> None:
    assert [round_half_up(x) for x in (0.4, 0.5, 1.5, 2.5, 0.15 * 10)] == [0, 1, 2, 3, 2]


def test_epochs_and_steps_exclude_each_other() -> None:

    with pytest.raises(InputError, match="either epochs or steps"):
        checked("training", Training, {"epochs": 1, "steps": 1})


def test_whole_epochs_mean_what_they_meant_and_fractions_share_the_work() -> None:
    """n = 12, B = 5: two epochs are 2·⌈12/5⌉ = 6 steps; 2.5 epochs ⌊2.5·12/5⌋ = 6; 0.1 would be none, hence one."""
    assert Training(epochs=2, batch_size=5).local_steps(12) == 6
    assert Training(epochs=2.0, batch_size=5).local_steps(12) == 6
    assert Training(epochs=2.5, batch_size=5).local_steps(12) == 6
    assert Training(epochs=0.1, batch_size=5).local_steps(12) == 1


def test_a_share_of_the_work_comes_out_as_the_steps_it_was_made_from() -> None:
    """E = τ·B/n in floating point times n/B may fall short of the whole number τ by a rounding; no step is lost."""
    for n in range(1, 400, 7):
        for steps in range(1, 60):
            epochs = steps * 50 / n
            if not epochs.is_integer():
                assert Training(epochs=epochs, batch_size=50).local_steps(n) == steps


def test_whole_epochs_are_written_as_whole_numbers() -> None:
    assert str(Training(epochs=5.0).model_dump()["epochs"]) == "5"
    assert Training(epochs=5.0) == Training(epochs=5)
    with pytest.raises(InputError, match="above 0"):
        checked("training", Training, {"epochs": 0})
