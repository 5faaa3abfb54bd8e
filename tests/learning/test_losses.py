"""torch's own losses, taken apart into samples: the mean over a batch must be the one that torch gives."""

from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from fedkeel.errors import InputError
from fedkeel.learning.losses import NAMED, Loss, LossName, as_loss, cross_entropy, for_targets, in_shape_of, known_as

LABELS = torch.tensor([2, 0, 1, 2, 1])
SEQUENCES = torch.tensor([[2, 0], [1, 1], [0, 2], [2, 2], [1, 0]])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


REAL = numbers(5, 3, seed=1)
YES_OR_NO = (REAL > 0).double()
CASES = [
    (nn.CrossEntropyLoss(), numbers(5, 3), LABELS),
    (nn.CrossEntropyLoss(label_smoothing=0.1), numbers(5, 3), LABELS),
    (nn.CrossEntropyLoss(label_smoothing=0.1), numbers(5, 3, 2), SEQUENCES),
    (nn.CrossEntropyLoss(), numbers(5, 3, 2), SEQUENCES),
    (nn.CrossEntropyLoss(), numbers(5, 3), REAL.softmax(1)),
    (nn.NLLLoss(), numbers(5, 3).log_softmax(1), LABELS),
    (nn.MultiMarginLoss(p=2, weight=torch.tensor([1.0, 2.0, 3.0]).double()), numbers(5, 3), LABELS),
    (nn.MSELoss(), numbers(5, 3), REAL),
    (nn.MSELoss(), numbers(5), REAL[:, 0]),
    (nn.L1Loss(), numbers(5, 3), REAL),
    (nn.SmoothL1Loss(beta=0.3), numbers(5, 3), REAL),
    (nn.HuberLoss(delta=0.3), numbers(5, 3), REAL),
    (nn.BCEWithLogitsLoss(), numbers(5, 3), YES_OR_NO),
    (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 5.0]).double()), numbers(5, 3), YES_OR_NO),
    (nn.BCELoss(), numbers(5, 3).sigmoid(), YES_OR_NO),
    (nn.MultiLabelSoftMarginLoss(), numbers(5, 3), YES_OR_NO),
    (nn.PoissonNLLLoss(), numbers(5, 3), YES_OR_NO),
    (nn.SoftMarginLoss(), numbers(5, 3), 2 * YES_OR_NO - 1),
    (nn.KLDivLoss(reduction="batchmean"), numbers(5, 3).log_softmax(1), REAL.softmax(1)),
]


@pytest.mark.parametrize(("given", "outputs", "targets"), CASES)
def test_the_mean_of_a_batch_and_its_gradient_are_torchs(given: nn.Module, outputs: Tensor, targets: Tensor) -> None:
    loss = as_loss(given)
    assert loss is not None
    loss = for_targets(loss, targets.dim()) if not targets.is_floating_point() else loss
    ours, theirs = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    value, expected = loss.per_sample(ours, targets).mean(), given(theirs, targets)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize(("given", "outputs", "targets"), CASES)
def test_a_sample_has_the_loss_that_it_has_alone(given: nn.Module, outputs: Tensor, targets: Tensor) -> None:
    loss = as_loss(given)
    assert loss is not None
    loss = for_targets(loss, targets.dim()) if not targets.is_floating_point() else loss
    alone = torch.cat([loss.per_sample(outputs[i : i + 1], targets[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(loss.per_sample(outputs, targets), alone, rtol=1e-14, atol=0)
    expected = torch.stack([given(outputs[i : i + 1], targets[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(alone, expected, rtol=1e-14, atol=0)


def test_padding_does_not_count_and_every_sample_counts_alike() -> None:
    """Scores of zero for three classes cost log 3 a label; one label in two is right, then one of one."""
    targets = torch.tensor([[0, 1], [0, -100]])
    loss = for_targets(cross_entropy, 2)
    outputs = torch.zeros(2, 3, 2, dtype=torch.float64)
    assert loss.per_sample(outputs, targets).tolist() == pytest.approx([torch.log(torch.tensor(3.0)).item()] * 2)
    assert loss.correct is not None
    assert loss.correct(outputs, targets).tolist() == [0.5, 1.0]


def test_the_plain_cross_entropy_stays_the_fast_one() -> None:
    for given in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(ignore_index=-1)):
        loss = as_loss(given)
        assert loss is not None
        assert for_targets(loss, 1) is cross_entropy
    smooth = as_loss(nn.CrossEntropyLoss(label_smoothing=0.1))
    assert smooth is not None
    assert for_targets(smooth, 1) is smooth
    assert smooth.name != as_loss(nn.CrossEntropyLoss(label_smoothing=0.2)).name  # type: ignore[union-attr]


def test_a_column_of_outputs_is_not_compared_each_with_each() -> None:
    loss = as_loss(nn.MSELoss())
    assert loss is not None
    assert loss.per_sample(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])).tolist() == [0.0, 4.0]
    assert in_shape_of(torch.zeros(4), torch.zeros(2, 2)).shape == (2, 2)


def test_right_answers_of_several_labels_a_sample() -> None:
    loss = as_loss(nn.BCEWithLogitsLoss())
    assert loss is not None
    assert loss.correct is not None
    scores, targets = torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert loss.correct(scores, targets).tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (nn.MSELoss(reduction="sum"), "nn.MSELoss.reduction must be 'mean' or 'none', got 'sum'"),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), "nn.CrossEntropyLoss.weight must be absent.*depends on the others"),
        (nn.BCEWithLogitsLoss(weight=torch.ones(3)), "place in the batch. pos_weight is allowed"),
        (nn.CTCLoss(), "loss must be one of nn.CrossEntropyLoss, .* got 'nn.CTCLoss'"),
        (nn.CosineEmbeddingLoss(), "loss must be one of"),
        ("msa", "there is no loss named 'msa'. Did you mean 'mse'?"),
        (3, 'loss must be a name such as "mse", or a loss of torch.nn such as'),
    ],
)
def test_what_is_no_sum_over_samples_is_refused(given: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        as_loss(given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cross_entropy", nn.CrossEntropyLoss()),
        ("mse", nn.MSELoss()),
        ("l1", nn.L1Loss()),
        ("smooth_l1", nn.SmoothL1Loss()),
        ("huber", nn.HuberLoss()),
        ("bce_with_logits", nn.BCEWithLogitsLoss()),
    ],
)
def test_a_name_stands_for_torchs_loss(name: str, given: nn.Module) -> None:
    by_name, by_object = as_loss(name), as_loss(given)
    assert by_name is not None
    assert by_object is not None
    assert by_name.name == by_object.name
    assert known_as(by_name) == known_as(by_object) == name
    outputs, targets = numbers(5, 3), LABELS if name == "cross_entropy" else YES_OR_NO
    torch.testing.assert_close(by_name.per_sample(outputs, targets).mean(), given(outputs, targets), rtol=1e-14, atol=0)


def test_every_name_has_a_loss_and_other_losses_have_none() -> None:
    assert tuple(NAMED) == get_args(LossName)
    for other in (nn.HuberLoss(delta=0.5), nn.CrossEntropyLoss(label_smoothing=0.1), nn.PoissonNLLLoss()):
        loss = as_loss(other)
        assert loss is not None
        assert known_as(loss) is None
    disguised = Loss(NAMED["mse"].name, lambda outputs, targets: (outputs - targets).abs().mean(1), None)
    assert known_as(disguised) is None
