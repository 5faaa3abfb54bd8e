"""The papers' files against the papers: numbers typed a second time, every exhibit named, every setting runnable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fedkeel.data.sources import SOURCES
from fedkeel.learning import models
from fedkeel.learning.staged import Staged
from fedkeel.papers.format import Exhibit, Paper, Scale, papers
from fedkeel.papers.plan import planned
from fedkeel.papers.published import Published

OURS = ("fedgvrgm", "fedpmvr", "gradma")
EXHIBITS = {
    "fedgvrgm": "table1 table2 table3 figure1 figure2 figure3 figure4 figure5 variants",
    "fedpmvr": "table1 table2 table3 figure1 figure2 figure3 figure4 figure5 figure6 figure7 figure8 figure9 figure10 "
    "figure11 variants",
    "gradma": "table1 curves beta1 beta2 memory parts variants",
}


@pytest.mark.parametrize("name", OURS)
def test_every_table_and_figure_is_named(name: str) -> None:
    assert set(papers()[name].exhibits) == set(EXHIBITS[name].split())


# As the papers print them, read a second time: one line a row, in the order of the columns.

FEDGVRGM_TABLE3 = """
fedavg   597 964 1.124 0.438  228 441 0.391 0.234  45 128 0.133 0.100
fedprox  597 964 1.32  0.436  208 441 0.381 0.23   35 117 0.113 0.084
fedreg   429 716 0.823 0.347  129 378 0.344 0.217  34 102 0.110 0.083
fedgm    498 819 0.939 0.356  208 424 0.376 0.216  35 104 0.108 0.083
fedgvr   470 754 0.847 0.34   129 270 0.225 0.16   34 101 0.113 0.086
fedgvrgm 384 631 0.701 0.281  129 228 0.215 0.155  33 83  0.105 0.081
"""
FEDPMVR_TABLE1 = """
fedavg   49.04±0.45 55.08±0.50 50.34±0.35 52.48±0.42 97.15±0.20 98.44±0.15 82.66±0.30 85.78±0.40
fedprox  50.38±0.48 55.12±0.44 47.01±0.33 52.39±0.39 97.65±0.22 98.62±0.18 82.33±0.28 85.97±0.38
fednova  44.74±0.39 47.98±0.45 48.94±0.37 54.11±0.41 95.76±0.28 97.62±0.24 75.04±0.35 76.53±0.42
fedbn    51.84±0.41 54.62±0.43 10         55.25±0.39 96.80±0.25 98.47±0.20 82.86±0.33 85.57±0.38
feddyn   44.03±0.38 50.99±0.41 47.58±0.34 44.03±0.40 88.84±0.45 94.55±0.38 69.79±0.45 80.22±0.42
moon     48.08±0.42 49.68±0.44 47.40±0.36 50.26±0.39 96.92±0.22 80.69±0.28 80.73±0.35 83.61±0.40
scaffold 50.34±0.44 55.76±0.47 52.13±0.40 56.29±0.42 97.19±0.21 98.46±0.19 81.75±0.32 85.09±0.39
fedpvr   47.04±0.40 49.89±0.43 49.05±0.38 42.93±0.37 97.34±0.22 98.46±0.18 80.95±0.34 82.32±0.40
fedpmvr  51.86±0.45 56.07±0.48 52.35±0.41 56.41±0.44 97.86±0.20 98.67±0.16 83.18±0.33 86.14±0.38
"""
FEDPMVR_TABLE2 = """
fedavg   43 30 10 20 150 30 115 35
fedprox  40 * * * 60 35 150 55
fednova  * * * * * * * *
fedbn    * 55 * 50 * 34 60 55
feddyn   * * * * * * * *
moon     120 * * * * * * *
scaffold 27 25 10 22 85 23 60 50
fedpvr   * * 13 00 50 23 * *
fedpmvr  25 21 10 20 50 23 40 30
"""
GRADMA_TABLE1 = """
fedavg   98.22±0.05 97.11±0.39 46.19±1.29 49.65±3.88 68.32±4.16 69.48±8.28 47.86±5.26 20.97±3.73 56.02 61.22±0.16 64.78±0.43 7.50±0.32 41.80±0.55 42.90±0.12
scaffold 97.63±0.37 93.94±1.18 50.86±7.46 19.97±4.88 49.54±2.08 53.33±6.63 35.91±2.14 15.55±1.33 32.22±0.92 34.72±0.80 45.70±0.76 7.20±0.33 40.96±0.23 43.02±0.30
mifam    98.02±0.15 96.90±0.44 67.15±2.23 55.28±6.05 53.35±6.84 73.48±1.37 52.13 24.17±1.24 49.30±0.86 58.91±0.24 64.61±0.33 12.01±0.32 41.94±0.06 43.17±0.09
gradma_s 98.38±0.09 97.35±0.28 74.52±1.71 75.93±0.97 69.09±3.83 78.76±1.96 64.60±5.87 28.41±2.43 59.08±0.43 63.23±0.22 65.63±0.35 20.93±1.49 48.83±1.06 49.65±0.72
feddyn   97.92±0.12 96.03±0.46 59.39±2.29 65.36±5.20 57.68±4.30 74.94 41.93±3.22 17.94±3.52 52.95±1.63 58.45 61.71±0.25 17.80±0.95 44.37±0.57 44.86±0.15
gradma   98.39±0.04 97.34±0.35 77.07 75.51 66.68±3.07 79.92±0.59 65.91±5.10 30.81±1.78 59.47±0.58 64.49 65.68±0.25 23.52±1.32 49.29±0.86 50.54±0.56
"""  # noqa: E501 (a row of the paper is a row here)
GRADMA_MNIST_001_S10 = """
fedavg 46.19
fedprox 46.82
fedmlb 54.53
moon 46.26
scaffold 50.86
gradma_w 63.34
fedavgm 53.77
mifa 66.92
mifam 67.15
gradma_s 74.52
fedproxm 54.50
fedmlbm 61.12
moonm 62.53
feddyn 59.39
mimelite 54.86
gradma 77.07
"""


@pytest.mark.parametrize(
    ("name", "exhibit", "typed", "columns"),
    [
        ("fedgvrgm", "table3", FEDGVRGM_TABLE3, None),
        ("fedpmvr", "table1", FEDPMVR_TABLE1, None),
        ("fedpmvr", "table2", FEDPMVR_TABLE2, None),
        ("gradma", "table1", GRADMA_TABLE1, None),
        ("gradma", "table1", GRADMA_MNIST_001_S10, ["mnist-w001-s10"]),
    ],
)
def test_published_numbers_are_those_of_the_paper(
    name: str, exhibit: str, typed: str, columns: list[str] | None
) -> None:
    chosen = [c for c in papers()[name].exhibits[exhibit].columns if columns is None or c.id in columns]
    for line in typed.strip().splitlines():
        method, *printed = line.split()
        stored = [value for column in chosen for value in column.printed(method)]
        assert len(stored) == len(printed), method
        for given, ours in zip(printed, stored, strict=True):
            if ours.kind == "missing":
                assert given == "00", (method, given)  # a slip of the paper
            elif given == "*":
                assert ours.kind == "never", (method, given)
            else:
                value, _, spread = given.partition("±")
                assert ours.value == float(value), (method, given)
                assert not spread or ours.sd == float(spread), (method, given)


@pytest.mark.parametrize("name", OURS)
def test_columns_of_one_setting_print_the_same_for_a_method(name: str) -> None:
    """A number that stands in two exhibits stands there alike."""
    seen: dict[tuple[str, str, str], Published] = {}
    for exhibit in papers()[name].exhibits.values():
        for cell, value in _printed(exhibit):
            if value.kind != "missing":
                assert seen.setdefault(cell, value) == value, (exhibit.id, cell)


def _printed(exhibit: Exhibit) -> Iterator[tuple[tuple[str, str, str], Published]]:
    """Setting, method and measure of every number of an exhibit, and the number."""
    for column in exhibit.columns:
        for method in column.methods:
            for measure, value in zip(column.measures, column.printed(method), strict=True):
                yield (column.setting, method, str(measure)), value
    for panel in exhibit.panels:
        for line in panel.lines:
            yield (line.setting, line.method, str(panel.measure)), line.published


def shown(paper: Paper) -> list[tuple[str, str]]:
    """Setting and method of every cell, curve and bar."""
    return sorted({(x.setting, x.method) for e in paper.exhibits.values() for part in e.parts for x in part.lines})


@pytest.mark.parametrize("scale", ["full", "reduced", "smoke"])
@pytest.mark.parametrize("name", OURS)
def test_every_cell_is_a_valid_experiment(name: str, scale: Scale) -> None:
    paper = papers()[name]
    for setting, method in shown(paper):
        if scale != "reduced" or paper.settings[setting].reduced is not None:
            planned(paper, setting, method, scale)


@pytest.mark.parametrize("name", OURS)
def test_settings_and_methods_are_shown_somewhere(name: str) -> None:
    paper, cells = papers()[name], shown(papers()[name])
    assert set(paper.methods) == {method for _, method in cells}
    bases = {"common", "mnist", "fmnist", "cifar10", "cifar10-cnn", "cifar10-vgg", "cifar100", "tiny"}
    assert set(paper.settings) - bases == {setting for setting, _ in cells} - bases


SHAPES = {
    "mnist": (1, 28, 28),
    "fashion_mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "tiny_imagenet": (3, 64, 64),
}
LOOK_INSIDE = {"moon", "moonm", "fedmlb", "fedmlbm"}


@pytest.mark.parametrize("name", OURS)
def test_every_model_fits_its_data_and_the_methods_that_look_inside_it(name: str) -> None:
    paper = papers()[name]
    scales: tuple[Scale, ...] = ("full", "reduced")
    for scale in scales:
        for setting, method in shown(paper):
            if scale == "reduced" and paper.settings[setting].reduced is None:
                continue
            run = planned(paper, setting, method, scale).experiment
            model, classes = models.spec(run.model.name), SOURCES[run.data.name].classes
            assert model.input_shape == SHAPES[run.data.name], (setting, method)
            normalised = _has_batch_norm(run.model.name, SHAPES[run.data.name], classes)
            assert run.training.drop_last == normalised, (setting, method)  # a batch of one sample has no statistics
            if run.algorithm.name in LOOK_INSIDE:
                assert _stages(run.model.name, SHAPES[run.data.name], classes) > 1, (setting, method)


@cache
def _built(model: str, shape: tuple[int, ...], classes: int) -> Staged:
    with torch.device("meta"):
        return models.spec(model).build(shape, classes)


def _has_batch_norm(model: str, shape: tuple[int, ...], classes: int) -> bool:
    return any(isinstance(layer, _BatchNorm) for layer in _built(model, shape, classes).modules())


def _stages(model: str, shape: tuple[int, ...], classes: int) -> int:
    return _built(model, shape, classes).levels + 1
