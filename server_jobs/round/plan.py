"""The work of a round as plain values that travel to every task: the files, and the rules for their pings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.enrolment import Assignment, hash_assignment, is_selected, staged_for, uuid_texts
from fedping.protocol.landing import SHARDS
from fedping.protocol.limits import Limits
from fedping.protocol.outcomes import NumericOutcome
from fedping.protocol.ping import DOCUMENT_TYPES, DocumentName, DocumentType
from fedping.protocol.study import Line, Study
from fedping.protocol.upload import Receiving, receiving
from fedping.server_jobs.privacy.keys import Coins

ROWS_PER_TASK = 4_000_000
"""Rows of a task. It keeps about 100 bytes of each, without the update: 400 MB in all.

This holds if clients are spread evenly; `fedping.server_jobs.round.shard` bounds a task if they are not.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSide:
    """One side of a version's stage: the clients that get it first if ``inside``, else the others.

    ``share`` and ``iteration`` are those of `fedping.protocol.enrolment.staged_for`.
    """

    study: str
    line: str
    iteration: int
    share: float
    inside: bool

    def of(self, ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which clients are on this side, shape (k,); ids are bytes, shape (k, 16)."""
        texts = (text.decode() for text in uuid_texts(ids))
        staged = [staged_for(self.study, self.line, self.iteration, self.share, text) for text in texts]
        mask: NDArray[np.bool_] = np.array(staged, np.bool_) == self.inside
        return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """The clients that participate in a version, by `fedping.protocol.enrolment.is_selected`."""

    study: str
    line: str
    share: float

    def of(self, ids: NDArray[np.uint8], versions: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which of k clients participate in the version that each has sent; ids are bytes, shape (k, 16)."""
        pairs = zip(uuid_texts(ids), versions.tolist(), strict=True)
        selected = [is_selected(self.study, self.line, version, self.share, text.decode()) for text, version in pairs]
        return np.array(selected, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the pings of one version count.

    Attributes:
        line: the line that they train.
        iteration: the version that they were made with.
        arms: the arms that follow the line.
        submits: for each arm, whether its updates train the line.
        pings: their type.
        bounded: whether pings are left out where they are too many.
        key: the round's secret, which decides whose pings are left out
            (`fedping.server_jobs.round.ping_filter.thinned`).
        bound: the norm at which updates are clipped, if an earlier round has left it.
        measures: whether this pass only measures updates, to find the bound.
        sees: whether the influence of clients on the model is computed.
        salt: 16 bytes by which clients are recognised in later rounds; empty if they are not.
        dealt: the assignment of clients to arms; None if pings are believed.
        limits: the study's; None without any.
        side: the side of a stage whose clients count; None if all clients of the line count.
        coins: the sample of a private line's clients; None if all of them count.
        among: for a private line, the document ids of the pings that may count, 16 bytes each; None if all may.
        shards: the number of shards of the clients, a power of two.
        turns: the clients whose updates count, where only some participate in a version.
        guarded: the outcome that the line's guardrail checks; None for none.
    """

    line: Line
    iteration: int
    arms: tuple[str, ...]
    submits: tuple[bool, ...]
    pings: DocumentName
    bounded: bool = True
    key: bytes = b""
    bound: float | None = None
    measures: bool = False
    sees: bool = False
    salt: bytes = b""
    dealt: Assignment | None = None
    limits: Limits | None = None
    side: StageSide | None = None
    coins: Coins | None = None
    among: bytes | None = None
    shards: int = SHARDS
    turns: Participation | None = None
    guarded: NumericOutcome | None = None

    @property
    def m(self) -> int:
        """The number of weights."""
        return self.line.spec.m

    @property
    def document(self) -> DocumentType:
        """The type of the pings."""
        return DOCUMENT_TYPES[self.pings]

    @property
    def links(self) -> Receiving:
        """The server's ends of the line's upload links."""
        return receiving(self.line)


def rules_for(study: Study, line: str, iteration: int, *, key: bytes) -> Rules:
    """Return the rules of one version of a line by its settings; ``key`` as in :class:`Rules`."""
    following = [arm for arm in study.arms if arm.line == line]
    return Rules(
        line=study.line(line),
        iteration=iteration,
        arms=tuple(arm.name for arm in following),
        submits=tuple(arm.submits for arm in following),
        pings=study.pings,
        key=key,
        dealt=hash_assignment(study),
        limits=study.limits,
        shards=study.shards,
        turns=_turns(study, line),
        guarded=study.guarded_outcome(study.line(line)),
    )


def _turns(study: Study, line: str) -> Participation | None:
    share = study.line(line).participation
    return None if share >= 1 else Participation(study=study.name, line=line, share=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateFile:
    """A landed file of a version that is ``age`` versions older than the round's own.

    If it is ``done``, an earlier round has used it; it is read only to find its pings again in later files.
    """

    path: str
    age: int
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The pings of one version, and the rules for them.

    Attributes:
        paths: the landed files of the version, in the order of their names.
        rows: the number of pings in all files.
        rules: how the pings count.
        late: files of older versions whose pings count too, in the order in which they are read.
        digests: digests of the listed files, by path; a file that has replaced a listed one is not read.
    """

    paths: tuple[str, ...]
    rows: int
    rules: Rules
    late: tuple[LateFile, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)


def tasks_for(work: Work, workers: int) -> list[tuple[int, ...]]:
    """Return the shards of each task: one task a worker, more if a task would be too large, at most one a shard.

    Every task reads the files that are not laid out in shards, so there are no more tasks than needed.
    """
    shards, wanted = work.rules.shards, max(workers, -(-work.rows // ROWS_PER_TASK))
    return [tuple(part.tolist()) for part in np.array_split(np.arange(shards), min(wanted, shards))]
