"""For each algorithm and source: how its traces are run here. Later algorithms add a module and a line."""

from __future__ import annotations

from collections.abc import Callable

from tests.replay.run import Setup
from tests.replay.setups import (
    averaging,
    drift,
    fedbn,
    fedgvrgm,
    fedmlb,
    fednova,
    fedpmvr,
    fedpvr,
    fedreg,
    fedveca,
    gradma,
    mifa,
    mimelite,
    moon,
    server_rules,
)
from tests.replay.trace import Trace

SETUPS: dict[tuple[str, str], Callable[[Trace], Setup]] = {
    **averaging.SETUPS,
    **drift.SETUPS,
    **fedbn.SETUPS,
    **fedgvrgm.SETUPS,
    **fedpmvr.SETUPS,
    **fedveca.SETUPS,
    **gradma.SETUPS,
    **fedmlb.SETUPS,
    **fedreg.SETUPS,
    **moon.SETUPS,
    **fednova.SETUPS,
    **fedpvr.SETUPS,
    **mifa.SETUPS,
    **mimelite.SETUPS,
    **server_rules.SETUPS,
}


def setup_of(trace: Trace) -> Setup:
    """How a trace is run here."""
    key = (trace.algorithm, trace.source)
    if key not in SETUPS:
        raise SystemExit(f"{trace.path.name}: no replay is written for {key[0]} of {key[1]}")
    return SETUPS[key](trace)
