"""Mutations for fuzzers: a valid ping with a few changes, from harmless to destructive."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.sampled_from(["", "treatment", "control", "plain", "a:b", "\x00", "\u2028", "é"]),
)
NUMBERS = st.one_of(
    st.integers(-3, 5),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([2**31 - 1, 2**31, 2**53, 2**63, -(2**63) - 1, 10**400, 1e30, 1e31, 1e308, -0.0, 1e-320, 0.1]),
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def updates_of(m: int) -> st.SearchStrategy[list[float]]:
    """Return updates of about m weights; half have exactly m numbers, which may be valid."""
    return st.lists(NUMBERS, min_size=m - 2, max_size=m + 2) | st.lists(st.floats(-50, 50), min_size=m, max_size=m)


@st.composite
def changed_pings(
    draw: st.DrawFn, ping: Mapping[str, Any], m: int, payloads: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a valid ping with up to three changes.

    Args:
        draw: Hypothesis' draw function.
        ping: the valid ping.
        m: the number of its model's weights.
        payloads: joint changes of several payload fields, which may be valid together.
    """
    changed = copy.deepcopy(dict(ping))
    payload, fields = changed["payload"], sorted(changed["payload"])
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.integers(0, 6)):
            case 0:
                payload[draw(st.sampled_from(fields))] = draw(JSON)
            case 1:
                payload.pop(draw(st.sampled_from(fields)), None)
            case 2:
                payload[draw(TEXTS)] = draw(JSON)
            case 3:
                payload["update"] = draw(updates_of(m))
            case 4:
                payload |= draw(st.sampled_from(payloads))
            case 5:
                changed[draw(st.sampled_from([*changed, "documentId"]))] = draw(JSON)
            case 6:
                payload[draw(st.sampled_from(fields))] = draw(NUMBERS)
    return changed


def spoiled(data: bytes, draw: st.DrawFn) -> bytes:
    """Return bytes with a change at one place."""
    at = draw(st.integers(0, len(data)))
    what = draw(st.sampled_from(["cut", "insert", "overwrite", "repeat"]))
    piece = draw(
        st.binary(min_size=1, max_size=4) | st.sampled_from([b"\xff", b"\x00", b"\n", b'"', b"{", b"[" * 3000])
    )
    if what == "cut":
        return data[:at]
    if what == "repeat":
        return data[:at] + data[max(0, at - 40) :]
    return data[:at] + piece + data[at + (len(piece) if what == "overwrite" else 0) :]
