"""One run of the search or of the ablation, of which only its accuracy is kept."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fedkeel import api, build, config
from fedkeel.errors import DivergedError


def accuracy(experiment: config.Experiment, better: bool = False) -> float:
    """Mean over the last tenth of the rounds; 0 for a run that diverges.

    Of the model that the run reports, or with ``better`` of the better of that and the algorithm's own.
    """
    folder = Path(tempfile.mkdtemp())
    try:
        federation = build.make_federation(experiment, None)
        run = api.run(experiment, folder / "run", federation=federation, allow_plugins=True)
        models = run.history.models()[: 2 if better else 1]
        return max(run.history.reported(model).late for model in models)
    except DivergedError:
        return 0.0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
