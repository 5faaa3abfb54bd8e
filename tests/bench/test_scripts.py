"""The scripts around the benchmark: the guard's judgement, and tables that land between their markers."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


guard, pages = script("guard"), script("pages")
PLAIN, LAST = guard.RATIOS


def test_the_guard_compares_every_floor_of_what_was_measured() -> None:
    measured = {"W1": {PLAIN: 2.0}, "W3": {PLAIN: 1.8, LAST: 0.9}}
    floors = {"W1": {PLAIN: 1.9}, "W2": {PLAIN: 1.1}, "W3": {PLAIN: 1.5, LAST: 0.95}}
    verdicts = guard.judge(measured, floors)
    assert [(v.work, v.name, v.holds) for v in verdicts] == [
        ("W1", PLAIN, True),
        ("W3", PLAIN, True),
        ("W3", LAST, False),
    ]
    assert guard.table(verdicts).count("slower than before") == 1


def test_new_floors_leave_room_for_noise() -> None:
    measured = {"W1": {PLAIN: 2.0}}
    floors = guard.new_floors(measured)
    assert floors == {"W1": {PLAIN: 1.7}}
    assert all(v.holds for v in guard.judge(measured, floors))


def test_only_ratios_are_guarded() -> None:
    result = {PLAIN: 1.3, LAST: None, "seconds_per_round": 4.0}
    assert guard.ratios(result) == {PLAIN: 1.3}


def test_floors_are_ratios_of_works_that_are_measured() -> None:
    known = json.loads((BENCHMARKS / "floors.json").read_text(encoding="utf-8"))
    assert known
    for floors in known.values():
        assert set(floors) == set(guard.ROUNDS)
        assert all(PLAIN in floor and set(floor) <= set(guard.RATIOS) for floor in floors.values())
        assert all(0 < value < 100 for floor in floors.values() for value in floor.values())


def test_floors_are_those_of_the_kind_of_machine() -> None:
    known = {"AVX2": {"W1": {PLAIN: 3.7}}}
    assert guard.floors_for("AVX2", known) == {"W1": {PLAIN: 3.7}}
    assert guard.floors_for("AVX512", known) == {}


def test_a_table_replaces_what_stood_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers -->\nold\n<!-- /peers -->\nafter\n")
    pages.fill("peers", "| new |", page)
    pages.fill("peers", "| newer |", page)
    assert page.read_text() == "before\n<!-- peers -->\n| newer |\n<!-- /peers -->\nafter\n"
    with pytest.raises(SystemExit, match="no markers"):
        pages.fill("own", "| new |", page)


def run_of(who: str, setting: str, seconds: float, **more: Any) -> dict[str, Any]:
    versions = {"flwr": "1.41.0", "torch": "2.13.0"}
    found = {"work": "W1", "seconds_per_round": seconds, "startup_seconds": 2.0, "peak_mb": 500, "versions": versions}
    return {"who": who, "setting": setting} | found | more


def test_the_peer_table_shows_medians_of_the_best_setting() -> None:
    runs = [
        run_of("plain loop", "plain loop", 0.2),
        run_of("Flower", "slow", 0.9),
        run_of("Flower", "fast", 0.3),
        run_of("Flower", "fast", 0.4),
        run_of("Flower", "fast", 0.5),
        {"who": "FLGo", "setting": "serial", "work": "W1", "error": "no"},
    ]
    lines = pages.peer_table(runs).splitlines()
    assert lines[2].startswith("| plain loop | 0.2 s (1.00×) |")
    assert "| FLGo | – | – | – | – |" in lines[3]
    assert lines[4] == "| Flower | 0.4 s (0.50×) | 2.0 s | 500 MB | 1.41.0 | fast |"


def test_the_page_has_a_place_for_every_table() -> None:
    text = pages.PAGE.read_text(encoding="utf-8")
    for name in ("own", "peers", "scale"):
        assert f"<!-- {name} -->\n" in text
        assert f"<!-- /{name} -->" in text


def test_the_tables_of_the_page_are_the_kept_results() -> None:
    """If this fails: python benchmarks/pages.py"""
    page = pages.PAGE.read_text(encoding="utf-8")
    for name, table in pages.tables().items():
        assert f"<!-- {name} -->\n{table}\n<!-- /{name} -->" in page, name
