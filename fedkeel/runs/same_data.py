"""Whether a run goes on with the data that it began with: digests of them are kept in its store."""

from __future__ import annotations

import json

from fedkeel.data.digest import differences
from fedkeel.engine.rounds import DataRecord
from fedkeel.errors import DataError
from fedkeel.runs.store import Store

KEY = "data"
"""Name of the digests among the store's texts."""


def text_of(data: DataRecord) -> str:
    """What a run keeps of its data: their names for people, their digests for comparison."""
    found = {"name": data.name, "clients": data.clients, "digests": data.digests}
    return json.dumps(found, ensure_ascii=False)


def recorded(store: Store) -> dict[str, str] | None:
    """The digests of the data that a run began with; None for a run of a version that kept none."""
    text = store.meta(KEY)
    if text is None:
        return None
    try:
        found = json.loads(text)["digests"]
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(
            f"the record of its data in the run in {store.directory} is damaged; restore the run from a copy."
        ) from None


def check_resumed(store: Store, data: DataRecord) -> None:
    """Refuse to go on with other data; a run that has no record of its data gets one now, and its diary says so."""
    before = recorded(store)
    if before is None:
        store.put_meta(KEY, text_of(data))
        if store.rounds_done():
            store.event("data", "digests recorded now; none were kept with the rounds so far")
        return
    changed = differences(before, data.digests)
    if changed:
        raise DataError(
            f"the run in {store.directory} cannot go on: {said(changed, data.name)} those that it began with; put "
            "the old data back, or start a new run with --out."
        )


def check_forked(source: Store, data: DataRecord, asked: bool) -> str | None:
    """What differs from the data of the run that a new one starts from, in words for its diary.

    Refused unless other data were ``asked`` for: they may have changed unnoticed.
    """
    before = recorded(source)
    if before is None:
        return None
    changed = differences(before, data.digests)
    if not changed:
        return None
    words = f"{said(changed, data.name)} those of {source.directory}"
    if not asked:
        raise DataError(
            f"{words}, from which the new run should start, although its settings ask for the same data; put the old "
            "data back, or ask for others: another data.name, partition or seed, in Python Fork(…, other_data=True)."
        )
    return words


def said(changed: list[str], name: str) -> str:
    """``the training labels of sites are not``, to be continued."""
    listed = changed[0] if len(changed) == 1 else f"{', '.join(changed[:-1])} and {changed[-1]}"
    return f"{listed} of {name} are not"
