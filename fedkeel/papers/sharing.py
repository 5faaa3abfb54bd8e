"""Work that one method shares with another: as many local steps in all, dealt to its own clients."""

from __future__ import annotations

from pydantic import Field

from fedkeel.algorithms.validate import Settings


class Work(Settings):
    """What is shared, and among whom."""

    steps: int = Field(ge=0)
    """Local steps of the other method, of all clients in all rounds."""
    rounds: int = Field(ge=1)
    """In so many rounds."""
    clients: int = Field(ge=1)
    samples: int = Field(ge=1)
    """Of all clients that share it."""


def share(work: Work, batch_size: int) -> dict[str, float | int]:
    """E = (τ_all/rounds)·(B/n) epochs, so that client i takes ⌊E·n_i/B⌋ steps a round, as a field of ``training``.

    A single client, which is how centralised training is done, takes all τ_all of them, rounded to whole rounds.
    """
    if work.clients == 1:
        return {"steps": max(1, round(work.steps / work.rounds))}
    epochs = work.steps / work.rounds * batch_size / work.samples
    # Whole passes would be counted in batches, the incomplete one included.
    return {"epochs": epochs * (1 + 1e-12) if epochs.is_integer() else epochs}
