"""Rounds in memory: the server's own round on arrays, without a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithms import steps_taken
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.resuming import Arrays, Part
from fedping.experiments.laboratory.rounds.server import Delivered, diverged
from fedping.experiments.laboratory.rounds.updates import Updates, fetched_bytes, posted_bytes
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.errors import sentences_with
from fedping.protocol.extensions import ExtensionFailed
from fedping.protocol.landing import SHARDS, shard_of
from fedping.protocol.links import name_of
from fedping.protocol.model import out_of_range
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import published_array
from fedping.protocol.study import Line
from fedping.protocol.update import Payloads
from fedping.protocol.upload import receiving
from fedping.server_jobs.optimize import BrokenLink, first_state
from fedping.server_jobs.optimize.transformation import States, broken_if_failed
from fedping.server_jobs.round import ArrayRound, Senders


class MemoryChannel:
    """Updates in memory, and the server's own round on arrays; see :class:`Channel`.

    Without randomness in the server, the results have the same bits as over files with one file per block. The
    exception is late updates of older versions, whose files are read before the newest version's.

    Args:
        line: the server's settings.
        ids: each client's id, which determines its shard, shape (clients, 16).
        seed: seed of the server's draws.
        shards: number of shards.
        most_examples: maximum number of examples that a ping counts for; None for no limit.
        groups: number of each client's group, shape (clients,), or -1 without one; None if no client has a group.
    """

    def __init__(
        self,
        line: Line,
        ids: NDArray[np.uint8],
        seed: int = 0,
        shards: int = SHARDS,
        most_examples: int | None = None,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        self._line, self._seed, self._number, self._most_examples = line, seed, 0, most_examples
        self._links = receiving(line)
        self._groups = np.full(len(ids), -1) if groups is None else groups
        self._ids, self._shards, self._count = ids, shard_of(ids, shards), shards
        self._exact: FloatArray = line.spec.start_array
        self._state = first_state(line)
        self._weights = published_array(line.spec, self._exact)
        self._round: ArrayRound

    @property
    def weights(self) -> FloatArray:
        """See :attr:`Channel.weights`."""
        return self._weights

    @property
    def exact(self) -> FloatArray:
        """The newest version before it is rounded for clients, shape (m,)."""
        return self._exact

    def continue_from(self, exact: FloatArray) -> None:
        """Make the next round start from other weights, shape (m,); the optimizer keeps its state."""
        self._publish(exact, self._state)

    @property
    def pipeline(self) -> Pipeline:
        """See :attr:`Channel.pipeline`."""
        return self._line.pipeline

    @property
    def checkpoint(self) -> Part | None:
        """The channel itself, which checkpoints save."""
        return self

    @property
    def spent(self) -> Mapping[str, float]:
        """See :attr:`Channel.spent`."""
        return {}

    def snapshot(self) -> Arrays:
        """Return the state to resume from: round number, weights and optimizer state."""
        state = {f"state/{link}/{name}": each for link, arrays in self._state.items() for name, each in arrays.items()}
        return {"number": np.array(self._number), "exact": self._exact, "weights": self._weights, **state}

    def restore(self, saved: Arrays) -> None:
        """Resume from a snapshot."""
        self._number, self._exact, self._weights = int(saved["number"]), saved["exact"], saved["weights"]
        state: dict[str, dict[str, FloatArray]] = {link: {} for link in self._state}
        for key, value in saved.items():
            if key.startswith("state/"):
                _, link, name = key.split("/", 2)
                state.setdefault(link, {})[name] = value
        self._state = state

    def begin(self) -> int:
        """See :meth:`Channel.begin`."""
        self._number += 1
        with self._named_round():
            self._round = ArrayRound(self._line, self._state, self._count)
        return fetched_bytes(self._line.spec.document_names, self._weights)

    def send(self, block: Updates) -> Delivered:
        """See :meth:`Channel.send`.

        Raises:
            BrokenLink: the line's aggregation or an upload link failed.
        """
        examples = block.examples if self._most_examples is None else block.examples.clip(max=self._most_examples)
        with self._named_round():
            self._round.add(
                self._shards[block.clients],
                self.received(block),
                examples=examples,
                pings=block.pings,
                clients=self._ids[block.clients],
                age=block.age,
                senders=self._senders(block),
            )
        return Delivered(block, posted_bytes(block))

    def _senders(self, block: Updates) -> Senders:
        return Senders(
            clients=block.clients,
            groups=self._groups[block.clients],
            ages=np.full(len(block.clients), block.age),
            examples=block.examples,
            steps=steps_taken(self._line.training, block.examples),
            seconds=block.seconds,
        )

    def step(self, clients: int) -> bool:
        """See :meth:`Channel.step`.

        Raises:
            BrokenLink: the line's aggregation, optimizer or a constraint failed.
        """
        if clients < self._line.pipeline.min_clients:
            return False
        with self._named_round():
            self._publish(*self._round.stepped(self._exact, self._state, self._key))
        return True

    def _named_round(self) -> AbstractContextManager[None]:
        """Add the round's number to the error of a broken link inside this context."""
        return sentences_with(f"round {self._number} failed: ", kind=BrokenLink)

    @property
    def _key(self) -> bytes:
        return hashlib.sha256(f"{self._seed} {self._number}".encode()).digest()

    def _publish(self, exact: FloatArray, state: States) -> None:
        """Set the weights and the state of the newest version."""
        weights = published_array(self._line.spec, exact)
        if beyond := out_of_range(weights, self._line.spec):
            raise diverged(beyond)
        self._exact, self._state, self._weights = exact, state, weights

    def received(self, block: Updates) -> NDArray[np.float32]:
        """Return the updates as the server decodes them, shape (k, m)."""
        payloads = block.updates
        if not isinstance(payloads, Payloads) and not self._links.undone:
            return payloads
        links, m = self._links, self._line.spec.m
        if isinstance(payloads, Payloads) and len(payloads):
            least, most = links.lengths(m)
            shortest, longest = int(payloads.sizes.min()), int(payloads.sizes.max())
            if shortest < least or longest > most:
                raise ExtensionFailed(  # ingest rejects such pings
                    f"the upload link '{links.encoding}' makes payloads of {shortest:,} to {longest:,} bytes, and its "
                    f"'lengths' says {least:,} to {most:,} for {m:,} weights; correct its two ends, so that they go "
                    "together"
                )
        column = payloads.column if isinstance(payloads, Payloads) else dense_payloads(payloads)
        with broken_if_failed():
            updates, ok = links.decode(column, m)
        if not ok.all():
            through = ", ".join(f"'{name_of(link)}'" for link in self._line.upload)
            raise ExtensionFailed(
                f"the server cannot read {int((~ok).sum()):,} of {len(ok):,} updates that clients have sent through "
                f"upload = {through}; correct the two ends of such a link, so that they go together"
            )
        return updates
