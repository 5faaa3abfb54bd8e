"""``fedkeel bench``: what a round costs here, beside the same steps in plain PyTorch."""

from __future__ import annotations

from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from fedkeel.algorithms.registry import algorithm_class
from fedkeel.bench.measure import BASE, Settings, measure
from fedkeel.bench.simulator import DEFAULT_EXECUTOR
from fedkeel.bench.works import find
from fedkeel.cli.main import print_json
from fedkeel.cli.screen import console, say, table


def run_bench(
    work: str,
    algorithm: str,
    executor: str | None,
    rounds: int | None,
    workers: int | None,
    durable: bool,
    compare: list[str],
    as_json: bool,
) -> None:
    """Measure, and print a screen for people or JSON for programs."""
    settings = Settings(work, algorithm, executor or DEFAULT_EXECUTOR, rounds, workers, durable, tuple(compare))
    if as_json:
        print_json(measure(settings))
        return
    size = settings.size
    title = algorithm_class(algorithm).title
    say(f"{find(work).name} · {find(work).title} · {title} · executor {settings.executor}", style="bold")
    say(
        f"{size.clients} clients × {size.samples} samples, {size.cohort} a round, batch {size.batch}, "
        f"{size.epochs} epochs: {size.samples_per_round:,} samples a round, then {size.test:,} to test on\n"
    )
    # No refreshing thread: it would take time from what is measured.
    line = Progress(
        BarColumn(bar_width=30), TextColumn("{task.description}"), console=console, auto_refresh=False, transient=True
    )
    bar = line.add_task("", total=None)

    def tell(who: str, done: int, total: int) -> None:
        line.update(bar, description=who, completed=done, total=total)
        line.refresh()

    with line:
        result = measure(settings, tell)
    show(result, title)


def show(result: dict[str, Any], title: str) -> None:
    """The result of a measurement as a table and three lines."""
    samples = result["seconds_per_round"] * result["samples_per_s"]
    own, plain = result["seconds_per_round"], result["plain_loop_seconds_per_round"]
    timed = {f"fedkeel, {title}": own}
    if result["durable_overhead"] is not None:
        timed["  the same, durable"] = own * (1 + result["durable_overhead"])
    timed["plain loop"] = plain
    if result["plain_loop_channels_last_samples_per_s"] is not None:
        timed["plain loop, channels last"] = samples / result["plain_loop_channels_last_samples_per_s"]
    rows = [[name, f"{s:.3f}", f"{samples / s:,.0f}", f"{plain / s:.2f}×"] for name, s in timed.items()]
    console.print(table(["", ("s/round", "right"), ("samples/s", "right"), ("of the plain loop", "right")], rows))
    if result["compared"]:
        base = algorithm_class(BASE).title
        rows = [
            [
                algorithm_class(name).title,
                f"{row['seconds_per_round']:.3f}",
                f"{row[f'relative_to_{BASE}']:.2f}×",
            ]
            for name, row in result["compared"].items()
        ]
        console.print()
        console.print(table(["without evaluation", ("s/round", "right"), (f"time of {base}", "right")], rows))
    startup = "" if result["startup_seconds"] is None else f"start-up {result['startup_seconds']:.1f} s · "
    overhead = result["durable_overhead"]
    durable = "" if overhead is None else f" · a commit every round costs {overhead:+.1%}"
    say(f"\n{result['executor_choice']} · {startup}memory {result['peak_rss_mb']:.0f} MB at most{durable}")
    say(
        f"{result['gflop_per_round']:.3g} GFLOP a round at {result['gemm_gflops']:.0f} GFLOP/s, the peak of matrix "
        f"products here: {result['arithmetic_share']:.0%} of the time"
    )
    say(
        f"Timed rounds: {result['rounds']}, blocks: {result['blocks']}, taking turns with the plain loop "
        "(the same SGD steps with nothing federated, one process per core); medians of the blocks",
        style="dim",
    )
