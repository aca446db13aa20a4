"""The client's side of upload links, which turn trained updates into sent ones (`fedping.protocol.upload`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.model import Projections
from fedping.client_sim.learning.states import Kept
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.update import Payloads
from fedping.protocol.upload import Sending

RESIDUAL = "residual"
"""Name of the clients' state of error feedback, shape (m,) (`fedping.protocol.encodings.error_feedback`)."""

_EXACT = 1e-6
"""Maximum distance from 1 of a scale that counts as 1, since numbers are sent as float32."""


def first_state(links: Sending, m: int) -> State:
    """Return a client's initial state for the links and a model of m weights; empty if the links keep none."""
    first = {_name(place, name): np.asarray(value) for place, of in links.first.items() for name, value in of.items()}
    return first if links.read is None else first | {RESIDUAL: np.zeros(m, np.float32)}


def sent_updates(
    links: Sending,
    updates: NDArray[np.floating[Any]],
    keys: Keys,
    kept: Kept | None = None,
    counts: NDArray[np.bool_] | None = None,
) -> NDArray[np.floating[Any]] | Payloads:
    """Return updates of shape (k, m) as sent, after each link's client end in turn.

    Dense updates are returned as numbers, which the sender rounds to float32.

    Args:
        links: the client's ends (:func:`fedping.protocol.upload.sending`).
        updates: directions of descent.
        keys: a random key for each update, shape (k,); every link gets its own child keys.
        kept: the links' state of the clients, each of which occurs once; it is saved before this returns.
        counts: whether the server counts each update, shape (k,); all if None. Other clients' state is unchanged.

    Raises:
        ExtensionFailed: a user's link raises, or returns an invalid value.
        InvalidSettings: links keep a state with clients, but ``kept`` is None.
    """
    if not links.keeps_state:
        return _through(links, updates, keys, {})[0]
    if kept is None:
        raise InvalidSettings(KEEPS)
    before = kept.states.load(kept.clients)
    through = _through if links.read is None else _fed_back
    sent, after = through(links, updates, keys, before)
    some = np.arange(len(keys)) if counts is None else np.flatnonzero(counts)
    kept.states.save(kept.clients[some], {name: value[some] for name, value in after.items()})
    return sent


KEEPS = (
    "an upload link keeps state with each client between updates, as 'error-feedback' does, but these clients keep "
    "none. Remove the link, or run it in the laboratory, with 'fedping fleet' on examples, or with 'fedping join'"
)
"""Message about links that need a state, for clients without one."""


def refuse_state(links: Iterable[Sending]) -> None:
    """Raise :class:`InvalidSettings` if one of these links keeps a state, for clients that keep none."""
    if any(each.keeps_state for each in links):
        raise InvalidSettings(KEEPS)


def _through(
    links: Sending, updates: NDArray[np.floating[Any]], keys: Keys, state: State
) -> tuple[NDArray[np.floating[Any]] | Payloads, dict[str, NDArray[Any]]]:
    """Return the result of the links' client ends, and the links' new state."""
    after: dict[str, NDArray[Any]] = {}

    def done(place: int, end: Any, numbers: NDArray[np.floating[Any]]) -> Any:
        own = child_keys(keys, place)
        if place not in links.first:
            return end(numbers, own)
        result, left = end(numbers, own, {name: state[_name(place, name)] for name in links.first[place]})
        after.update({_name(place, name): np.asarray(value) for name, value in left.items()})
        return result

    for place, transform in enumerate(links.transforms):
        updates = done(place, transform, updates)
    if links.encode is None:
        return updates, after
    return Payloads(links.encoding, done(len(links.transforms), links.encode, updates)), after


def _fed_back(
    links: Sending, updates: NDArray[np.floating[Any]], keys: Keys, state: State
) -> tuple[NDArray[np.floating[Any]] | Payloads, dict[str, NDArray[Any]]]:
    """Return the sent part of updates plus earlier remainders, and the links' new state."""
    assert links.read is not None
    wanted = updates.astype(np.float64) + state[RESIDUAL]
    sent, after = _through(links, wanted, keys, state)
    seen = links.read(sent)
    scales = closest_scales(wanted, seen)
    if (np.abs(scales - 1) > _EXACT).any():
        sent, after = _through(links, wanted * scales[:, None], keys, state)
        seen = links.read(sent)
    return sent, after | {RESIDUAL: (wanted - seen).astype(np.float32)}


def closest_scales(wanted: FloatArray, seen: FloatArray) -> FloatArray:
    """Return the factor that brings each row of ``seen`` closest to the same row of ``wanted``, shape (k,).

    The factor is 1 if it differs from 1 only by rounding, or if no factor above zero exists.
    """
    along = np.einsum("km,km->k", wanted, seen)
    squares = np.einsum("km,km->k", seen, seen)
    scales: FloatArray = np.divide(along, squares, out=np.ones(len(seen)), where=(squares > 0) & (along > 0))
    return np.where(np.abs(scales - 1) > _EXACT, scales, 1.0)


def _name(place: int, name: str) -> str:
    return f"{place}/{name}"


def projections(links: Sending, keys: Keys, child: int) -> Projections | None:
    """Return the projections or factors for structured training within the links' output; None without it.

    Args:
        links: the client's ends.
        keys: a random key of each update, shape (k,).
        child: index of the child keys with which :func:`sent_updates` later encodes the updates.
    """
    structured = links.structured
    if structured is None:
        return None
    own = child_keys(child_keys(keys, child), len(links.transforms))
    return lambda at: structured.within(own[at])
