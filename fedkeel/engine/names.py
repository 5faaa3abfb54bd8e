"""What is noted of a round, and the names that are the run's own. Who only reads runs needs no torch for it."""

from __future__ import annotations

Noted = float | dict[int, float]
"""One number, or one for each client (by id) whose upload counted."""
MEASURED, TIMED, CLOCK = "measure.", "time.", "clock."
"""How names begin that belong to the run and not to its algorithm: what ``[measure]`` asks for, where time went, and
what the virtual clock says."""
TIME = f"{CLOCK}time"
"""Virtual seconds from the start of the run to the end of the round."""
