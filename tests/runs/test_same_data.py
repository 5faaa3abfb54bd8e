"""A run goes on with the data that it began with, or not at all."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import api, config
from fedkeel.data import Federation, Split, Transform, from_clients
from fedkeel.data.digest import WHAT, differences, digests
from fedkeel.engine.settings import Training
from fedkeel.errors import DataError, FedkeelError, InputError
from fedkeel.runs.fork import Fork
from fedkeel.runs.store import FILE, Store
from tests.runs.earlier import forget


def folder(path: Path, seed: int = 0, relabel: bool = False) -> Path:
    """Three clients with 12 samples each, and no test set."""
    path.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    for client in range(3):
        x, y = rng.standard_normal((12, 5)), rng.integers(0, 3, 12)
        np.savez(path / f"{client}.npz", x=x, y=(2 - y) if relabel else y)
    return path


def experiment(path: Path | str, rounds: int, **changes: Any) -> config.Experiment:
    table: dict[str, Any] = {
        "data": {"name": str(path)},
        "algorithm": {"name": "scaffold"},
        "model": {"name": "logistic"},
        "training": {"rounds": rounds, "batch_size": 4},
        "run": {"executor": "serial"},
    }
    return config.expand(table, [f"{name.replace('__', '.')}={value}" for name, value in changes.items()])[0]


def events(run: Path) -> list[tuple[str, str]]:
    with closing(Store.reading(run)) as store:
        return [(event.kind, event.text) for event in store.events()]


def test_replaced_files_are_noticed_and_named(tmp_path: Path) -> None:
    sites = folder(tmp_path / "sites")
    api.run(experiment(sites, 2), tmp_path / "r")
    folder(sites, seed=1)
    with pytest.raises(DataError, match="the training samples, the training labels, the test samples and the test lab"):
        api.run(experiment(sites, 3), tmp_path / "r", resume=True)
    folder(sites, relabel=True)
    with pytest.raises(DataError, match="cannot go on: the training labels and the test labels of sites are not those"):
        api.run(experiment(sites, 3), tmp_path / "r", resume=True)
    folder(sites)
    api.run(experiment(sites, 3), tmp_path / "r", resume=True)
    api.run(experiment(sites, 3), tmp_path / "whole")
    models = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("r", "whole")]
    assert models[0] == models[1]
    assert [kind for kind, _ in events(tmp_path / "r")] == ["started", "finished", "changed", "resumed", "finished"]


def forget_digests(run: Path) -> None:
    """What a run of an earlier version looks like."""
    forget(run, "data")


def test_a_run_without_digests_gets_them_when_it_goes_on(tmp_path: Path) -> None:
    sites = folder(tmp_path / "sites")
    api.run(experiment(sites, 2), tmp_path / "r")
    forget_digests(tmp_path / "r")
    api.run(experiment(sites, 3), tmp_path / "r", resume=True)
    assert ("data", "digests recorded now; none were kept with the rounds so far") in events(tmp_path / "r")
    folder(sites, seed=1)
    with pytest.raises(DataError, match="not those that it began with"):
        api.run(experiment(sites, 4), tmp_path / "r", resume=True)


def test_data_given_in_python_are_compared_too(tmp_path: Path) -> None:
    mine, asked = small(), experiment("./sites", 2)
    api.run(asked, tmp_path / "r", federation=mine)
    more = experiment("./sites", 3)
    other = replace(mine, clients=mine.clients[::-1])
    with pytest.raises(DataError, match="which samples each client holds of own are not those that it began with"):
        api.run(more, tmp_path / "r", federation=other, resume=True)
    api.run(more, tmp_path / "r", federation=mine, resume=True)


def test_a_fork_has_other_data_only_if_asked(tmp_path: Path) -> None:
    sites = folder(tmp_path / "sites")
    api.run(experiment(sites, 2), tmp_path / "r")
    folder(sites, relabel=True)
    with pytest.raises(DataError, match=r"the training labels .* although its settings ask for the same data"):
        api.run(experiment(sites, 3), tmp_path / "a", fork=Fork(tmp_path / "r"))
    assert not (tmp_path / "a" / FILE).exists()
    said = f"the training labels and the test labels of sites are not those of {tmp_path / 'r'}"
    api.run(experiment(sites, 3), tmp_path / "b", fork=Fork(tmp_path / "r", other_data=True))
    assert ("changed", said) in events(tmp_path / "b")
    others = folder(tmp_path / "others", relabel=True)
    api.run(experiment(others, 3), tmp_path / "c", fork=Fork(tmp_path / "r"))
    assert ("changed", said.replace("sites", "others")) in events(tmp_path / "c")
    api.run(experiment(others, 4), tmp_path / "c", resume=True)  # compared with its own data, not its parent's
    folder(sites)
    api.run(experiment(sites, 3), tmp_path / "d", fork=Fork(tmp_path / "r"))
    assert [kind for kind, _ in events(tmp_path / "d")] == ["started", "forked", "finished"]


def test_an_earlier_version_took_bare_names_for_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs go on under the path; where the name is also a built-in set's, somebody has to say which it was."""
    monkeypatch.chdir(tmp_path)
    for name in ("sites", "mnist5k"):
        folder(Path(name))
        begun = experiment(f"./{name}", 2)
        api.run(begun, tmp_path / f"r-{name}")
        forget_digests(tmp_path / f"r-{name}")
        with closing(Store.open(tmp_path / f"r-{name}")) as store:
            text = config.dump(begun).replace(f"./{name}", name) + '\n[partition]\nrule = "dirichlet"\nclients = 100\n'
            store.put_meta("configuration", text)
        if name == "mnist5k":
            bare = experiment(name, 3, partition__clients=3)
            shape_fits = small((1, 28, 28), classes=10)  # so that only the name can tell
            with pytest.raises(FedkeelError):
                api.run(bare, tmp_path / "r-mnist5k", resume=True, federation=shape_fits)
        api.run(experiment(f"./{name}", 3), tmp_path / f"r-{name}", resume=True)
        assert ("changed", f"data.name was '{name}', asked './{name}'") in events(tmp_path / f"r-{name}")


def test_a_folder_of_a_built_in_name_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"rounds": 2, "partition__clients": 3}
    api.run(experiment("mnist5k", **asked), tmp_path / "r")
    folder(Path("mnist5k"))
    api.run(experiment("mnist5k", **asked | {"rounds": 3}), tmp_path / "r", resume=True)  # digests say which it was
    forget_digests(tmp_path / "r")
    with pytest.raises(InputError, match=r"took the folder \./mnist5k for the built-in data set"):
        api.run(experiment("mnist5k", **asked | {"rounds": 4}), tmp_path / "r", resume=True)


def small(shape: tuple[int, ...] = (5,), classes: int = 3) -> Federation:
    rng = np.random.default_rng(7)
    pairs = [(rng.standard_normal((8, *shape)), rng.integers(0, classes, 8)) for _ in range(3)]
    return from_clients(pairs, classes=classes).hold_out(0.3)


def flipped(array: Any, value: Any) -> Any:
    changed = array.copy()
    changed.flat[3] = value
    return changed


CHANGES: dict[str, Callable[[Federation], Federation]] = {
    "samples": lambda f: replace(
        f, dataset=replace(f.dataset, train=Split(flipped(f.dataset.train.x, 9.0), f.dataset.train.y))
    ),
    "labels": lambda f: replace(
        f, dataset=replace(f.dataset, train=Split(f.dataset.train.x, (f.dataset.train.y + 1) % 3))
    ),
    "test samples": lambda f: replace(
        f, dataset=replace(f.dataset, test=Split(flipped(f.dataset.test.x, 9.0), f.dataset.test.y))
    ),
    "test labels": lambda f: replace(
        f, dataset=replace(f.dataset, test=Split(f.dataset.test.x, (f.dataset.test.y + 1) % 3))
    ),
    "partition": lambda f: replace(f, clients=(f.clients[1], f.clients[0], *f.clients[2:])),
    "client tests": lambda f: replace(f, client_tests=None),
    "validation": lambda f: replace(f, validation=None),
    "transform": lambda f: replace(f, dataset=replace(f.dataset, transform=Transform(2.0))),
    "classes": lambda f: replace(f, dataset=replace(f.dataset, classes=4, class_names=tuple("abcd"))),
}


@pytest.mark.parametrize("what", WHAT)
def test_every_change_shows_in_its_own_digest(what: str) -> None:
    before = small()
    assert differences(digests(before), digests(CHANGES[what](before))) == [WHAT[what]]
    assert differences(digests(before), digests(small())) == []


def test_lists_are_told_apart_from_their_sum_and_views_from_nothing() -> None:
    """[0, 1], [2] and [0], [1, 2] are other clients; a view with gaps has the digest of its copy."""
    base = replace(small(), validation=None, client_tests=None)
    one = replace(base, clients=(np.array([0, 1]), np.array([2])))
    two = replace(base, clients=(np.array([0]), np.array([1, 2])))
    assert digests(one)["partition"] != digests(two)["partition"]
    x = np.arange(60, dtype=np.float32).reshape(6, 10)
    y = np.zeros(6, np.int64)
    assert _of(Split(x[:, ::2], y)) == _of(Split(x[:, ::2].copy(), y))
    assert _of(Split(x, y)) != _of(Split(x.reshape(6, 5, 2), y))


def _of(split: Split) -> str:
    base = small()
    data = replace(base.dataset, train=split, test=split)
    return digests(Federation(data, (np.arange(6),), {}))["samples"]


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    sites = folder(tmp_path / "sites")
    api.run(experiment(sites, 2), tmp_path / "r")
    for text in ("", "[]", "{}", json.dumps({"digests": 3})):
        store = Store.open(tmp_path / "r")
        store.put_meta("data", text)
        store.close()
        with pytest.raises(DataError):
            api.run(experiment(sites, 3), tmp_path / "r", resume=True)


def test_the_configuration_claims_no_data_that_were_not_used(tmp_path: Path) -> None:
    """Neither in the store nor beside it, where ``fedkeel run`` would train on something else in silence."""
    asked = config.expand({"partition": {"clients": 7, "alpha": 0.1}, "model": {"name": "logistic"}}, [])[0]
    asked = asked.model_copy(update={"training": Training(rounds=1, batch_size=4)})
    mine = small()
    done = api.run(asked, tmp_path / "r", federation=mine)
    assert done.label == asked.label
    text = (tmp_path / "r" / "experiment.toml").read_text()
    assert "mnist5k" not in text
    assert "partition" not in text
    with pytest.raises(InputError, match="the data of this run were given in Python"):
        config.read(tmp_path / "r" / "experiment.toml")
    with pytest.raises(InputError, match=r"data\.name was 'given', asked 'mnist5k'"):
        api.run(asked, tmp_path / "r", resume=True)
    longer = asked.model_copy(update={"training": Training(rounds=2, batch_size=4)})
    assert len(api.run(longer, tmp_path / "r", federation=mine, resume=True).history.rounds) == 2


def test_a_run_that_claimed_other_data_goes_on_with_those_that_it_had(tmp_path: Path) -> None:
    """Earlier versions kept what the experiment said of data; the digests tell what they really were."""
    mine, claimed = small(), experiment("./sites", 1)
    api.run(claimed, tmp_path / "r", federation=mine)
    with closing(Store.open(tmp_path / "r")) as store:
        store.put_meta("configuration", config.dump(claimed))
    api.run(experiment("./sites", 2), tmp_path / "r", federation=mine, resume=True)
    assert ("changed", "data.name was './sites', asked 'given'") in events(tmp_path / "r")
    other = replace(mine, clients=mine.clients[::-1])
    with pytest.raises(DataError, match="although its settings ask for the same data"):
        api.run(experiment("./others", 3), tmp_path / "f", federation=other, fork=Fork(tmp_path / "r"))


@pytest.mark.parametrize("step", ["put_meta", "commit"])
def test_a_start_that_is_cut_off_leaves_digests_or_no_run(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written after the store was made: a later start compares its data and its model."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, step, killed)
        with pytest.raises(KeyboardInterrupt):
            api.run(experiment("./sites", 2), tmp_path / "r", federation=small())
    other = replace(small(), clients=small().clients[::-1])
    with pytest.raises(DataError, match="not those that it began with"):
        api.run(experiment("./sites", 2), tmp_path / "r", federation=other, resume=True)
    with closing(Store.reading(tmp_path / "r")) as store:
        assert store.meta("model") is not None
