"""The demo on the embedded MNIST-5k: a scene for each paper, one setting for all, tables and pictures at the end."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from fedkeel import api, build, config
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.cli.life import Life
from fedkeel.cli.scenes import SCENES, Outcome, Scene, outcome
from fedkeel.cli.screen import comparison_table, console, say, show_table, wrapped
from fedkeel.comparison.histories import compare
from fedkeel.data import save_chart
from fedkeel.errors import InputError
from fedkeel.pages import document
from fedkeel.plots import chart
from fedkeel.plots.learning import panels
from fedkeel.plots.sources import choose
from fedkeel.runs import directory as run_directory
from fedkeel.runs.history import History

TARGET = 0.90
ROUNDS = 30
"""Of the common comparison, unless told otherwise."""
SHOWN = ("fedavg", "scaffold", "fedgvrgm", "fedveca", "gradma", "feddc", "fedpmvr")
COMMON_KINDS = ("accuracy", "loss", "rounds", "bytes", "drift", "partition")
"""Pictures of the common setting in the report."""
MARK = "fedkeel-demo"


def settings(rounds: int, seed: int) -> dict[str, Any]:
    """The demo's experiment, as a TOML file would hold it."""
    return {
        "seed": seed,
        "data": {"name": "mnist5k"},
        "partition": {"rule": "dirichlet", "clients": 50, "alpha": 0.3},
        "model": {"name": "2nn"},
        "run": {"executor": "pool"},
        "training": {
            "rounds": rounds,
            "participation": 0.2,
            "epochs": 5,
            "batch_size": 20,
            "lr": 0.1,
            "lr_decay": 0.998,
            "weight_decay": 1e-3,
            "clip": 10.0,
        },
        "algorithms": {"feddc": {"alpha": 0.1}, "fedgvrgm": {"mu": 0.01}},
        "sweep": {"algorithm": list(SHOWN)},
    }


def run_demo(out: Path, most: int | None, seed: int, quiet: bool) -> None:
    """Run, compare, draw; everything lands in ``out``, which an earlier demo may have filled."""
    began = time.perf_counter()
    _make_room(out)
    rounds = most or ROUNDS
    scenes = [(scene, _play(scene, out, most or scene.rounds, seed, quiet)) for scene in SCENES]
    histories = _all_in_one(out, rounds, seed, quiet)
    shown = {" and ".join(scene.titles): _folders(scene, out) for scene in SCENES}
    save_chart(panels(shown, "The papers' own settings in small"), out / "papers.png")
    common = {ALGORITHMS[name].title: out / name for name in SHOWN}
    picture = save_chart(chart(common, "accuracy", target=TARGET), out / "curves.png")
    report = _report(common, scenes, out)
    say("")
    show_table(
        ["own setting", "beside", ("mean over rounds", "right"), ("at the end", "right"), "claim"],
        [_summary(scene, runs) for scene, runs in scenes],
    )
    say("")
    console.print(comparison_table(compare(histories, "FedAvg", TARGET), "FedAvg", TARGET))
    say(f"\nPictures: {picture}, {out / 'papers.png'}   Runs: {out}/   Time: {time.perf_counter() - began:.0f} s")
    say(
        ("Report: ", "bold"), f"{report} ({report.stat().st_size / 1e6:.1f} MB): everything in one file, for a browser."
    )
    say(
        "Next: fedkeel algorithms feddc · fedkeel partition mnist5k --out clients.png · "
        "fedkeel run examples/mnist5k.toml"
    )


def _play(scene: Scene, out: Path, rounds: int, seed: int, quiet: bool) -> dict[str, History]:
    """One paper's method and its baseline, by title."""
    own, baseline = scene.titles
    paper = ALGORITHMS[scene.algorithm].paper
    if not quiet:
        say("")
        say((own, "bold"), f" ({paper.authors}, {paper.year}): {scene.claim}.")
        say(wrapped(f"{scene.small}.", "  "), style="dim")
    histories = {}
    for (title, folder), given in zip(_folders(scene, out).items(), scene.experiments(rounds, seed), strict=True):
        (experiment,) = config.expand(given, [])
        with Life(experiment.training.rounds, quiet=quiet, name=title) as life:
            histories[title] = api.run(experiment, folder, watch=life).history
    if not quiet:
        say(wrapped(_sentence(scene, outcome(scene, histories[own], histories[baseline])), "  "))
    return histories


def _folders(scene: Scene, out: Path) -> dict[str, Path]:
    """Where the runs of a scene are, the method's first, by title."""
    names = (scene.algorithm, scene.baseline)
    return {title: out / "papers" / scene.algorithm / name for title, name in zip(scene.titles, names, strict=True)}


def _sentence(scene: Scene, end: Outcome) -> str:
    own, baseline = scene.titles
    return (
        f"Mean accuracy over the rounds {end.mean[0]:.1%}, {baseline} {end.mean[1]:.1%}; at the end {end.final[0]:.1%} "
        f"and {end.final[1]:.1%}. The claim of {own}: {end.verdict}."
    )


def _summary(scene: Scene, histories: dict[str, History]) -> list[str]:
    own, baseline = scene.titles
    end = outcome(scene, histories[own], histories[baseline])
    pairs = (f"{mine:.1%} / {theirs:.1%}" for mine, theirs in (end.mean, end.final))
    return [own, baseline, *pairs, end.verdict]


def _report(common: dict[str, Path], scenes: list[tuple[Scene, dict[str, History]]], out: Path) -> Path:
    """All runs in one page: the common setting with every picture, then a part for each paper."""
    parts = [document.Part("One setting for all", choose(common), "It is nobody's own.", COMMON_KINDS)]
    for scene, histories in scenes:
        own, baseline = scene.titles
        verdict = outcome(scene, histories[own], histories[baseline]).verdict
        says = f"The claim: {scene.claim}. Here: {verdict}. {scene.small}."
        parts.append(document.Part(f"{own} and {baseline}", choose(_folders(scene, out)), says, ("accuracy",)))
    return document.write(out / "report.html", document.page(parts, TARGET, "The demo of fedkeel"))


def _all_in_one(out: Path, rounds: int, seed: int, quiet: bool) -> dict[str, History]:
    """Every shown algorithm in the same setting, by title."""
    experiments = config.expand(settings(rounds, seed), [])
    federation = build.make_federation(experiments[0])
    histories: dict[str, History] = {}
    if not quiet:
        say("")
        say(
            ("One setting for all", "bold"),
            f": {federation.N} clients with {federation.sizes[0]} handwritten digits each, unevenly mixed, 20 % a "
            "round. It is nobody's own.",
        )
    for experiment in experiments:
        title = ALGORITHMS[experiment.algorithm.name].title
        with Life(rounds, quiet=quiet, name=title) as life:
            run = api.run(experiment, out / experiment.algorithm.name, watch=life)
        histories[title] = run.history
    return histories


def _make_room(out: Path) -> None:
    """An empty folder with the demo's mark, which comes first and never goes: a demo may be stopped at any instant."""
    run_directory.make(out)
    try:
        found = [path for path in out.iterdir() if path.name != MARK]
        if found and not (out / MARK).is_file():
            raise InputError(f"{out} holds files that are not a demo's; choose another folder with --out.")
        (out / MARK).write_text("Made by `fedkeel demo`, which replaces this folder's contents.\n", encoding="utf-8")
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise InputError(
            f"the folder {out} cannot be made ready: {error.strerror} ({error.filename}); choose another with --out."
        ) from None
