"""What a study's arms may send, looked up once a study and applied to every ping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from protocol.documents import DocumentType
from protocol.ping import NO_VERSION, UpdatePayload
from protocol.study import Study
from server_jobs.ingest.admission.decoding import DECODINGS, Bounds, Decoding
from server_jobs.ingest.admission.rejection import Rejection

LookFrom: TypeAlias = Callable[[int], int]
"""Returns the newest version of a line, given one that is known to exist."""


class LineHead:
    """The newest version of a line, as last looked up; ``latest`` looks again."""

    def __init__(self, known: int, look_from: LookFrom) -> None:
        self.known = known
        self._look_from = look_from

    def latest(self) -> int:
        """Return the number of the newest version that is published at this moment."""
        self.known = self._look_from(self.known)
        return self.known


@dataclass(frozen=True)
class ArmRule:
    """One arm: its line, that line's newest version, and how long an update has to be (None: no update at all)."""

    document: DocumentType
    study: str
    arm: str
    line: str | None
    head: LineHead | None
    m: int | None

    def check(self, payload: UpdatePayload) -> None:
        """Raise :class:`Rejection` if this arm does not send such a payload."""
        self._check_version(payload.model_version)
        update = payload.update
        if self.m is None:
            if update is not None:
                raise Rejection(
                    "update_not_expected",
                    f"arm '{self.arm}' of study '{self.study}' does not submit updates; send \"update\": null",
                )
        elif update is None:
            raise Rejection(
                "update_missing", f"arm '{self.arm}' of study '{self.study}' submits updates; send {self.m} numbers"
            )
        elif len(update) != self.m:
            raise Rejection(
                "update_length", f"the update has {len(update)} numbers and the model {self.m} weights; send {self.m}"
            )
        elif not self.document.examples_of(payload) and (payload.loss or any(update)):
            raise Rejection("update_not_zero", f"{self.document.nothing}, so loss and update have to be zero")

    def _check_version(self, version: int) -> None:
        """Refuse versions that nobody can have fetched: each would get a folder of its own.

        One beyond the newest is let through: it may be published by now, and a fetch may have been quicker than we.
        """
        if self.head is None:
            if version != NO_VERSION:
                raise Rejection(
                    "model_version", f"arm '{self.arm}' follows no model line, so its model_version is {NO_VERSION}"
                )
        elif version > self.head.known + 1 and version > self.head.latest() + 1:
            raise Rejection(
                "model_version",
                f"model_version {version} has not been published; the newest of line '{self.line}' is "
                f"{self.head.known}: report the version that was fetched",
            )


@dataclass(frozen=True)
class StudyRules:
    """A study as ingest sees it: how its documents are read, and its arms by name."""

    study: Study
    document: DocumentType
    decoding: Decoding
    arms: dict[str, ArmRule]
    heads: dict[str, LineHead]
    bounds: Bounds

    def check_kind(self, name: str, version: str) -> None:
        """Raise :class:`Rejection` if the study does not take this type and version of document."""
        taken = self.document
        if name != taken.name:
            raise Rejection(
                "unknown_type", f"study '{self.study.name}' takes documents of type {taken.name}; correct the path"
            )
        if version != taken.version:
            raise Rejection("unknown_version", f"{taken.name} has version {taken.version} only; correct the path")

    def admit(self, payload: UpdatePayload) -> ArmRule:
        """Return the rule of a payload's arm; raises :class:`Rejection` if it may not be sent."""
        rule = self.arms.get(payload.study_variation)
        if rule is None:
            raise Rejection(
                "unknown_arm",
                f"study '{self.study.name}' has no arm '{payload.study_variation}'; it has {', '.join(self.arms)}",
            )
        rule.check(payload)
        return rule


def study_rules(study: Study, heads: dict[str, LineHead]) -> StudyRules:
    """Return the rules of a study whose lines have these heads."""
    m = {line.name: line.spec.m for line in study.lines}
    arms = {
        arm.name: ArmRule(
            study.document,
            study.name,
            arm.name,
            arm.line,
            heads[arm.line] if arm.line else None,
            m[arm.line] if arm.line and arm.submits else None,
        )
        for arm in study.arms
    }
    decoding = DECODINGS[study.pings]
    return StudyRules(study, study.document, decoding, arms, heads, decoding.bounds(max(m.values(), default=0)))
