"""FedJAX: its federated averaging over in-memory data, with the backend ``jit`` or one client per core (``pmap``)."""

import os
import sys
from itertools import pairwise

import common

if "pmap" in sys.argv:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={common.CORES}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # FedJAX still calls it by its old name

import fedjax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

SIZE = common.SIZE
# Filters of the convolutions, their padding, and the widths of the dense layers from the first input on.
LAYERS = {
    "W1": ([], "SAME", [784, 10]),
    "W2": ([], "SAME", [784, 200, 200, 10]),
    "W3": ([6, 16], "VALID", [256, 120, 84, 10]),
    "W4": ([32, 32], "SAME", [1568, 256, 10]),
}


def initial(work: str) -> dict:
    """Weights drawn as torch draws them."""
    rng = np.random.default_rng(0)
    filters, _, widths = LAYERS[work]

    def layer(*shape: int) -> dict:
        bound = np.prod(shape[:-1]) ** -0.5
        draw = lambda *s: jnp.asarray(rng.uniform(-bound, bound, s), jnp.float32)  # noqa: E731
        return {"weight": draw(*shape), "bias": draw(shape[-1])}

    return {
        "convs": [layer(5, 5, i, o) for i, o in pairwise([1, *filters])],
        "dense": [layer(i, o) for i, o in pairwise(widths)],
    }


def logits(work: str, weights: dict, x):
    """The work's network on images [B, 28, 28, 1]."""
    for conv in weights["convs"]:
        order = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, conv["weight"], (1, 1), LAYERS[work][1], dimension_numbers=order)
        x = jax.nn.relu(x + conv["bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    *hidden, last = weights["dense"]
    for dense in hidden:
        x = jax.nn.relu(x @ dense["weight"] + dense["bias"])
    return x @ last["weight"] + last["bias"]


def main() -> None:
    options, clock = common.options(backend=["jit", "pmap"]), common.Clock()
    work, made = options.work, common.images()

    def pixels(x):
        return (x.astype(np.float32) / 255).reshape(len(x), 28, 28, 1)

    x = pixels(made.x).reshape(SIZE.clients, SIZE.samples, 28, 28, 1)
    y = made.y.astype(np.int32).reshape(SIZE.clients, SIZE.samples)
    clients = fedjax.InMemoryFederatedData({i: {"x": x[i], "y": y[i]} for i in range(SIZE.clients)})

    def loss(weights, batch, rng):
        shares = jax.nn.log_softmax(logits(work, weights, batch["x"]))
        return -jnp.mean(jnp.take_along_axis(shares, batch["y"][:, None], axis=1))

    if options.backend == "pmap":
        fedjax.set_for_each_client_backend("pmap")
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(common.LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=SIZE.batch, num_epochs=SIZE.epochs),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(clients, SIZE.cohort, seed=0)
    x_test = jnp.asarray(pixels(made.x_test)).reshape(-1, common.EVALUATION_BATCH, 28, 28, 1)
    y_test = jnp.asarray(made.y_test).reshape(-1, common.EVALUATION_BATCH)

    @jax.jit
    def hits(weights, inputs, targets):
        return (logits(work, weights, inputs).argmax(1) == targets).sum()

    state = algorithm.init(initial(work))
    for number in range(options.rounds):
        sampler.set_round_num(number)
        state, _ = algorithm.apply(state, sampler.sample())
        right = sum(int(hits(state.params, *part)) for part in zip(x_test, y_test, strict=True))
        clock.round_done(right / SIZE.test)
    clock.report()


if __name__ == "__main__":
    main()
