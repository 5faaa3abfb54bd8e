"""Flower: ServerApp, ClientApp and ``run_simulation`` on its Ray backend.

One CPU per client, so that as many actors as cores run, with one torch thread each (the documented default of two CPUs
per client is half as fast here). An actor keeps the data between its clients, as Flower's examples do.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import common
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

SIZE = common.SIZE


def make_client(work: str, kind: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, y, *_ = common.tensors()
        client = int(context.node_config["partition-id"])
        batches = common.loader(kind, x[client], y[client])
        net = common.model(work)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser, loss = torch.optim.SGD(net.parameters(), lr=common.LR), torch.nn.CrossEntropyLoss()
        for _ in range(SIZE.epochs):
            for inputs, targets in batches:
                optimiser.zero_grad()
                loss(net(inputs), targets).backward()
                optimiser.step()
        answer = RecordDict(
            {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": SIZE.samples})}
        )
        return Message(content=answer, reply_to=message)

    return app


def make_server(work: str, rounds: int, clock: common.Clock) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(common.CORES)
        net = common.model(work)

        def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
            net.load_state_dict(arrays.to_torch_state_dict())
            reached = common.accuracy(net)
            if round:
                clock.round_done(reached)
            return MetricRecord({"accuracy": reached})

        strategy = FedAvg(
            fraction_train=SIZE.cohort / SIZE.clients,
            fraction_evaluate=0.0,
            min_train_nodes=SIZE.cohort,
            min_available_nodes=SIZE.clients,
        )
        start = ArrayRecord(net.state_dict())
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=evaluate)

    return app


def main() -> None:
    options, clock = common.options(loader=["documented", "index"]), common.Clock()
    run_simulation(
        server_app=make_server(options.work, options.rounds, clock),
        client_app=make_client(options.work, options.loader),
        num_supernodes=SIZE.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": common.CORES, "logging_level": 40},
        },
    )
    clock.report()


if __name__ == "__main__":
    main()
