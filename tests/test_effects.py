"""Settings without effect: refused, or at least told."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fedkeel as fk
from fedkeel import config
from fedkeel.data import Federation
from fedkeel.errors import InputError
from fedkeel.notices import FedkeelWarning
from fedkeel.runs.store import Store


@pytest.fixture(scope="module")
def federation() -> Federation:
    dealt = fk.data.load("mnist5k").partition("iid", clients=5)
    assert isinstance(dealt, Federation)
    return dealt


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"executor": "serial", "workers": 4}, "^workers must be 1 or absent with executor = 'serial', got 4"),
        ({"faults": {"straggler_share": (0.1, 0.2)}}, "^faults.straggler_share must be absent"),
        ({"algorithm": "fedbn", "buffers": "uniform"}, "^buffers must be 'local' with fedbn, got 'uniform'"),
    ],
)
def test_what_an_experiment_refuses_train_refuses(
    settings: dict[str, Any], sentence: str, federation: Federation
) -> None:
    call = {"algorithm": "fedavg", "model": "logistic", "data": federation, "rounds": 1} | settings
    with pytest.raises(InputError, match=sentence):
        fk.train(**call)


@pytest.mark.parametrize("work", ["epochs", "steps"])
def test_fedveca_says_that_local_work_is_its_own(work: str, federation: Federation, tmp_path: Path) -> None:
    """Not an error: in a sweep the setting may be meant for the algorithms beside it."""
    call: dict[str, Any] = {"model": "logistic", "data": federation, "rounds": 1, "executor": "serial"}
    said = f"training.{work} = 2 has no effect: FedVeca says itself how many steps"
    with pytest.warns(FedkeelWarning, match=said):
        fk.train("fedveca", directory=tmp_path, **call, **{work: 2})
    with closing(Store.reading(tmp_path)) as store:
        assert next(e.text for e in store.events() if e.kind == "settings").startswith(said)


def test_nothing_is_told_of_settings_that_count(federation: Federation, recwarn: pytest.WarningsRecorder) -> None:
    for algorithm, more in (("fedveca", {}), ("fedavg", {"epochs": 1})):
        fk.train(algorithm, model="logistic", data=federation, rounds=1, executor="serial", **more)  # type: ignore[arg-type]
    assert not [found for found in recwarn if "has no effect" in str(found.message)]


def test_an_experiment_names_its_fields() -> None:
    with pytest.raises(InputError, match=r"run\.workers must be 1 or absent with run\.executor = 'serial', got 4"):
        config.expand({"run": {"executor": "serial", "workers": 4}}, [])
