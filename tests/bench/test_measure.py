"""A measurement in small: everything that is promised is there, and the numbers fit each other."""

import multiprocessing
import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedkeel.bench import process
from fedkeel.bench.crew import Crew, CrewError, Seat
from fedkeel.bench.measure import COMPARISON, REFERENCE, Settings, Turns, measure, take_turns
from fedkeel.bench.plain import PlainLoop
from fedkeel.bench.simulator import Simulator, make_federation
from fedkeel.bench.works import WORKS, Size, make_images
from fedkeel.errors import InputError

TINY = Size(clients=4, samples=20, cohort=2, batch=10, epochs=1, test=50)
SETTINGS = Settings("W1", rounds=1, workers=2, size=TINY, matrix_sides=(64,))


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Any:
    yield
    torch.set_num_threads(1)


def test_all_keys_and_how_they_hang_together() -> None:
    result = measure(replace(SETTINGS, durable=True, compare=("feddc",)))
    assert (result["work"], result["algorithm"], result["workers"], result["rounds"]) == ("W1", "scaffold", 2, 1)
    samples = 2 * 20
    assert result["samples_per_s"] * result["seconds_per_round"] == pytest.approx(samples)
    assert result["plain_loop_samples_per_s"] * result["plain_loop_seconds_per_round"] == pytest.approx(samples)
    ratio = result["samples_per_s"] / result["plain_loop_samples_per_s"]
    assert result["ratio_to_plain_loop"] == pytest.approx(ratio)
    assert result["ratio_to_plain_loop_channels_last"] is None
    assert result["gflop_per_round"] == pytest.approx((40 * 31_360 + 50 * 15_680) / 1e9)
    share = result["gflop_per_round"] / result["gemm_gflops"] / result["seconds_per_round"]
    assert 0 < result["arithmetic_share"] == pytest.approx(share)
    assert result["peak_rss_mb"] > 50
    assert result["startup_seconds"] > 0
    assert result["executor_choice"]
    timed = result["block_seconds"]
    assert set(timed) == {"scaffold", "scaffold, durable", "plain loop"}
    assert result["durable_overhead"] == pytest.approx(timed["scaffold, durable"][0] / timed["scaffold"][0] - 1)
    compared = result["compared"]
    assert list(compared) == ["fedavg", "scaffold", "feddc"]
    assert compared["fedavg"]["relative_to_fedavg"] == 1
    ratio = compared["scaffold"]["seconds_per_round"] / compared["fedavg"]["seconds_per_round"]  # of the first pair
    assert compared["scaffold"]["relative_to_fedavg"] == pytest.approx(ratio)
    assert compared["feddc"]["seconds_per_round"] > 0
    assert multiprocessing.active_children() == []


def test_convolutions_have_a_second_plain_loop() -> None:
    result = measure(replace(SETTINGS, work="W3", algorithm="fedavg", executor="serial"))
    ratio = result["samples_per_s"] / result["plain_loop_channels_last_samples_per_s"]
    assert result["ratio_to_plain_loop_channels_last"] == pytest.approx(ratio)
    assert result["durable_overhead"] is None
    assert result["compared"] == {}


def test_mistakes_are_found_before_anything_is_measured() -> None:
    for wrong in ({"work": "W5"}, {"algorithm": "fedwrong"}, {"executor": "quantum"}, {"rounds": 0}):
        with pytest.raises(InputError):
            measure(replace(SETTINGS, **wrong))


@pytest.mark.parametrize(("name", "channels_last"), [("W1", False), ("W3", True)])
def test_the_plain_loop_trains(name: str, channels_last: bool) -> None:
    """Guessing among ten classes costs log 10 = 2.3."""
    size = Size(clients=4, samples=100, cohort=4, batch=10, epochs=4, test=200)
    loop = PlainLoop(WORKS[name], size, make_images(size), workers=2, channels_last=channels_last)
    try:
        seconds = loop.run(3) + loop.run(5)
    finally:
        loop.close()
    assert len(seconds) == len(loop.losses) == 8
    assert loop.losses[-1] < 0.5 * 2.3


def test_the_simulator_trains_on_the_same_data() -> None:
    size = Size(clients=4, samples=100, cohort=4, batch=10, epochs=4, test=200)
    simulator = Simulator(WORKS["W1"], size, make_federation(size, make_images(size)), "scaffold", "serial", 1)
    simulator.run(2)
    simulator.run(1)
    assert [r.samples for r in simulator.history.rounds] == [size.samples_per_round] * 3
    assert simulator.history.measured[-1].accuracy > 0.6
    assert simulator.choice == "serial"


class Clockwork:
    """A contender whose rounds last as long as it says; the calls are kept."""

    def __init__(self, name: str, seconds: float, calls: list[str]) -> None:
        self.name, self.seconds, self.calls = name, seconds, calls

    def run(self, rounds: int) -> list[float]:
        self.calls += [self.name] * rounds
        return [self.seconds] * rounds

    def close(self) -> None:
        raise AssertionError("whoever opens a contender closes it")


def test_turns_go_there_and_back() -> None:
    calls: list[str] = []
    pair = [Clockwork("a", 0.5, calls), Clockwork("b", 1.0, calls)]
    timings = take_turns(REFERENCE, pair, None, lambda: calls.append("|"), lambda who, done, total: None)
    warm_up, *turns = "".join(calls).split("|")
    assert warm_up == "aaabbb"
    assert turns == ["aaaabb", "bbaaaa", "aaaabb", "bbaaaa", "aaaabb"]  # two seconds each
    assert timings["a"].seconds == 0.5
    assert timings["a"].rounds == 4 * REFERENCE.blocks


def test_slow_rounds_have_fewer_blocks() -> None:
    calls: list[str] = []
    slow = Clockwork("s", 20.0, calls)
    assert (
        take_turns(REFERENCE, [slow], None, lambda: None, lambda who, done, total: None)["s"].rounds
        == REFERENCE.few_blocks
    )
    assert len(calls) == REFERENCE.few_blocks + 1


@pytest.mark.parametrize(
    ("turns", "seconds", "rounds", "number", "length"),
    [
        (REFERENCE, 0.3, None, 5, 7),
        (REFERENCE, 9.0, None, 3, 1),
        (REFERENCE, 0.3, 12, 5, 3),
        (REFERENCE, 0.3, 1, 1, 1),
        (COMPARISON, 0.05, None, 9, 24),
        (COMPARISON, 0.4, None, 9, 3),
    ],
)
def test_number_and_length_of_blocks(
    turns: Turns, seconds: float, rounds: int | None, number: int, length: int
) -> None:
    assert turns.number(seconds, rounds) == number
    assert turns.length(seconds, number, rounds) == length


def test_a_failing_process_is_named_and_nobody_waits_for_it() -> None:
    def make(seat: Seat) -> Any:
        def work(request: Any) -> Any:
            if seat.rank == 0:
                raise RuntimeError("no luck")
            seat.barrier.wait()

        return work

    crew = Crew(2, make)
    try:
        with pytest.raises(CrewError, match="no luck"):
            crew.ask("anything")
    finally:
        crew.close()


def test_a_process_that_dies_is_an_error() -> None:
    crew = Crew(1, lambda seat: lambda request: os._exit(3))
    with pytest.raises(CrewError, match="exit code 3"):
        crew.ask("anything")
    crew.close()


def test_memory_of_children_counts() -> None:
    """A child that writes 64 MB of its own is seen by the parent's watch."""

    def work(request: Any) -> int:
        held = torch.ones(16 << 20)
        time.sleep(4 * process.SAMPLED_EVERY)
        return int(held[0])

    crew = Crew(1, lambda seat: work)
    try:
        with process.PeakMemory() as idle:
            pass
        with process.PeakMemory() as busy:
            crew.ask("hold")
    finally:
        crew.close()
    assert busy.bytes - idle.bytes > 48 << 20


def test_freed_memory_goes_back_to_the_system() -> None:
    """Blocks of 100 kB come from the heap, which keeps them while one at its top lives."""
    blocks = [bytearray(100_000) for _ in range(600)]
    last = blocks[-1]
    full = process.memory([os.getpid()])
    del blocks
    process.give_back()
    assert len(last) == 100_000
    assert full - process.memory([os.getpid()]) > 40_000_000


def test_age_grows_with_time() -> None:
    before = process.age()
    time.sleep(0.05)
    after = process.age()
    assert before is not None
    assert after is not None
    assert 0 < before < after
