"""BlazeFL: its FedAvg with a pool of one process per core over shared memory.

Workers are forked anew in every round and inherit the data. Importing ``torch._dynamo`` first saves each of them three
seconds a round; without it the pool is several times slower than one process.
"""

import tempfile
from enum import StrEnum
from pathlib import Path

import common
import torch
import torch._dynamo
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgProcessPoolClientTrainer
from blazefl.core import IPCMode
from torch.utils.data import TensorDataset

SIZE = common.SIZE


class Models(StrEnum):
    WORK = "work"


class Selector:
    """Gives BlazeFL the model of the work."""

    def __init__(self, work: str) -> None:
        self.work = work

    def select_model(self, model_name):
        return common.model(self.work)


class Clients:
    """Gives BlazeFL the clients' batches; holds no tensors itself, so that nothing is pickled with it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def get_dataset(self, type_, cid):
        x, y, x_test, y_test = common.tensors()
        return TensorDataset(x_test, y_test) if cid is None else TensorDataset(x[cid], y[cid])

    def set_dataset(self, type_, cid, dataset):
        """BlazeFL hands back the client's data after its round; they have not changed."""

    def get_dataloader(self, type_, cid, batch_size, generator=None):
        x, y = self.get_dataset(type_, cid).tensors
        if cid is None:
            return common.IndexLoader(x, y, common.EVALUATION_BATCH, shuffle=False)
        return common.loader(self.kind, x, y, generator)


class Trainer(FedAvgProcessPoolClientTrainer):
    """The process pool without its progress bar."""

    def progress_fn(self, it):
        return it


def main() -> None:
    options, clock = common.options(loader=["documented", "index"]), common.Clock()
    common.tensors()
    shared = {
        "model_selector": Selector(options.work),
        "model_name": Models.WORK,
        "dataset": Clients(options.loader),
        "num_clients": SIZE.clients,
        "device": "cpu",
        "batch_size": SIZE.batch,
        "seed": 42,
    }
    server = FedAvgBaseServerHandler(global_round=options.rounds, sample_ratio=SIZE.cohort / SIZE.clients, **shared)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            share_dir=Path(folder) / "share",
            state_dir=Path(folder) / "state",
            num_parallels=common.CORES,
            ipc_mode=IPCMode.SHARED_MEMORY,
            epochs=SIZE.epochs,
            lr=common.LR,
            **shared,
        )
        while not server.if_stop():
            torch.set_num_threads(1)  # the workers inherit it
            cohort = server.sample_clients()
            trainer.local_process(server.downlink_package(), cohort)
            for package in trainer.uplink_package():
                server.load(package)
            torch.set_num_threads(common.CORES)
            clock.round_done(server.get_summary()["server_acc"])
    clock.report()


if __name__ == "__main__":
    main()
