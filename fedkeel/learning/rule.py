"""What an algorithm puts into local steps, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedkeel.learning.ascent import Ascent
from fedkeel.learning.averaging import Averaging
from fedkeel.learning.calibration import Calibration
from fedkeel.learning.correction import Correction
from fedkeel.learning.inside import Inside
from fedkeel.learning.pace import Pace
from fedkeel.learning.projected import Projection
from fedkeel.learning.sgd import used
from fedkeel.learning.task import Batch
from fedkeel.learning.unforgetting import Unforgetting

Gradient = Callable[[Tensor, Tensor, Batch, int], tuple[Tensor, Tensor, Tensor]]
"""``gradient(y, b, batch, k) → (q [K, d], loss [K], buffers [K, m])`` of step k; the step then overwrites y."""
AfterStep = Callable[[Tensor, Batch, int], Tensor]
"""``after_step(y, batch, k) → y``: what an algorithm does to the parameters once step k is taken."""


@dataclass(frozen=True)
class Rule:
    """The parts of a step that are an algorithm's own, in the order in which a step comes to them; None: as usual."""

    gradient: Gradient | None = None
    projection: Projection | None = None
    ascent: Ascent | None = None
    """The gradient of a point uphill."""
    inside: Inside | None = None
    """An objective in place of the plain loss, of what the stages of the model give."""
    unforgetting: Unforgetting | None = None
    """A gradient between y and the start, and what is taken back once step k is taken."""
    calibration: Calibration | None = None
    """What is done to the scores of classes before the plain loss."""
    averaging: Averaging | None = None
    correction: Correction | None = None
    pace: Pace | None = None
    """Factors on the step size, which an algorithm says in ``pace`` (``advanced``), so that travel knows them."""
    after_step: AfterStep | None = None

    def __post_init__(self) -> None:
        if len({"gradient", "projection", "ascent", "inside", "unforgetting"} & self.used) > 1:
            raise ValueError(
                "a step follows a gradient of its own, a projected one, one uphill or another objective's, not several"
            )
        if self.calibration is not None and not {"gradient", "projection", "inside", "unforgetting"}.isdisjoint(
            self.used
        ):
            raise ValueError("scores are calibrated in the plain loss, at y or uphill, and in no other gradient")
        if self.unforgetting is not None and self.after_step is not None:
            raise ValueError("what is taken back after a step and another thing done after it have no order")

    @property
    def used(self) -> frozenset[str]:
        """The names of the parts that are set."""
        return used(self)
