"""Data in memory: a data set with its fixed test part, and a federation that deals its training part to clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkeel import arguments
from fedkeel.data.partitions import partition
from fedkeel.data.transform import PAD, Transform
from fedkeel.errors import InputError, as_html, check_seed, invalid, printable

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
TAKEN_SEED = 20240101
"""Decides which training samples a smaller data set keeps: the same ones in every run, whatever its seed."""
VALIDATION_STREAM = 0x76616C6964  # second half of the Philox key, so that no other use of a seed shares these draws
TEST_STREAM = 0x74657374


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and targets.

    ``x`` is uint8 [n, C, H, W] for images, float32 [n, features, ...] for numbers or int64 [n, ...] for tokens; ``y``
    int64 [n] for labels, int64 [n, T, ...] for sequences of labels, or float32 [n, ...] for real numbers.
    """

    x: Array
    y: Array

    def __post_init__(self) -> None:
        for part, given in (("x", self.x), ("y", self.y)):
            arguments.instance(
                f"split.{part}", given, np.ndarray, "a numpy array", "fedkeel.data.from_arrays makes one."
            )
        if self.x.ndim < 2 or self.x.dtype not in (np.uint8, np.float32, np.int64):
            raise invalid(
                "split.x",
                "a uint8, float32 or (for tokens) int64 array [n, ...] with one row per sample",
                f"{self.x.dtype} {list(self.x.shape)}",
                "fedkeel.data.from_arrays converts other arrays.",
            )
        if self.y.ndim < 1 or self.y.dtype not in (np.int64, np.float32):
            allowed = "an int64 array of labels or a float32 array of real numbers"
            raise invalid("split.y", allowed, f"{self.y.dtype} {list(self.y.shape)}")
        if len(self.x) != len(self.y):
            raise invalid("split.y", f"as long as split.x ({len(self.x)} samples)", len(self.y))
        if self.x.size == 0:
            raise invalid("split.x", "an array with at least one sample and one feature", list(self.x.shape))
        if self.y.size == 0:
            raise invalid("split.y", "an array with at least one number for each sample", list(self.y.shape))
        for part, values in (("x", self.x), ("y", self.y)):
            if values.dtype == np.float32 and not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[0])
                got, hint = f"NaN or infinity in sample {row}", "Clean or drop that sample."
                raise invalid(f"split.{part}", "finite numbers", got, hint)

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: training and test samples, what the classes are, and how inputs are normalised.

    Targets that are real numbers have no ``classes`` (0). ``partition_labels`` int64 [n_train] replaces the labels
    where partition rules look at them (digits for an even/odd task); ``note`` says what is unusual about this copy
    ("train subset: 20,000 of 50,000").
    """

    name: str
    train: Split
    test: Split
    classes: int
    class_names: tuple[str, ...]
    transform: Transform
    citation: str
    licence: str
    note: str = ""
    partition_labels: Indices | None = None

    def __post_init__(self) -> None:
        arguments.text("name", self.name)
        for part in ("train", "test"):
            arguments.instance(f"{self.name}.{part}", getattr(self, part), Split, "a Split")
        arguments.instance(f"{self.name}.transform", self.transform, Transform, "a Transform")
        if self.train.y.dtype != self.test.y.dtype or self.train.y.shape[1:] != self.test.y.shape[1:]:
            like, got = ([str(split.y.dtype), list(split.y.shape[1:])] for split in (self.train, self.test))
            raise invalid(f"{self.name}.test targets", f"like those of the training samples, {like}", got)
        arguments.whole(f"{self.name}.classes", self.classes, *((0, 0) if self.is_real else (1, None)))
        arguments.instance(f"{self.name}.class_names", self.class_names, tuple, "a tuple of names")
        if self.partition_labels is not None:
            arguments.instance(f"{self.name}.partition_labels", self.partition_labels, np.ndarray, "a numpy array")
        if len(self.class_names) != self.classes:
            raise invalid(f"{self.name}.class_names", f"{self.classes} names", f"{len(self.class_names)} names")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise invalid(
                f"{self.name}.test",
                f"samples of the training shape {list(self.train.x.shape[1:])}",
                list(self.test.x.shape[1:]),
            )
        for part, split in () if self.is_real else (("train", self.train), ("test", self.test)):
            # In a sequence, a negative label is padding; which one, the loss says.
            low, high = 0 if split.y.ndim > 1 else int(split.y.min()), int(split.y.max())
            if low < 0 or high >= self.classes:
                raise invalid(
                    f"{self.name}.{part} labels",
                    f"integers from 0 to {self.classes - 1}",
                    low if low < 0 else high,
                    "Renumber the labels, or raise classes.",
                )
        if self.partition_labels is not None:
            if self.partition_labels.shape != (len(self.train),):
                raise invalid(
                    f"{self.name}.partition_labels",
                    f"one label for each of {len(self.train)} training samples",
                    list(self.partition_labels.shape),
                )
            if self.partition_labels.min() < 0:
                raise invalid(f"{self.name}.partition_labels", "integers from 0", int(self.partition_labels.min()))
        transform = self.transform
        if self.train.x.dtype == np.int64 and (transform.scale != 1 or transform.mean or transform.augment):
            raise invalid(f"{self.name}.transform", "Transform(scale=1) for tokens, which stay as they are", transform)
        channels = self.train.x.shape[1]
        if len(self.transform.mean) not in (0, 1, channels):
            raise invalid(
                f"{self.name}.transform.mean", f"0, 1 or {channels} values (one per channel)", len(self.transform.mean)
            )

        shape = self.input_shape
        if self.transform.augment is not None and (len(shape) != 3 or min(shape[1:]) <= PAD):
            raise invalid(
                f"{self.name}.transform.augment",
                f"None for data that are no images larger than {PAD} × {PAD}",
                self.transform.augment,
            )

    @property
    def is_real(self) -> bool:
        """Whether targets are real numbers, not labels."""
        return bool(self.train.y.dtype == np.float32)

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample: a score for each class, or a value for each of its targets."""
        return int(np.prod(self.train.y.shape[1:], dtype=np.int64)) if self.is_real else self.classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (C, H, W) for images, (features,) for vectors."""
        return tuple(self.train.x.shape[1:])

    def take(self, samples: int) -> Dataset:
        """The data set with a random choice of its training samples; the test set stays whole.

        The choice is that of ``TAKEN_SEED``; of two sizes, the smaller choice is a part of the larger.
        """
        samples = arguments.whole("data.samples", samples, 1, len(self.train), hint=f"{self.name} has no more.")
        if samples == len(self.train):
            return self
        rows = np.sort(np.random.default_rng(TAKEN_SEED).permutation(len(self.train))[:samples])
        labels = None if self.partition_labels is None else self.partition_labels[rows]
        taken = f"{samples:,} of {len(self.train):,} training samples"
        note = f"{self.note}; {taken}" if self.note else taken
        return replace(self, train=Split(self.train.x[rows], self.train.y[rows]), partition_labels=labels, note=note)

    def partition(
        self, rule: str, clients: int, seed: int = 0, *, client_test: float = 0.0, **params: Any
    ) -> Federation:
        """Deal the training samples to ``clients`` by a named rule (see :func:`fedkeel.data.rules`).

        ``client_test`` is the share of its samples that every client holds out to test on (``hold_out_tests``).
        """
        labels = self.train.y if self.partition_labels is None else self.partition_labels
        labelled = labels.ndim == 1 and labels.dtype == np.int64
        if not labelled:
            labels = np.zeros(len(self.train), dtype=np.int64)
        parts, record = partition(labels, rule, clients, seed, params, labelled)
        dealt = Federation(self, parts, record)
        return dealt.hold_out_tests(client_test, seed) if client_test else dealt


@dataclass(frozen=True, eq=False)
class Federation:
    """Who holds what: ``clients[i]`` are the int64 indices of client i's samples in ``dataset.train``.

    The lists are disjoint and none is empty; samples in no list are unused. ``rule`` is the plain record of how they
    were made. ``client_tests[i]`` are indices into ``dataset.test`` where clients have test data of their own;
    ``held_tests[i]`` are, in their place, training samples that client i only tests on (see :meth:`hold_out_tests`);
    ``validation`` are training samples that the server holds and no client trains on (see :meth:`hold_out`).
    """

    dataset: Dataset
    clients: tuple[Indices, ...]
    rule: dict[str, Any]
    client_tests: tuple[Indices, ...] | None = None
    validation: Indices | None = None
    held_tests: tuple[Indices, ...] | None = None

    def __post_init__(self) -> None:
        arguments.instance("federation.dataset", self.dataset, Dataset, "a Dataset")
        arguments.instance("federation.rule", self.rule, dict, "a dict that says how the clients were made")
        for name in ("clients", "client_tests"):
            if name == "clients" or self.client_tests is not None:
                arguments.instance(f"federation.{name}", getattr(self, name), tuple, "a tuple of index arrays")
        if not self.clients:
            raise invalid("federation.clients", "at least one list of indices", 0)
        used = self._used()
        if self.client_tests is not None:
            if len(self.client_tests) != len(self.clients):
                raise invalid("federation.client_tests", f"{len(self.clients)} lists", len(self.client_tests))
            for i, part in enumerate(self.client_tests):
                _check_indices(part, len(self.dataset.test), f"federation.client_tests[{i}]")
        if self.held_tests is not None:
            self._check_held(used)
        if self.validation is not None:
            _check_indices(self.validation, len(used), "federation.validation")
            if self.validation.size == 0 or used[self.validation].any():
                raise InputError("federation.validation must name samples that no client holds, at least one.")

    def _check_held(self, used: npt.NDArray[np.bool_]) -> None:
        """Refuse tests that are not apart from all else; ``used`` then counts them in."""
        held = arguments.instance("federation.held_tests", self.held_tests, tuple, "a tuple of index arrays")
        if self.client_tests is not None:
            raise invalid("federation.held_tests", "absent beside client_tests", "both", "Give one of them.")
        if len(held) != len(self.clients):
            raise invalid("federation.held_tests", f"{len(self.clients)} lists", len(held))
        for i, part in enumerate(held):
            _check_indices(part, len(used), f"federation.held_tests[{i}]")
            if part.size == 0 or used[part].any() or np.unique(part).size != part.size:
                raise InputError(
                    f"federation.held_tests[{i}] must name samples that nobody trains or tests on, at least one."
                )
            used[part] = True

    def _used(self) -> npt.NDArray[np.bool_]:
        """Which training samples some client holds [n_train]; refuses lists that are not what they should be.

        All lists at once, since there may be a million of them; a fault is then looked for client by client.
        """
        limit = len(self.dataset.train)
        sound = all(
            isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype == np.int64 and part.size
            for part in self.clients
        )
        together = np.concatenate(self.clients) if sound else np.empty(0, dtype=np.int64)
        if sound and together.min() >= 0 and together.max() < limit:
            holders = np.bincount(together, minlength=limit)
            if holders.max() <= 1:
                return holders.astype(bool)
        used = np.zeros(limit, dtype=bool)
        for i, part in enumerate(self.clients):
            _check_indices(part, limit, f"federation.clients[{i}]")
            if part.size == 0:
                raise InputError(
                    f"client {i} has no samples, but every client needs at least one: drop it or merge it."
                )
            if used[part].any() or np.unique(part).size != part.size:
                raise InputError(f"client {i} holds a sample twice or one of another client: make the lists disjoint.")
            used[part] = True
        return used

    def hold_out_tests(self, share: float, seed: int = 0) -> Federation:
        """The same federation in which every client tests on about ``share`` of its samples, and trains on the others.

        At least one sample is held out and one kept; the choice depends on the seed and the client only.
        """
        share = arguments.share("data.client_test", share)
        seed = check_seed("hold_out_tests.seed", seed)
        if self.client_tests is not None or self.held_tests is not None:
            raise invalid("data.client_test", "absent where clients have test samples of their own", share)
        kept, held = [], []
        for i, part in enumerate(self.clients):
            if part.size == 1:
                hint = "Deal the samples otherwise, or to fewer clients."
                raise invalid("data.client_test", f"absent where a client (here {i}) has a single sample", share, hint)
            rng = np.random.Generator(np.random.Philox(key=[seed, TEST_STREAM], counter=[0, 0, 0, i]))
            order = rng.permutation(part)
            take = min(max(round(share * part.size), 1), part.size - 1)
            held.append(np.sort(order[:take]))
            kept.append(np.sort(order[take:]))
        return replace(self, clients=tuple(kept), held_tests=tuple(held))

    def hold_out(self, share: float, seed: int = 0) -> Federation:
        """The same federation with about ``share`` of every client's samples moved to the server for validation.

        A client keeps at least one sample; the choice depends on the seed and the client only.
        """
        share = arguments.share("data.validation", share)
        seed = check_seed("hold_out.seed", seed)
        kept, held = [], []
        for i, part in enumerate(self.clients):
            rng = np.random.Generator(np.random.Philox(key=[seed, VALIDATION_STREAM], counter=[0, 0, 0, i]))
            order = rng.permutation(part)
            take = min(round(share * part.size), part.size - 1)
            held.append(order[:take])
            kept.append(np.sort(order[take:]))
        chosen = np.sort(np.concatenate(held))
        if chosen.size == 0:
            raise invalid("data.validation", "large enough to hold out one sample", share, "Raise the share.")
        return replace(self, clients=tuple(kept), validation=chosen)

    def judged_by_validation(self) -> Federation:
        """The same clients with the held-out samples in the place of the test set, which is gone.

        For choosing settings: what does not know the test set cannot have been chosen by it. The samples are then no
        feedback any more (``validation`` is absent), since an algorithm must not see what it is judged by.
        """
        if self.validation is None:
            raise InputError("validation samples cannot take the place of the test set: hold some out first.")
        if self.client_tests is not None:
            raise InputError("validation samples cannot take the place of the test set: clients test on parts of it.")
        train = self.dataset.train
        judged = Split(train.x[self.validation], train.y[self.validation])
        said = f"evaluated on {len(judged):,} held-out training samples in the place of the test set"
        note = f"{self.dataset.note}; {said}" if self.dataset.note else said
        return replace(self, dataset=replace(self.dataset, test=judged, note=note), validation=None)

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.rule.items() if name != "name")
        rule = f"{self.rule.get('name', 'own clients')}({told})"
        return printable(f"Federation({self.dataset.name}: {self.N} clients, {self.n} samples, {rule})")

    def _repr_html_(self) -> str:
        sizes = self.sizes
        facts = {
            "clients": str(self.N),
            "samples of a client": f"{sizes.min()} to {sizes.max()}, median {np.median(sizes):g}",
            "test samples": str(len(self.dataset.test)),
            **{f"rule: {name}": str(value) for name, value in self.rule.items()},
        }
        return as_html(f"Federation of {self.dataset.name}", facts)

    @property
    def N(self) -> int:
        """Number of clients."""
        return len(self.clients)

    @property
    def have_tests(self) -> bool:
        """Whether clients have test samples of their own."""
        return self.client_tests is not None or self.held_tests is not None

    @cached_property
    def sizes(self) -> Indices:
        """Samples per client, int64 [N]."""
        return np.fromiter((part.size for part in self.clients), dtype=np.int64, count=len(self.clients))

    @cached_property
    def n(self) -> int:
        """Samples of all clients together."""
        return int(self.sizes.sum())

    def counts(self) -> Indices:
        """Samples per client and class, int64 [N, classes]; only where every sample has one label."""
        if self.dataset.is_real or self.dataset.train.y.ndim > 1:
            raise InputError(
                f"the samples of {self.dataset.name} have no single label each, so no class can be counted."
            )
        y, classes = self.dataset.train.y, self.dataset.classes
        return np.stack([np.bincount(y[part], minlength=classes) for part in self.clients]).astype(np.int64)

    def describe(self) -> dict[str, Any]:
        """Plain numbers on how unequal the clients are.

        ``label_distance`` is the mean over clients of the total variation ``½ Σ_c |p_i(c) − p(c)|`` between a
        client's label distribution and that of all clients together: 0 for identical clients, towards 1 for disjoint
        ones. What is about labels is left out where samples have no single label each.
        """
        sizes = self.sizes
        found = {
            "clients": self.N,
            "samples": self.n,
            "unused": len(self.dataset.train) - self.n,
            "size_min": int(sizes.min()),
            "size_median": float(np.median(sizes)),
            "size_max": int(sizes.max()),
        }
        if self.dataset.is_real or self.dataset.train.y.ndim > 1:
            return found
        counts = self.counts()
        everybody = counts.sum(axis=0) / counts.sum()
        distance = 0.5 * np.abs(counts / sizes[:, None] - everybody).sum(axis=1)
        return found | {
            "classes_per_client": float((counts > 0).sum(axis=1).mean()),
            "label_distance": float(distance.mean()),
        }


def _check_indices(part: Indices, limit: int, name: str) -> None:
    arguments.instance(name, part, np.ndarray, "an int64 vector of indices")
    if part.ndim != 1 or part.dtype != np.int64:
        raise invalid(name, "an int64 vector of indices", f"{part.dtype} {list(part.shape)}")
    if part.size and (part.min() < 0 or part.max() >= limit):
        worst = int(part.min() if part.min() < 0 else part.max())
        raise invalid(name, f"indices from 0 to {limit - 1}", worst)
