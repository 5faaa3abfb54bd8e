"""fluke: FedAVG with its FastDataLoader, everything in memory.

Its parallel server is for several GPUs, so on a CPU one client follows the other. The evaluator computes accuracy only;
by default it would compute seven measures.
"""

import common

common.without_torchvision()

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import ServerObserver
from torchmetrics import Accuracy

SIZE = common.SIZE
CLASSES = 10


class Observer(ServerObserver):
    """Notes every evaluation but the one that fluke adds after the last round."""

    def __init__(self, clock: common.Clock, rounds: int) -> None:
        self.clock, self.rounds = clock, rounds

    def server_evaluation(self, round, eval_type, evals, **kwargs):
        if len(self.clock.ends) < self.rounds:
            self.clock.round_done(evals["accuracy"])


def main() -> None:
    options, clock = common.options(), common.Clock()
    torch.set_num_threads(options.threads)
    x, y, x_test, y_test = common.tensors()
    environment = FlukeENV()
    environment.set_seed(42)
    measure = Accuracy(task="multiclass", num_classes=CLASSES, top_k=1)
    environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=CLASSES, accuracy=measure))

    def batches(inputs, targets, size, shuffle):
        return FastDataLoader(inputs, targets, num_labels=CLASSES, batch_size=size, shuffle=shuffle)

    clients = [batches(x[i], y[i], SIZE.batch, True) for i in range(SIZE.clients)]
    test = batches(x_test, y_test, common.EVALUATION_BATCH, False)
    data = DummyDataContainer(clients, [None] * SIZE.clients, test, CLASSES)
    local = DDict(
        batch_size=SIZE.batch,
        local_epochs=SIZE.epochs,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=common.LR),
        scheduler=DDict(step_size=1, gamma=1),
    )
    settings = DDict(client=local, server=DDict(weighted=True), model=common.model(options.work))
    algorithm = FedAVG(SIZE.clients, DataSplitter(data), settings)
    algorithm.attach(Observer(clock, options.rounds))
    algorithm.run(options.rounds, SIZE.cohort / SIZE.clients)
    clock.report()


if __name__ == "__main__":
    main()
