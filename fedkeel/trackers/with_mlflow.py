"""MLflow: runs in a SQLite database, or on a server."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedkeel import arguments
from fedkeel.errors import invalid
from fedkeel.runs.watching import About
from fedkeel.trackers.identity import keep_id, known_id
from fedkeel.trackers.tracker import Rows, Tracker, rows_of

MOST_METRICS = 1000
MOST_PARAMS = 100
"""That MLflow takes at once."""
LONGEST = 500
"""Characters of a setting; earlier versions of MLflow take no more."""
_STATUS = {"finished": "FINISHED", "until": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}


def mlflow(where: str | Path, experiment: str = "fedkeel") -> Tracker:
    """A watcher that writes runs of an MLflow experiment.

    ``where`` is a SQLite file, which is made if it is not there (look at it with `mlflow ui --backend-store-uri
    sqlite:///FILE`), or the address of a server. MLflow neither reports to its makers nor comments on what it does,
    unless MLFLOW_DISABLE_TELEMETRY and MLFLOW_LOGGING_LEVEL in the environment say otherwise.
    """
    arguments.instance("experiment", experiment, str, "a name")
    uri = str(where) if isinstance(where, str) and "://" in where else ""
    path = None if uri else arguments.path("where", where).absolute()
    if path is not None and not {"?", "#", "%"}.isdisjoint(str(path)):
        raise invalid("where", "a path without ?, # and %, which have a meaning in MLflow's addresses", str(path))
    for variable, value in _QUIET.items():  # read when MLflow is imported
        os.environ.setdefault(variable, value)

    def opening(about: About) -> _Runs:
        return _Runs(uri or f"sqlite:///{path}", path, experiment, about)

    return Tracker("mlflow", ["mlflow", *([] if uri else ["sqlalchemy", "alembic"])], opening)


class _Runs:
    def __init__(self, uri: str, path: Path | None, experiment: str, about: About) -> None:
        self._made: Any = import_module("mlflow.entities")
        if path is not None and not path.exists():
            _make_database(path)
        self._client: Any = import_module("mlflow").MlflowClient(tracking_uri=uri)
        known = known_id(about.directory, "mlflow")
        self._run = known if known is not None and about.history.rounds and self._goes_on(known) else ""
        if not self._run:
            self._run = self._new(experiment, path, about)
            keep_id(about.directory, "mlflow", self._run)
        self.write(self._missing(rows_of(about.history)))

    def _goes_on(self, run: str) -> bool:
        """Whether a run is still there, as one that runs again."""
        try:
            there = self._client.get_run(run).info.lifecycle_stage == "active"
        except import_module("mlflow.exceptions").MlflowException:
            return False
        if there:
            self._client.set_terminated(run, "RUNNING")
        return bool(there)

    def _new(self, name: str, path: Path | None, about: About) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            beside = None if path is None else path.with_name(f"{path.stem}-artifacts").as_uri()
            experiment = self._client.create_experiment(name, artifact_location=beside)
        else:
            experiment = found.experiment_id
        run: str = self._client.create_run(experiment, run_name=about.name).info.run_id
        settings = [self._made.Param(field, str(value)[:LONGEST]) for field, value in about.settings.items()]
        for first in range(0, len(settings), MOST_PARAMS):
            self._client.log_batch(run, params=settings[first : first + MOST_PARAMS])
        return run

    def _missing(self, rows: Rows) -> Rows:
        """Those of earlier rounds that are not there yet."""
        there = {metric.step for metric in self._client.get_metric_history(self._run, "round/seconds")} if rows else ()
        return [row for row in rows if row[0] not in there]

    def write(self, rows: Rows) -> None:
        now = int(time.time() * 1000)
        # The seconds of a round come last: where they are, the whole round is.
        metrics = [
            self._made.Metric(name, value, now, round)
            for round, numbers in rows
            for name, value in sorted(numbers.items(), key=lambda pair: pair[0] == "round/seconds")
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + MOST_METRICS])

    def close(self, how: str) -> None:
        self._client.set_tag(self._run, "ended", how)
        self._client.set_terminated(self._run, _STATUS[how])


def _make_database(path: Path) -> None:
    """A database with MLflow's tables, under its name only when it is whole.

    MLflow takes seconds to make them, and cannot open a database again whose making was interrupted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent, ignore_cleanup_errors=True) as aside:
        made, whole = Path(aside, "made.db"), Path(aside, "whole.db")
        import_module("mlflow").MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        with closing(sqlite3.connect(made)) as source, closing(sqlite3.connect(whole)) as target:
            source.backup(target)
        try:
            os.link(whole, path)
        except FileExistsError:  # another run was faster
            pass
        except OSError:  # not every file system has links
            whole.replace(path)
