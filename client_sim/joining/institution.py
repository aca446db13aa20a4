"""An institution: one client with a table, whose state is on disk.

It enrols, fetches, trains and sends like a fleet's clients, by the same code (:mod:`fedping.client_sim.client`). It
defines the order of writes, so that the process can be killed at any moment: a ping is written before it is posted,
and posted until it is answered; an accepted ping completes the version. If the training keeps state with the client,
or the line is private, a version is trained on at most once; else the same rows give the same ping each time.

Models are checked before training, and a server may ask for a pause of at most an hour.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from itertools import repeat
from random import Random
from typing import Any, Literal
from uuid import UUID, uuid4

import msgspec
import numpy as np
from msgspec import Raw, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.client import (
    Action,
    Backoff,
    Client,
    OutgoingPing,
    SetAside,
    Settled,
    is_due,
    next_action,
    sends_update,
)
from fedping.client_sim.data.example_data import of_one
from fedping.client_sim.fleet.exchange import Connection, Fetcher, Outbox, VersionCache
from fedping.client_sim.fleet.fleet import sent_in, states_in
from fedping.client_sim.fleet.learning_round import LearningRound
from fedping.client_sim.fleet.members import FleetSettings, Members
from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.fleet.roster import Roster
from fedping.client_sim.joining.consent import full_batch
from fedping.client_sim.joining.examples import OwnTable
from fedping.client_sim.joining.folder import UNANSWERED, Joined, Sent, StateFolder, Waiting, served_digest
from fedping.client_sim.joining.holding_out import confusion
from fedping.client_sim.joining.protected import ProtectedRows
from fedping.client_sim.joining.protection import Decided
from fedping.client_sim.joining.summed import SummedRows
from fedping.client_sim.joining.terms import (
    Membership,
    StudyChanged,
    changed_terms,
    check_rows,
    check_work,
    describe_changes,
    membership,
    model_trouble,
    requested_terms,
)
from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.learning.blas import one_thread
from fedping.client_sim.learning.states import ClientStates, StatesOf
from fedping.client_sim.privacy import SYSTEM, Chance, Contributed, system_seeds
from fedping.client_sim.transport import Fetched, NotModified, Outcome, Transport, TransportError, Unavailable
from fedping.protocol.draws import Keys
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.notation import time_at, utc_now
from fedping.protocol.ping import DOCUMENT_TYPES, MODEL_UPDATE, NO_VERSION, Ping
from fedping.protocol.privacy import Privacy
from fedping.protocol.study import PublicLine, PublicStudy
from fedping.protocol.update import EncodedUpdate

NOT_ALLOWED = "403"
"""Start of the reason if ingest rejects the client rather than the content of its ping."""

LONGEST_PAUSE = 3600.0
"""Maximum pause that a server may ask for, in seconds."""

SECONDS_A_DAY = 86_400.0

NOTHING_DECIDED = Decided()

_ME = np.zeros(1, np.int64)
"""The only client of an institution's roster."""


class Institution:
    """Takes part in a study with a table: fetches, trains, and posts one ping a version.

    Args:
        transport: the connection to the server.
        member: the institution's place in the study (:func:`membership`).
        folder: keeps its state.
        table: its rows.
        states_of: returns the storage of the state that a training keeps with its client.
        ticket: the product's ticket for the client, in a study that asks for one.
        decided: whether the rows are protected.

    Raises:
        InvalidSettings: the line has an upload link that clients don't have, or asks for too much work; or the folder
            belongs to another study.

    Attributes:
        changes: the terms that differ from those that the institution agreed to.
        released_as: id of the last ping in the ledger; None before any.
    """

    def __init__(
        self,
        transport: Transport,
        member: Membership,
        folder: StateFolder,
        table: OwnTable,
        states_of: StatesOf,
        ticket: str | None = None,
        decided: Decided = NOTHING_DECIDED,
    ) -> None:
        study, line = member.study, member.line
        self.consent, self.protection, self._a_day = decided.consent, decided.protection, decided.a_day
        self._discards = decided.discards
        self.released_as: UUID | None = None
        protection = self.protection
        training = line.training if protection is None else full_batch(line.training)
        check_work(training, len(table.rows), member.model, line.spec.m)
        if protection is None:
            check_rows(member, table.weight)
        self._joined = Joined(
            study=study.name,
            line=line.name,
            spec_digest=line.spec.digest,
            asked=requested_terms(member),
        )
        self.changes = changed_terms(folder.belongs_to(self._joined), self._joined)
        self.study, self.member, self.folder, self.table = study, member, folder, table
        self._participation = line.participation  # the operator may change it later
        self._has_fetched = False
        self._outgoing: OutgoingPing | None = None
        self._transport = CheckedTransport(transport, study.name, line)
        self._roster = Roster(study, 1, folder.seed)
        # Other lines don't matter to the institution, and may use features that it lacks. `client` decides whether it
        # takes part in a version.
        alone = replace(study, lines=(replace(line, participation=1.0, training=training),))
        self._cache = VersionCache(alone)
        connection = Connection(transport=self._transport, study=study.name, random=Random(folder.seed))
        self._fetcher = Fetcher(connection, self._roster, self._cache, together=True)
        self._outbox = Outbox(connection, Backoff())
        self._model = member.model if protection is None else protection.model(member)
        states, self.keeps_state = states_in(study.name, line, member.arm, member.model, folder.seed, states_of)
        kept, links = sent_in(alone, folder.seed, states_of)
        self._sent = {name: _UnsavedStates(each) for name, each in kept.items()}
        self.keeps_state |= links
        self._states, self._contributions = _UnsavedStates(states), _Contributions(folder)
        self._private: PrivatePings | None = None
        if line.privacy is not None:
            counts = self._contributions
            sums = line.privacy.rows is not None
            randomness = SummedRandomness(self) if sums else MachineRandomness(folder.secret)
            makers = {line.name: self._model} if isinstance(self._model, SummedRows) else {}
            self._private = PrivatePings(alone, folder.seed, lambda owner, first: counts, randomness, makers)
        ticket_of = None if ticket is None else lambda client_id: ticket
        members = Members(
            study=alone,
            settings=FleetSettings(clients=1, seed=folder.seed, ticket_of=ticket_of),
            roster=self._roster,
            cache=self._cache,
            states={member.arm.name: self._states},
            sent=self._sent,
            private=self._private,
        )
        self._round = LearningRound(members, {line.name: self._model}, lambda spec, model: table)

    @property
    def waiting(self) -> Waiting | None:
        """The ping that waits to be posted, unless it is older than the protection of rows; else None."""
        return None if self._discards else self.folder.waiting

    @property
    def unprotected(self) -> Waiting | None:
        """The waiting ping that is older than the protection of rows, and so is not sent; None without one."""
        return self.folder.waiting if self._discards else None

    def discard(self) -> None:
        """Remove a ping that is older than the protection of rows."""
        if self._discards:
            self.folder.drop()
            self._discards = False

    @property
    def version(self) -> int:
        """The version that the institution holds; -1 for none."""
        return int(self._roster.version[0])

    @property
    def trains_once(self) -> bool:
        """Whether a version gets one ping, regardless of the server's answer.

        This is so if training changes a state, counts as a contribution, or draws noise.
        """
        return self.keeps_state or self._private is not None or self.protection is not None

    @property
    def client(self) -> Client:
        """The part of the client's state that decides its next action."""
        return Client(
            version=self.version,
            progress=self.folder.progress,
            has_ping=self.waiting is not None,
            has_fetched=self._has_fetched,
            trains_once=self.trains_once,
            is_selected=self._is_selected,
            contributions=self._contributions_at_most,
        )

    @property
    def _contributions_at_most(self) -> int | None:
        """Maximum number of pings by the consent and by a private line's guarantee; None without a limit."""
        privacy = self.member.line.privacy
        limits = (
            None if self._may_resend else self._consented,
            None if privacy is None else privacy.contributions,
        )
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def _may_resend(self) -> bool:
        """Whether the client holds, or may later hold, the version of a ping whose sender was rejected."""
        progress = self.folder.progress
        if progress.forbidden <= progress.version:
            return False
        return not self._has_fetched or self.version in (NO_VERSION, progress.forbidden)

    @property
    def _consented(self) -> int | None:
        """Maximum number of pings by the consent; None without a limit."""
        consent = self.consent
        return None if consent is None or consent.versions is None else consent.begun + consent.versions

    @property
    def has_new(self) -> bool:
        """Whether the institution holds a version that still needs a ping, and is selected to send one."""
        return self._is_selected and is_due(self.folder.progress, self.version, self.trains_once)

    @property
    def contributed_all(self) -> bool:
        """Whether the institution has sent its maximum number of pings, and sends nothing more."""
        client = self.client
        return client.contributions is not None and client.progress.contributed >= client.contributions

    @property
    def consented_all(self) -> bool:
        """Whether the institution has answered all the versions that the consent allows."""
        return self._consented is not None and self.folder.progress.contributed >= self._consented

    @property
    def rests(self) -> bool:
        """Whether the institution has posted its maximum number of pings in the last 24 hours."""
        if self._a_day is None:
            return False
        return self.folder.posted_since(time_at(1000 * (time.time() - SECONDS_A_DAY))) >= self._a_day

    @property
    def _is_selected(self) -> bool:
        """Whether the institution sends a ping of the version that it holds.

        Its own daily limit, the line's participation and a private line's draw decide.
        """
        member, private = self.member, self._private
        if self.rests:
            return False
        if not sends_update(self.study.name, member.arm, self._participation, self.version, member.client_id):
            return False
        if private is None:
            return True
        line, version = member.line.name, np.array([self.version])
        return line not in private.waits and bool(private.willing(line, _ME, version, self._roster.roots)[0])

    def begin_turn(self) -> None:
        """Forget that the institution has asked for the newest version."""
        self._has_fetched = False

    def next_action(self) -> Action:
        """Return the institution's next action in this turn."""
        return next_action(self.client)

    def agree(self) -> None:
        """Agree to the study's current terms."""
        self.folder.agree(replace(self._joined, consent=self.consent))
        self.changes = ()

    async def fetch(self) -> str | None:
        """Ask once for a newer version; return the reason if none was available."""
        self._has_fetched = True
        if self._private is not None and self._private.needs_offers:
            if isinstance(study := await self.fetch_unchanged_study(), str):
                return study
            self._private.use_offers(study)
        before = self._fetcher.counts.copy()
        await self._fetcher.fetch([0])
        waits = self._private.waits if self._private is not None else {}
        return next(iter(self._fetcher.counts.unavailable - before.unavailable), waits.get(self.member.line.name))

    async def fetch_unchanged_study(self) -> PublicStudy | str:
        """Return the study, after checking that its terms are unchanged; or the reason why it is unavailable.

        Raises:
            StudyEnded: the study has ended.
            StudyChanged: the study's terms have changed.
        """
        try:
            study = await self._transport.fetch_study(self.study.name)
        except TransportError as error:
            if type(error) is TransportError:  # temporarily unavailable, as models may be
                return str(error)
            raise
        try:
            now = requested_terms(membership(study, self.folder.seed))
        except InvalidSettings as error:
            raise StudyChanged(f"study '{study.name}' has changed since you joined: {error}") from error
        if changes := changed_terms(self._joined, replace(self._joined, asked=now)):
            raise StudyChanged(describe_changes(self.study.name, changes))
        self._participation = next(line.participation for line in study.lines if line.name == self.member.line.name)
        return study

    def train(self, *, charge: bool = True) -> Waiting:
        """Train on the held version, and return the ping, which is not written yet.

        Args:
            charge: whether to charge the ledger before noise is drawn; False for the preview of a ping.

        Raises:
            AlreadyAnswered: the version was answered from another table, or under other terms.
            BudgetEnded: the table's budget is spent.
            OtherWeights: the version has other weights than when it was answered.
        """
        self._begin_release(charge)
        with one_thread():  # else the last digits of a sum could differ each time
            ((ping,),) = [pings for pings, _ in self._round.pings(_ME, self.version) if pings]
        body = self._with_confusion(ping.body) if self.table.held_out else ping.body
        weights = self.served_digest
        waiting = Waiting(version=self.version, document_id=ping.document_id, body=Raw(body), weights=weights)
        describe(waiting)
        return waiting

    def _begin_release(self, charge: bool) -> None:
        """Charge the ledger for a ping of the held version, and prepare its noise."""
        protection, model = self.protection, self._model
        if protection is None or not isinstance(model, ProtectedRows):
            return
        weights = self._cache.weights(self.member.line.name, self.version)
        release = protection.release(self.member, self.version, weights, self.table.digest)
        progress = self.folder.progress
        if charge:
            known = max(progress.version, progress.moved)
            consent = protection.consent
            book = protection.ledger.charge(release, known, consent.since, consent.versions or 0)
        else:
            book = protection.ledger.read()
        model.begin(book.bits(release), protection.sums)
        self.released_as = book.document_id(release)

    @property
    def served_digest(self) -> str:
        """Digest of the held weights and their spec, by which institutions notice differences."""
        line = self.member.line
        return served_digest(line.spec, self._cache.weights(line.name, self.version))

    def skip(self) -> None:
        """Skip the held version, which was answered from another table."""
        self.folder.advance(self.folder.progress.after_training(self.version))

    def _with_confusion(self, body: bytes) -> bytes:
        weights = self._cache.weights(self.member.line.name, self.version)
        protected = self._model if isinstance(self._model, ProtectedRows) else None
        counts = (
            protected.cells if protected else confusion(self.member.model, weights, of_one(self.table.rows).batch(_ME))
        )
        if counts is None:
            return body
        ping: Ping = msgspec.json.decode(body, type=MODEL_UPDATE.ping)
        payload: Any = ping.payload
        return msgspec.json.encode(replace(ping, payload=replace(payload, confusion=counts)))

    def keep(self, ping: Waiting) -> None:
        """Write a ping of :meth:`train`, which can then be posted, and the state after its training."""
        # The new state or the contribution is written first: a client that is killed here continues with the next
        # version, as in a fleet. Two pings of one version, with two draws of noise, would reveal more than a private
        # line allows.
        if (privacy := self.member.line.privacy) is not None:
            ping = replace(ping, not_before=time.time() + drawn_delay(privacy))
        if self.protection is not None and not self.keeps_state:
            # The ledger determines the noise, so that a client that is killed here makes the same ping again.
            self.folder.keep(ping)
            self._count(ping)
            return
        self._count(ping)
        self.folder.keep(ping)

    def _count(self, ping: Waiting) -> None:
        """Write the progress after a decided ping, if pings count, and the state after its training."""
        if not self.trains_once and self._consented is None:
            return
        progress = self.folder.progress
        again = ping.version == progress.forbidden  # counted already
        times = None if self._consented is None else progress.contributed + (0 if again else 1)
        times = times if self._private is None else self._contributions.times
        self.folder.advance(progress.after_training(ping.version, times))
        if self.trains_once:
            for each in (self._states, *self._sent.values()):
                each.save_last()

    def seconds_until(self, ping: Waiting) -> float:
        """Return the seconds until a ping may be sent; at most the line's delay, even if the clock is wrong."""
        privacy = self.member.line.privacy
        longest = 60 * privacy.delay_minutes if privacy is not None else 0.0
        return min(max(0.0, ping.not_before - time.time()), longest)

    async def post(self, ping: Waiting) -> Settled | SetAside:
        """Post a written ping until it is settled, or set aside for now.

        The ping is logged before the first attempt, because even a server that never answers may have read it. A
        private line's ping has its own connection. Otherwise it could be linked to the previous fetch, and to the next
        ping with another id.
        """
        if self._private is not None:
            await self._transport.close()
        if self._outgoing is None:
            self.folder.begin(_log_line(ping, UNANSWERED))
            self._outgoing = OutgoingPing(ping.document_id, bytes(ping.body))
        state = await self._outbox.post(self._outgoing)
        if self._private is not None:
            await self._transport.close()
        if isinstance(state, Settled):
            self._outgoing = None
        return state

    def settle(self, ping: Waiting, outcome: Outcome) -> None:
        """Write the final answer to a ping, and forget the ping.

        A rejected ping doesn't count, but is logged, because the server has read it. Without protection its version may
        have another ping, from a corrected table. If the sender rather than the content was rejected, a protected ping
        has the same numbers again: the ledger determines them, so that a repetition with a ticket reveals nothing new.
        """
        progress = self.folder.progress
        if self.protection is not None and progress.moved < ping.version:  # killed before the ping was counted
            progress = progress.after_training(ping.version, progress.contributed + 1)
        progress = progress.after_answer(ping.version, outcome)
        same_again = self.protection is not None and self._private is None and not self.keeps_state
        if same_again and outcome.reason.startswith(NOT_ALLOWED):
            progress = replace(progress, forbidden=ping.version)
        self.folder.settle(progress, _log_line(ping, outcome.delivery.value, outcome.reason))


@dataclass(frozen=True, kw_only=True)
class PingDescription:
    """Summary of a ping's content.

    Attributes:
        examples, loss: number of examples, and loss; None for a private line, whose pings have only a vector.
        numbers: number of weights of the update; 0 without an update, or if it is encoded.
        norm: Euclidean norm of the update; None without an update, or if it is encoded.
        encoding: encoding of the update; None without an update, or if it is numbers.
        bytes: length of the JSON.
    """

    version: int
    document_id: UUID
    client_id: UUID
    arm: str
    examples: int | None
    loss: float | None
    numbers: int
    norm: float | None
    encoding: str | None
    bytes: int


class _Typed(Struct):
    """The type of a ping."""

    type: Literal["model-update", "private-update"]


def describe(ping: Waiting) -> PingDescription:
    """Return the summary of a ping; raise :class:`FedpingError` if it is invalid, such as one with an infinite loss."""
    try:
        document = DOCUMENT_TYPES[msgspec.json.decode(ping.body, type=_Typed).type]
        decoded: Ping = msgspec.json.decode(ping.body, type=document.ping)
    except msgspec.MsgspecError as error:
        raise FedpingError(
            f"the ping of version {ping.version} is none that ingest would take ({error}), so it is not sent; are the "
            "columns in the units that were agreed on?"
        ) from error
    payload: Any = decoded.payload
    update = payload.update
    encoded = isinstance(update, EncodedUpdate)
    return PingDescription(
        version=ping.version,
        document_id=ping.document_id,
        client_id=decoded.client_id,
        arm=payload.study_variation,
        examples=payload.examples if document.tells_loss else None,
        loss=payload.loss if document.tells_loss else None,
        numbers=0 if update is None or encoded else len(update),
        norm=None if update is None or encoded else math.hypot(*update),
        encoding=update.encoding if encoded else None,
        bytes=len(ping.body),
    )


def _log_line(ping: Waiting, outcome: str, reason: str = "") -> Sent:
    """Return a line about a ping for the log."""
    content = describe(ping)
    return Sent(
        time=utc_now(),
        version=ping.version,
        document_id=ping.document_id,
        examples=content.examples,
        loss=content.loss,
        bytes=content.bytes,
        sha256=hashlib.sha256(bytes(ping.body)).hexdigest(),
        outcome=outcome,
        reason=reason,
        numbers=content.numbers,
        norm=content.norm,
        encoding=content.encoding,
        weights=ping.weights,
    )


class _UnsavedStates:
    """A :class:`ClientStates` that holds the last training's state until :meth:`save_last`."""

    def __init__(self, states: ClientStates) -> None:
        self._states = states
        self._unsaved: tuple[NDArray[np.integer[Any]], State] | None = None

    def load(self, clients: NDArray[np.integer[Any]]) -> State:
        """See :meth:`ClientStates.load`; a held state is not loaded."""
        return self._states.load(clients)

    def save(self, clients: NDArray[np.integer[Any]], state: State) -> None:
        """See :meth:`ClientStates.save`."""
        self._unsaved = clients.copy(), {name: values.copy() for name, values in state.items()}

    def save_last(self) -> None:
        """Save the state after the last training."""
        if self._unsaved is not None:
            self._states.save(*self._unsaved)
            self._unsaved = None


class CheckedTransport:
    """A :class:`Transport` for one line that checks models: a server may be broken or hostile.

    A rejected model counts as unavailable.
    """

    def __init__(self, transport: Transport, study: str, line: PublicLine) -> None:
        self._transport, self._study, self._line = transport, study, line

    async def fetch_study(self, study: str) -> PublicStudy:
        """See :meth:`Transport.fetch_study`."""
        return await self._transport.fetch_study(study)

    async def fetch_model(
        self, study: str, line: str, iteration: int | None, etag: str | None
    ) -> Fetched | NotModified | Unavailable:
        """See :meth:`Transport.fetch_model`."""
        answer = await self._transport.fetch_model(study, line, iteration, etag)
        return self._checked(answer) if isinstance(answer, Fetched) else answer

    async def fetch_staged(self, study: str, line: str, iteration: int) -> Fetched | Unavailable:
        """See :meth:`Transport.fetch_staged`."""
        answer = await self._transport.fetch_staged(study, line, iteration)
        return self._checked(answer) if isinstance(answer, Fetched) else answer

    async def submit(self, study: str, document_id: UUID, body: bytes, *, later: bool = False) -> Outcome:
        """See :meth:`Transport.submit`."""
        answer = await self._transport.submit(study, document_id, body, **({"later": True} if later else {}))
        if answer.retry_after is None or answer.retry_after <= LONGEST_PAUSE:
            return answer
        return replaced(answer, retry_after=LONGEST_PAUSE)

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        await self._transport.close()

    def _checked(self, answer: Fetched) -> Fetched | Unavailable:
        problem = model_trouble(answer.document, self._study, self._line)
        if problem is None:
            return answer
        return Unavailable(f"the model of line '{self._line.name}' is refused: {problem}")


class MachineRandomness:
    """A :class:`fedping.client_sim.fleet.private_pings.Randomness` from the operating system, except for one secret.

    A fleet's randomness follows from keys of 64 bits, which an attacker could try.

    Args:
        secret: 32 bytes that determine the ids.
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


class SummedRandomness(MachineRandomness):
    """The randomness of an institution in sums: its helper gets the weights' digest, and each ping has a fixed id.

    A version that is answered again, such as from a restored folder, has the same noise as before. If both answers
    counted, their noise would be less than that of two institutions.
    """

    def __init__(self, institution: Institution) -> None:
        super().__init__(institution.folder.secret)
        self._institution = institution

    def seeds(self, keys: Keys) -> Sequence[bytes]:
        """See :meth:`Randomness.seeds`."""
        return [seed + bytes.fromhex(self._institution.served_digest) for seed in super().seeds(keys)]

    def documents(self, keys: Keys) -> list[UUID]:
        """See :meth:`Randomness.documents`; there is one ping."""
        assert self._institution.released_as is not None, "a sum was released"
        return [self._institution.released_as] * len(keys)


class _Contributions:
    """Number of an institution's contributions: a :class:`ClientStates` in its progress.

    A saved number is only held in memory; :meth:`Institution.keep` writes it before anything leaves the machine.
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

    @property
    def times(self) -> int:
        """The number of contributions, including the last decided one."""
        assert self._decided is not None, "a ping of a private line was made"
        return self._decided.times


def drawn_delay(privacy: Privacy) -> float:
    """Return a ping's random delay in seconds, so that the time of the ping reveals nothing."""
    return secrets.SystemRandom().uniform(0.0, 60.0 * privacy.delay_minutes)
