"""What single methods need beyond the contract. Look here if yours does too; most do not.

Hooks of an algorithm:

    buffers     what must happen to BatchNorm statistics (FedBN)
    cohort      who takes part, where a method overrules the sampling (MIFA's program)
    personal    models that clients would use themselves, where these differ from w (FedBN)
    controls    the control variates of clients, so that their error can be measured (SCAFFOLD and its kin)
    pace        step sizes that change within a round (FedSWA)
    partial     what to tell who runs the method with part of the clients, where its paper has all (FedVeca)
    gradients_a_step, passes_a_round   what local work costs beside a gradient a step (GradMA, MOON, FedVeca)
    most_remembered                    how many clients the server remembers at most (GradMA)
    variant     the subclass that computes other readings of a paper (``algorithms/variants``)

Services during a round:

    local.train_by(rule)         steps with a projection (GradMA), an average of gradients (FedPMVR), the gradient of a
                                 point uphill (FedSAM), scores calibrated client by client (FedLC), an objective that
                                 looks inside the model (MOON, FedMLB), taken back in part (FedReg), something else done
                                 after each, or with another optimiser (FedPVR)
    local.class_counts           how many samples of each class a client has (FedLC)
    local.full_loss              losses over all samples (FedVeca); so does ``uploads.losses_at``, at the server
    local.pseudo_batches         one more pass over the data, shuffled apart (FedReg)
    uphill                       samples moved along the gradient of a loss (FedReg)
    only_at(correction, when)    a correction at some steps only (FedProx as FedBN's program has it)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from fedkeel.algorithms.state import State
from fedkeel.learning.ascent import Ascent as Ascent
from fedkeel.learning.ascent import Consensus as Consensus
from fedkeel.learning.ascent import of_length as of_length
from fedkeel.learning.averaging import Averaging as Averaging
from fedkeel.learning.calibration import Calibration as Calibration
from fedkeel.learning.correction import Correction
from fedkeel.learning.inside import Branches as Branches
from fedkeel.learning.inside import Contrast as Contrast
from fedkeel.learning.kernels.choice import uphill as uphill
from fedkeel.learning.loop import Sgd, Trained, train
from fedkeel.learning.pace import Pace
from fedkeel.learning.projected import Projection as Projection
from fedkeel.learning.rule import Rule as Rule
from fedkeel.learning.task import Batch, Task
from fedkeel.learning.unforgetting import Unforgetting as Unforgetting


@dataclass(frozen=True)
class Controls:
    """What K clients take for their own gradients ∇F_i, to be subtracted from every step."""

    c: Tensor
    """[K, v]."""
    where: Tensor | None = None
    """The v of the d coordinates that they have, as a boolean vector [d]; None: all."""


class AdvancedHooks:
    """Of an algorithm."""

    buffers: ClassVar[str | None] = None
    """What must happen to BatchNorm statistics, where the method itself says so (overrides ``training.buffers``)."""

    gradients_a_step: ClassVar[float] = 1.0
    """What a local step costs, counted in gradients of one minibatch; forward passes count a third. For the clock."""

    passes_a_round: ClassVar[float] = 0.0
    """Gradients over all of a client's samples that it computes in a round beside its steps. For the clock."""

    partial: ClassVar[str] = ""
    """One sentence for whoever lets part of the clients take part, where that is outside the paper's range."""

    variant: ClassVar[str] = ""
    """``module:Class``: the subclass that computes other readings of the paper, where there are any."""

    @property
    def most_remembered(self) -> int | None:
        """Clients of whom the server keeps rows at most, no fewer than a cohort; None: all, if any. For ``cost``."""
        return None

    def cohort(self, server: State, present: tuple[int, ...], N: int) -> tuple[int, ...]:
        """Who takes part, given who is there: the same, unless a method's program calls others (MIFA's does once)."""
        return present

    def pace(self, steps: Tensor) -> Tensor | None:
        """Factors on η_t at every step of clients that take so many [K]: [K, most steps]; None: η_t at all of them.

        ``local.train`` follows them, and ``travel`` counts them, at the server too. What stands behind a client's own
        last step is not looked at.
        """
        return None

    def personal(self, server: State, clients: State) -> Tensor | None:
        """The models [K, d] that K clients with these states would use, where they keep part of it to themselves."""
        return None

    def controls(self, server: State, clients: State) -> Controls | None:
        """The control variates of K clients with these states, where the method has any; only looked at."""
        return None


@dataclass(frozen=True, kw_only=True)
class AdvancedServices:
    """Of what clients see during a round."""

    task: Task
    b: Tensor
    sgd: Sgd
    full_batches: Callable[[], Sequence[Batch]]
    make_pseudo_batches: Callable[[], Sequence[Batch]]
    pace: Pace | None = None
    """How step sizes change within the round, as the algorithm's ``pace`` says it."""
    count_classes: Callable[[], Tensor] | None = None
    """Computes ``class_counts``."""

    def train_by(self, rule: Rule, start: Tensor | None = None, sgd: Sgd | None = None) -> Trained:
        """Run the shared loop by a rule, from ``start`` (default: the global model) and with any optimiser."""
        if rule.pace is not None:
            raise ValueError("an algorithm says in its method pace how step sizes change, so that travel knows of it")
        first = self.w if start is None else start
        if self.pace is not None:
            rule = replace(rule, pace=self.pace)
        return train(self.task, first, self.b, self.batches, sgd or self.sgd, rule, self.full_batches)

    @property
    def w(self) -> Tensor:
        raise NotImplementedError

    @property
    def batches(self) -> Sequence[Batch]:
        raise NotImplementedError

    @cached_property
    def pseudo_batches(self) -> Sequence[Batch]:
        """One more pass over each client's data, shuffled apart from the steps (FedReg makes pseudo data of it)."""
        return self.make_pseudo_batches()

    @cached_property
    def class_counts(self) -> Tensor:
        """How many of each client's own samples are of each class that the model has a score for [K, classes].

        Only for cross-entropy with one label a sample; with anything else asking is an error.
        """
        assert self.count_classes is not None
        return self.count_classes()

    def full_loss(self, at: Tensor) -> Tensor:
        """F_i at parameters [K, d], over all of each client's samples, in evaluation mode [K]."""
        loss = at.new_zeros(len(at))
        for batch in self.full_batches():
            loss += self.task.losses(at, self.b, batch)
        return loss


def only_at(correction: Correction, when: Tensor) -> Correction:
    """The same correction at some steps only: ``when`` is boolean [K, steps]."""
    return replace(correction, when=when)
