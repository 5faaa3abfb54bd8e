"""FLGo: a benchmark made from a configuration file, its fedavg, clients one after the other or in threads."""

import importlib
import os
import sys
import tempfile
from pathlib import Path

import common

common.without_torchvision()

import torch

SIZE = common.SIZE
CONFIGURATION = """
import os
import common
from torch.utils.data import TensorDataset
x, y, x_test, y_test = common.tensors()
train_data = TensorDataset(x.flatten(0, 1), y.flatten())
test_data = TensorDataset(x_test, y_test)
def get_model():
    return common.model(os.environ["FLGO_WORK"])
"""


def main() -> None:
    options, clock = common.options(clients=["serial", "threads"]), common.Clock()
    os.environ["FLGO_WORK"] = options.work
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        run(options, clock)
        os.chdir(common.HERE)
    clock.report()


def run(options, clock: common.Clock) -> None:
    import flgo
    from flgo.algorithm import fedavg
    from flgo.benchmark.partition import IIDPartitioner
    from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
    from flgo.experiment.logger import BasicLogger

    class Observer(BasicLogger):
        """Evaluates the global model and nothing else; the first call comes before the first round."""

        begun = False

        def log_once(self, *args, **kwargs):
            reached = self.coordinator.test()["accuracy"]
            if self.begun:
                clock.round_done(reached)
            self.begun = True

    Path("settings.py").write_text(CONFIGURATION)
    made = flgo.gen_benchmark_from_file(
        benchmark="images", config_file="settings.py", target_path=".", data_type="cv", task_type="classification"
    )
    # Today's torch refuses FLGo's data set without the method that its message names.
    FromDatasetPipe.TaskDataset.__getitems__ = lambda self, rows: [self[row] for row in rows]
    benchmark = importlib.import_module(made)
    benchmark.visualize = lambda *args, **kwargs: None  # it draws for minutes
    flgo.gen_task_by_(benchmark, IIDPartitioner(num_clients=SIZE.clients), "task")
    settings = {
        "num_rounds": options.rounds,
        "proportion": SIZE.cohort / SIZE.clients,
        "num_epochs": SIZE.epochs,
        "batch_size": SIZE.batch,
        "learning_rate": common.LR,
        "learning_rate_decay": 1.0,
        "train_holdout": 0.0,
        "test_holdout": 0.0,
        "test_batch_size": common.EVALUATION_BATCH,
        "no_log_console": True,
        "no_tqdm": True,
        "sample": "uniform",
        "torch_num_threads": options.threads,
        "gpu": [],
        "num_parallels": common.CORES if options.clients == "threads" else 1,
        "parallel_type": "t",
    }
    runner = flgo.init("task", fedavg, option=settings, Logger=Observer)
    torch.set_num_threads(options.threads)
    runner.run()


if __name__ == "__main__":
    main()
