"""From an experiment to a simulation that is ready to run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedkeel import arguments
from fedkeel.algorithms.registry import algorithm_class
from fedkeel.config import Experiment
from fedkeel.data import Dataset, Federation, from_npz_folder, load
from fedkeel.data.sources import SITES, SOURCES, is_path
from fedkeel.effects import check_average, check_batches, check_data, check_effects, check_measured
from fedkeel.engine import devices
from fedkeel.engine.choice import make_executor
from fedkeel.engine.devices import CPU
from fedkeel.engine.randomness import Purpose, torch_seed
from fedkeel.engine.simulation import Simulation
from fedkeel.errors import InputError, invalid
from fedkeel.learning import models
from fedkeel.learning.drawing import keyed
from fedkeel.learning.losses import Loss, as_loss, cross_entropy, for_targets
from fedkeel.learning.metrics import as_metrics
from fedkeel.learning.task import Task

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def make_federation(experiment: Experiment, data_dir: Path | None = None) -> Federation:
    """The data of an experiment, dealt to its clients."""
    check_data(experiment)
    data = experiment.data
    if data.name == SITES:
        folder = f"; the folder is written ./{SITES}" if Path(SITES).is_dir() else ""
        raise InputError(
            f"data.name is {SITES!r}: every site of a network holds its own data; run it with fedkeel network run"
            f"{folder}."
        )
    if is_path(data.name):
        return _held_out(from_npz_folder(Path(data.name), targets=data.targets or "labels"), experiment)
    params, samples = dict(data.model_extra or {}), data.samples
    if samples is not None and "samples" in SOURCES[data.name].params:  # a generated set makes as many as it is told
        params["samples"], samples = samples, None
    loaded = load(data.name, data_dir, data.normalise, data.augment, data.subset_ok, **params)
    if isinstance(loaded, Dataset):
        loaded = loaded if samples is None else loaded.take(samples)
        partition = experiment.partition
        seed = experiment.seed if partition.seed is None else partition.seed
        loaded = loaded.partition(partition.rule, partition.clients, seed, **(partition.model_extra or {}))
    return _held_out(loaded, experiment)


def _held_out(federation: Federation, experiment: Experiment) -> Federation:
    """First what clients test on, then what the server does."""
    data = experiment.data
    if data.client_test:
        federation = federation.hold_out_tests(data.client_test, experiment.seed)
    federation = federation.hold_out(data.validation, experiment.seed) if data.validation else federation
    return federation.judged_by_validation() if data.evaluate_on == "validation" else federation


def make_task(
    model: object,
    dataset: Dataset,
    seed: int,
    dtype: torch.dtype,
    loss: Loss | None = None,
    device: torch.device = CPU,
) -> Task:
    """A model of the zoo, or your own, as a task for a data set.

    Models by name are initialised from the seed; a module of your own keeps the weights it has.
    """
    if dataset.is_real and loss is None:
        hint = 'Usual are "mse" for regression, "bce_with_logits" for labels that are yes or no; model.loss in a file.'
        raise invalid("loss", f"given for {dataset.name}, whose targets are real numbers", None, hint)
    if isinstance(model, nn.Module):
        return Task(model, for_targets(loss or cross_entropy, dataset.train.y.ndim), dtype, device)
    if not isinstance(model, str):
        allowed = "a name of `fedkeel models` or a torch.nn.Module"
        raise arguments.not_an_instance("model", model, nn.Module, allowed)
    with keyed(torch_seed(seed, Purpose.WEIGHTS)):
        module = models.build(model, dataset.input_shape, dataset.outputs)
    return Task(module, for_targets(loss or models.spec(model).loss, dataset.train.y.ndim), dtype, device)


def make_simulation(
    experiment: Experiment,
    data_dir: Path | None = None,
    federation: Federation | None = None,
    allow_plugins: bool = False,
) -> Simulation:
    """Everything that an experiment names, put together."""
    federation = federation or make_federation(experiment, data_dir)
    check_batches(experiment.training, int(federation.sizes.max()))
    check_measured(experiment.measure, federation)
    model_seed = experiment.seed if experiment.model.seed is None else experiment.model.seed
    device = devices.find(experiment.run.device)
    dtype = DTYPES[experiment.training.dtype]
    loss = as_loss(experiment.model.loss)
    task = make_task(experiment.model.name, federation.dataset, model_seed, dtype, loss, device)
    task.metrics = as_metrics(experiment.evaluation.metrics)
    kind = algorithm_class(experiment.algorithm.name, allow_plugins)
    run = experiment.run
    check_effects(kind, experiment.training, experiment.faults, run.executor, run.workers, run.address)
    check_average(experiment.evaluation, experiment.training)
    algorithm = kind(**experiment.algorithm_params())
    executor = make_executor(run.executor, run.workers, device, address=run.address)
    return Simulation(
        algorithm,
        task,
        federation,
        experiment.training,
        experiment.seed,
        executor,
        faults=experiment.faults,
        robust=experiment.robust,
        averaging=experiment.evaluation.averaging,
        clock=experiment.clock,
    )
