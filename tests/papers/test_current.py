"""Whether a record is of the run that a paper's file describes now."""

from __future__ import annotations

from typing import Any

import pytest

from fedkeel.errors import DataError
from fedkeel.papers.current import differs, refuse_stale, resolved
from fedkeel.papers.format import papers
from fedkeel.papers.plan import Planned, planned
from fedkeel.papers.records import Record, Records
from fedkeel.papers.sharing import Work, share

PAPER = papers()["fedveca"]


def record_of(run: Planned, steps: int = 900, **changed: Any) -> Record:
    fields: dict[str, Any] = {
        "experiment": resolved(run.experiment),
        "key": run.key,
        "rounds": run.rounds,
        "ended": "finished",
        "steps": steps,
    }
    names = {"paper": run.paper, "setting": run.setting, "scale": run.scale, "method": run.method, "seed": run.seed}
    zero = {"fedkeel": "0.1.0", "series": {}, "bytes_up": 0, "bytes_down": 0, "seconds": 0.0}
    return Record(**names | zero | fields | changed)


def sharing(run: Planned, work: Work) -> Record:
    """The record of a run that shares work, as it would be written."""
    table = resolved(run.experiment)
    table["training"] |= share(work, run.experiment.training.batch_size)
    return record_of(run, experiment=table, work=work)


@pytest.fixture
def leader() -> Planned:
    return planned(PAPER, "svm", "fedveca")


@pytest.fixture
def follower() -> Planned:
    return planned(PAPER, "svm", "fedavg")


def test_a_record_of_the_same_values_is_current(leader: Planned) -> None:
    assert differs(leader, record_of(leader)) == ""


def test_a_default_that_changed_since_is_noticed(leader: Planned) -> None:
    """A key leaves defaults out, so that it is the same before and after."""
    table = resolved(leader.experiment)
    table["training"] |= {"momentum": 0.5}
    found = differs(leader, record_of(leader, experiment=table))
    assert found == "it was computed with training.momentum = 0.5, which is 0.0 now"


def test_a_field_that_is_new_since_is_none_of_its_business(leader: Planned) -> None:
    table = resolved(leader.experiment)
    del table["training"]["momentum"]
    assert differs(leader, record_of(leader, experiment=table)) == ""


def test_a_record_that_does_not_say_what_it_is_of_is_not_current(leader: Planned) -> None:
    """Its key fits, but a key can be copied; there must be something to compare."""
    assert differs(leader, record_of(leader, experiment={})) == "it does not say what it was computed with"
    table = resolved(leader.experiment)
    del table["data"]["name"]
    found = differs(leader, record_of(leader, experiment=table))
    assert found.startswith("it does not say with which data.name it was computed, which is 'mnist")


def test_how_long_it_ran_does_not_matter(leader: Planned) -> None:
    table = resolved(leader.experiment)
    table["training"] |= {"rounds": 3, "until": {"accuracy": 0.9}}
    assert differs(leader, record_of(leader, experiment=table)) == ""


def test_the_share_of_the_work_is_computed_again(leader: Planned, follower: Planned) -> None:
    """300 rounds of 3 steps, 100 a batch, 10,000 samples: 3·100/10,000 = 0.03 epochs a round.

    A record that another rule gave other epochs is out. So is one whose leader took other steps since, and one that
    does not say what it shares.
    """
    work = Work(steps=900, rounds=300, clients=5, samples=10000)
    good = sharing(follower, work)
    assert good.experiment["training"]["epochs"] == pytest.approx(0.03)
    assert differs(follower, good, record_of(leader, rounds=300)) == ""
    table = resolved(follower.experiment)
    table["training"] |= {"epochs": 0.04}
    assert "training.epochs = 0.04 where training.epochs = 0.03" in differs(
        follower, good.model_copy(update={"experiment": table})
    )
    other = record_of(leader, steps=1000, rounds=300)
    assert differs(follower, good, other) == "it shares 900 steps of 300 rounds, and fedveca took 1000 in 300"
    assert differs(follower, good.model_copy(update={"work": None})) == "it does not say which work it shares"


def test_records_are_held_against_each_other(leader: Planned, follower: Planned) -> None:
    both = [record_of(leader, steps=1000), sharing(follower, Work(steps=900, rounds=300, clients=5, samples=10000))]
    found = Records.of()
    found.found.update({(r.paper, r.setting, r.method, r.scale, r.seed): r for r in both})
    with pytest.raises(DataError, match=r"not one of fedveca\.toml as it is now: it shares 900 steps"):
        refuse_stale(PAPER, found)
