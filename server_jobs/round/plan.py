"""The work of a round as plain values, which are sent to every task: the files, and the rules for their pings."""

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
"""Maximum rows of a task. It keeps about 100 bytes per row, without the update: 400 MB in total.

This holds if clients are spread evenly; `fedping.server_jobs.round.shard` bounds a task if they are not.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSide:
    """One side of a version's stage: the clients that get the version first if ``inside``, else the others.

    ``share`` and ``iteration`` are arguments of `fedping.protocol.enrolment.staged_for`.
    """

    study: str
    line: str
    iteration: int
    share: float
    inside: bool

    def of(self, ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return a mask, shape (k,), of the clients on this side; ids are bytes, shape (k, 16)."""
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
        """Return a mask of clients that participate in their version in ``versions``; ids are bytes, shape (k, 16)."""
        pairs = zip(uuid_texts(ids), versions.tolist(), strict=True)
        selected = [is_selected(self.study, self.line, version, self.share, text.decode()) for text, version in pairs]
        return np.array(selected, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules that decide which pings of one version count.

    Attributes:
        line: the line that the pings train.
        iteration: the version of the pings.
        arms: the arms that follow the line.
        submits: for each arm, whether its updates train the line.
        pings: the type of the pings.
        bounded: whether pings are left out if there are too many.
        key: the round's secret, which determines whose pings are left out
            (`fedping.server_jobs.round.ping_filter.thinned`).
        bound: the norm at which updates are clipped, if known from an earlier round.
        measures: whether this pass only measures updates, to determine the bound.
        sees: whether the influence of clients on the model is computed.
        salt: 16 bytes by which clients are recognised in later rounds; empty if they aren't recognised.
        dealt: the assignment of clients to arms; None if the arm in a ping is trusted.
        limits: limits of the study; None without limits.
        side: the side of a stage whose clients count; None if all clients of the line count.
        coins: the sample of a private line's clients; None if all clients count.
        among: for a private line, the document ids of the pings that may count, 16 bytes each; None if all may.
        shards: the number of shards of the clients, a power of two.
        turns: the clients whose updates count, if only some participate in a version.
        guarded: the outcome that the line's guardrail checks; None without such an outcome.
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
    """Return the rules for one version of a line, from its settings. ``key`` is explained in :class:`Rules`."""
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
    """A landed file of a version that is ``age`` versions older than the round's version.

    If the file is ``done``, an earlier round used it; it is read only to recognise its pings in later files.
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
        rules: the rules for the pings.
        late: files of older versions whose pings count too, in the order in which they are read.
        digests: digests of the listed files, by path. A file with another digest, which replaced a listed file, isn't
            read.
    """

    paths: tuple[str, ...]
    rows: int
    rules: Rules
    late: tuple[LateFile, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)


def tasks_for(work: Work, workers: int) -> list[tuple[int, ...]]:
    """Return the shards of each task: one task per worker, more if tasks would be too large, at most one per shard.

    Every task reads all files that aren't laid out in shards, so the number of tasks is as small as possible.
    """
    shards, wanted = work.rules.shards, max(workers, -(-work.rows // ROWS_PER_TASK))
    return [tuple(part.tolist()) for part in np.array_split(np.arange(shards), min(wanted, shards))]
