"""FedLab: its standalone pipeline with the serial SGD trainer.

Several processes would need its TCP deployment, which is a distributed run and not its simulator.
"""

import common

common.without_torchvision()

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline

SIZE = common.SIZE


class Clients:
    """Gives FedLab the clients' batches."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def get_dataloader(self, cid, batch_size):
        x, y, *_ = common.tensors()
        return common.loader(self.kind, x[cid], y[cid])


class Pipeline(StandalonePipeline):
    """FedLab's loop with an evaluation after every round."""

    def __init__(self, handler, trainer, clock: common.Clock) -> None:
        super().__init__(handler, trainer)
        self.clock = clock

    def evaluate(self):
        self.clock.round_done(common.accuracy(self.handler.model))


def main() -> None:
    options, clock = common.options(loader=["documented", "index"]), common.Clock()
    torch.set_num_threads(options.threads)
    net = common.model(options.work)
    trainer = SGDSerialClientTrainer(net, SIZE.clients, cuda=False)
    trainer.setup_dataset(Clients(options.loader))
    trainer.setup_optim(SIZE.epochs, SIZE.batch, common.LR)
    handler = SyncServerHandler(net, options.rounds, SIZE.cohort / SIZE.clients)
    Pipeline(handler, trainer, clock).main()
    clock.report()


if __name__ == "__main__":
    main()
