"""What a round has to do, as plain values that travel to every task: which files, and by which rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.enrolment import Assignment, hash_assignment, is_selected, staged_for, uuid_texts
from fedping.protocol.landing import SHARDS
from fedping.protocol.limits import Limits
from fedping.protocol.ping import DOCUMENT_TYPES, DocumentName, DocumentType
from fedping.protocol.study import Line, Study
from fedping.protocol.upload import Receiving, receiving
from fedping.server_jobs.privacy.sampling_key import Coins

ROWS_PER_TASK = 4_000_000
"""A task keeps about 100 bytes of each of its rows, all but the update: this many take 400 MB.

That is where clients are spread evenly. What bounds a task where they are not: `fedping.server_jobs.round.shard`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSide:
    """One side of the stage of a version: who got it first if ``inside``, else who did not.

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
        found: NDArray[np.bool_] = np.array(staged, np.bool_) == self.inside
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """Which clients have drawn a version to send updates of, by `fedping.protocol.enrolment.is_selected`."""

    study: str
    line: str
    share: float

    def of(self, ids: NDArray[np.uint8], versions: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which of k clients have drawn the version that each has sent of; ids are bytes, shape (k, 16)."""
        pairs = zip(uuid_texts(ids), versions.tolist(), strict=True)
        drawn = [is_selected(self.study, self.line, version, self.share, text.decode()) for text, version in pairs]
        return np.array(drawn, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the pings of one version are judged.

    ``line`` is the line that they train, ``iteration`` the version that they were made with, ``pings`` their type.
    ``arms`` are the arms that follow the line, and ``submits`` says of each whether its updates train it. ``bounded``
    says whether pings are left out where they are too many, and ``key`` is the round's secret: from it follow the lots
    that say whose (`fedping.server_jobs.round.capacity`). ``bound`` is the norm at which updates are clipped, where the
    line has carried it on; if it ``measures``, the round has to find it first, and does nothing else. ``dealt`` is by
    what arms are dealt; None where pings are believed. ``limits`` are the study's; None without any.
    ``sees`` tells whether it is looked at who moves the model, and ``salt``, 16 bytes, by what clients are known again;
    empty if they are not. ``side`` is which clients of a stage count; all of the line's where None. ``coins`` say which
    clients of a private line count; None if all do. ``among`` are the document ids, 16 bytes each, of the only pings of
    such a line that count; None if all may. ``shards`` is into how many the clients are divided, a power of two.
    ``turns`` say whose updates count where clients draw who takes part.
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


def rules_for(
    study: Study,
    line: str,
    iteration: int,
    *,
    key: bytes,
    bounded: bool = True,
    bound: float | None = None,
    coins: Coins | None = None,
    among: bytes | None = None,
) -> Rules:
    """Return the rules of one version of a line; the others as in :class:`Rules`."""
    following = [arm for arm in study.arms if arm.line == line]
    return Rules(
        line=study.line(line),
        iteration=iteration,
        arms=tuple(arm.name for arm in following),
        submits=tuple(arm.submits for arm in following),
        pings=study.pings,
        bounded=bounded,
        key=key,
        bound=bound,
        dealt=hash_assignment(study),
        limits=study.limits,
        coins=coins,
        among=among,
        shards=study.shards,
        turns=_turns(study, line),
    )


def _turns(study: Study, line: str) -> Participation | None:
    share = study.line(line).participation
    return None if share >= 1 else Participation(study=study.name, line=line, share=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateFile:
    """A landed file of a version that is ``age`` versions older than the round's own.

    If it is ``done``, an earlier round has used it: it is read only to know its pings again in files that came later.
    """

    path: str
    age: int
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The pings of one version: the landed files in the order of their names, their rows in all, how to judge them.

    ``late`` are files of older versions whose pings count too, in the order in which they are read. ``digests`` are
    those of the files that were listed, by path: another file in the place of one is not read.
    """

    paths: tuple[str, ...]
    rows: int
    rules: Rules
    late: tuple[LateFile, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)


def tasks_for(work: Work, workers: int) -> list[tuple[int, ...]]:
    """Return the shards of each task: as many tasks as workers, more if a task would be too large, at most one a shard.

    Not more than that, because every task reads the files that are not laid out in shards.
    """
    shards, wanted = work.rules.shards, max(workers, -(-work.rows // ROWS_PER_TASK))
    return [tuple(part.tolist()) for part in np.array_split(np.arange(shards), min(wanted, shards))]
