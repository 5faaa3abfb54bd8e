"""Arrays with a place for every client, of which only those of the cohort mean something."""

from __future__ import annotations

import numpy as np

from tests.replay.run import Reader, Replay


def present_only(array: str, read: Reader) -> Reader:
    """The reader, giving for absent clients whatever the trace happens to hold there."""

    def reader(replay: Replay) -> np.ndarray:
        ours, recorded = read(replay), replay.trace.arrays[array]
        present = replay.trace.arrays["cohort_mask"].astype(bool)
        return np.where(present.reshape(present.shape + (1,) * (ours.ndim - 2)), ours, recorded)

    return reader
