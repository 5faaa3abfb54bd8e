"""Regression over clients whose inputs differ: AdamW on every client, its rate along half a cosine."""

import numpy as np
from torch import nn

import fedkeel as fk

rng = np.random.default_rng(0)


def samples(centre: float, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Points around a centre, and sin x with some noise."""
    x = rng.normal(centre, 1.0, size=(count, 1)).astype(np.float32)
    return x, np.sin(x) + rng.normal(0, 0.05, size=x.shape)


clients = fk.data.from_clients([samples(centre) for centre in (-2, -1, 0, 1, 2)], targets="real")
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
run = fk.train(
    "fedavg",
    model=model,
    data=clients,
    loss=nn.MSELoss(),
    rounds=20,
    epochs=5,
    batch_size=20,
    optimiser="adamw",
    lr=0.01,
    lr_schedule="cosine",
)
for client, score in run.evaluate_clients().items():
    print(f"client {client}: mean squared error {score.loss:.4f} on {score.samples} test samples of its own")
