"""Valid bytes with something done to them."""

from __future__ import annotations

from hypothesis import strategies as st

Mutation = tuple[str, float, bytes]


def mutated(original: bytes, at_most: int = 4) -> st.SearchStrategy[bytes]:
    """``original`` with bytes flipped, overwritten, inserted, cut out or cut off, at a few places."""
    return st.lists(_MUTATION, min_size=1, max_size=at_most).map(lambda done: _apply(original, done))


_MUTATION: st.SearchStrategy[Mutation] = st.tuples(
    st.sampled_from(("flip", "overwrite", "insert", "remove", "truncate")),
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=1, max_size=8),
)


def _apply(original: bytes, mutations: list[Mutation]) -> bytes:
    content = bytearray(original)
    for kind, where, data in mutations:
        at = int(where * len(content))
        if kind == "flip" and content:
            content[at] ^= data[0] or 1
        elif kind == "overwrite":
            content[at : at + len(data)] = data
        elif kind == "insert":
            content[at:at] = data
        elif kind == "remove":
            del content[at : at + len(data) ** 2]
        elif kind == "truncate":
            del content[at:]
    return bytes(content)
