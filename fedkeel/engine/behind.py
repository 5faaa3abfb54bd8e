"""Something that stands before whoever answers: planned faults, a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedkeel.engine.exchange import Answers, Call, Model, Question, Respondents
from fedkeel.engine.samples import Scored
from fedkeel.learning.task import Score, Seeds


@dataclass(frozen=True)
class Behind:
    """Whoever answers, with something before it; everything that is no call goes through."""

    who: Respondents

    def answers(self, call: Call, exam: Sequence[Model] = ()) -> Answers:
        """As of ``Respondents``."""
        raise NotImplementedError

    def scores(self, question: Question) -> Mapping[int, Score]:
        return self.who.scores(question)

    def evaluate(self, w: Tensor, b: Tensor, on: Scored = "test", seeds: Seeds | None = None) -> Score:
        return self.who.evaluate(w, b, on, seeds)

    @property
    def hold_test(self) -> bool:
        return self.who.hold_test

    @property
    def hold_validation(self) -> bool:
        return self.who.hold_validation

    @property
    def shares(self) -> bool:
        return self.who.shares

    @property
    def have_tests(self) -> bool:
        return self.who.have_tests

    @property
    def have_common_test(self) -> bool:
        return self.who.have_common_test
