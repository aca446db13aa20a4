"""How an institution takes part in private lines: as one client, with secrets and noise that only its machine knows."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any
from uuid import UUID, uuid4

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedping.client_sim.joining.folder import Progress, StateFolder
from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.privacy import SYSTEM, Chance, Contributed, system_seeds
from fedping.protocol.draws import Keys
from fedping.protocol.privacy import ClippedFlat, LocalGaussian, Privacy, Signs, frame_of
from fedping.protocol.study import PublicLine


class OfThisMachine:
    """A :class:`fedping.client_sim.fleet.private_pings.Randomness`: all of it from the platform, but for one secret.

    A fleet's follows from keys of 64 bits, which could be tried.

    Args:
        secret: from which the ids follow, 32 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def secrets(self, roots: Keys) -> Sequence[bytes]:
        """See :meth:`Randomness.secrets`; there is one client."""
        return [self._secret] * len(roots)

    def chances(self, keys: Keys) -> Iterable[Chance]:
        """See :meth:`Randomness.chances`."""
        return repeat(SYSTEM, len(keys))

    def seeds(self, keys: Keys) -> Sequence[bytes]:
        """See :meth:`Randomness.seeds`."""
        return system_seeds(len(keys))

    def documents(self, keys: Keys) -> list[UUID]:
        """See :meth:`Randomness.documents`."""
        return [uuid4() for _ in range(len(keys))]


class Contributions:
    """How often an institution has contributed: a :class:`ClientStates` in its own record of how far it has come.

    What is saved is decided, and counts from :meth:`of` on, so that it is on disk before anything leaves the machine.
    """

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._decided: Contributed | None = None

    def load(self, clients: NDArray[np.integer[Any]]) -> State:
        """See :meth:`ClientStates.load`."""
        progress = self._folder.progress
        return {"times": np.array([progress.contributed]), "last": np.array([progress.moved])}

    def save(self, clients: NDArray[np.integer[Any]], state: State) -> None:
        """See :meth:`ClientStates.save`."""
        self._decided = Contributed(int(state["times"][0]), int(state["last"][0]))

    def counted(self, progress: Progress) -> Progress:
        """Return progress with the contribution that was decided last."""
        assert self._decided is not None, "a ping of a private line was made"
        return structs.replace(progress, contributed=self._decided.times)


def drawn_delay(privacy: Privacy) -> float:
    """Return for how many seconds a ping is kept before it is sent, so that its moment tells nothing."""
    return secrets.SystemRandom().uniform(0.0, 60.0 * privacy.delay_minutes)


def promises(line: PublicLine) -> tuple[str, ...]:
    """Return in sentences what is sent to a private line, and for whom its guarantee is."""
    privacy = line.privacy
    assert privacy is not None
    return (*_contents(privacy, line), *_guarantees(privacy), *_unit(privacy), *_amounts(privacy))


def _contents(privacy: Privacy, line: PublicLine) -> tuple[str, ...]:
    d = len(frame_of(privacy, line.spec).group)
    match privacy.contribution:
        case Signs():
            what = "the sign of how far training moved each weight"
        case ClippedFlat(norm=norm):
            what = f"how far training moved the weights, shortened to {norm:g}"
        case _:
            what = "how far training moved the weights, each kind or layer shortened to a norm of its own"
    loss = f", and your loss within {privacy.loss[0]:g} and {privacy.loss[1]:g}" if privacy.local is None else ""
    if privacy.shared is not None:
        seen = "it is split in two, so that neither the operator nor the helper can read it alone"
    elif privacy.local is not None:
        seen = "this machine adds noise before it sends it"
    else:
        seen = "the operator can read it, and deletes it after the round"
    return (f"line '{line.name}' is private: what is sent is {what}, {d:,} whole numbers{loss}; {seen}",)


def _guarantees(privacy: Privacy) -> tuple[str, ...]:
    found = []
    if (central := privacy.central) is not None:
        found.append(
            f"what is published gives away hardly more than if you had not taken part: epsilon {central.epsilon:g}, "
            f"delta {central.delta:g}, over all {central.rounds:,} rounds together, as the operator promises"
        )
    if (local := privacy.local) is not None:
        delta = f", delta {local.delta:g}" if isinstance(local, LocalGaussian) else ""
        found.append(f"whoever reads a ping of yours learns hardly more: epsilon {local.epsilon:g}{delta} a ping")
    if not found:
        found.append("nothing limits what sums over all clients give away: the line adds no noise")
    return tuple(found)


def _unit(privacy: Privacy) -> tuple[str, ...]:
    """Return for whom a guarantee is: it is about clients, and here a client is a table of many persons."""
    if privacy.central is None and privacy.local is None:
        return ()
    persons = "epsilon of a single person in your table is at most"
    if privacy.local is not None and privacy.central is None:
        told = f"{persons} the same, and adds up over the tables that the person is in"
    else:
        told = f"{persons} twice that of the operator's promise, and adds up over the tables that the person is in"
    return (f"the guarantee is for this institution as a whole, which counts as one client; {told}",)


def _amounts(privacy: Privacy) -> tuple[str, ...]:
    most = (
        f"at most {privacy.contributions:,} pings in all"
        if privacy.contributions is not None
        else "one ping a version, without an end"
        if privacy.central is None
        else "one ping a version"
    )
    return (f"{most}, each under another id, and up to {privacy.delay_minutes:g} minutes late by lot",)
