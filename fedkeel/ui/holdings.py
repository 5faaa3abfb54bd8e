"""Which client holds how much of which class. A run does not keep that, but digests of its data: the data are loaded
and dealt again, and shown only if they are those of the run."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel import build, changes
from fedkeel.data.digest import differences, digests
from fedkeel.data.preview import preview_chart
from fedkeel.data.sources import SOURCES, is_there
from fedkeel.errors import FedkeelError
from fedkeel.runs import same_data
from fedkeel.runs.store import Store

MOST = 20
_lock = threading.Lock()
_kept: OrderedDict[str, Holdings] = OrderedDict()


@dataclass(frozen=True)
class Holdings:
    """A chart, or why there is none."""

    key: str
    chart: Any
    why: str = ""


def holdings(directory: Path, data_dir: Path | None) -> Holdings:
    """Those of a run. Only data sets that are on this disk already are loaded, one at a time."""
    with closing(Store.reading(directory)) as store:
        text, before = store.configuration(), same_data.recorded(store)
    key = hashlib.sha256(f"{text}\n{before}\n{data_dir}".encode()).hexdigest()
    with _lock:
        if key not in _kept:
            found = _made(text, before, directory, data_dir)
            if found.chart is None:  # what is lacking may come
                return Holdings(key, None, found.why)
            _kept[key] = Holdings(key, found.chart)
            while len(_kept) > MOST:
                _kept.popitem(last=False)
        return _kept[key]


def _made(text: str, before: dict[str, str] | None, directory: Path, data_dir: Path | None) -> Holdings:
    try:
        experiment = changes.stored(text, directory)
        name = experiment.data.name
        if name not in SOURCES:
            return Holdings("", None, f"The data {name} are not one of the built-in sets, which alone are loaded here.")
        if not is_there(name, data_dir):
            return Holdings("", None, f"The files of {name} are not on this machine; name their folder by --data-dir.")
        federation = build.make_federation(experiment, data_dir)
        if before is None:
            return Holdings(
                "", None, "This run is of a version that kept no digests of its data: who held what is gone."
            )
        changed = differences(before, digests(federation))
        if changed:
            said = same_data.said(changed, federation.dataset.name)
            return Holdings("", None, f"{said[:1].upper()}{said[1:]} those of this run, so they are not shown.")
        return Holdings("", preview_chart(federation))
    except FedkeelError as error:
        return Holdings("", None, str(error))
