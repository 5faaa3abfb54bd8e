"""pfl-research: SimulatedBackend, FederatedAveraging and users as in-memory tensors.

Started with ``torchrun``, one single-threaded process per core, which is pfl's documented way to use several workers.
``documented`` is its own tensor data set, which cuts batches once and never shuffles; ``index`` draws a new permutation
every epoch, as everybody else here does.
"""

import logging
import os

import common
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

SIZE = common.SIZE
NEVER = 1_000_000_000


class Shuffled(PyTorchTensorDataset):
    """pfl's tensor data set with a new order every epoch."""

    def iter(self, batch_size):
        yield from common.IndexLoader(*self.raw_data, batch_size)


class Classifier(torch.nn.Module):
    """A model with the two methods that pfl asks for."""

    def __init__(self, work: str) -> None:
        super().__init__()
        self.net = common.model(work)
        self.criterion = torch.nn.CrossEntropyLoss()

    def forward(self, x):
        return self.net(x)

    def loss(self, x, y):
        return self.criterion(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        return {"accuracy": Weighted(int((self.net(x).argmax(1) == y).sum()), len(y))}


class EveryRound(CentralEvaluationCallback):
    """Evaluates after every round; pfl leaves out the first."""

    def __init__(self, clock: common.Clock, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        _, metrics = self._eval(model)
        (reached,) = [value.overall_value for name, value in metrics if "accuracy" in str(name)]
        self.clock.round_done(reached)
        return False, Metrics()


def main() -> None:
    options, clock = common.options(loader=["documented", "index"]), common.Clock()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    np.random.seed(0)
    x, y, x_test, y_test = common.tensors()
    kind = Shuffled if options.loader == "index" else PyTorchTensorDataset
    users = {i: kind((x[i], y[i]), user_id=str(i)) for i in range(SIZE.clients)}
    net = Classifier(options.work)
    evaluation = NNEvalHyperParams(local_batch_size=common.EVALUATION_BATCH)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=SIZE.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users))),
            val_data=None,
            postprocessors=[WeightByDatapoints()],
        ),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=SIZE.epochs, local_learning_rate=common.LR, local_batch_size=SIZE.batch
        ),
        model_eval_params=evaluation,
        callbacks=[EveryRound(clock, PyTorchTensorDataset((x_test, y_test)), model_eval_params=evaluation)],
        send_metrics_to_platform=False,
    )
    if os.environ.get("RANK", "0") == "0":
        clock.report()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
