"""What a study's arms may send, looked up once a study and applied to every ping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import UnsetType

from fedping.protocol.documents import DocumentType
from fedping.protocol.enrolment import Assignment, hash_assignment
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import ExtensionFailed
from fedping.protocol.limits import Limits, UpdateLimits
from fedping.protocol.links import OwnLink, PrivateVector, SharedVector, Upload
from fedping.protocol.local_files import file_stamp
from fedping.protocol.model import Staged
from fedping.protocol.ping import NO_VERSION, Ping, UpdatePayload
from fedping.protocol.study import Study
from fedping.protocol.tickets import read_keys, validate_ticket
from fedping.protocol.training import may_send_nothing_from
from fedping.protocol.update import DENSE, EncodedUpdate
from fedping.protocol.upload import Receiving, receiving
from fedping.server_jobs.ingest.admission.decoding import DECODINGS, Bounds, Decoding
from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.settings import LOOK_COST, LOOKED_INTO

LookFrom: TypeAlias = Callable[[int], int]
"""Returns the newest version of a line, given one that is known to exist."""

LOOK_PAUSE = 0.01
"""Seconds between two looks at the store for versions that pings name and that are not known: what a flood of them can
cost it, from each worker and for each line."""


AFAR_PAUSE = 0.1
"""The same, of a store that takes its time."""

ANSWERS_WITHIN = 1.0
"""Seconds that a request waits for a look at a store that takes its time, before it is told what was seen last."""

SETTLES_WITHIN = 5.0
"""Seconds that whoever names a version or a study that is not known waits for such a look."""


class LineHead:
    """The newest version of a line, as last looked up; ``latest`` looks again.

    Args:
        known: its number.
        look_from: looks for newer ones.
        see_store: raises StoreError or OSError if the store is away, which looks like a version that is not there.
        look_at_stage: returns what some clients are to take instead of the newest version, given that.
        rest: seconds for which :meth:`latest` and :meth:`staged` tell again what was seen last, of a store that takes
            its time; a version that a ping names and that is not known is looked for all the same. Such a store is
            looked at in a thread, one at a time: it may be away for long, and requests do not wait for it then.
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
        """Return the number of the newest version that is published at this moment.

        It is less than it was if an older copy of the store has been put back; of a store that is away it stays.
        """
        if self._rest:
            look = self._look_of(lambda last: last.age < self._rest)
            look.ended.wait(max(0.0, ANSWERS_WITHIN - look.age))
            return self.known
        with self._looking:  # or a look that began earlier, and saw less, might have the last word
            return self._look()

    def _look(self) -> int:
        found = self._look_from(self.known)
        if found >= self.known or self._is_there():  # a store that is away looks like one that has no version
            if self._rest and found != self.known:
                self._staged = None
            self.known = found
        return self.known

    def staged(self) -> Staged | None:
        """Return what some clients are to take instead of the newest version that :meth:`latest` has told of."""
        return self._staged if self._rest else self._see_stage()

    def _see_stage(self) -> Staged | None:
        self._staged = self._look_at_stage(self.known)
        if self._staged is not None:
            self._handed_out = self._staged.iteration
        return self._staged

    def _look_of(self, will_do: Callable[[_Look], bool], wanted: int | None = None) -> _Look:
        """Return the look that is under way; else the last one if it will do, or one that begins now."""
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
        """Return whether a version is known to have been published, or staged, which some have fetched."""
        return version <= self.known or version == self._handed_out

    def _is_there(self) -> bool:
        try:
            self._see_store()
        except (FedpingError, OSError):
            return False
        return True

    def has(self, version: int, since_ms: int) -> bool:
        """Return whether a version that somebody named at ``since_ms`` (milliseconds since 1970) was to be had then.

        A version is in the store before anybody can fetch it. So a look that began after the version was named settles
        the matter, and one look settles it for all that have been named meanwhile: those of a batch, and those of
        requests that wait for it.

        Raises:
            StoreError, OSError: the store cannot be read.
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
        """Wait until a look that began after a moment has ended, if the version is not known; raises as :meth:`has`."""
        while not self.knows(version) and self._looked <= since_ms:
            look = self._look_of(lambda last: last.wanted is not None and last.began_ms > since_ms, version)
            if not look.ended.wait(max(0.0, SETTLES_WITHIN - look.age)):
                raise FedpingError("the store does not answer")
            if look.wanted is not None and look.began_ms > since_ms:
                if look.trouble is not None:
                    raise look.trouble
                self._looked = look.began_ms


class _Look:
    """A look at a store: when it began, whether it has ended, and what came in its way.

    ``wanted``: a version that is looked for; then trouble is told if it is not there because the store is away.
    """

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.began_ms, self._began = time.time() * 1000, time.monotonic()
        self.ended, self.ended_at = threading.Event(), 0.0
        self.trouble: FedpingError | OSError | None = None

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began


@dataclass(frozen=True)
class ArmRule:
    """One arm: its line, that line's newest version, and how long an update has to be (None: no update at all).

    ``leaves_out`` says that an update of an arm without any is left out, instead of refused. ``links`` are the server's
    ends of the line's links if updates are not dense, ``lengths`` the least and the most bytes of their payloads, and
    ``has_zero`` whether zeros decode as zeros there. ``optional_from`` is the first version on which clients may
    train without sending an update; None if there is none. ``limits`` and ``update_limits`` are the study's and the
    line's.
    """

    document: DocumentType
    study: str
    arm: str
    line: str | None
    head: LineHead | None
    m: int | None
    leaves_out: bool = False
    links: Receiving | None = None
    lengths: tuple[int, int] = (0, 0)
    has_zero: bool = False
    limits: Limits | None = None
    update_limits: UpdateLimits | None = None
    optional_from: int | None = None

    def check(self, payload: UpdatePayload, received_ms: int) -> None:
        """Raise :class:`Rejection` if this arm does not send such a payload."""
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
            except ExtensionFailed as error:  # which must not fail the request, and its batch
                raise Rejection(
                    "update_payload",
                    f"the upload link '{update.encoding}' of line '{self.line}' of study '{self.study}' cannot read "
                    "the payload of the update; correct how it is encoded",
                ) from error
        elif self.links is not None:
            raise self._other_encoding(f"an array of {len(update)} numbers")
        elif len(update) != self.m:
            raise Rejection(
                "update_length", f"the update has {len(update)} numbers and the model {self.m} weights; send {self.m}"
            )
        elif not self.document.examples_of(payload) and (self.document.loss_of(payload) or any(update)):
            raise Rejection("update_not_zero", f"{self.document.nothing}, so loss and update have to be zero")
        elif self.update_limits is not None and (trouble := self.update_limits.trouble(update)):
            raise Rejection(
                "update_range", f"the update {trouble} in line '{self.line}' of study '{self.study}'; do not send it"
            )
        if self.limits is not None:
            rank = self.document.counted_in(payload) if self.document.ranked else -1
            if trouble := self.limits.trouble(self.document.loss_of(payload), rank):
                raise Rejection("beyond_limits", f"the {trouble} in study '{self.study}'; do not send the ping")

    def kept(self, payload: UpdatePayload) -> UpdatePayload:
        """Return what is kept of a payload that :meth:`check` let pass: all of it but an update that nobody wants."""
        if self.m is None and payload.update is not None:
            return msgspec.structs.replace(payload, update=None)
        return payload

    def _check_payload(self, payload: UpdatePayload, update: EncodedUpdate) -> None:
        """Refuse an encoded update that the round could not read; what it says is not read here."""
        assert self.m is not None
        if self.links is None or update.encoding != self.links.encoding:
            raise self._other_encoding(f"encoded as '{update.encoding}'")
        size, (least, most) = len(update.payload), self.lengths
        if not least <= size <= most:
            needed = f"{least}" if least == most else f"{least} to {most}"
            raise Rejection(
                "update_length",
                f"the payload of the update has {size} bytes, and '{update.encoding}' makes {needed} of the model's "
                f"{self.m} weights; send {needed}",
            )
        if trouble := self.links.trouble(update.payload, self.m):
            raise Rejection("update_payload", f"the payload of the update {trouble}; correct how it is encoded")
        if not self.document.examples_of(payload):
            if self.has_zero and (self.document.loss_of(payload) or not self._is_zero(update.payload)):
                raise Rejection("update_not_zero", f"{self.document.nothing}, so loss and update have to be zero")
            if self.document.loss_of(payload):
                raise Rejection("update_not_zero", f"{self.document.nothing}, so the loss has to be zero")

    def _is_zero(self, payload: bytes) -> bool:
        """Return whether a payload is an update of zeros; few are asked for it, so that it may be decoded."""
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

    def _check_version(self, version: int, received_ms: int) -> None:
        """Refuse versions that nobody can have fetched: they would count in a round that is still to come."""
        if self.head is None:
            if version != NO_VERSION:
                raise Rejection(
                    "model_version", f"arm '{self.arm}' follows no model line, so its model_version is {NO_VERSION}"
                )
        elif not is_published(self.head, version, received_ms):
            raise Rejection(
                "model_version",
                f"model_version {version} has not been published; the newest of line '{self.line}' is "
                f"{self.head.known}: report the version that was fetched",
            )


def is_published(head: LineHead, version: int, received_ms: int) -> bool:
    """Return :meth:`LineHead.has`; raises :class:`Rejection` if the store cannot be read."""
    try:
        return head.has(version, received_ms)
    except (FedpingError, OSError) as error:
        raise Rejection(
            "version_unseen", f"the server cannot see at this moment whether version {version} exists; send it again"
        ) from error


@dataclass(frozen=True)
class StudyRules:
    """A study as ingest sees it: how its documents are read, and its arms by name."""

    study: Study
    document: DocumentType
    decoding: Decoding
    arms: dict[str, ArmRule]
    heads: dict[str, LineHead]
    bounds: Bounds
    dealt: Assignment | None = None
    keys: TicketKeys | None = None

    def most_lines(self, most: int) -> int:
        """Return how many lines a batch may have, no more than ``most``: it takes its time to look into updates."""
        weights = self.bounds.look // LOOK_COST
        return min(most, LOOKED_INTO // weights) if weights else most

    def check_kind(self, name: str, version: str | None) -> None:
        """Raise :class:`Rejection` if the study does not take this type and version of document; None is any."""
        taken = self.document
        if name != taken.name:
            raise Rejection(
                "unknown_type", f"study '{self.study.name}' takes documents of type {taken.name}; correct the path"
            )
        if version not in (taken.version, None):
            raise Rejection("unknown_version", f"{taken.name} has version {taken.version} only; correct the path")

    def is_settled(self, payload: UpdatePayload) -> bool:
        """Return whether :meth:`admit` has its answer without a look at the store, which may take its time."""
        rule = self.arms.get(payload.study_variation)
        return rule is None or rule.head is None or rule.head.knows(payload.model_version)

    def admit(self, ping: Ping, received_ms: int) -> ArmRule:
        """Return the rule of a ping's arm; raises :class:`Rejection` if it may not be sent.

        Args:
            ping: what was received.
            received_ms: when, in milliseconds since 1970.
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
                f"study '{self.study.name}' is private, and a ticket would tell whose ping it is; send it without",
            )
        if self.keys is not None:
            self.keys.check(self.study.name, ping, received_ms / 1000)
        rule.check(payload, received_ms)
        if self.dealt is not None and self.dealt.arm_of(ping.client_id) != rule.arm:
            raise Rejection(
                "not_enrolled",
                f"the client id does not belong to arm '{rule.arm}' of study '{rule.study}'; the hash of a client's "
                "one id says its arm: name that arm, or do not take part if there is none",
            )
        return rule


class TicketKeys:
    """The keys that verify tickets, kept up with their file.

    Raises:
        FedpingError: the file cannot be read, or is none of keys.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = file_stamp(path)
        self._keys = {key.name: key for key in read_keys(path)}

    def refresh(self) -> None:
        """Read the file again if it has changed; raises :class:`FedpingError`, and goes on with what was read."""
        if (seen := file_stamp(self._path)) != self._seen:
            self._keys = {key.name: key for key in read_keys(self._path)}
            self._seen = seen

    def check(self, study: str, ping: Ping, now: float) -> None:
        """Raise :class:`Rejection` if a ping has no good ticket; ``now`` is in seconds since 1970."""
        if isinstance(ping.ticket, UnsetType):
            raise Rejection(
                "ticket_missing",
                f"study '{study}' asks for a ticket, and the ping has none; send what the product gave",
            )
        if trouble := validate_ticket(self._keys, study, ping.client_id, ping.ticket, now):
            what = "is too old" if trouble == "expired" else "is not one for this client id"
            raise Rejection(f"ticket_{trouble}", f"the ticket {what}; ask the product for a new one")


def study_rules(study: Study, heads: dict[str, LineHead], keys: TicketKeys | None = None) -> StudyRules:
    """Return the rules of a study whose lines have these heads; ``keys`` are those of tickets, if ingest has any.

    Raises:
        InvalidSettings: a server's end of a line's upload links is not there, or the study asks for tickets and there
            are no keys.
    """
    if study.tickets != "required":
        keys = None
    elif keys is None:
        raise InvalidSettings("it asks for tickets; start ingest with --ticket-keys")
    m = {line.name: line.spec.m for line in study.lines}
    links = {line.name: receiving(line) for line in study.lines}
    encoded = {name: (found, found.lengths(m[name])) for name, found in links.items() if found.encoding != DENSE}
    # What a client sends is not what it has learned where links are undone of each update, which only rounds do.
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
    decoding = DECODINGS[study.pings]
    longest = max((most for _, (_, most) in encoded.values()), default=0)
    look = LOOK_COST * max((m[line] for line in encoded), default=0)
    bounds = decoding.bounds(max(m.values(), default=0), longest, look, telemetry=study.telemetry)
    return StudyRules(study, study.document, decoding, arms, heads, bounds, hash_assignment(study), keys)


def _has_zero(upload: Upload) -> bool:
    """Return whether what clients make of zeros is read as zeros: not where a zero travels as a positive number.

    Of other people's links nobody knows, a private vector is more than an update, and shares cannot be read.
    """
    unread = OwnLink | PrivateVector | SharedVector
    return not any(isinstance(link, unread) or getattr(link, "zero", "") == "up" for link in upload)
