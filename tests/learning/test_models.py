"""The model zoo: sizes as published, and stages that can be entered and left anywhere."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedkeel.errors import InputError, ModelError
from fedkeel.learning import models
from fedkeel.learning.staged import Staged

PUBLISHED = [
    ("svm", None, None, 784),
    ("cnn_fedveca_mnist", None, None, 430_698),
    ("cnn_fedveca_cifar", None, None, 555_178),
    ("mlp_2nn", None, None, 199_210),
    ("2nn", None, None, 199_210),
    ("emnist_nn", None, None, 89_610),
    ("cifar_cnn_feddc", None, None, 797_962),
    ("cifar_cnn_feddc", None, 100, 815_332),
    ("linear_synth", None, None, 155),
    ("resnet18_gn", None, None, 11_181_642),
    ("resnet18_gn", (3, 64, 64), 200, 11_279_112),
    ("mlp_gradma", None, None, 178_710),
    ("lenet_gradma", None, None, 941_834),
    ("vgg11_gradma", None, None, 9_304_548),
    ("resnet20_gradma", None, None, 284_824),
    ("cnn_moon", None, None, 62_006),
    ("cnn_moon_proj", None, None, 92_626),
    ("lenet5", None, None, 44_426),
    ("lenet_fedpmvr", None, None, 164_116),
    ("vgg19", None, None, 20_029_514),
    ("vgg19_bn", None, None, 20_040_522),
    ("cnn_gvrgm_mnist", None, None, 1_663_370),
    ("cnn_gvrgm_mnist_light", None, None, 21_840),
    ("cnn_gvrgm_cifar", None, None, 797_962),
    ("logistic", None, None, 7_850),
    ("lenet_w3", None, None, 44_426),
]


@cache
def built(name: str) -> Staged:
    """One model per name for all tests that only read it; in eval mode, so BatchNorm and dropout are fixed."""
    torch.manual_seed(0)
    model = models.build(name)
    model.eval()
    return model


def batch(name: str, size: int = 2) -> Tensor:
    return torch.randn(size, *models.spec(name).input_shape, generator=torch.Generator().manual_seed(1))


def test_every_model_has_a_published_size() -> None:
    assert {models.spec(name).name for name, *_ in PUBLISHED} == set(models.names())


@pytest.mark.parametrize(("name", "shape", "classes", "count"), PUBLISHED)
def test_parameter_count(name: str, shape: tuple[int, ...] | None, classes: int | None, count: int) -> None:
    """The meta device makes shapes without numbers, so the large networks cost nothing."""
    with torch.device("meta"):
        model = models.build(name, shape, classes)
    assert models.parameter_count(model) == count
    if shape is None and classes is None:
        assert models.spec(name).params == count


@pytest.mark.parametrize(("name", "count"), [("mlp_gradma", 600), ("lenet_gradma", 1_472), ("resnet18_gn", 0)])
def test_running_statistics(name: str, count: int) -> None:
    """Mean and variance per normalised channel; BatchNorm's batch counter is a number of its own and is left out."""
    with torch.device("meta"):
        buffers = dict(models.build(name).named_buffers())
    assert sum(b.numel() for key, b in buffers.items() if not key.endswith("num_batches_tracked")) == count


@pytest.mark.parametrize("name", models.names())
def test_output_shape_and_every_cut(name: str) -> None:
    """Leaving the model before stage l and entering it there again changes nothing, for every l."""
    model, x = built(name), batch(name)
    with torch.no_grad():
        logits = model(x)
        assert logits.shape == (2, 1 if name == "svm" else models.spec(name).classes)
        for cut in range(model.levels + 2):
            torch.testing.assert_close(model(model(x, stop=cut), start=cut), logits)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("logistic", "head"),
        ("mlp_2nn", "fc1 fc2 head"),
        ("cifar_cnn_feddc", "conv1 conv2 fc1 fc2 head"),
        ("cnn_moon_proj", "conv1 conv2 fc1 fc2 projection head"),
        ("resnet18_gn", "stem layer1 layer2 layer3 layer4 head"),
        ("vgg11_gradma", "block1 block2 block3 block4 block5 fc1 head"),
    ],
)
def test_stages_in_order(name: str, stages: str) -> None:
    model = built(name)
    assert [child for child, _ in model.named_children()] == stages.split()
    assert model.levels == len(stages.split()) - 1


def test_features_of_the_moon_model_are_the_projection() -> None:
    """The projection is not rectified, so its cosine can be negative."""
    model, x = built("cnn_moon_proj"), batch("cnn_moon_proj")
    features = model(x, stop=model.levels)
    assert features.shape == (2, 256)
    assert (features < 0).any()


@pytest.mark.parametrize("name", ["mlp_2nn", "cnn_moon"])
def test_functional_call_grafts_two_models(name: str) -> None:
    """FedMLB's hybrid path: the lower stages with one set of parameters, the upper ones with another."""
    model, x = built(name), batch(name)
    torch.manual_seed(2)
    lower: dict[str, Tensor] = dict(model.named_parameters())
    upper: dict[str, Tensor] = dict(models.build(name).named_parameters())
    stages = [child for child, _ in model.named_children()]
    for level in range(model.levels):
        features = functional_call(model, lower, (x,), {"stop": level + 1})
        hybrid = functional_call(model, upper, (features,), {"start": level + 1})
        below = stages[: level + 1]
        mixed = {key: (lower if key.split(".")[0] in below else upper)[key] for key in lower}
        torch.testing.assert_close(hybrid, functional_call(model, mixed, (x,)))


@pytest.mark.parametrize("name", ["mlp_2nn", "lenet5", "cnn_gvrgm_mnist_light", "resnet18_gn"])
def test_vmap_over_two_parameter_sets(name: str) -> None:
    torch.manual_seed(3)
    pair: list[nn.Module] = [models.build(name), models.build(name)]
    params, _ = stack_module_state(pair)
    x = torch.stack([batch(name), batch(name).flip(0)])
    module = built(name)  # outside of vmap, which allows no random initialisation

    def logits(params: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = functional_call(module, params, (x,))
        return result

    with torch.no_grad():
        expected = torch.stack([model(part) for model, part in zip(pair, x, strict=True)])
        torch.testing.assert_close(vmap(logits)(params, x), expected, rtol=1e-4, atol=1e-4)


def test_initial_weights_follow_the_seed() -> None:
    torch.manual_seed(4)
    first = models.build("lenet5")
    torch.manual_seed(4)
    again = models.build("lenet5")
    other = models.build("lenet5")
    assert torch.equal(first.get_parameter("conv1.0.weight"), again.get_parameter("conv1.0.weight"))
    assert not torch.equal(first.get_parameter("conv1.0.weight"), other.get_parameter("conv1.0.weight"))


@pytest.mark.parametrize("name", ["svm", "linear_synth"])
def test_linear_models_start_at_zero(name: str) -> None:
    assert all(not parameter.any() for parameter in built(name).parameters())


def test_fedveca_starts_from_a_truncated_normal() -> None:
    """N(0, 0.1²) cut at ±2 deviations has deviation 0.1·√(1 − 4φ(2)/(2Φ(2) − 1)) = 0.08796."""
    for name, parameter in built("cnn_fedveca_mnist").named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0.1).all()
        else:
            assert parameter.abs().max() <= 0.2
    dense = built("cnn_fedveca_mnist").get_parameter("fc1.0.weight")
    assert dense.std().item() == pytest.approx(0.08796, rel=0.01)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("mlp_2nn", (3, 32, 32), 7),
        ("mlp_2nn", (12,), 3),
        ("linear_synth", (60,), 10),
        ("lenet5", (3, 32, 32), 4),
        ("cnn_moon", (1, 16, 20), 2),
        ("lenet_fedpmvr", (3, 32, 20), 4),
        ("cnn_fedveca_cifar", (1, 5, 9), 3),
        ("resnet20_gradma", (1, 9, 9), 6),
    ],
)
def test_other_data_than_the_papers(name: str, shape: tuple[int, ...], classes: int) -> None:
    model = models.build(name, shape, classes)
    model.eval()
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "remedy"),
    [
        ("lenet5", (784,), 10, "use a dense model"),
        ("resnet18_gn", (30,), 10, "reshape the data"),
        ("cnn_moon", (3, 15, 32), 10, "at least 16×16, got 15×32"),
        ("cnn_fedveca_mnist", (1, 3, 28), 10, "at least 4×4"),
        ("vgg19", (1, 28, 28), 10, "at least 32×32, got 28×28; pad"),
        ("svm", (1, 28, 28), 10, "use 'logistic'"),
    ],
)
def test_data_that_does_not_fit(name: str, shape: tuple[int, ...], classes: int, remedy: str) -> None:
    with pytest.raises(ModelError, match=f"the model '{name}' does not fit: .*{remedy}"):
        models.build(name, shape, classes)


@pytest.mark.parametrize("shape", [(), (28, 28), (1, 0, 28), (2, 1, 28, 28)])
def test_a_shape_that_is_none(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"model\.input_shape must be"):
        models.build("mlp_2nn", shape)


def test_no_output_is_too_few() -> None:
    with pytest.raises(InputError, match=r"model\.classes must be a whole number of at least 1, got 0"):
        models.build("mlp_2nn", classes=0)


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no model named 'resnet18-gn'\. Did you mean 'resnet18_gn'\?"):
        models.build("resnet18-gn")


def test_staged_keeps_a_module_that_serves_twice() -> None:
    double = nn.Linear(1, 1, bias=False)
    nn.init.constant_(double.weight, 2.0)
    assert Staged({"once": double, "twice": double})(torch.ones(1, 1)).item() == 4.0


@pytest.mark.parametrize("name", ["forward", "levels", "a.b", ""])
def test_staged_refuses_names_that_torch_cannot_hold(name: str) -> None:
    with pytest.raises(InputError, match="a stage name must be an identifier"):
        Staged({name: nn.Identity()})


def test_staged_refuses_to_be_empty() -> None:
    with pytest.raises(InputError, match="at least one module"):
        Staged({})
