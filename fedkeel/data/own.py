"""Your own data: arrays, a pair of arrays per client, torch data sets, npz folders, Hugging Face, flwr-datasets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkeel import arguments
from fedkeel.data.dataset import Dataset, Federation, Indices, Split
from fedkeel.data.npz import read_npz
from fedkeel.data.transform import Transform
from fedkeel.errors import DataError, InputError, check_seed, invalid

Array = npt.NDArray[Any]
Pair = tuple[Any, Any]
WHOLE = 1 << 24
"""Every whole number up to this is one of float32."""
MOST_CLASSES = 1 << 20
"""A larger label is a mistake (an identifier, a time), and would ask for a name for every number below it."""
HOLDOUT_STREAM = 0x686F6C64  # second half of the Philox key: which samples of a client are held out


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any,
    y_test: Any,
    classes: int | None = None,
    name: str = "own",
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    class_names: Sequence[str] | None = None,
    citation: str = "",
    licence: str = "",
    targets: str = "labels",
    inputs: str = "numbers",
    partition_labels: Any = None,
) -> Dataset:
    """A data set from arrays (numpy, torch or lists).

    ``x`` [n, ...]: uint8 pixels [n, C, H, W] or [n, H, W], which are divided by 255, or numbers [n, features, ...],
    kept as float32; with ``inputs="tokens"`` whole numbers [n, ...] for a model with an embedding, kept as int64. ``y``
    [n]: whole labels from 0; ``classes`` is one more than the largest unless given. Labels may be sequences [n, T],
    padded with −100; with ``targets="real"`` they are real numbers [n, ...] (regression, multi-label). ``mean`` and
    ``std`` normalise per channel after that. ``partition_labels`` [n] are what rules look at in place of ``y``.
    """
    name = arguments.title("name", name)
    train, test = (
        _split(x, y, f"{name}.train", targets, inputs),
        _split(x_test, y_test, f"{name}.test", targets, inputs),
    )
    made = _dataset(train, test, classes, name, mean, std, class_names, citation, licence)
    if partition_labels is None:
        return made
    groups = _labels(_array(partition_labels, f"{name}.partition_labels"), (len(train),), f"{name}.partition_labels")
    return replace(made, partition_labels=groups)


def from_clients(
    clients: Sequence[Pair],
    test: Pair | None = None,
    classes: int | None = None,
    name: str = "own",
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    class_names: Sequence[str] | None = None,
    holdout: float = 0.2,
    seed: int = 0,
    targets: str = "labels",
    inputs: str = "numbers",
    client_tests: Sequence[Pair] | None = None,
) -> Federation:
    """A federation from one ``(x, y)`` per client, as in :func:`from_arrays`.

    ``test`` is a common test set; or ``client_tests`` has one for each client, which together are the common one.
    Without either, a random share ``holdout`` of every client's samples becomes its test data.
    """
    name = arguments.title("name", name)
    clients = arguments.listed(f"{name}.clients", clients, "a list of pairs (x, y), one for each client")
    if not clients:
        raise invalid(f"{name}.clients", "at least one pair (x, y)", "none")
    splits = _splits(clients, f"{name}.clients", targets, inputs)
    record: dict[str, Any] = {"name": name, "clients": len(splits)}
    common = None if test is None else _split(*_pair(test, f"{name}.test"), f"{name}.test", targets, inputs)
    own: tuple[Indices, ...] | None = None
    if client_tests is not None:
        listed = arguments.listed(f"{name}.client_tests", client_tests, "a list of pairs (x, y), one for each client")
        if len(listed) != len(splits):
            raise invalid(f"{name}.client_tests", f"one pair (x, y) for each of {len(splits)} clients", len(listed))
        if common is not None:
            hint = "Leave one of them out."
            raise invalid(f"{name}.test", "absent beside client_tests, which together are the test set", "both", hint)
        tests = _splits(listed, f"{name}.client_tests", targets, inputs)
        own = _ranges(tests)
        common = _joined(tests)
    elif common is None:
        holdout = arguments.share(f"{name}.holdout", holdout, "Or pass a common test set.")
        splits, held = _hold_out(splits, holdout, seed, name)
        common, own = _joined(held), _ranges(held)
        record |= {"holdout": holdout, "seed": seed}
    dataset = _dataset(_joined(splits), common, classes, name, mean, std, class_names, "", "")
    return Federation(dataset, _ranges(splits), record, own)


def as_split(x: Any, y: Any, name: str = "own", targets: str = "labels", inputs: str = "numbers") -> Split:
    """The samples of one client, checked and converted as in :func:`from_arrays`."""
    return _split(x, y, arguments.title("name", name), targets, inputs)


def _splits(pairs: Sequence[Pair], name: str, targets: str, inputs: str) -> list[Split]:
    """One pair for each client, all of one kind and shape."""
    splits = [_split(*_pair(pair, f"{name}[{i}]"), f"{name}[{i}]", targets, inputs) for i, pair in enumerate(pairs)]
    for i, split in enumerate(splits):
        for part in ("x", "y"):
            own, first = getattr(split, part), getattr(splits[0], part)
            if own.shape[1:] != first.shape[1:] or own.dtype != first.dtype:
                what = "samples" if part == "x" else "targets"
                allowed = f"{first.dtype} {what} of client 0's shape {list(first.shape[1:])}"
                raise invalid(f"{name}[{i}]", allowed, f"{own.dtype} {list(own.shape[1:])}")
    return splits


def from_torch(train: Any, test: Any, classes: int | None = None, name: str = "own", **options: Any) -> Dataset:
    """A data set from two ``torch.utils.data.Dataset`` of ``(x, y)``; every item is read once, so transforms are fixed.

    ``options`` are those of :func:`from_arrays`.
    """
    read: list[Pair] = []
    for part, data in (("train", train), ("test", test)):
        try:
            items = [data[i] for i in range(len(data))]
            pairs = [_pair(item, f"{name}.{part}[{i}]") for i, item in enumerate(items)]
        except (TypeError, LookupError) as error:
            reason = f"there is no item {error}" if isinstance(error, LookupError) else error
            raise InputError(
                f"{name}.{part} must have a length and items (x, y), but {reason}: read streams into arrays first."
            ) from error
        labels = _stack([y for _, y in pairs], f"{name}.{part}.y")
        if labels.size == len(pairs) and options.get("targets") != "real":
            labels = labels.reshape(len(pairs))
        read.append((_stack([x for x, _ in pairs], f"{name}.{part}"), labels))
    (x, y), (x_test, y_test) = read
    return from_arrays(x, y, x_test, y_test, classes=classes, name=name, **options)


def from_npz_folder(path: str | os.PathLike[str], classes: int | None = None, **options: Any) -> Federation:
    """A federation from a folder: one ``.npz`` with ``x`` and ``y`` per client, in the order of names.

    ``test.npz`` is the common test set, ``NAME.test.npz`` beside each ``NAME.npz`` that of a client; without them a
    share of every client is held out. ``options`` are those of :func:`from_clients`.
    """
    folder = arguments.path("from_npz_folder.path", path)
    if not folder.is_dir():
        raise invalid("from_npz_folder.path", "a folder of .npz files", str(folder))
    found = sorted(file for file in folder.glob("*.npz") if file.name != "test.npz")
    own = [file for file in found if file.name.endswith(".test.npz")]
    files = [file for file in found if file not in own]
    if not files:
        raise DataError(f"{folder} holds no client: put one .npz file with arrays x and y per client into it.")
    test = folder / "test.npz"
    options.setdefault("name", folder.resolve().name)
    if own and [file.name.removesuffix(".test.npz") for file in own] != [file.stem for file in files]:
        missing = {file.stem for file in files} ^ {file.name.removesuffix(".test.npz") for file in own}
        raise DataError(
            f"{folder} has a test set of its own for some clients only ({sorted(missing)[0]} has no pair); give every "
            "NAME.npz its NAME.test.npz, or none."
        )
    if own:
        options.setdefault("client_tests", [_read_npz(file) for file in own])
    pairs = [_read_npz(file) for file in files]
    return from_clients(pairs, _read_npz(test) if test.exists() else None, classes, **options)


def from_hf(
    data: Any,
    test: Any = None,
    image: str = "image",
    label: str = "label",
    classes: int | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset | Federation:
    """Hugging Face data: a name, a ``DatasetDict`` with "train" and "test" (a Dataset), or partitions (a Federation).

    A partition is any mapping from column names to values, such as a ``datasets.Dataset``. ``image`` and ``label`` name
    the columns. Images may be PIL images or arrays with channels last; other numbers are features. Further ``options``
    are those of :func:`from_arrays` or :func:`from_clients`.
    """
    given = None if name is None else arguments.title("name", name)
    if isinstance(data, str):
        given = given or data.rsplit("/", 1)[-1]
        data = _load_hf(data)
    name = given or "hf"
    image, label = arguments.text("image", image), arguments.text("label", label)
    if isinstance(data, Mapping):
        for part in ("train", "test"):
            if part not in data and not (part == "test" and test is not None):
                raise invalid(f"{name}", "a mapping with the parts 'train' and 'test'", sorted(map(str, data)))
        first = data["train"]
        second = test if test is not None else data["test"]
        options.setdefault("class_names", _label_names(first, label))
        train_pair, test_pair = (_columns(part, image, label, name) for part in (first, second))
        return from_arrays(*train_pair, *test_pair, classes=classes, name=name, **options)
    partitions = arguments.listed(name, data, "a data set with the parts 'train' and 'test', or a list of partitions")
    if not partitions:
        raise invalid(f"{name}.clients", "at least one partition", "none")
    options.setdefault("class_names", _label_names(partitions[0], label))
    pairs = [_columns(part, image, label, f"{name}.clients[{i}]") for i, part in enumerate(partitions)]
    test_columns = None if test is None else _columns(test, image, label, f"{name}.test")
    return from_clients(pairs, test_columns, classes, name, **options)


def from_flwr(
    fds: Any,
    image: str = "image",
    label: str = "label",
    split: str = "train",
    test_split: str | None = "test",
    classes: int | None = None,
    name: str = "flwr",
    **options: Any,
) -> Federation:
    """A federation from a ``flwr_datasets.FederatedDataset``: the partitions of ``split``, tested on ``test_split``."""
    try:
        partitioner = fds.partitioners[split]
    except (AttributeError, KeyError, TypeError) as error:
        raise invalid(
            f"{name}.split", "a split with a partitioner of a flwr_datasets.FederatedDataset", split
        ) from error
    # Loading the first partition is what makes the partitioner know its data, and so how many partitions there are.
    partitions = [fds.load_partition(0, split)]
    partitions += [fds.load_partition(i, split) for i in range(1, partitioner.num_partitions)]
    test = None if test_split is None else fds.load_split(test_split)
    federation = from_hf(partitions, test, image, label, classes, name, **options)
    assert isinstance(federation, Federation)
    return federation


def _pair(value: Any, name: str) -> Pair:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise invalid(name, "a pair (x, y)", None if value is None else type(value).__name__)
    return value[0], value[1]


def _array(values: Any, name: str) -> Array:
    """Numbers of any origin as a numpy array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise invalid(name, "an array whose samples all have the same shape", f"ragged values ({error})") from error
    except (TypeError, RuntimeError) as error:  # bfloat16, sparse or quantised tensors; lists without end
        raise InputError(f"{name} must be an array of numbers, but numpy cannot hold it: {error}.") from None
    if array.dtype.kind not in "buif":
        raise invalid(name, "an array of numbers", f"values of type {array.dtype}")
    return array


def _split(x: Any, y: Any, name: str, targets: str, inputs: str) -> Split:
    """Checked samples and targets: uint8 stays, other numbers become float32; grey images get their channel."""
    if arguments.text("targets", targets) not in ("labels", "real"):
        raise invalid("targets", "'labels' or 'real'", targets)
    if arguments.text("inputs", inputs) not in ("numbers", "tokens"):
        raise invalid("inputs", "'numbers' or 'tokens'", inputs)
    samples, found = _array(x, f"{name}.x"), _array(y, f"{name}.y")
    if len(samples.shape) == 0 or samples.size == 0:
        raise invalid(f"{name}.x", "an array with at least one sample", list(samples.shape), "Drop empty clients.")
    if inputs == "tokens":
        samples = _tokens(samples, f"{name}.x")
    elif samples.dtype == np.uint8:
        if samples.ndim == 3:
            samples = samples[:, None]
        if samples.ndim == 4 and samples.shape[1] > 4 and samples.shape[-1] in (1, 3, 4):
            raise invalid(
                f"{name}.x",
                "images with channels first [n, C, H, W]",
                list(samples.shape),
                "Use x.transpose(0, 3, 1, 2).",
            )
    else:
        samples = _as_float32(samples, f"{name}.x")
    if samples.ndim < 2:
        raise invalid(f"{name}.x", "an array [n, features] or [n, C, H, W]", list(samples.shape))
    if targets == "real":
        if found.shape[:1] != (len(samples),) or found.size == 0:
            raise invalid(f"{name}.y", f"targets for each of {len(samples)} samples", list(found.shape))
        return Split(samples, _as_float32(found, f"{name}.y"))
    sequences = found.ndim > 1 and len(found) == len(samples) and found.size > 0
    return Split(samples, _labels(found, found.shape if sequences else (len(samples),), f"{name}.y"))


def _labels(labels: Array, shape: tuple[int, ...], name: str) -> Indices:
    """Whole numbers from 0 of a shape [n] or, where negative ones are padding, [n, T, ...]."""
    if labels.shape != shape:
        raise invalid(name, f"one label for each of {shape[0]} samples", list(labels.shape))
    wrong = labels < 0 if len(shape) == 1 else np.zeros(shape, dtype=bool)
    if labels.dtype.kind == "f":
        wrong |= ~np.isfinite(labels) | (labels != np.round(labels))
    if wrong.any():
        hint = 'For regression or several labels a sample, give targets="real".' if labels.dtype.kind == "f" else ""
        raise invalid(name, "whole numbers from 0", labels[wrong][0].item(), hint)
    if labels.max() >= MOST_CLASSES:
        allowed, hint = f"whole numbers below {MOST_CLASSES:,}", "Number the classes from 0 without gaps."
        raise invalid(name, allowed, labels.max().item(), hint)
    return labels.astype(np.int64)


def _tokens(samples: Array, name: str) -> Array:
    """Whole numbers from 0 as int64."""
    if samples.dtype.kind not in "iu":
        raise invalid(name, 'whole numbers for inputs="tokens"', f"values of type {samples.dtype}")
    if samples.min() < 0 or int(samples.max()) > np.iinfo(np.int64).max:
        worst = samples.min() if samples.min() < 0 else samples.max()
        raise invalid(name, "whole numbers from 0, the rows of an embedding", worst.item())
    return samples.astype(np.int64)


def _as_float32(samples: Array, name: str) -> Array:
    """Numbers as float32: fractions may be rounded, but whole numbers stay what they are and none becomes infinite."""
    with np.errstate(over="ignore"):
        values = samples.astype(np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.flatnonzero(~finite.reshape(len(values), -1).all(axis=1))[0])
        worst = samples[~finite][0].item()
        if not np.isfinite(worst):
            raise invalid(name, "finite numbers", f"NaN or infinity in sample {row}", "Clean or drop that sample.")
        raise invalid(
            name, "finite numbers of float32, up to 3.4e38", f"{worst:g} in sample {row}", "Scale the inputs."
        )
    if samples.dtype.kind in "iu" and (samples.dtype.itemsize > 2) and np.abs(values).max() >= WHOLE:
        # float64 holds the rounded values; those of 64 bits beyond 2^53 are compared by going back
        changed = values.astype(np.float64) != samples if samples.dtype.itemsize < 8 else _differ(values, samples)
        if changed.any():
            hint = "Scale the inputs, or give fractions (float64) if they may be rounded."
            allowed = "whole numbers that float32 can hold, all up to 16,777,216 (2^24)"
            raise invalid(name, allowed, samples[changed][0].item(), hint)
    return values


def _differ(values: Array, samples: Array) -> Array:
    """Where 64-bit whole numbers are not what float32 made of them; 2^63 and 2^64 are beyond their types."""
    beyond = values >= np.float32(np.iinfo(samples.dtype).max)  # the least value of a type is a power of two
    differ: Array = beyond | (np.where(beyond, 0, values).astype(samples.dtype) != samples)
    return differ


def _dataset(
    train: Split,
    test: Split,
    classes: int | None,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    class_names: Sequence[str] | None,
    citation: str,
    licence: str,
) -> Dataset:
    named = () if class_names is None else _class_names(class_names, name)
    if train.y.dtype == np.float32:
        if named or classes is not None:
            hint = "Leave out classes and class_names."
            raise invalid(f"{name}.classes", 'absent for targets="real"', classes or list(named), hint)
        classes = 0
    else:
        if classes is None:
            classes = len(named) if named else max(int(max(train.y.max(), test.y.max())) + 1, 1)
        classes = arguments.whole(f"{name}.classes", classes, 1, MOST_CLASSES)
    if train.x.dtype != test.x.dtype:
        raise invalid(f"{name}.test.x", f"{train.x.dtype} like the training samples", str(test.x.dtype))
    names = named or tuple(str(c) for c in range(classes))
    scale = 255.0 if train.x.dtype == np.uint8 else 1.0
    transform = Transform(scale, arguments.numbers_of(f"{name}.mean", mean), arguments.numbers_of(f"{name}.std", std))
    return Dataset(name, train, test, classes, names, transform, citation, licence)


def _class_names(given: object, name: str) -> tuple[str, ...]:
    allowed = "a list of texts, one for each class"
    listed = arguments.listed(f"{name}.class_names", given, allowed)
    if not all(isinstance(label, str | int | float) for label in listed):
        raise invalid(f"{name}.class_names", allowed, listed)
    return tuple(map(str, listed))


def _joined(splits: Sequence[Split]) -> Split:
    return Split(np.concatenate([s.x for s in splits]), np.concatenate([s.y for s in splits]))


def _ranges(splits: Sequence[Split]) -> tuple[Indices, ...]:
    """The indices of each split's samples in the joined one."""
    ends = np.cumsum([len(split) for split in splits])
    return tuple(np.arange(end - len(split), end) for split, end in zip(splits, ends, strict=True))


def _hold_out(splits: Sequence[Split], share: float, seed: int, name: str) -> tuple[list[Split], list[Split]]:
    """Every client's samples in two random parts, at least one sample in each."""
    key = [check_seed(f"{name}.seed", seed), HOLDOUT_STREAM]
    rng = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
    kept: list[Split] = []
    held: list[Split] = []
    for i, split in enumerate(splits):
        if len(split) < 2:
            raise invalid(
                f"{name}.clients[{i}]",
                "at least 2 samples to hold some out for test",
                len(split),
                "Pass a common test set instead.",
            )
        order = rng.permutation(len(split))
        cut = min(max(1, round(share * len(split))), len(split) - 1)
        for part, target in ((order[cut:], kept), (order[:cut], held)):
            rows = np.sort(part)
            target.append(Split(split.x[rows], split.y[rows]))
    return kept, held


def _read_npz(path: Path) -> Pair:
    x, y = read_npz(path, ("x", "y"))
    return x, y


def _load_hf(path: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(f"{path!r} needs the package 'datasets' to be loaded: pip install 'fedkeel[hf]'.") from error
    return load_dataset(path)


def _label_names(part: Any, label: str) -> list[str] | None:
    """The class names a Hugging Face feature knows, if it does."""
    feature = (getattr(part, "features", None) or {}).get(label)
    names = getattr(feature, "names", None)
    return list(names) if names else None


def _columns(part: Any, image: str, label: str, name: str) -> Pair:
    """Samples and labels of a mapping from column names to values."""
    if not hasattr(part, "column_names") and not isinstance(part, Mapping):
        raise invalid(name, "a mapping from column names to values", part)
    known = [str(column) for column in (getattr(part, "column_names", None) or part)]
    for option, column in (("image", image), ("label", label)):
        if column not in known:
            raise invalid(f"{name}.{option}", f"one of the columns {', '.join(map(str, known))}", column)
    samples, labels = list(part[image]), list(part[label])
    if not samples:
        raise invalid(name, "a part with at least one sample", 0, "Drop empty clients.")
    return _stack(_channels_first(samples, name), name), labels


def _channels_first(samples: list[Any], name: str) -> Iterable[Any]:
    """PIL images and channels-last uint8 arrays as [C, H, W]; anything else as it is."""
    if hasattr(samples[0], "convert"):
        mode = "L" if all(sample.mode in ("1", "L") for sample in samples) else "RGB"
        samples = [np.asarray(sample.convert(mode)) for sample in samples]
    for sample in samples:
        array = _array(sample, name)
        nested = isinstance(sample, list) and array.ndim >= 2  # Arrow returns arrays of bytes as nested lists
        if nested and array.dtype.kind == "i" and array.min() >= 0 and array.max() <= 255:
            array = array.astype(np.uint8)
        if array.dtype == np.uint8 and array.ndim == 3 and array.shape[-1] in (1, 3, 4):
            array = array.transpose(2, 0, 1)
        yield array


def _stack(samples: Iterable[Any], name: str) -> Array:
    rows = [_array(sample, name) for sample in samples]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise invalid(f"{name}.x", "samples that all have the same shape", " and ".join(map(str, sorted(shapes)[:2])))
    if not rows:
        raise invalid(f"{name}.x", "at least one sample", 0)
    return np.stack(rows)
