"""docs/leaderboard.md: what results/leaderboard holds of every setting, and what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from docs.pages.data import ROOT
from docs.pages.pictures import drawn
from fedkeel.algorithms.registry import ALGORITHMS
from fedkeel.papers.format import papers
from fedkeel.papers.markdown import table
from fedkeel.tuning.board import HEAD, Board, Ranking, cells, listed, support
from fedkeel.tuning.contest import Entrants, settings
from fedkeel.tuning.overall import cells as rows
from fedkeel.tuning.overall import head
from fedkeel.tuning.overall import support as support_over_all
from fedkeel.tuning.pictures import difference_chart
from fedkeel.tuning.results import Leaderboard

PATH = ROOT / "docs" / "leaderboard.md"
PICTURE = ROOT / "docs" / "pictures" / "leaderboard.png"
PICTURE_OF_BEST = ROOT / "docs" / "pictures" / "leaderboard-best.png"
RECORDS = ROOT / "results" / "leaderboard"
PLAIN_MODELS = ("2nn", "lenet5")
"""Of the settings; they have no normalisation layers."""


@cache
def published() -> Leaderboard:
    """Read once, however many pages show parts of it."""
    return Leaderboard(RECORDS)


def page(about: Leaderboard | None = None) -> str:
    """The whole page, from the published records or others."""
    about = about or published()
    found = about.boards()
    parts = [
        "# Leaderboard",
        "Every algorithm is tuned with the same budget on samples held out of the training data, then run with fresh "
        "seeds that are the same for everybody: partition, cohorts, batches and initial weights. "
        "[The rules](tuning.md). This page is made from the records in `results/leaderboard` by `docs/make_pages.py`.",
        _state(found),
        _pictures(about),
        _overall(about),
        *(_section(board, about.missing(board)) for board in found),
        _reading(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def rankings(about: Leaderboard) -> dict[Path, Ranking | None]:
    """What each picture of the page shows: all in the settings that are open to all, the best in the others."""
    return {PICTURE: about.ranking(), PICTURE_OF_BEST: about.ranking_of_best()}


def draw_pictures() -> list[Path]:
    """The pictures that the page shows, drawn if they have changed; gone if it shows none."""
    shown = []
    for path, ranks in rankings(published()).items():
        if ranks is None:
            path.unlink(missing_ok=True)
        else:
            shown.append(drawn(difference_chart(ranks), path))
    return shown


def _state(found: list[Board]) -> str:
    rows = []
    for board in found:
        about = board.contest
        began = len(board.rows) + len(board.unfinished)
        told = f"{len(board.rows)} finished" + (f", {len(board.unfinished)} begun" if board.unfinished else "")
        budget = f"{about.trials} × {about.trial_rounds} rounds, then {about.seeds} × {about.rounds}"
        hours = f"{board.seconds / 3600:.1f}" if began else "–"
        rows.append(
            [
                f"[{about.name}](#{about.name})",
                about.title,
                _who(about.name),
                budget,
                told if began else "not run",
                hours,
            ]
        )
    head = ["setting", "what", "for", "budget of each", "algorithms", "hours on one core"]
    return f"{table(head, rows)}\n\nA budget is trials × rounds of tuning, then fresh seeds × rounds."


def _who(name: str) -> str:
    wanted = settings()[name].entrants
    if not isinstance(wanted, Entrants):
        return "all algorithms"
    own = f", and those of the {len(papers())} papers" if wanted.papers else ""
    return f"the {wanted.best} best of {wanted.of}{own}"


def _pictures(about: Leaderboard) -> str:
    parts = [_picture(path, ranks) for path, ranks in rankings(about).items() if ranks is not None]
    few = "There are too few results for mean ranks: it takes two finished algorithms and five fresh seeds."
    return "\n\n".join(parts) or few


def _picture(path: Path, ranks: Ranking) -> str:
    best = " Who takes part was chosen by another setting." if path == PICTURE_OF_BEST else ""
    return (
        f"![Mean ranks](pictures/{path.name})\n\nMean ranks over {ranks.blocks} paired runs of "
        f"{listed(ranks.contests)}, of the {len(ranks.ranks)} algorithms that all of these have; methods whose bars "
        f"do not overlap differ by more than the critical difference {ranks.difference:.2f} (Nemenyi, 5 %).{best}"
    )


def _overall(about: Leaderboard) -> str:
    found = about.overall()
    if found is None:
        return ""
    how = (
        "The settings that everybody who takes part has finished, except the one by which they were chosen; each "
        "counts alike. *mean*: of the accuracies over the last 10 % of the rounds. *behind the first*: mean of the "
        "differences on the same seeds, ± 95 % (a spread for each setting, Welch's degrees of freedom), *p* "
        "Holm-corrected. Then the place in each setting, among all that ran there. This speaks of other seeds in these "
        "settings, not of other settings, and tuning happened once in each: its luck is in the means, not in the "
        "intervals."
    )
    return "\n\n".join(["## Over all settings", support_over_all(found), table(head(found), rows(found)), how])


def _section(board: Board, missing: Sequence[str]) -> str:
    about = board.contest
    parts = [f"## {about.name}", f"{about.title}."]
    if board.rows:
        parts += [said] if (said := support(board)) else []
        parts.append(table(HEAD, cells(board)))
        parts += [said for said in (_luck(board), _diverged(board)) if said]
    elif not board.unfinished:
        parts.append("Not run yet.")
    for name, why in board.unfinished.items():
        parts.append(f"Not finished: {name}, {why}.")
    if board.not_run:
        reasons = "; ".join(f"{ALGORITHMS[name].title}: {why}" for name, why in board.not_run.items())
        parts.append(f"Cannot take part: {reasons}.")
    if missing:
        parts.append(
            f"**Not run yet: {', '.join(ALGORITHMS[name].title for name in missing)}.** Who is first here is first of "
            "those that have run."
        )
    if board.commits:
        parts.append(f"Computed by {', '.join(commit[:12] for commit in board.commits)}.")
    example = board.ranked[0].algorithm if board.ranked else "feddc"
    command = f"fedkeel leaderboard run {about.name} --algorithms {example}{_budget(board)}"
    parts.append(f"One row again:\n\n```sh\n{command}\n```")
    return "\n\n".join(parts)


def _luck(board: Board) -> str:
    """What tuning the same algorithm twice gives, where a model has no normalisation layers for FedBN to keep."""
    late = {row.algorithm: row.late.mean for row in board.rows}
    if board.contest.sections["model"]["name"] not in PLAIN_MODELS or not {"fedavg", "fedbn"} <= late.keys():
        return ""
    gap = 100 * abs(late["fedavg"] - late["fedbn"])
    return (
        f"**How much of this is luck in tuning:** without normalisation layers FedBN is FedAvg, yet the two are "
        f"{gap:.1f} points apart, because {board.contest.trials} trials found other values for each. That is one "
        "draw of this luck; methods with more parameters of their own have more of it. The tests know of seeds only."
    )


def _diverged(board: Board) -> str:
    """Why values that were chosen by trials can fail in the runs after them."""
    about = board.contest
    broken = [row.title for row in board.rows if row.diverged and row.diverged_trials < about.trials]
    if not broken or about.trial_rounds >= about.rounds:
        return ""
    return (
        f"**Diverged:** {listed(broken)}. The chosen values held for the {about.trial_rounds} rounds of a trial, but "
        f"not for {about.rounds} rounds of every fresh seed; for longer runs, clip or take smaller steps. A diverged "
        "seed counts as 0, so these rows rank how safe the chosen values are, not how accurate the method is; the "
        "mean of the other seeds stands beside."
    )


def _budget(board: Board) -> str:
    """The options with which another budget than the setting's was run."""
    about, usual = board.contest, settings()[board.contest.name]
    options = {
        "trials": (about.trials, usual.trials),
        "rounds": (about.rounds, usual.rounds),
        "seeds": (about.seeds, usual.seeds),
    }
    return "".join(f" --{name} {got}" for name, (got, wanted) in options.items() if got != wanted)


def _reading() -> str:
    return (
        "## How to read it\n\n"
        "* *last 10 %*: test accuracy in %, mean over the evaluations of the last tenth of the rounds, ± 95 % interval "
        "over seeds (Student's t); rows are ordered by it. *last round*: that of the last round.\n"
        "* *rounds to*, *MB to*: mean over seeds until the first evaluation at the target, bytes of both directions; "
        "only where every seed arrived.\n"
        "* *rank*: mean over seeds. *p*: paired t-test over seeds against the first row, Holm-corrected for all of "
        "them; a large p is no proof of being equal, and since the first row was found by these seeds, a small one "
        "flatters it a little.\n"
        "* *steps*: local steps of all clients in a round, since some methods choose them; `80 × 3`: each costs three "
        "gradients. Budgets are equal in rounds, not in what clients compute.\n"
        "* *chosen*: the values of the best trial; what was left out (no clipping, no average) is not named. `average "
        "ema` means that the exponential average over rounds is what was judged.\n"
        "* A run that diverges counts as accuracy 0. A yardstick pools all samples, and is not ranked."
    )
