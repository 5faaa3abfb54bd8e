"""Regression, several labels a sample, tokens and sequences of labels, from arrays to a trained model."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.errors import FedkeelError, InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
SLOPES = np.array([1.0, -2.0, 0.5], dtype=np.float32)
Y = X @ SLOPES
LINE = fk.data.from_arrays(X, Y, X[:20], Y[:20], targets="real", name="line")
TOKENS = RNG.integers(0, 7, size=(40, 4))


class Tagger(nn.Module):
    """A label for every token [B, T]: the scores [B, classes, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embedding(x)).transpose(1, 2)
        return scores


def line(**options: object) -> fk.Run:
    settings = {"rounds": 2, "steps": 3, "batch_size": 7, "lr": 0.1, "executor": "serial"} | options
    federation = LINE.partition("quantity", clients=4, alpha=2.0)
    torch.manual_seed(0)
    return fk.train("fedavg", model=nn.Linear(3, 1), data=federation, loss=nn.MSELoss(), **settings)


def test_one_client_with_all_samples_takes_torchs_steps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    settings = {"rounds": 1, "steps": 5, "batch_size": 60, "lr": 0.1, "dtype": "float64", "executor": "serial"}
    run = fk.train("fedavg", model=model, data=LINE.partition("iid", clients=1), loss=nn.SmoothL1Loss(), **settings)
    model.double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        nn.SmoothL1Loss()(model(torch.from_numpy(X).double())[:, 0], torch.from_numpy(Y).double()).backward()
        optimiser.step()
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(run.state_dict()[name], expected, rtol=1e-12, atol=1e-14)


def test_regression_reports_a_loss_and_no_accuracy() -> None:
    run = line(rounds=30, steps=20)
    assert np.isnan(run.accuracy)
    last = run.history.final()
    assert last is not None
    assert last.loss < 1e-6
    np.testing.assert_allclose(run.state_dict()["weight"].numpy()[0], SLOPES, atol=1e-3)


@pytest.mark.parametrize("executor", ["pool", "stacked"])
def test_every_executor_gives_the_same_regression(executor: str) -> None:
    expected, got = line(), line(executor=executor, workers=2)
    exact = executor == "pool"
    torch.testing.assert_close(
        got.state.server.w, expected.state.server.w, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-6
    )
    losses = [[m.loss for m in run.history.measured] for run in (expected, got)]
    assert losses[1] == losses[0] if exact else losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_several_labels_a_sample() -> None:
    y = (X[:, :2] > 0).astype(np.float32)
    federation = fk.data.from_arrays(X, y, X, y, targets="real").partition("iid", clients=3)
    run = fk.train(
        "scaffold", model="logistic", data=federation, loss=nn.BCEWithLogitsLoss(), rounds=30, epochs=5, lr=1.0
    )
    assert run.accuracy > 0.95


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tokens_and_sequences_of_labels(executor: str, dtype: str) -> None:
    y = TOKENS % 3
    y[::2, 3] = -100
    data = fk.data.from_clients([(TOKENS[:15], y[:15]), (TOKENS[15:], y[15:])], inputs="tokens")
    assert (data.dataset.train.x.dtype, data.dataset.classes) == (np.int64, 3)
    run = fk.train(
        "feddc", model=Tagger(), data=data, rounds=15, epochs=4, batch_size=6, lr=1.0, dtype=dtype, executor=executor
    )
    assert run.accuracy == 1.0


def test_full_passes_over_tokens_have_weights_that_are_no_whole_numbers() -> None:
    """MimeLite asks for full gradients, whose weights 1/n must not be cut to zero."""
    data = fk.data.from_clients([(TOKENS[:15], TOKENS[:15] % 3), (TOKENS[15:], TOKENS[15:] % 3)], inputs="tokens")
    torch.manual_seed(0)
    model = Tagger()
    run = fk.train("mimelite", model=model, data=data, rounds=5, epochs=2, lr=0.5, executor="serial")
    assert run.accuracy > 0.5


def own(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).abs()


def test_a_function_of_ones_own() -> None:
    federation = LINE.partition("iid", clients=2)
    run = fk.train("fedavg", model=nn.Linear(3, 1), data=federation, loss=own, rounds=1, steps=1)
    assert np.isnan(run.accuracy)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"loss": None}, "loss must be given for line, whose targets are real numbers"),
        ({"model": nn.Linear(3, 2)}, r"must return the shape of its targets for nn.MSELoss.*\[8\].*got \[8, 2\]"),
        ({"loss": nn.CrossEntropyLoss()}, "nn.CrossEntropyLoss|cross_entropy takes labels, or a probability"),
        ({"loss": lambda o, t: (o[:, 0] - t).abs().mean()}, r"must give one value for each sample, \[8\].*got \[\]"),
        ({"loss": lambda o, t: (o - t).abs()}, r"one value for each sample, \[8\] for 8 samples, got \[8, 8\]"),
        ({"algorithm": "fedgvr"}, "FedGVR follows the accuracy of the global model"),
    ],
)
def test_what_does_not_fit_is_said(call: dict[str, object], sentence: str) -> None:
    given = {"algorithm": "fedavg", "model": nn.Linear(3, 1), "loss": nn.MSELoss(), "rounds": 1, "steps": 1} | call
    with pytest.raises(FedkeelError, match=sentence):
        fk.train(data=LINE.partition("iid", clients=2), **given)


def test_labels_are_no_real_numbers() -> None:
    labelled = fk.data.from_arrays(X, Y > 0, X, Y > 0).partition("iid", clients=2)
    with pytest.raises(FedkeelError, match=r'targets are labels|labels; give the data with targets="real"'):
        fk.train("fedavg", model=nn.Linear(3, 1), data=labelled, loss=nn.MSELoss(), rounds=1)


def test_fractions_need_to_be_called_targets() -> None:
    with pytest.raises(InputError, match=r'whole numbers from 0.*For regression .* targets="real"'):
        fk.data.from_arrays(X, Y, X, Y)
    with pytest.raises(InputError, match=r"targets must be 'labels' or 'real'"):
        fk.data.from_arrays(X, Y, X, Y, targets="reals")
    with pytest.raises(InputError, match=r'classes must be absent for targets="real"'):
        fk.data.from_arrays(X, Y, X, Y, targets="real", classes=3)


def test_rules_that_look_at_labels_need_some() -> None:
    with pytest.raises(InputError, match=r"one that looks at no labels .*iid.*quantity.*got 'dirichlet'"):
        LINE.partition("dirichlet", clients=3, alpha=0.5)
    with pytest.raises(InputError, match=r"looks at no labels"):
        LINE.partition("iid", clients=3, balanced_classes=True)
    grouped = fk.data.from_arrays(X, Y, X, Y, targets="real", partition_labels=(Y > 0).astype(int))
    parts = grouped.partition("shards", clients=2, shards=1).clients
    assert sorted(len(set((Y[part] > 0).tolist())) for part in parts) in ([1, 1], [1, 2])
    assert "label_distance" not in LINE.partition("iid", clients=3).describe()


def test_an_embedding_wants_tokens() -> None:
    data = fk.data.from_clients([(TOKENS, TOKENS % 3), (TOKENS, TOKENS % 3)])
    with pytest.raises(FedkeelError, match=r'give the data with inputs="tokens"'):
        fk.train("fedavg", model=Tagger(), data=data, rounds=1)
    with pytest.raises(InputError, match=r"whole numbers from 0, the rows of an embedding, got -1"):
        fk.data.from_clients([(TOKENS - 1, TOKENS % 3)], inputs="tokens")


def test_padding_is_what_the_loss_leaves_out() -> None:
    y = TOKENS % 3
    y[3] = -100
    data = fk.data.from_arrays(TOKENS, y, TOKENS, y, inputs="tokens").partition("iid", clients=2)
    with pytest.raises(FedkeelError, match=r"nothing else in sample 3"):
        fk.train("fedavg", model=Tagger(), data=data, rounds=1)
    y[3] = [0, 1, 2, -1]
    data = fk.data.from_arrays(TOKENS, y, TOKENS, y, inputs="tokens").partition("iid", clients=2)
    with pytest.raises(FedkeelError, match=r"from 0, or -100 for padding, got -1"):
        fk.train("fedavg", model=Tagger(), data=data, rounds=1)
    fk.train("fedavg", model=Tagger(), data=data, loss=nn.CrossEntropyLoss(ignore_index=-1), rounds=1)


def test_test_sets_of_clients(tmp_path: object) -> None:
    parts = [(X[:20], Y[:20]), (X[20:40], Y[20:40])]
    tests = [(X[40:45], Y[40:45]), (X[45:], Y[45:])]
    data = fk.data.from_clients(parts, client_tests=tests, targets="real")
    assert [len(rows) for rows in data.client_tests or ()] == [5, 15]
    np.testing.assert_array_equal(data.dataset.test.y, Y[40:])
    with pytest.raises(InputError, match=r"test must be absent beside client_tests"):
        fk.data.from_clients(parts, tests[0], client_tests=tests, targets="real")
    with pytest.raises(InputError, match=r"one pair .* for each of 2 clients, got 1"):
        fk.data.from_clients(parts, client_tests=tests[:1], targets="real")


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_metrics_are_those_of_all_samples_together(executor: str) -> None:
    """Over test sets of several parts and over every client's own."""
    x = np.random.default_rng(1).normal(size=(3000, 3)).astype(np.float32)
    y = x @ SLOPES + 1
    data = fk.data.from_clients([(X, Y), (X + 1, Y)], (x, y), targets="real")
    run = fk.train(
        "fedavg",
        model=nn.Linear(3, 1),
        data=data,
        loss=nn.L1Loss(),
        metrics=["mae", "rmse", "r2"],
        rounds=2,
        steps=2,
        executor=executor,
        workers=1 if executor == "serial" else 2,
    )
    model = nn.Linear(3, 1)
    model.load_state_dict(run.state_dict())
    error = model(torch.from_numpy(x)).detach().numpy()[:, 0].astype(np.float64) - y
    expected = {"mae": np.abs(error).mean(), "rmse": np.sqrt((error**2).mean()), "r2": 1 - (error**2).mean() / y.var()}
    assert run.metrics == pytest.approx(expected, rel=1e-5)
    last = run.history.final()
    assert last is not None
    assert last.loss == pytest.approx(run.metrics["mae"], rel=1e-6)
    assert set(run.evaluate_clients()[0].metrics) == set(expected)
    everybody = run.simulation.evaluate(run.state, "train")["global"]
    assert everybody.metrics["mae"] == pytest.approx(everybody.loss, rel=1e-6)


def test_metrics_of_ones_own_and_what_is_refused() -> None:
    data = LINE.partition("iid", clients=2)
    settings = {"model": nn.Linear(3, 1), "data": data, "loss": nn.MSELoss(), "rounds": 1, "steps": 1}
    assert fk.train("fedavg", metrics={"distance": own}, **settings).metrics["distance"] > 0
    for metrics, sentence in (
        (["maee"], "no metric named 'maee'. Did you mean 'mae'"),
        ("mae", "metrics must be a list of names"),
        ({"loss": own}, "metrics must be a dict from new names"),
        ({"mine": 3}, "must be a function"),
        (
            {"mine": lambda o, t: (o[:, 0] - t).mean()},
            "the metric mine cannot be taken .* one value for each of 8 samples",
        ),
    ):
        with pytest.raises(FedkeelError, match=sentence):
            fk.train("fedavg", metrics=metrics, **settings)
