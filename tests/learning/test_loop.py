"""The order of operations in the local loop, with numbers computed by hand on F(y) = ½(y − x)²."""

import pytest
import torch
from torch import Tensor, nn

from fedkeel.learning.correction import Correction
from fedkeel.learning.loop import Sgd, train
from fedkeel.learning.losses import Loss
from fedkeel.learning.rule import Rule
from fedkeel.learning.task import Batch, Task


class Scalar(nn.Module):
    """One parameter y; the output for input x is y − x, the loss ½(y − x)², so the gradient is y − mean x."""

    def __init__(self) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.y - x


HALF_SQUARE = Loss("half_square", lambda out, _: 0.5 * out.square().flatten(), lambda out, _: out.flatten() < 0)
TASK = Task(Scalar(), HALF_SQUARE, torch.float64)


def batches(*means: float) -> list[Batch]:
    return [Batch(torch.full((1, 2, 1), m, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.long)) for m in means]


def end(sgd: Sgd, start: float, steps: list[Batch], correction: Correction | None = None) -> float:
    y = torch.full((1, 1), start, dtype=torch.float64)
    return float(train(TASK, y, torch.empty(1, 0), steps, sgd, Rule(correction=correction)).y)


def test_plain_steps() -> None:
    """y = 1, η = 0.1, target 0 twice: 1 → 0.9 → 0.81."""
    assert end(Sgd(0.1), 1.0, batches(0, 0)) == pytest.approx(0.81, abs=1e-15)


def test_weight_decay_comes_after_clipping() -> None:
    """g = 4, clipped to 1, then + 0.5·4 = 2: y = 4 − 0.1·(1 + 2) = 3.7, up to the 1e-6 in the clip's divisor."""
    assert end(Sgd(0.1, clip=1.0, weight_decay=0.5), 4.0, batches(0)) == pytest.approx(3.7, abs=1e-7)


def test_the_correction_is_inside_the_clip() -> None:
    """g = 4 and a shift of −3.5 leave 0.5, below the limit of 1: y = 4 − 0.1·0.5."""
    shift = Correction(constant=torch.tensor([-3.5], dtype=torch.float64))
    assert end(Sgd(0.1, clip=1.0), 4.0, batches(0), shift) == pytest.approx(3.95, abs=1e-12)


def test_a_share_of_the_gradient_is_taken_before_anything_is_added() -> None:
    """g = 4, a share of ¼ and a shift of 0.5 leave 1.5; decay 1 adds 4: y = 4 − 0.1·5.5."""
    mixed = Correction(share=0.25) + Correction(constant=torch.tensor([0.5], dtype=torch.float64), decay=1.0)
    assert end(Sgd(0.1), 4.0, batches(0), mixed) == pytest.approx(3.45, abs=1e-15)


def test_a_share_of_the_gradient_is_inside_the_clip() -> None:
    """g = 4 and a share of ⅛ leave 0.5, below the limit of 1; clipped first it were ⅛."""
    assert end(Sgd(0.1, clip=1.0), 4.0, batches(0), Correction(share=0.125)) == pytest.approx(3.95, abs=1e-12)


def test_a_share_of_a_gradient_of_ones_own_leaves_it_as_it_is() -> None:
    """An algorithm's gradient of 2 is halved in a copy: y = 1 − 0.1·1, and the 2 stays."""
    own = torch.full((1, 1), 2.0, dtype=torch.float64)
    rule = Rule(gradient=lambda y, b, batch, k: (own, y[:, 0], b), correction=Correction(share=0.5))
    start = torch.ones(1, 1, dtype=torch.float64)
    assert float(train(TASK, start, torch.empty(1, 0), batches(0, 0), Sgd(0.1), rule).y) == pytest.approx(0.8)
    assert float(own) == 2


def test_shares_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="each say the share"):
        Correction(share=0.5) + Correction(share=0.5)
    with pytest.raises(ValueError, match="cannot go with when"):
        Correction(share=0.5, when=torch.ones(1, 1, dtype=torch.bool))


def test_decay_is_outside_the_clip() -> None:
    """g = 4 clipped to 1, then + 0.5·4: the same 3.7 as weight decay gives."""
    assert end(Sgd(0.1, clip=1.0), 4.0, batches(0), Correction(decay=0.5)) == pytest.approx(3.7, abs=1e-7)


def test_momentum_accumulates_the_decayed_gradient() -> None:
    """η = 0.1, μ = 0.5, wd = 1: step 1 q = 1 + 1 = 2, y = 0.8; step 2 q = 0.8 + 0.8 + 0.5·2 = 2.6, y = 0.54."""
    assert end(Sgd(0.1, momentum=0.5, weight_decay=1.0), 1.0, batches(0, 0)) == pytest.approx(0.54, abs=1e-15)


def test_momentum_may_differ_by_coordinate() -> None:
    """With μ = 0 on the only coordinate nothing accumulates: 1 → 0.9 → 0.81."""
    assert end(Sgd(0.1, momentum=torch.zeros(1)), 1.0, batches(0, 0)) == pytest.approx(0.81, abs=1e-15)


def test_a_correction_at_some_steps_only() -> None:
    """A shift of 1 in the second step only: 1 → 0.9 → 0.9 − 0.1·(0.9 + 1) = 0.71."""
    shift = Correction(constant=torch.ones(1, dtype=torch.float64), when=torch.tensor([[False, True]]))
    assert end(Sgd(0.1), 1.0, batches(0, 0), shift) == pytest.approx(0.71, abs=1e-15)


def test_an_inactive_client_stands_still() -> None:
    """Two clients; the second takes the first step only: 1 → 0.9 → 0.81 and 1 → 0.9."""
    x, y = torch.zeros(2, 2, 1, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.long)
    steps = [Batch(x, y), Batch(x, y, active=torch.tensor([True, False]))]
    trained = train(TASK, torch.ones(2, 1, dtype=torch.float64), torch.empty(2, 0), steps, Sgd(0.1))
    assert trained.y.flatten().tolist() == pytest.approx([0.81, 0.9], abs=1e-15)
    assert trained.loss.tolist() == pytest.approx([(0.5 + 0.405) / 2, 0.5])


def test_clipping_reports_the_norms_before_it() -> None:
    y = torch.tensor([[4.0]], dtype=torch.float64)
    assert train(TASK, y, torch.empty(1, 0), batches(0), Sgd(0.1, clip=1.0)).norms.tolist() == [[4.0]]


def test_the_whole_move_is_measured_and_limited() -> None:
    """From 1 two steps end at 0.81, a move of 0.19. Limited to 0.05 it ends at 0.95; within 0.2 nothing changes."""
    y = torch.ones(1, 1, dtype=torch.float64)
    short, free, plain = (
        train(TASK, y, torch.empty(1, 0), batches(0, 0), Sgd(0.1, max_move=D)) for D in (0.05, 0.2, None)
    )
    assert short.y.item() == pytest.approx(0.95, abs=1e-15)
    assert torch.equal(free.y, plain.y)
    assert short.moved.item() == free.moved.item() == pytest.approx(0.19, abs=1e-15)


def test_a_move_whose_square_overflows_is_limited_too() -> None:
    """A step of −1e30 in float32, whose range ends at 3.4e38: from 0 to −2, not to 0, with a limit of 2."""
    y = torch.zeros(1, 1)
    trained = train(
        TASK,
        y,
        torch.empty(1, 0),
        batches(0),
        Sgd(1.0, max_move=2.0),
        Rule(gradient=lambda y, b, batch, k: (torch.full_like(y, 1e30), torch.zeros(1), b)),
    )
    assert trained.y.item() == pytest.approx(-2.0)
    assert trained.moved.item() == pytest.approx(1e30)
