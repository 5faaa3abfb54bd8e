"""How a federation trains: who takes part, how much local work, what goes wrong, and what is done against it."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator, model_validator

from fedkeel.algorithms.robust import RULES
from fedkeel.algorithms.validate import Settings


class Until(Settings):
    """What the reported model must reach on the test set for a run to end early; both, if both are given."""

    accuracy: float | None = Field(None, gt=0, le=1, description="least accuracy, above 0 and at most 1")
    loss: float | None = Field(None, gt=0, allow_inf_nan=False, description="largest loss")

    @model_validator(mode="after")
    def _asks_for_something(self) -> Until:
        if self.accuracy is None and self.loss is None:
            raise ValueError("given an accuracy or a loss, e.g. {accuracy = 0.98}")
        return self

    def met(self, accuracy: float, loss: float) -> bool:
        """Whether a test result is enough; NaN never is."""
        return (self.accuracy is None or accuracy >= self.accuracy) and (self.loss is None or loss <= self.loss)

    def __str__(self) -> str:
        given = {"an accuracy of": self.accuracy, "a loss of": self.loss}
        return " and ".join(f"{name} {value:g}" for name, value in given.items() if value is not None)


class Training(Settings):
    """Settings of training that belong to no algorithm."""

    rounds: int = Field(100, ge=1, description="communication rounds")
    until: Until | None = Field(
        None,
        description="end after the first evaluated round whose test result reaches this, e.g. {accuracy = 0.98}; "
        "absent: after all rounds",
    )
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients in a round, above 0 and at most 1")
    sampling: Literal["exact", "bernoulli"] = Field(
        "exact", description="exact: always the same number of clients; bernoulli: each with that probability"
    )
    epochs: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="E, local passes over a client's data; a fraction is ⌊E·n/B⌋ steps of a client with n samples, at "
        "least one; give epochs or steps",
    )
    steps: int | None = Field(None, ge=1, description="local minibatch steps; give epochs or steps")
    batch_size: int = Field(50, ge=1, description="samples in a minibatch; smaller clients use all they have")
    drop_last: bool = Field(False, description="leave out the incomplete last batch of an epoch")
    lr: float = Field(0.1, gt=0, description="η, client learning rate")
    lr_decay: float = Field(1.0, gt=0, le=1, description="η is multiplied by this after every round")
    lr_schedule: Literal["constant", "step", "cosine"] = Field(
        "constant",
        description="how η goes over the rounds apart from lr_decay: step multiplies it by lr_gamma every lr_every "
        "rounds, cosine lets it fall to lr_min along half a cosine over all rounds",
    )
    lr_every: int = Field(10, ge=1, description="rounds between two steps of lr_schedule = 'step'")
    lr_gamma: float = Field(0.1, gt=0, lt=1, description="factor of a step of lr_schedule = 'step'")
    lr_min: float = Field(0.0, ge=0, description="where lr_schedule = 'cosine' would end after the last round")
    optimiser: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="local optimiser; it starts anew every round. Adam is for algorithms that need no plain SGD"
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="β₁ and β₂ of adam and adamw, e.g. [0.9, 0.999]")
    eps: float = Field(1e-8, gt=0, allow_inf_nan=False, description="ε of adam and adamw")
    momentum: float = Field(0.0, ge=0, lt=1, description="local momentum, reset every round")
    weight_decay: float = Field(0.0, ge=0, description="L2 weight decay of the local optimiser, added after clipping")
    clip: float | None = Field(None, gt=0, description="largest norm of a local gradient; absent: no clipping")
    buffers: Literal["average", "uniform", "local", "freeze"] = Field(
        "average",
        description="BatchNorm statistics: averaged by data, averaged equally, kept by each client, or frozen",
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="numbers that clients compute with")

    @model_validator(mode="after")
    def _one_kind_of_work(self) -> Training:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("given either epochs or steps, not both")
        return self

    @field_validator("epochs")
    @classmethod
    def _whole_if_it_is(cls, epochs: float | None) -> float | None:
        """5.0 passes are 5: the same run, and the same words in its configuration."""
        return int(epochs) if epochs is not None and epochs.is_integer() else epochs

    @field_validator("betas")
    @classmethod
    def _are_shares(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("two numbers of at least 0 and below 1")
        return betas

    @model_validator(mode="after")
    def _heard(self) -> Training:
        """Settings that the chosen schedule or optimiser does not know would have no effect."""
        heard = {
            "lr_decay": self.lr_schedule == "constant",
            "lr_every": self.lr_schedule == "step",
            "lr_gamma": self.lr_schedule == "step",
            "lr_min": self.lr_schedule == "cosine",
            "momentum": self.optimiser == "sgd",
            "betas": self.optimiser != "sgd",
            "eps": self.optimiser != "sgd",
        }
        for name, has_effect in heard.items():
            if not has_effect and getattr(self, name) != type(self).model_fields[name].default:
                owner = "lr_schedule" if name.startswith("lr_") else "optimiser"
                raise ValueError(f"given without {name}, which has no effect with {owner} = {getattr(self, owner)!r}")
        if self.lr_min > self.lr:
            raise ValueError(f"given an lr_min of at most lr = {self.lr:g}")
        return self

    def local_steps(self, samples: int) -> int:
        """K_i of a client with this many samples: E·⌈n/B⌉ for epochs (⌊n/B⌋, but at least one, with ``drop_last``).

        A fraction of epochs is a share of the work and not of the passes: ⌊E·n/B⌋, but at least one. The rounding of
        E itself must not cost a step.
        """
        if self.steps is not None:
            return self.steps
        epochs = self.epochs or 1
        if isinstance(epochs, int):
            return epochs * self.steps_per_epoch(samples)
        return max(1, math.floor(epochs * samples / self.batch_size * (1 + 1e-9)))

    def samples_in(self, steps: int, samples: int) -> int:
        """How many samples go through so many steps of a client with this many samples."""
        per_epoch = self.steps_per_epoch(samples)
        epochs, rest = divmod(steps, per_epoch)
        return epochs * min(samples, per_epoch * self.batch_size) + min(rest * self.batch_size, samples)

    def steps_per_epoch(self, samples: int) -> int:
        """Minibatches in one pass over this many samples."""
        full, rest = divmod(samples, self.batch_size)
        return max(1, full if self.drop_last or rest == 0 else full + 1)


class Faults(Settings):
    """What goes wrong with clients in a simulation, and what is done about numbers that go wrong."""

    dropout: float = Field(0.0, ge=0, lt=1, description="probability that a called client never answers")
    lost: float = Field(0.0, ge=0, lt=1, description="probability that an upload is lost on its way")
    late: float = Field(
        0.0, ge=0, lt=1, description="probability that an upload comes after the round, when it is discarded"
    )
    duplicates: float = Field(0.0, ge=0, le=1, description="probability that an upload arrives twice and counts once")
    stragglers: float = Field(0.0, ge=0, le=1, description="probability that a client takes only part of its steps")
    straggler_share: tuple[float, float] = Field(
        (0.2, 0.8), description="least and largest share of its steps that a straggler takes, e.g. [0.2, 0.8]"
    )
    bad_update: Literal["stop", "skip-client", "clip"] = Field(
        "stop",
        description="an update that is not finite or longer than max_update_norm: stop the run, leave that client out "
        "of the round, or scale the update down to that norm",
    )
    max_update_norm: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="largest ‖y_i − w‖ of a local update; absent: any finite one"
    )

    @field_validator("straggler_share")
    @classmethod
    def _is_a_range(cls, share: tuple[float, float]) -> tuple[float, float]:
        if not 0 < share[0] <= share[1] <= 1:
            raise ValueError("two numbers above 0 and at most 1, the smaller first")
        return share

    @model_validator(mode="after")
    def _clips_to_something(self) -> Faults:
        if self.bad_update == "clip" and self.max_update_norm is None:
            raise ValueError("given max_update_norm with bad_update = 'clip'")
        return self


RuleName = Literal["median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "centred-clipping"]


class Robust(Settings):
    """What stands in the place of the server's mean, so that some uploads may be hostile or broken."""

    rule: RuleName | None = Field(
        None, description="robust rule in the place of the server's mean; absent: the mean, which one client can spoil"
    )
    f: int | None = Field(None, ge=0, description="hostile uploads that a round must bear; give it with rule")
    bucket: int | None = Field(
        None,
        ge=2,
        description="so many uploads, drawn at random, are averaged before the rule is applied; absent: none",
    )
    radius: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="of centred-clipping, the most that one upload counts for; absent: their median distance",
    )

    @model_validator(mode="after")
    def _heard(self) -> Robust:
        if self.rule is None:
            for name in ("f", "bucket", "radius"):
                if getattr(self, name) is not None:
                    raise ValueError(f"given without {name}, which has no effect without a rule")
        elif self.f is None:
            raise ValueError("given f, the hostile uploads that a round must bear")
        elif self.radius is not None and not RULES[self.rule].has_radius:
            raise ValueError(f"given without radius, which has no effect with rule = {self.rule!r}")
        return self

    @property
    def least(self) -> int:
        """The fewest uploads of a round with which the rule bears f hostile ones, each of which may spoil a bucket."""
        if self.rule is None or self.f is None:
            return 1
        return (RULES[self.rule].least(self.f) - 1) * (self.bucket or 1) + 1
