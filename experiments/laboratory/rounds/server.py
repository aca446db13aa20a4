"""The server's side of a run: one round after another, in memory, over landed files or over HTTP.

A round is the same in each: the clients' updates go to the server over a channel, are counted, and the server makes the
next version from them. Only the channel differs (``memory.py``, ``private.py``, ``landed.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedping.client_sim.learning import Diverged
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.resuming import Part
from fedping.experiments.laboratory.rounds.updates import Updates
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.update import size_of_updates


def diverged(reason: str) -> Diverged:
    """Return the error of a round whose weights no client could read; ``reason`` names one of these weights."""
    return Diverged(f"training has diverged: {reason}; lower the server's rate")


@dataclass(frozen=True)
class RoundReport:
    """The result of a round.

    Attributes:
        clients: number of clients with a used update.
        pings: number of their pings.
        loss: mean loss over their examples (thesis eq. 2); NaN without examples.
        stepped: whether the round published a version; False if there were too few clients.
        update_bytes: bytes of the updates as encoded.
        posted_bytes: bytes of the bodies of all pings.
        fetched_bytes: bytes of the versions that the clients fetched, one each.
        estimated: whether posted and fetched bytes are those of one ping and one version times their number.
    """

    clients: int
    pings: int
    loss: float
    stepped: bool
    update_bytes: int = 0
    posted_bytes: int = 0
    fetched_bytes: int = 0
    estimated: bool = False


class RoundTally:
    """Counts of the pings with examples, which are the pings that a round uses."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._oldest = pipeline.staleness.most if pipeline.staleness else 0
        self.clients, self.pings, self.update_bytes, self._loss, self._examples = 0, 0, 0, 0.0, 0
        self._posted_bytes = self._fetches = 0

    def add(self, block: Updates, posted_bytes: int) -> None:
        """Add a block whose pings had ``posted_bytes`` bytes; for outdated updates, only the bytes are counted."""
        self._posted_bytes += posted_bytes
        self._fetches += int((block.repeats == 0).sum()) + block.asked
        if block.age > self._oldest:
            return
        self.pings += int((block.examples > 0).sum())
        self.update_bytes += int(size_of_updates(block.updates)[block.examples > 0].sum())
        self.clients += int(((block.examples > 0) & (block.repeats == 0)).sum())
        self._loss += float((block.losses * block.examples).sum())
        self._examples += int(block.examples.sum())

    @property
    def loss(self) -> float:
        """The mean loss over the examples; NaN without examples."""
        return self._loss / self._examples if self._examples else float("nan")

    def report(self, stepped: bool, version_bytes: int) -> RoundReport:
        """Return the report of the round; each client fetched a version of ``version_bytes`` bytes."""
        traffic = (self.update_bytes, self._posted_bytes, self._fetches * version_bytes)
        return RoundReport(self.clients, self.pings, self.loss, stepped, *traffic)


class Rounds(Protocol):
    """The rounds of a model line, run one by one."""

    @property
    def weights(self) -> FloatArray:
        """The newest version as clients get it, shape (m,)."""
        ...

    @property
    def checkpoint(self) -> Part | None:
        """The part of a checkpoint that the rounds resume from; None if they start again after a kill."""
        ...

    def start_weights(self, versions: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Return the weights that clients train from, given the versions that they may hold, the newest first."""
        ...

    def measured(self) -> Mapping[str, Mapping[str, float]]:
        """Return metrics that only the rounds know, by split and name."""
        ...

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """Aggregate the clients' updates, and make the next version.

        Raises:
            Diverged: the step leads to weights that no client could read; there is no next version.
        """
        ...


class Delivered(NamedTuple):
    """A delivered block: the updates that reached the server, and the bytes of the bodies of their pings."""

    block: Updates
    posted_bytes: int


class Channel(Protocol):
    """The transport of a line's updates to the server and of its versions to the clients."""

    @property
    def weights(self) -> FloatArray:
        """The newest version as clients get it, shape (m,)."""
        ...

    @property
    def pipeline(self) -> Pipeline:
        """The settings of the line's rounds."""
        ...

    @property
    def checkpoint(self) -> Part | None:
        """See :attr:`Rounds.checkpoint`."""
        ...

    @property
    def spent(self) -> Mapping[str, float]:
        """The privacy budget spent so far, by guarantee; empty without one."""
        ...

    def begin(self) -> int:
        """Begin a round; return the bytes of the version that clients fetch."""
        ...

    def send(self, block: Updates) -> Delivered:
        """Deliver the pings of a block."""
        ...

    def step(self, clients: int) -> bool:
        """Make the next version from the delivered updates of ``clients`` clients; return False if they are too few.

        Raises:
            Diverged: no client could read the version; the newest version stays.
        """
        ...


class ServerRounds:
    """The rounds of a server over a channel; see :class:`Rounds`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def weights(self) -> FloatArray:
        """See :attr:`Rounds.weights`."""
        return self._channel.weights

    @property
    def checkpoint(self) -> Part | None:
        """See :attr:`Rounds.checkpoint`."""
        return self._channel.checkpoint

    def start_weights(self, versions: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Return the versions unchanged."""
        return versions

    def measured(self) -> Mapping[str, Mapping[str, float]]:
        """Return the privacy budget spent so far, if there is a guarantee."""
        spent = self._channel.spent
        return {"privacy": spent} if spent else {}

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """See :meth:`Rounds.run`.

        Raises:
            BrokenLink: the line's aggregation, optimizer or a constraint failed.
        """
        tally = RoundTally(self._channel.pipeline)
        version_bytes = self._channel.begin()
        for block in sent:
            tally.add(*self._channel.send(block))
        return tally.report(self._channel.step(tally.clients), version_bytes)
