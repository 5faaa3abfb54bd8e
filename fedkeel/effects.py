"""Settings that would change nothing where they stand: each is refused, because whoever wrote it expects something.

Only values that differ from the default count. A run's own configuration names every field, and must be readable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedkeel.algorithms.contract import Algorithm
from fedkeel.data.dataset import Federation
from fedkeel.data.partitions import RULES
from fedkeel.data.sources import SITES, SOURCES, brings_clients, check_name, is_path
from fedkeel.engine.settings import Faults, Training
from fedkeel.errors import InputError, invalid, unknown
from fedkeel.measure.settings import Measuring

if TYPE_CHECKING:
    from fedkeel.config import Experiment
    from fedkeel.runs.runner import Evaluation


def check_effects(
    algorithm: type[Algorithm],
    training: Training,
    faults: Faults,
    executor: str,
    workers: int | None,
    address: str | None = None,
    called: Callable[[str], str] = str,
) -> None:
    """Refuse settings that have no effect with an algorithm, faults and executor.

    ``called`` gives the name of a field of an experiment as the caller knows it.
    """
    own, asked = algorithm.buffers, training.buffers
    if own is not None and asked not in (own, Training.model_fields["buffers"].default):
        hint = f"{algorithm.title} decides this itself; leave it out."
        raise invalid(called("training.buffers"), f"{own!r} with {algorithm.name}", asked, hint)
    usual = Faults.model_fields["straggler_share"].default
    if not faults.stragglers and faults.straggler_share != usual:
        hint = "Without stragglers it has no effect: give faults.stragglers, or leave it out."
        raise invalid("faults.straggler_share", "absent", list(faults.straggler_share), hint)
    if executor == "serial" and (workers or 1) > 1:
        allowed = f"1 or absent with {called('run.executor')} = 'serial'"
        raise invalid(called("run.workers"), allowed, workers, "Take 'pool' for several.")
    if address is not None and executor != "ray":
        hint = f"It is that of a Ray cluster: give {called('run.executor')} = 'ray' with it, or leave it out."
        raise invalid(called("run.address"), f"absent with {called('run.executor')} = {executor!r}", address, hint)


def not_heard(algorithm: type[Algorithm], training: Training) -> list[str]:
    """What to tell about settings that an algorithm has no use for, but that others beside it in a sweep have."""
    given = {name: getattr(training, name) for name in ("epochs", "steps")}
    return [
        f"training.{name} = {value} has no effect: {algorithm.title} says itself how many steps each client takes"
        for name, value in given.items()
        if algorithm.sets_steps and value is not None
    ]


def check_data(experiment: Experiment) -> None:
    """Refuse what is said of the data or their partition and would not be heard."""
    data, partition = experiment.data, experiment.partition
    check_name(data.name)
    extra = data.model_extra or {}
    if "data_dir" in extra:
        raise InputError(
            "data.data_dir is no field of an experiment, which should mean the same on every machine; name the folder "
            "with --data-dir or the environment variable FEDKEEL_DATA."
        )
    known = sorted(SOURCES[data.name].params) if data.name in SOURCES else ["test"] if data.name == SITES else []
    for name in extra:
        if name not in known:
            raise unknown(f"parameter of data set {data.name!r}", name, known or ["(it takes none)"])
    if data.targets is not None and not is_path(data.name):
        hint = "Leave it out: it is for folders of .npz files."
        raise invalid("data.targets", f"absent for {data.name}, whose targets are known", data.targets, hint)
    if data.evaluate_on == "validation" and not data.validation:
        hint = "Give the share of the training samples to hold out, e.g. data.validation = 0.1."
        raise invalid("data.evaluate_on", "'test' without data.validation", data.evaluate_on, hint)
    if data.name not in SOURCES:
        unheard = ("normalise", "augment", "subset_ok", "samples")
        for name in (*unheard, "validation", "client_test", "evaluate_on") if data.name == SITES else unheard:
            if getattr(data, name) != type(data).model_fields[name].default:
                hint = "Prepare the arrays in the files, or build the federation in Python."
                allowed = "absent for a folder, whose arrays are used as they are"
                if data.name == SITES:
                    allowed, hint = "absent where sites hold the data", "Every site prepares its own."
                raise invalid(f"data.{name}", allowed, getattr(data, name), hint)
    elif brings_clients(data.name) and data.samples is not None and "samples" not in known:
        allowed = f"absent for {data.name}, whose samples come dealt to clients"
        raise invalid("data.samples", allowed, data.samples, "Leave it out, or take fewer clients.")
    if brings_clients(data.name) and partition.model_fields_set:
        given = ", ".join(sorted(partition.model_fields_set))
        raise InputError(
            f"partition must be absent for {data.name}, whose clients come with the data, got {given}; "
            "remove the [partition] table."
        )
    if partition.seed is not None and not RULES[partition.rule].draws:
        hint = "It would have no effect; leave it out."
        raise invalid(
            "partition.seed", f"absent with the rule {partition.rule}, which draws nothing", partition.seed, hint
        )


def check_measured(measure: Measuring, federation: Federation) -> None:
    """Refuse to draw more clients than there are."""
    if measure.clients is not None and measure.clients > federation.N:
        hint = "Leave it out to take the gradients of all."
        raise invalid("measure.clients", f"at most the {federation.N} clients that there are", measure.clients, hint)


def check_average(evaluation: Evaluation, training: Training, called: Callable[[str], str] = str) -> None:
    """Refuse an average that no round of a run would be part of."""
    first = evaluation.average_from
    if first is not None and first > training.rounds:
        hint = "No model would count; begin earlier, or leave the average out."
        raise invalid(called("evaluation.average_from"), f"at most the {training.rounds} rounds", first, hint)


def check_batches(training: Training, largest: int) -> None:
    """Refuse ``drop_last`` where no client has more than one batch, which is then used, whole or not.

    ``largest`` is the number of samples of the client that has most.
    """
    if training.drop_last and largest <= training.batch_size:
        hint = "A client with one incomplete batch uses it, so that nothing would be left out; take smaller batches."
        allowed = f"false where every client has a single batch (at most {largest} samples, in batches of "
        raise invalid("training.drop_last", f"{allowed}{training.batch_size})", True, hint)
