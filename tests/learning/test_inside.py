"""What goes by hand inside a model, against autograd through all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedkeel.learning import models
from fedkeel.learning.correction import Correction
from fedkeel.learning.inside import Branches, Contrast, Inside
from fedkeel.learning.kernels import chain
from fedkeel.learning.kernels.choice import descends, fast_steps, inside_gradient, sees_stages, uphill
from fedkeel.learning.kernels.inside import BranchesByHand, ContrastByHand
from fedkeel.learning.kernels.trial import verify_kernels
from fedkeel.learning.kernels.unforgetting import UnforgettingSteps
from fedkeel.learning.loop import Sgd, train
from fedkeel.learning.losses import squared_hinge
from fedkeel.learning.rule import Rule
from fedkeel.learning.staged import Staged
from fedkeel.learning.task import Batch, Batches, Task
from fedkeel.learning.unforgetting import Unforgetting
from fedkeel.learning.uphill import uphill as plain_uphill
from fedkeel.learning.verification import verify

STAGED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vectors": (
        lambda: Staged({"fc": nn.Sequential(nn.Linear(5, 4), nn.ReLU()), "head": nn.Linear(4, 3)}),
        (5,),
    ),
    "flattened, three stages": (
        lambda: Staged(
            {
                "fc1": nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh()),
                "fc2": nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Identity()),
                "head": nn.Linear(4, 3),
            }
        ),
        (2, 3),
    ),
    "widened convolutions": (
        lambda: Staged(
            {
                "conv1": nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2)),
                "conv2": nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
                "projection": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)),
                "head": nn.Linear(5, 3),
            }
        ),
        (1, 8, 8),
    ),
}


def made(name: str, seed: int) -> tuple[Task, tuple[int, ...]]:
    torch.manual_seed(seed)
    module, shape = STAGED[name]
    return Task(module(), dtype=torch.float64), shape


def batch_of(K: int, n: int, shape: tuple[int, ...], padded: bool) -> Batch:
    x, y = torch.randn(K, n, *shape, dtype=torch.float64), torch.randint(0, 3, (K, n))
    if not padded:
        return Batch(x, y)
    weight = torch.rand(K, n, dtype=torch.float64)
    weight[0, n // 2 :] = 0
    return Batch(x, y, weight)


def near(task: Task, *sizes: int) -> Tensor:
    """Parameters near the start [..., d]."""
    return task.w0 + 0.3 * torch.randn(*sizes, task.d, dtype=torch.float64)


def rules(task: Task, K: int) -> list[Inside]:
    counts = torch.rand(K, 3) < 0.6
    counts[:, 0] = True
    nothing = torch.empty(K, 0, dtype=torch.float64)
    return [
        Contrast(1.7, 0.5, near(task, K, 3), nothing.unsqueeze(1).expand(K, 3, 0), counts),
        Branches(0.7, 1.3, 0.9, 2.0, near(task, K), nothing),
    ]


@given(
    name=st.sampled_from(sorted(STAGED)),
    seed=st.integers(0, 1000),
    K=st.integers(1, 3),
    n=st.integers(1, 6),
    padded=st.booleans(),
)
def test_gradients_inside_a_model_are_those_of_autograd(name: str, seed: int, K: int, n: int, padded: bool) -> None:
    task, shape = made(name, seed)
    batch, y, b = batch_of(K, n, shape, padded), near(task, K), torch.empty(K, 0, dtype=torch.float64)
    for rule, kind in zip(rules(task, K), (ContrastByHand, BranchesByHand), strict=True):
        fast = inside_gradient(task, [], rule, None)
        assert type(fast) is kind
        ours, loss, _ = fast(y, b, batch, 0, torch.full_like(y, torch.nan))
        expected, value, _ = rule.gradient(task, y, b, batch)
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(loss, value, rtol=1e-12, atol=1e-13)
        walk = descends(task, fast, Sgd(lr=0.3), Rule(inside=rule))
        assert (walk is None) == any(isinstance(part, nn.Conv2d) for part in task.train_module.modules())
        if walk is not None:
            moved = y.clone()
            assert torch.equal(walk.descend(moved, b, batch, 0, 0.3), loss)
            torch.testing.assert_close(moved, y - 0.3 * expected, rtol=1e-10, atol=1e-12)


def test_steps_are_taken_in_place_only_along_the_plain_gradient() -> None:
    """Clipping, decay and momentum need the gradient itself."""
    task, _ = made(next(name for name in STAGED if "conv" not in name), 0)
    (rule, _), plain = rules(task, 1), Sgd(lr=0.1)
    fast = inside_gradient(task, [], rule, None)
    assert descends(task, fast, plain, Rule(inside=rule)) is fast
    for other in ({"clip": 1.0}, {"weight_decay": 0.1}, {"momentum": 0.9}):
        assert descends(task, fast, replace(plain, **other), Rule(inside=rule)) is None
    corrected = Rule(inside=rule, correction=Correction(constant=torch.ones(1, task.d)))
    assert descends(task, fast, plain, corrected) is None
    assert descends(task, rule.gradient, plain, Rule(inside=rule)) is None  # type: ignore[arg-type]


@given(
    name=st.sampled_from(sorted(STAGED)),
    seed=st.integers(0, 1000),
    K=st.integers(1, 3),
    padded=st.booleans(),
    steps=st.integers(0, 3),
    known=st.booleans(),
)
def test_samples_walk_uphill_as_with_autograd(
    name: str, seed: int, K: int, padded: bool, steps: int, known: bool
) -> None:
    """Steps of two sizes, whose signs are those of autograd, on the loss that is known and on another one; batches of
    unequal size are one computation."""
    task, shape = made(name, seed)
    batches = [batch_of(K, n, shape, padded) for n in (4, 2)]
    kept = [batch.x.clone() for batch in batches]
    w, b = near(task, K), torch.empty(K, 0, dtype=torch.float64)
    loss = task.loss.per_sample if known else lambda outputs, targets: 0.1 * task.loss.per_sample(outputs, targets)
    given_ = (task, w, b, batches, loss, (0.1, 0.03), steps)
    for walked, plainly in zip(uphill(*given_), plain_uphill(*given_), strict=True):
        for one, other in zip(walked, plainly, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert all(torch.equal(batch.x, before) for batch, before in zip(batches, kept, strict=True))


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("padded", [False, True])
def test_probabilities_as_targets(name: str, padded: bool) -> None:
    task, shape = made(name, 0)
    batch = batch_of(2, 5, shape, padded)
    soft = Batch(batch.x, torch.rand(2, 5, 3, dtype=torch.float64).softmax(-1), batch.weight)
    y, b = near(task, 2), torch.empty(2, 0, dtype=torch.float64)
    ours, loss, _ = task.gradient(y, b, soft)
    expected, value, _ = task.gradient(y, b, soft, task.objective)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(loss, value, rtol=1e-12, atol=1e-13)


@dataclass
class Passes(Batches):
    """Some minibatches of one client's samples."""

    x: Tensor
    y: Tensor
    rows: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k):  # type: ignore[no-untyped-def]
        if k >= len(self.rows):
            raise IndexError(k)
        return Batch(self.x[self.rows[k]][None], self.y[self.rows[k]][None])

    @property
    def positions(self) -> Sequence[Tensor]:
        return self.rows


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("passes", [0.5, 3])
def test_features_of_frozen_models_are_computed_once_a_round(name: str, passes: float) -> None:
    """Six steps over 7 samples, or three passes; the same steps as of the loop with autograd."""
    task, shape = made(name, 1)
    x, y = torch.randn(7, *shape, dtype=torch.float64), torch.randint(0, 3, (7,))
    orders = [torch.randperm(7)[: 3 if passes < 1 else 7] for _ in range(max(1, int(passes)))]
    batches = Passes(x, y, [rows for order in orders for rows in order.split(3)])
    everything = [Batch(x[None, :4], y[None, :4]), Batch(x[None, 4:], y[None, 4:])]
    rule = rules(task, 1)[0]
    assert isinstance(rule, Contrast)
    rule.counts[:] = True
    fast = inside_gradient(task, batches, rule, lambda: everything)
    assert isinstance(fast, ContrastByHand)
    assert (fast._table is not None) == (passes >= 1)
    start, b = near(task, 1), torch.empty(1, 0, dtype=torch.float64)
    ours = train(task, start, b, batches, Sgd(0.1, clip=1.0), Rule(inside=rule), lambda: everything)
    task.by_hand = False
    plain = train(task, start, b, batches, Sgd(0.1, clip=1.0), Rule(inside=rule), lambda: everything)
    torch.testing.assert_close(ours.y, plain.y, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.loss, plain.loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.norms, plain.norms, rtol=0, atol=1e-12)


class Later(Contrast):
    """A contrast that nobody knew when the kernel was written."""


def test_what_is_not_known_is_left_to_autograd() -> None:
    task, _ = made("vectors", 0)
    contrast, branches = rules(task, 1)
    assert isinstance(contrast, Contrast)
    later = Later(contrast.mu, contrast.T, contrast.models, contrast.buffers, contrast.counts)
    assert sees_stages(task, contrast)
    assert not sees_stages(task, later)
    for module in (
        Staged({"fc": nn.Linear(5, 4), "head": nn.Sequential(nn.ReLU(), nn.Linear(4, 3))}),  # would be overwritten
        Staged({"norm": nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), "head": nn.Linear(4, 3)}),
        Staged({"drop": nn.Sequential(nn.Linear(5, 4), nn.Dropout()), "head": nn.Linear(4, 3)}),
        Staged({"flat": nn.Flatten(), "head": nn.Linear(5, 3)}),
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
    ):
        assert not sees_stages(Task(module), branches), module
    assert not sees_stages(Task(Staged({"fc": nn.Linear(5, 4), "head": nn.Linear(4, 1)}), squared_hinge()), branches)


@pytest.mark.parametrize("name", ["2nn", "lenet_w3", "lenet5", "lenet_fedpmvr", "cnn_moon_proj"])
def test_models_of_the_papers_go_by_hand_and_pass_the_trial(name: str) -> None:
    spec = models.spec(name)
    torch.manual_seed(0)
    task = Task(models.build(name))
    verify_kernels(task, torch.randn(8, *spec.input_shape), torch.arange(8) % spec.classes)
    assert task.by_hand
    assert not task.notices
    assert all(sees_stages(task, rule) for rule in rules(task, 1))


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of one percent in what joins from another path, which no plain gradient goes through."""
    correct = chain.Chain.by_inputs
    monkeypatch.setattr(chain.Chain, "by_inputs", lambda *given_: 1.01 * correct(*given_))
    task, shape = made("widened convolutions", 0)
    batch = batch_of(1, 8, shape, False)
    verify(task, batch.x[0], batch.y[0])
    assert task.by_hand
    verify_kernels(task, batch.x[0], batch.y[0])
    assert not task.by_hand
    assert "gradient by inputs" in task.notices[0]
    assert not sees_stages(task, rules(task, 1)[1])


@given(
    seed=st.integers(0, 1000),
    layers=st.integers(1, 3),
    bias=st.booleans(),
    clip=st.sampled_from([None, 0.05, 10.0]),
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=5),
)
def test_steps_that_are_taken_back_are_those_of_autograd(
    seed: int, layers: int, bias: bool, clip: float | None, widths: list[int]
) -> None:
    """More steps than remembered batches, whose sizes differ; long steps, so that there is something to take back."""
    torch.manual_seed(seed)
    sizes = [*[6, 5, 4][:layers], 3]
    parts = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o, bias=bias), nn.ReLU())][:-1]
    task = Task(nn.Sequential(nn.Flatten(), *parts), dtype=torch.float64)
    x, y = torch.randn(7, 2, 3, dtype=torch.float64), torch.randint(0, 3, (7,))
    batches = Passes(x, y, [torch.randint(0, 7, (width,)) for width in widths])
    hard = [batch_of(1, n, (2, 3), False) for n in (3, 2)]
    soft = [Batch(torch.randn_like(b.x), torch.rand(*b.y.shape, 3, dtype=torch.float64).softmax(-1)) for b in hard]
    start, b = near(task, 1), torch.empty(1, 0, dtype=torch.float64)
    rule = Unforgetting(start, b, 0.4, 0.5, (soft, hard), torch.tensor([2]))
    given_ = (task, start, b, batches, Sgd(1.0, clip=clip))
    assert isinstance(
        fast_steps(task.dense, start, batches, given_[-1], Rule(unforgetting=rule), None), UnforgettingSteps
    )
    everything = [Batch(x[None, :4], y[None, :4]), Batch(x[None, 4:], y[None, 4:])]
    plainly = replace(rule, objective=task.objective)
    plain = train(*given_, Rule(unforgetting=plainly), lambda: everything)
    for all_samples in (None, lambda: everything):
        ours = train(*given_, Rule(unforgetting=rule), all_samples)
        torch.testing.assert_close(ours.y, plain.y, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(ours.loss, plain.loss, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(ours.norms, plain.norms, rtol=1e-9, atol=1e-11)


def test_the_norm_of_gradients_that_cancel_is_a_number() -> None:
    """At w = 0 every class has probability 1/c. One input c times, once for each class: the derivatives add up to zero
    but for rounding, and so does the gradient, whose squared norm rounding makes negative for some of these inputs."""
    norms = []
    for classes in (3, 5, 7):
        task = Task(nn.Linear(4, classes, bias=False))
        for x in torch.randn(100, 4, generator=torch.Generator().manual_seed(0)):
            batch = Batch(x.repeat(1, classes, 1), torch.arange(classes)[None])
            start, b = torch.zeros(1, 4 * classes), torch.empty(1, 0)
            rule = Unforgetting(start, b, 0.4, 0.5, ([batch], [batch]), torch.ones(1, dtype=torch.long))
            steps = Passes(batch.x[0], batch.y[0], [torch.arange(classes)])
            norms.append(train(task, start, b, steps, Sgd(0.1, clip=1.0), Rule(unforgetting=rule)).norms)
    assert torch.stack(norms).max() < 1e-6


def test_steps_with_anything_else_are_not_taken_back_in_the_fast_way() -> None:
    task, _ = made("vectors", 0)
    start, b = near(task, 1), torch.empty(1, 0, dtype=torch.float64)
    batches = Passes(torch.randn(3, 5).double(), torch.zeros(3, dtype=torch.int64), [torch.arange(3)])
    padded = batch_of(1, 3, (5,), True)
    rule = Unforgetting(start, b, 0.4, 0.5, ([batches[0]], [batches[0]]), torch.ones(1, dtype=torch.long))
    for sgd, other, given_ in (
        (Sgd(0.1, momentum=0.9), rule, batches),
        (Sgd(0.1, weight_decay=0.1), rule, batches),
        (Sgd(0.1), replace(rule, strip=lambda g, mixed, b, batch: g), batches),
        (Sgd(0.1), replace(rule, objective=task.objective), batches),
        (Sgd(0.1), replace(rule, remembered=([padded], [padded])), batches),
        (Sgd(0.1), replace(rule, w=start.clone()), batches),
        (Sgd(0.1), rule, [padded]),
    ):
        assert fast_steps(task.dense, start, given_, sgd, Rule(unforgetting=other), None) is None
    with pytest.raises(ValueError, match="no order"):
        Rule(unforgetting=rule, after_step=lambda y, batch, k: y)
