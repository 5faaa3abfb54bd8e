"""How runs, histories and federations show themselves, whatever their names hold."""

import random
import re
import sys
from dataclasses import replace

import pytest

import fedkeel as fk
from fedkeel.api import Run
from fedkeel.errors import InputError
from tests.hostile import values


@pytest.fixture(scope="module")
def run() -> Run:
    data = fk.data.load("mnist5k").partition("dirichlet", clients=5, alpha=0.5, seed=0)
    return fk.train("fedavg", model="logistic", data=data, rounds=3, steps=2, executor="serial")


def test_they_say_which_accuracy_it_is(run: Run) -> None:
    for text in (repr(run), repr(run.history)):
        assert f"last round {run.accuracy:.2%}, mean of the last 10 %" in text
    for html in (run._repr_html_(), run.history._repr_html_()):
        assert "mean of the last 10 %" in html
    assert repr(run.simulation.federation).startswith("Federation(mnist5k: 5 clients")


def test_names_are_text(run: Run) -> None:
    rng = random.Random(3)
    for name in ["<script>alert(1)</script>", '"><img src=x>', "\x1b[31m", *(values.text(rng) for _ in range(50))]:
        dataset = replace(run.simulation.federation.dataset, name=name or "x")
        federation = replace(run.simulation.federation, dataset=dataset, rule={name: name})
        named = replace(run, label=name)
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", repr(federation) + repr(named))
        for html in (federation._repr_html_(), named._repr_html_()):
            tags = set(re.findall(r"<[^>]*>", html))
            assert all(re.fullmatch(r'</?(table|caption|tbody|tr|th|td)( style="text-align:left")?>', t) for t in tags)


def test_a_table_has_a_row_for_each_round(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run.history.table()
    assert [row["round"] for row in rows if "lr" in row] == [1, 2, 3]
    assert rows[-1]["accuracy"] == run.accuracy
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="needs pandas"):
        run.history.frame()
