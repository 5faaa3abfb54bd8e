"""What the machine can do: matrix products on all cores at once."""

from __future__ import annotations

import time

import torch

from fedkeel.bench.crew import Crew, Seat

SIDES = (1024, 2048)
SECONDS = 0.5
"""How long each size is tried in a turn."""


class MatrixPeak:
    """One process per core that multiplies matrices; ``gflops`` is the most that all of them reached together."""

    def __init__(self, workers: int, sides: tuple[int, ...] = SIDES) -> None:
        self._crew = Crew(workers, _Multiplication)
        self._sides = sides
        self.gflops = 0.0

    def run(self) -> None:
        """Measure again."""
        for side in self._sides:
            self.gflops = max(self.gflops, sum(self._crew.ask(side)))

    def close(self) -> None:
        self._crew.close()


class _Multiplication:
    def __init__(self, seat: Seat) -> None:
        self._barrier = seat.barrier

    def __call__(self, side: int) -> float:
        """The rate of products of two square matrices, in GFLOP/s, while the others do the same.

        Over the whole time, not of the fastest product: that one had the caches, or the core, to itself.
        """
        left, right, out = torch.randn(side, side), torch.randn(side, side), torch.empty(side, side)
        torch.mm(left, right, out=out)
        self._barrier.wait()
        began, products, lasted = time.perf_counter(), 0, 0.0
        while lasted < SECONDS:
            torch.mm(left, right, out=out)
            products += 1
            lasted = time.perf_counter() - began
        return 2 * side**3 * products / lasted / 1e9
