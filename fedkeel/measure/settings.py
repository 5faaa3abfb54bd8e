"""What is measured while a run goes on, and how often."""

from __future__ import annotations

from pydantic import Field, model_validator

from fedkeel.algorithms.validate import Settings


class Measuring(Settings):
    """What costs whole passes over clients' samples, and so is measured only where somebody asks."""

    every: int = Field(
        0,
        ge=0,
        description="measure drift in every so many rounds: gradients at the model that the round starts from, and how "
        "its updates differ; 0: never",
    )
    clients: int | None = Field(
        None,
        ge=1,
        description="take gradients of so many clients, drawn anew each time; absent: of all, a whole pass over "
        "everybody's samples",
    )

    @model_validator(mode="after")
    def _heard(self) -> Measuring:
        if self.clients is not None and not self.every:
            raise ValueError("given without clients, which has no effect with every = 0")
        return self
