"""Admission of pings: each study's rules, and a catalogue of studies that is updated from the store.

Rules are built once per study. The catalogue and the lines' newest versions are updated without a request to the
store for each ping.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UnsetType

from fedping.model_store import ModelStore
from fedping.protocol.enrolment import Assignment, hash_assignment
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import ExtensionFailed
from fedping.protocol.limits import Limits, UpdateLimits
from fedping.protocol.links import OwnLink, PrivateVector, SharedVector, Upload
from fedping.protocol.local_files import file_stamp
from fedping.protocol.model import Staged
from fedping.protocol.outcomes import Outcome, linked_id
from fedping.protocol.ping import (
    NO_VERSION,
    OUTCOME,
    DocumentType,
    OutcomePayload,
    Payload,
    Ping,
    UpdatePayload,
    column_of,
)
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.study import Declared, Study
from fedping.protocol.tickets import read_keys, validate_ticket
from fedping.protocol.training import may_send_nothing_from
from fedping.protocol.update import DENSE, EncodedUpdate
from fedping.protocol.upload import Receiving, receiving
from fedping.server_jobs.ingest.answers import Rejection, printable
from fedping.server_jobs.ingest.decoding import Bounds, Decoding, decoding_of
from fedping.server_jobs.ingest.settings import LOOK_COST, LOOKED_INTO

LookFrom: TypeAlias = Callable[[int], int]
"""Function that returns the newest version of a line, given an existing version."""

LOOK_PAUSE = 0.01
"""Minimum seconds between two reads of a store for unknown versions, per worker and line. It bounds the cost of a
flood of pings that name unknown versions."""

AFAR_PAUSE = 0.1
"""Value of :data:`LOOK_PAUSE` for a store in a bucket."""

ANSWERS_WITHIN = 1.0
"""Maximum seconds that a request for the newest version waits for a bucket. After that, it gets the last known
version."""

SETTLES_WITHIN = 5.0
"""Maximum seconds that a request with an unknown version or study waits for a bucket."""


class LineHead:
    """The newest version of a line, as last read from the store; ``latest`` reads it again.

    Args:
        known: number of the newest version.
        look_from: returns the newest version, given an existing version.
        see_store: raises StoreError or OSError if the store is unreachable; otherwise a missing store would look like a
            missing version.
        look_at_stage: returns the staged version, given the newest version.
        rest: seconds for which :meth:`latest` and :meth:`staged` reuse the last result; 0 for a store in a folder. A
            bucket is read in a thread, one read at a time, so that requests don't wait for an unreachable bucket.
            Unknown versions in pings always cause a read.
    """

    def __init__(
        self,
        known: int,
        look_from: LookFrom,
        see_store: Callable[[], object] = lambda: None,
        look_at_stage: Callable[[int], Staged | None] = lambda known: None,
        rest: float = 0.0,
    ) -> None:
        self.known = known
        self._rest = rest
        self._staged: Staged | None = None
        self._look_at_stage = look_at_stage
        self._handed_out = known
        self._look_from = look_from
        self._see_store = see_store
        self._looking = threading.RLock()
        self._looked = 0.0
        self._beside: _Look | None = None
        self._beside_lock = threading.Lock()

    def latest(self) -> int:
        """Return the number of the newest published version.

        It decreases if an older copy of the store was restored, and doesn't change while the store is unreachable.
        """
        if self._rest:
            look = self._look_of(lambda last: last.age < self._rest)
            look.ended.wait(max(0.0, ANSWERS_WITHIN - look.age))
            return self.known
        with self._looking:  # otherwise an earlier read, which found less, might be the last to end
            return self._look()

    def _look(self) -> int:
        found = self._look_from(self.known)
        if found >= self.known or self._is_there():  # a store that is away looks like an empty one
            if self._rest and found != self.known:
                self._staged = None
            self.known = found
        return self.known

    def staged(self) -> Staged | None:
        """Return the staged version after the newest version of :meth:`latest`; None without a staged version."""
        return self._staged if self._rest else self._see_stage()

    def _see_stage(self) -> Staged | None:
        self._staged = self._look_at_stage(self.known)
        if self._staged is not None:
            self._handed_out = self._staged.iteration
        return self._staged

    def _look_of(self, will_do: Callable[[_Look], bool], wanted: int | None = None) -> _Look:
        """Return the read in progress, the last read if it ``will_do``, or a new read."""
        with self._beside_lock:
            last = self._beside
            if last is None or (last.ended.is_set() and not will_do(last)):
                pause = 0.0 if last is None else max(0.0, last.ended_at + AFAR_PAUSE - time.monotonic())
                last = self._beside = _Look(wanted)
                threading.Thread(target=self._look_beside, args=(last, pause), name="look", daemon=True).start()
            return last

    def _look_beside(self, look: _Look, pause: float) -> None:
        try:
            time.sleep(pause)
            with self._looking:
                newest = self._look()
                with suppress(FedpingError, OSError):
                    self._see_stage()
                if look.wanted is not None and look.wanted > newest and not self.knows(look.wanted):
                    self._see_store()
        except (FedpingError, OSError) as error:
            look.trouble = error
        finally:
            look.ended_at = time.monotonic()
            look.ended.set()

    def knows(self, version: int) -> bool:
        """Return whether a version is known to be published or staged."""
        return version <= self.known or version == self._handed_out

    def _is_there(self) -> bool:
        try:
            self._see_store()
        except (FedpingError, OSError):
            return False
        return True

    def has(self, version: int, since_ms: int) -> bool:
        """Return whether a version that a client named at ``since_ms`` (milliseconds since 1970) existed at that time.

        A version is in the store before a client can fetch it. So one read that begins after ``since_ms`` decides,
        also for all other versions named before it: in the same batch, and in waiting requests.

        Raises:
            StoreError, OSError: the store can't be read.
        """
        if self._rest:
            self._look_afar(version, since_ms)
        elif not self.knows(version) and self._looked <= since_ms:
            with self._looking:
                if not self.knows(version) and self._looked <= since_ms:
                    time.sleep(min(LOOK_PAUSE, max(0.0, self._looked / 1000 + LOOK_PAUSE - time.time())))
                    begun = time.time() * 1000
                    if version > self.latest() and (self.staged() is None or not self.knows(version)):
                        self._see_store()
                    self._looked = begun
        return self.knows(version)

    def _look_afar(self, version: int, since_ms: int) -> None:
        """Wait for a read that began after ``since_ms``, unless the version is known; raise like :meth:`has`."""
        while not self.knows(version) and self._looked <= since_ms:
            look = self._look_of(lambda last: last.wanted is not None and last.began_ms > since_ms, version)
            if not look.ended.wait(max(0.0, SETTLES_WITHIN - look.age)):
                raise FedpingError("the store does not respond")
            if look.wanted is not None and look.began_ms > since_ms:
                if look.trouble is not None:
                    raise look.trouble
                self._looked = look.began_ms


class _Look:
    """A read of a store in a thread, with its start, end and error.

    ``wanted`` is an unknown version; a missing store is then an error.
    """

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.began_ms, self._began = time.time() * 1000, time.monotonic()
        self.ended, self.ended_at = threading.Event(), 0.0
        self.trouble: FedpingError | OSError | None = None

    @property
    def age(self) -> float:
        """Seconds since the read started."""
        return time.monotonic() - self._began


@dataclass(frozen=True)
class PingRule:
    """Settings of an arm, and the rule for all its pings: their version must be published.

    Attributes:
        document: type of the arm's pings.
        study: name of the study.
        arm: name of the arm.
        line: name of the arm's line; None without a line.
        head: newest version of the line.
    """

    document: DocumentType
    study: str
    arm: str
    line: str | None
    head: LineHead | None

    def check(self, payload: Any, received_ms: int) -> None:
        """Raise :class:`Rejection` if the arm may not send this payload, received at a time (Unix ms)."""
        raise NotImplementedError

    def check_id(self, document_id: UUID, payload: Any) -> None:
        """Raise :class:`Rejection` if a ping's document id must follow from its payload and doesn't."""

    def kept(self, payload: Any) -> Any:
        """Return an admitted payload as it is stored."""
        return payload

    def _check_version(self, version: int, received_ms: int) -> None:
        """Reject pings of unpublished versions, because they would count in a later round."""
        if self.head is None:
            if version != NO_VERSION:
                raise Rejection(
                    "model_version", f"arm '{self.arm}' follows no model line, so its model_version is {NO_VERSION}"
                )
        elif not is_published(self.head, version, received_ms):
            raise Rejection(
                "model_version",
                f"model_version {version} has not been published; the newest version of line '{self.line}' is "
                f"{self.head.known}: send the version that was fetched",
            )


@dataclass(frozen=True)
class OutcomeRule(PingRule):
    """The rules of one arm's later outcomes.

    Attributes:
        outcomes: the declared later outcomes, by name.
    """

    outcomes: Mapping[str, Outcome]

    def check(self, payload: OutcomePayload, received_ms: int) -> None:
        """Raise :class:`Rejection` if the arm may not send this payload.

        The client reports the age of the outcome, by its own clock. The server's clock can't decide, because a ping
        about a timely outcome may wait on a device for days.
        """
        if self.head is None or not self.head.knows(payload.model_version):
            self._check_version(payload.model_version, received_ms)
        outcome = self.outcomes[column_of(payload)]
        if payload.age >= (outcome.hours or 0):
            raise Rejection(
                "outcome_late",
                f"the outcome '{outcome.name}' is {payload.age} hours after its choice, but study '{self.study}' "
                f"counts outcomes within {outcome.within}; do not send it",
                f"the outcome '{outcome.name}'",
            )
        if outcome.linked is isinstance(payload.choice, UnsetType):
            do = "send its document id as 'choice'" if outcome.linked else "remove 'choice'"
            raise Rejection(
                "outcome_choice",
                f"the outcome '{outcome.name}' of study '{self.study}' is {'' if outcome.linked else 'not '}linked to "
                f"its choice; {do}",
                f"the outcome '{outcome.name}'",
            )

    def check_id(self, document_id: UUID, payload: OutcomePayload) -> None:
        """Raise :class:`Rejection` unless a linked outcome has the document id that all its repetitions share."""
        if not isinstance(payload.choice, UnsetType) and document_id != linked_id(payload.choice, column_of(payload)):
            raise Rejection(
                "document_id",
                f"the document id of the outcome '{column_of(payload)}' is not derived from its choice and its name, "
                "so a repetition could count twice; derive it as described in docs/conformance",
            )


@dataclass(frozen=True)
class ArmRule(PingRule):
    """The rules of one arm.

    Attributes:
        m: number of weights of an update; None if the arm sends no updates.
        leaves_out: whether updates of an arm without updates are dropped instead of rejected.
        links: server's ends of the line's upload links; None if updates are dense.
        lengths: minimum and maximum bytes of an encoded update.
        has_zero: whether an encoded update of zeros decodes to zeros.
        optional_from: first version for which clients may train without sending an update; None if no version allows
            this.
        limits: limits of the study.
        update_limits: limits of the line's updates.
    """

    m: int | None
    leaves_out: bool = False
    links: Receiving | None = None
    lengths: tuple[int, int] = (0, 0)
    has_zero: bool = False
    limits: Limits | None = None
    update_limits: UpdateLimits | None = None
    optional_from: int | None = None

    def check(self, payload: UpdatePayload, received_ms: int) -> None:
        """Raise :class:`Rejection` if the arm may not send this payload."""
        if self.head is None or not self.head.knows(payload.model_version):
            self._check_version(payload.model_version, received_ms)
        update = payload.update
        if self.m is None:
            if update is not None and not self.leaves_out:
                raise Rejection(
                    "update_not_expected",
                    f"arm '{self.arm}' of study '{self.study}' does not submit updates; send \"update\": null",
                )
        elif update is None:
            if self.optional_from is None or payload.model_version < self.optional_from:
                raise Rejection(
                    "update_missing", f"arm '{self.arm}' of study '{self.study}' submits updates; send {self._wanted}"
                )
        elif isinstance(update, EncodedUpdate):
            try:
                self._check_payload(payload, update)
            except ExtensionFailed as error:  # rejects the ping alone, not its batch
                raise Rejection(
                    "update_payload",
                    f"the upload link '{update.encoding}' of line '{self.line}' of study '{self.study}' cannot read "
                    "the payload of the update; correct the encoding",
                ) from error
        elif self.links is not None:
            raise self._other_encoding(f"an array of {len(update)} numbers")
        elif len(update) != self.m:
            raise Rejection(
                "update_length", f"the update has {len(update)} numbers and the model {self.m} weights; send {self.m}"
            )
        elif not self.document.examples_of(payload) and (self.document.loss_of(payload) or any(update)):
            raise Rejection("update_not_zero", f"{self.document.nothing}, so loss and update must be zero")
        elif self.update_limits is not None and (trouble := self.update_limits.trouble(update)):
            raise Rejection(
                "update_range", f"the update {trouble} in line '{self.line}' of study '{self.study}'; do not send it"
            )
        if self.limits is not None:
            rank = self.document.counted_in(payload) - self.document.top if self.document.ranked else -1
            if trouble := self.limits.trouble(self.document.loss_of(payload), rank):
                raise Rejection("beyond_limits", f"the {trouble} in study '{self.study}'; do not send the ping")

    def kept(self, payload: UpdatePayload) -> UpdatePayload:
        """Return an admitted payload as it is stored: without the update if the arm sends none."""
        if self.m is None and payload.update is not None:
            return msgspec.structs.replace(payload, update=None)
        return payload

    def _check_payload(self, payload: UpdatePayload, update: EncodedUpdate) -> None:
        """Reject an encoded update that a round couldn't read. Its values aren't decoded."""
        assert self.m is not None
        if self.links is None or update.encoding != self.links.encoding:
            raise self._other_encoding(f"encoded as '{update.encoding}'")
        size, (least, most) = len(update.payload), self.lengths
        if not least <= size <= most:
            needed = f"{least}" if least == most else f"{least} to {most}"
            raise Rejection(
                "update_length",
                f"the payload of the update has {size} bytes, but '{update.encoding}' needs {needed} for the model's "
                f"{self.m} weights; send {needed}",
            )
        if trouble := self.links.trouble(update.payload, self.m):
            raise Rejection("update_payload", f"the payload of the update {trouble}; correct how it is encoded")
        if not self.document.examples_of(payload):
            if self.has_zero and (self.document.loss_of(payload) or not self._is_zero(update.payload)):
                raise Rejection("update_not_zero", f"{self.document.nothing}, so loss and update must be zero")
            if self.document.loss_of(payload):
                raise Rejection("update_not_zero", f"{self.document.nothing}, so the loss has to be zero")

    def _is_zero(self, payload: bytes) -> bool:
        """Return whether a payload, which is decoded, is an update of zeros. Only pings without examples need this."""
        import pyarrow as pa

        assert self.links is not None
        assert self.m is not None
        update, ok = self.links.decode(pa.array([payload], pa.binary()), self.m)
        return bool(ok[0]) and not update.any()

    def _other_encoding(self, sent: str) -> Rejection:
        return Rejection(
            "update_encoding",
            f"the update is {sent}, which line '{self.line}' of study '{self.study}' does not take; send "
            f"{self._wanted}, as the study's 'upload' says",
        )

    @property
    def _wanted(self) -> str:
        if self.links is None:
            return f"{self.m} numbers"
        return f'{{"encoding": "{self.links.encoding}", "payload": "<base64>"}}'


def is_published(head: LineHead, version: int, received_ms: int) -> bool:
    """Return whether a version exists (:meth:`LineHead.has`); raise :class:`Rejection` if the store is unreachable."""
    try:
        return head.has(version, received_ms)
    except (FedpingError, OSError) as error:
        raise Rejection(
            "version_unseen", f"the server cannot check now whether version {version} exists; send it again"
        ) from error


@dataclass(frozen=True)
class StudyRules:
    """A study's rules for pings of one type: decoders, arms by name, and the lines' newest versions.

    ``outcomes`` has the rules for later outcomes; None without any.
    """

    study: Study
    document: DocumentType
    decoding: Decoding
    arms: Mapping[str, PingRule]
    heads: dict[str, LineHead]
    bounds: Bounds
    dealt: Assignment | None = None
    keys: TicketKeys | None = None
    outcomes: StudyRules | None = None

    def of_kind(self, name: str, version: str | None) -> StudyRules:
        """Return the rules for a document type and version; raises :class:`Rejection` if the study rejects it."""
        rules = self.outcomes if name == OUTCOME.name and self.outcomes is not None and version is not None else self
        rules.check_kind(name, version)
        return rules

    def most_lines(self, most: int) -> int:
        """Return the maximum number of lines of a batch, at most ``most``; encoded updates take long to read."""
        weights = self.bounds.look // LOOK_COST
        return min(most, LOOKED_INTO // weights) if weights else most

    def check_kind(self, name: str, version: str | None) -> None:
        """Raise :class:`Rejection` if the study has another document type or version; None matches any version."""
        taken = self.document
        if name != taken.name:
            none = " and declares no later outcome" if name == OUTCOME.name else ""
            raise Rejection(
                "unknown_type",
                f"study '{self.study.name}' accepts documents of type {taken.name}{none}; send them to {self._path}",
            )
        if version not in (taken.version, None):
            raise Rejection(
                "unknown_version", f"{taken.name} has only version {taken.version}; send it to {self._path}"
            )

    @property
    def _path(self) -> str:
        """The path for pings of the study."""
        return f"/submit/{self.study.name}/{self.document.name}/{self.document.version}/<document id>"

    def is_settled(self, payload: Payload) -> bool:
        """Return whether :meth:`admit` decides without a read of the store, which may be slow."""
        rule = self.arms.get(payload.study_variation)
        return rule is None or rule.head is None or rule.head.knows(payload.model_version)

    def admit(self, ping: Ping, received_ms: int) -> PingRule:
        """Return the rule of a ping's arm; raise :class:`Rejection` if the ping isn't allowed.

        Args:
            ping: the received ping.
            received_ms: time of receipt, in milliseconds since 1970.
        """
        payload = ping.payload
        rule = self.arms.get(payload.study_variation)
        if rule is None:
            raise Rejection(
                "unknown_arm",
                f"study '{self.study.name}' has no arm '{payload.study_variation}'; it has {', '.join(self.arms)}",
            )
        if self.study.is_private and not isinstance(ping.ticket, UnsetType):
            raise Rejection(
                "not_a_ping",
                f"study '{self.study.name}' is private, and a ticket would identify the client; send the ping "
                "without it",
            )
        if self.keys is not None:
            self.keys.check(self.study.name, ping, received_ms / 1000)
        rule.check(payload, received_ms)
        if self.dealt is not None and self.dealt.arm_of(ping.client_id) != rule.arm:
            raise Rejection(
                "not_enrolled",
                f"this client id is not assigned to arm '{rule.arm}' of study '{rule.study}'; send the arm that the "
                "hash of the id assigns ('fedping study arm'), or do not take part if there is none",
            )
        return rule


class TicketKeys:
    """Keys that verify tickets, updated from their file.

    Raises:
        FedpingError: the file can't be read, or isn't a file of keys.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = file_stamp(path)
        self._keys = {key.name: key for key in read_keys(path)}

    def refresh(self) -> None:
        """Read the file again if it has changed. On failure, raise :class:`FedpingError` and keep the known keys."""
        if (seen := file_stamp(self._path)) != self._seen:
            self._keys = {key.name: key for key in read_keys(self._path)}
            self._seen = seen

    def check(self, study: str, ping: Ping, now: float) -> None:
        """Raise :class:`Rejection` if a ping has no valid ticket; ``now`` is in seconds since 1970."""
        if isinstance(ping.ticket, UnsetType):
            raise Rejection(
                "ticket_missing",
                f"study '{study}' needs a ticket, and the ping has none; send the product's ticket",
            )
        if trouble := validate_ticket(self._keys, study, ping.client_id, ping.ticket, now):
            what = "is too old" if trouble == "expired" else "is not one for this client id"
            raise Rejection(f"ticket_{trouble}", f"the ticket {what}; ask the product for a new one")


def study_rules(study: Study, heads: dict[str, LineHead], keys: TicketKeys | None = None) -> StudyRules:
    """Return a study's rules, given the heads of its lines, and the keys that verify tickets, if any.

    Raises:
        InvalidSettings: the server's end of an upload link isn't installed, or the study requires tickets and no keys
            are given.
    """
    if study.tickets != "required":
        keys = None
    elif keys is None:
        raise InvalidSettings("it needs tickets; start ingest with --ticket-keys")
    m = {line.name: line.spec.m for line in study.lines}
    links = {line.name: receiving(line) for line in study.lines}
    encoded = {name: (found, found.lengths(m[name])) for name, found in links.items() if found.encoding != DENSE}
    # Limits hold for the update itself. Where rounds undo links of each update, the sent values are not the update.
    judged = {line.name: None if links[line.name].undone else line.limits for line in study.lines}
    arms = {
        arm.name: ArmRule(
            study.document,
            study.name,
            arm.name,
            arm.line,
            heads[arm.line] if arm.line else None,
            m[arm.line] if arm.line and (arm.submits or study.is_private) else None,
            study.unwanted_updates == "leave_out",
            links=encoded[arm.line][0] if arm.line in encoded else None,
            lengths=encoded[arm.line][1] if arm.line in encoded else (0, 0),
            has_zero=arm.line in encoded and _has_zero(study.line(arm.line).upload),
            limits=study.limits,
            update_limits=judged[arm.line] if arm.line else None,
            optional_from=may_send_nothing_from(study.line(arm.line).training) if arm.line and arm.personal else None,
        )
        for arm in study.arms
    }
    decoding = decoding_of(study.document)
    longest = max((most for _, (_, most) in encoded.values()), default=0)
    look = LOOK_COST * max((m[line] for line in encoded), default=0)
    bounds = decoding.bounds(max(m.values(), default=0), longest, look, telemetry=study.telemetry)
    dealt = hash_assignment(study)
    outcomes = _outcome_rules(study, heads, dealt, keys)
    return StudyRules(study, study.document, decoding, arms, heads, bounds, dealt, keys, outcomes)


def _outcome_rules(
    study: Study, heads: dict[str, LineHead], dealt: Assignment | None, keys: TicketKeys | None
) -> StudyRules | None:
    """Return the rules of a study's later outcomes; None if it declares none."""
    if (document := study.later_outcomes) is None:
        return None
    declared = {outcome.name: outcome for outcome in document.outcomes}
    arms = {
        arm.name: OutcomeRule(
            document, study.name, arm.name, arm.line, heads[arm.line] if arm.line else None, outcomes=declared
        )
        for arm in study.arms
    }
    decoding = decoding_of(document)
    return StudyRules(study, document, decoding, arms, heads, decoding.bounds(0), dealt, keys)


def _has_zero(upload: Upload) -> bool:
    """Return whether an encoded update of zeros decodes to zeros.

    It doesn't if a link encodes zero as a positive number. The result is also False for links of users, whose
    behaviour is unknown, for private vectors, which contain more than an update, and for sealed shares.
    """
    unread = OwnLink | PrivateVector | SharedVector
    return not any(isinstance(link, unread) or getattr(link, "zero", "") == "up" for link in upload)


MISS_PAUSE = 0.1
"""Minimum seconds between two reads of the store for an unknown study."""

LOOK_REST = 1.0
"""Seconds for which the newest version read from a bucket is reused. A request takes as long as a hundred pings and
costs money."""

AFAR_EVERY, NEAR_EVERY = 5.0, 1.0
"""Seconds between two updates from a store: in a bucket, where each request costs money, and in a folder."""

TELEMETRY = "telemetry"
"""Namespace of Firefox' own pings, whose paths name no study."""


def telemetry_of(document: str) -> str:
    """Return a catalogue's name for the study that accepts a document type as telemetry."""
    return f"{TELEMETRY}/{document}"  # not a valid name of a study


def _about(error: FedpingError, what: str) -> str:
    """Return the sentence of an error, with ``what`` in front if settings are invalid."""
    return f"{what}: {error}" if isinstance(error, InvalidSettings) else str(error)


class Catalogue:
    """All studies of a store: their rules, their declared states, and the helpers' offers for two-server lines.

    A study is read when it is new and when its settings have changed; state and offers are read at every refresh. A
    known study stays known, so that no ping is lost while the store is unreachable. A study can't be served if it is
    damaged, needs an extension that isn't installed, or was written by a later version. Then only its own pings have
    to be retried; other studies aren't affected.

    Args:
        store: the store of the studies.
        patient: whether to start without a readable store.
        ticket_keys: file with the keys of tickets; None without tickets.

    Attributes:
        trouble: a sentence about an error of the store or of a study; None without one.
        unusable: a sentence for each study that can't be served, by its name.

    Raises:
        StoreError: the store can't be read; with ``patient``, :attr:`trouble` reports it instead.
        FedpingError: there are studies, but none can be served; with ``patient``, :attr:`trouble` reports this too.
    """

    def __init__(self, store: ModelStore, *, patient: bool = False, ticket_keys: Path | None = None) -> None:
        self._store = store
        self._keys = None if ticket_keys is None else TicketKeys(ticket_keys)
        self._rules: dict[str, StudyRules] = {}
        self._entries: dict[str, int] = {}
        self._declared: dict[str, Declared] = {}
        self._offers: dict[str, dict[str, Offer]] = {}
        self._telemetry: dict[str, StudyRules] = {}
        self._refreshing, self._beginning = threading.Lock(), threading.Lock()
        self._begun, self._ended = 0.0, threading.Event()
        self._ended.set()
        self._refreshed = 0.0
        self.trouble: str | None = None
        self.unusable: dict[str, str] = {}
        if patient:
            self.refresh()
            return
        self._read()
        if self.unusable and not self._rules:
            raise FedpingError(next(iter(self.unusable.values())))

    def rules(self, study: str) -> StudyRules:
        """Return the rules of a study without reading the store; raise :class:`Rejection` if the study is unknown."""
        found = self._known(study)
        if found is not None:
            return found
        if study in self.unusable:
            raise Rejection("study_unreadable", f"the server cannot read the study '{study}' now; send it again later")
        if study.startswith(telemetry_of("")):
            raise Rejection(
                "unknown_study",
                f"paths of {TELEMETRY} name no study, and this server does not have exactly one study for "
                f"{printable(study.partition('/')[2])} pings as telemetry; {self._there()}",
            )
        raise Rejection("unknown_study", f"unknown study '{printable(study)}'; {self._there()}")

    def _there(self) -> str:
        """Return the remedy for a path without a known study. It names no studies, because anyone may send requests."""
        if not self.names():
            return "this server has no study yet: its operator creates one with 'fedping study create FILE'"
        return "put the name of one of this server's studies into the path; its operator knows them"

    def _known(self, study: str) -> StudyRules | None:
        return self._rules.get(study) or self._telemetry.get(study)

    def taking(self, study: str) -> StudyRules:
        """Return the rules of a study that accepts pings; raise :class:`Rejection` if it is unknown or has ended."""
        rules = self.rules(study)
        if self.declared(rules.study.name).state == "ended":
            raise Rejection(
                "study_ended", (f"study '{rules.study.name}' has ended and accepts no more pings; stop sending")
            )
        return rules

    def declared(self, study: str) -> Declared:
        """Return the declared state of a study as of the last refresh."""
        return self._declared.get(study, Declared())

    def offers(self, study: str) -> Mapping[str, Offer]:
        """Return the helpers' offers for a study, by line, as of the last refresh."""
        return self._offers.get(study, {})

    def found(self, study: str) -> StudyRules:
        """Return a study's rules, after a refresh if it is unknown; raise :class:`Rejection` if it doesn't exist."""
        self.look_for(study)
        return self.rules(study)

    def look_for(self, study: str) -> None:
        """Refresh if a study is unknown, unless the last refresh was a moment ago."""
        pause = MISS_PAUSE if self._store.is_near else LOOK_REST
        if not self.knows(study) and time.monotonic() - self._refreshed > pause:
            self.keep_up().wait(max(0.0, self._begun + SETTLES_WITHIN - time.monotonic()))

    def names(self) -> list[str]:
        """Return the names of the known studies, sorted."""
        return sorted(self._rules)

    def knows(self, study: str) -> bool:
        """Return whether a study is known, without a read of the store."""
        return self._known(study) is not None

    def name_of(self, study: str) -> str:
        """Return a study's name in the store; "" for an unknown study."""
        known = self._known(study)
        return known.study.name if known else ""

    @property
    def every(self) -> float:
        """Seconds between two refreshes."""
        return NEAR_EVERY if self._store.is_near else AFAR_EVERY

    def keep_up(self) -> threading.Event:
        """Call :meth:`refresh` unless a refresh is running. For a bucket, this runs in a thread.

        Returns:
            an event that is set when the refresh ends.
        """
        with self._beginning:
            if self._ended.is_set():
                self._begun = time.monotonic()
                if self._store.is_near:
                    self.refresh()
                    return self._ended
                self._ended = threading.Event()
                threading.Thread(target=self._refresh_beside, name="catalogue", daemon=True).start()
            return self._ended

    def _refresh_beside(self) -> None:
        try:
            self.refresh()
        finally:
            self._ended.set()

    def refresh(self) -> None:
        """Refresh studies and heads. If the store can't be read, keep the known state and set :attr:`trouble`."""
        try:
            self._read()
            if self._keys is not None:
                self._keys.refresh()
        except (FedpingError, OSError) as error:
            self.trouble = str(error)

    def _read(self) -> None:
        with self._refreshing:
            self._refreshed = time.monotonic()
            names = self._store.studies.names()
            new, self.unusable = self._load_all(name for name in names if name not in self._rules)
            self._rules = {**self._rules, **new}
            unclear = [*self._read_changed(), *self._read_declared()]
            takers = Counter(each.document.name for each in self._rules.values() if each.study.telemetry)
            self._telemetry = {
                telemetry_of(each.document.name): each
                for each in self._rules.values()
                if each.study.telemetry and takers[each.document.name] == 1
            }
            gone = sorted(self._rules.keys() - set(names))
            for name in self._rules.keys() - set(gone):
                for head in self._rules[name].heads.values():
                    head.latest()
        if gone:
            raise FedpingError(f"the store {self._store.where} no longer has the study '{gone[0]}'; restore it")
        self.trouble = "; and ".join([*self.unusable.values(), *unclear]) or None

    def _read_changed(self) -> list[str]:
        """Reload studies with changed settings; return a sentence for each study whose reload failed."""
        unclear = []
        for name, rules in self._rules.items():
            try:
                entry = self._store.studies.settings_entry(name)
                if entry != self._entries.get(name, entry):
                    self._rules = {**self._rules, name: self._load(name, rules.heads)}
            except FedpingError as error:
                unclear.append(_about(error, f"study '{name}' still has its earlier settings"))
        return unclear

    def _read_declared(self) -> list[str]:
        """Read each study's state and offers; return a sentence for each study that can't be read."""
        unclear = []
        declared, offers = dict(self._declared), dict(self._offers)
        for name, rules in self._rules.items():
            try:
                declared[name] = self._store.studies.declared(name)
                offers[name] = self._store.studies.offers(rules.study)
            except FedpingError as error:
                unclear.append(str(error))
        self._declared, self._offers = declared, offers
        return unclear

    def _load_all(self, names: Iterable[str]) -> tuple[dict[str, StudyRules], dict[str, str]]:
        """Return the rules of studies, and a sentence for each study that can't be served."""
        rules: dict[str, StudyRules] = {}
        unusable: dict[str, str] = {}
        for name in names:
            try:
                rules[name] = self._load(name)
            except FedpingError as error:
                unusable[name] = _about(error, f"study '{name}' cannot accept pings")
        return rules, unusable

    def _load(self, name: str, heads: Mapping[str, LineHead] | None = None) -> StudyRules:
        """Return the rules of a study. Known ``heads`` of its lines are reused; changed settings never add lines."""
        entry, study = self._store.studies.settings(name)
        known = dict(heads or {})
        for line in study.lines:
            known.setdefault(
                line.name,
                LineHead(
                    self._store.lines.newest(name, line.name),
                    partial(self._store.lines.newest_from, name, line.name),
                    partial(self._store.study, name),
                    partial(self._store.held.staged_after, name, line.name),
                    rest=0.0 if self._store.is_near else LOOK_REST,
                ),
            )
        rules = study_rules(study, known, self._keys)
        self._entries[name] = entry
        return rules
