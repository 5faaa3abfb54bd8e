"""One run of the search or of the ablation, of which only its accuracy is kept."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fedkeel import api, build, config
from fedkeel.errors import DivergedError


def accuracy(experiment: config.Experiment) -> float:
    """Mean over the last tenth of the rounds, of the model that the run reports; 0 for a run that diverges."""
    folder = Path(tempfile.mkdtemp())
    try:
        federation = build.make_federation(experiment, None)
        run = api.run(experiment, folder / "run", federation=federation, allow_plugins=True)
        return run.history.reported().late
    except DivergedError:
        return 0.0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
