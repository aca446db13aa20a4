"""An institution: the one client of a fleet that has a table of its own, and keeps what it sends until it is taken.

It enrols, fetches, trains and sends as each client of a fleet does, by the same code. What is its own is the order in
which things reach the disk, so that it can be killed at any moment: a ping is kept, then posted until somebody answers
it, and once it is taken the version is done. A version is trained on once at most where the training moves a state of
the client or the line is private, and else gives the same ping each time from the same rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from dataclasses import dataclass
from random import Random
from typing import Any, Literal
from uuid import UUID

import msgspec
import numpy as np
from msgspec import Raw, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.data.example_data import of_one
from fedping.client_sim.data.table import Table
from fedping.client_sim.fleet.fetching import Fetcher, Shelf
from fedping.client_sim.fleet.fleet import states_in
from fedping.client_sim.fleet.learning_round import HELD_OUT, LearningRound
from fedping.client_sim.fleet.outbox import Letter, Outbox
from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.fleet.roster import NOT_ENROLLED, Roster
from fedping.client_sim.fleet.settings import FleetSettings
from fedping.client_sim.fleet.transport import ACCEPTED, Delivery, Outcome, Transport, TransportError
from fedping.client_sim.fleet.waiting import Backoff, Sleep
from fedping.client_sim.joining.compatibility import CheckedTransport
from fedping.client_sim.joining.evaluating import confusion
from fedping.client_sim.joining.examples import (
    FEWEST_ROWS,
    MOST_OF_ONE_ROW,
    OF_TABLES,
    OwnTable,
    guarding_rows,
    numbers_a_row,
)
from fedping.client_sim.joining.folder import UNANSWERED, Asked, Joined, Sent, StateFolder, Waiting
from fedping.client_sim.joining.private import Contributions, OfThisMachine, drawn_delay
from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.learning.checking import check_training
from fedping.client_sim.learning.mini_batches import share_of, steps_of
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.registry import learner_for
from fedping.client_sim.learning.states import ClientStates, StatesOf
from fedping.protocol.enrolment import is_selected
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.notation import utc_now
from fedping.protocol.personalization import Reconstruct
from fedping.protocol.ping import DOCUMENT_TYPES, MODEL_UPDATE, PRIVATE_UPDATE, Ping
from fedping.protocol.study import Arm, PublicLine, PublicStudy
from fedping.protocol.study_changes import Change, differences
from fedping.protocol.training import LocalSteps, Training
from fedping.protocol.update import EncodedUpdate

TAKEN = (MODEL_UPDATE.name, PRIVATE_UPDATE.name)
"""The types of pings of the studies that an institution takes part in."""

MOST_STEPS = 10_000_000
"""Local steps of a round that a server may ask for; more would keep a machine busy for hours."""

MOST_WORK = 1e14
"""Of a round: the rows of all steps, each times the number of weights."""

MOST_NUMBERS = 2**29
"""That a model may work out of all rows at once, 4 GiB; more may not fit into the memory of a machine."""

MOST_CHANGES = 5
"""Of what a study asks for that a sentence names."""

NOT_ALLOWED = "403"
"""How the reason begins where ingest refuses the client, and not what its ping says."""

_ME = np.zeros(1, np.int64)
"""The only client of its roster."""


class StudyChanged(FedpingError):
    """The study is not the one that an institution has joined; somebody has to look at it. Exit code 6."""

    exit_code = 6


def requested_terms(member: Membership) -> Asked:
    """Return what a study asks of an institution."""
    line = member.line
    return Asked(
        arm=replace(member.arm, share=1.0),
        spec=line.spec,
        training=line.training,
        upload=line.upload,
        privacy=line.privacy,
    )


def _changes(before: Joined, now: Joined) -> tuple[Change, ...]:
    return tuple(differences(before.asked, now.asked)) if before.asked != now.asked else ()


def changed_in_words(study: str, changed: tuple[Change, ...]) -> str:
    """Return in a sentence that a study asks for something else than what was agreed to."""
    words = [change.in_words for change in changed[:MOST_CHANGES]]
    words += [f"and {len(changed) - MOST_CHANGES:,} more"] if len(changed) > MOST_CHANGES else []
    told = "".join(letter if letter.isprintable() else "?" for letter in "; ".join(words))
    return (
        f"study '{study}' asks for something else than when you joined ({told}); look at it with --show, and give "
        "--agree if it is well"
    )


@dataclass(frozen=True)
class Membership:
    """Where an institution falls in a study.

    Attributes:
        client_id: under which it sends.
        arm: its arm, by the hash of the id.
        line: the line that the arm follows.
        model: what is trained.
    """

    client_id: UUID
    arm: Arm
    line: PublicLine
    model: Model[Any]


def membership(study: PublicStudy, seed: int) -> Membership:
    """Return where the client of a seed falls in a study.

    Raises:
        InvalidSettings: it is not enrolled, or the study asks for what an institution cannot do.
    """
    roster = Roster(study, 1, seed)
    if study.pings not in TAKEN:
        raise InvalidSettings(
            f"study '{study.name}' takes {study.pings} pings, and 'fedping join' takes part in studies of "
            f"{' and '.join(TAKEN)} pings alone; choose another study"
        )
    if roster.arm[0] == NOT_ENROLLED:
        raise InvalidSettings(
            f"study '{study.name}' enrols {sum(arm.share for arm in study.arms):.0%} of all clients by their ids, and "
            "this one is not among them; ask its operator for arms whose shares sum to 1"
        )
    arm = roster.arm_of(0)
    line = next((line for line in study.lines if line.name == arm.line), None)
    if line is None:
        raise InvalidSettings(
            f"by its id this client belongs to arm '{arm.name}' of study '{study.name}', which follows no model line, "
            "so there is nothing to train; ask its operator for a study all of whose arms follow one"
        )
    return Membership(roster.ids[0], arm, line, _model_of(study, line))


def _model_of(study: PublicStudy, line: PublicLine) -> Model[Any]:
    if line.spec.model not in OF_TABLES:  # of the others, some would run code that the server names
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' has the model '{line.spec.model}', and 'fedping join' trains "
            f"{', '.join(OF_TABLES)}; take part with a client of your own"
        )
    try:
        model = learner_for(line.spec, line.training)
        check_training(model, line.training)
    except InvalidSettings as error:
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' asks for what 'fedping join' cannot do: {error}"
        ) from error
    return guarding_rows(model)


REVEALS = (
    "the study's operator chooses the weights that you train on, and can choose them so that your updates reveal rows "
    "of your table, however many rows it has and whatever the batch"
)
"""What an institution has to know before it sends anything."""


def check_rows(member: Membership, weight: NDArray[np.float64]) -> None:
    """Raise :class:`InvalidSettings` if what is sent would be of a single row, or of little else.

    Args:
        member: where the institution falls in the study.
        weight: how much each row of the table counts, or each that is held out, shape (N,); those of weight 0 are left
            out of the training.
    """
    training, trains = member.line.training, member.arm.submits
    counted = int(np.count_nonzero(weight))
    rows = _learned(member, counted) if trains else counted
    if rows < FEWEST_ROWS:
        of = f"{rows:,} row" + (f" (of {len(weight):,} rows, {counted:,} counted)" if rows != len(weight) else "")
        raise InvalidSettings(
            f"what is sent of {of} would reveal that row; join with more rows, leave out a class weight of 0, or hold "
            "another share out"
        )
    share = float(weight.max() / weight.sum())
    if share > MOST_OF_ONE_ROW:
        raise InvalidSettings(
            f"one row has {share:.1%} of the weight of all rows, so that what is sent would reveal that row; join with "
            "more rows of its class, or leave class_weights out"
        )
    batch = getattr(training, "batch", None)  # an extension's training has none
    if not trains or batch is None:
        return
    if batch < FEWEST_ROWS:
        raise InvalidSettings(
            "the study trains on batches of 1 row, and 'fedping join' refuses that, because such an update reveals the "
            "row; ask its operator for a larger 'batch'"
        )
    if isinstance(training, LocalSteps) and _ends_with_one_row(training, rows):
        raise InvalidSettings(
            f"the study trains on batches of {batch:,} rows, and of {rows:,} rows the last batch of an epoch has 1 "
            "row, whose update reveals the row; join with one row more or less"
        )


def _learned(member: Membership, rows: int) -> int:
    """Return how many of so many rows an update is computed from."""
    personal = getattr(member.line.training, "personal", None)
    shares = [HELD_OUT] if member.arm.personal else []
    shares += [personal.support] if isinstance(personal, Reconstruct) else []
    for share in shares:
        rows -= int(share_of(np.array([rows]), share)[0])
    return rows


def _ends_with_one_row(training: LocalSteps, rows: int) -> bool:
    """Return whether the training takes a step on the last batch of an epoch, and that has a single row."""
    batch = training.batch or rows
    return rows > batch and rows % batch == 1 and steps_of(training, np.array([rows]))[0] > rows // batch


def check_work(training: Training, rows: int, model: Model[Any], weights: int) -> None:
    """Raise :class:`InvalidSettings` if a server asks for more of so many rows than anybody can mean."""
    numbers = rows * numbers_a_row(model)
    if numbers > MOST_NUMBERS:
        raise InvalidSettings(
            f"the study's model works out {numbers:,} numbers of {rows:,} rows at once, and 'fedping join' takes "
            f"{MOST_NUMBERS:,} at most; join with fewer rows, or ask its operator for a smaller model"
        )
    if not isinstance(training, LocalSteps):
        return
    an_epoch = math.ceil(rows / training.batch) if training.batch else 1
    steps = training.steps or (training.epochs or 1) * an_epoch
    if steps > MOST_STEPS:
        raise InvalidSettings(
            f"the study's training takes {steps:,} steps a round on {rows:,} rows, and 'fedping join' takes "
            f"{MOST_STEPS:,} at most; join with fewer rows, or ask its operator for less"
        )
    work = steps * min(training.batch or rows, rows) * weights
    if work > MOST_WORK:
        raise InvalidSettings(
            f"the study's training takes {steps:,} steps a round with {weights:,} weights on {rows:,} rows, which "
            f"would keep this machine busy for hours ({work:.2g} products, of {MOST_WORK:.0e} at most); join with "
            "fewer rows, or ask its operator for less"
        )


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a ping says, in short.

    Attributes:
        examples, loss: None where the line is private, whose pings tell no more than their vector.
        numbers: how many numbers its update has; 0 if it has none.
        norm: the Euclidean norm of the update; None where it is encoded, or there is none.
        encoding: how the update is encoded; None where it is numbers, or there is none.
        bytes: the length of the JSON.
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
    """What a ping says of its type."""

    type: Literal["model-update", "private-update"]


def describe(ping: Waiting) -> Told:
    """Return what a ping says; raise :class:`FedpingError` for what no ping can say, such as a loss of infinity."""
    try:
        document = DOCUMENT_TYPES[msgspec.json.decode(ping.body, type=_Typed).type]
        found: Ping = msgspec.json.decode(ping.body, type=document.ping)
    except msgspec.MsgspecError as error:
        raise FedpingError(
            f"the ping of version {ping.version} is none that ingest would take ({error}), so it is not sent; are the "
            "columns in the units that were agreed on?"
        ) from error
    payload: Any = found.payload
    update = payload.update
    encoded = isinstance(update, EncodedUpdate)
    return Told(
        version=ping.version,
        document_id=ping.document_id,
        client_id=found.client_id,
        arm=payload.study_variation,
        examples=payload.examples if document.tells_loss else None,
        loss=payload.loss if document.tells_loss else None,
        numbers=0 if update is None or encoded else len(update),
        norm=None if update is None or encoded else math.hypot(*update),
        encoding=update.encoding if encoded else None,
        bytes=len(ping.body),
    )


class Institution:
    """Takes part in a study with a table: fetches, trains, and posts one ping a version.

    Args:
        transport: the way to the server.
        study: as it was fetched.
        member: where the institution falls in it (:func:`membership`).
        folder: what it keeps.
        rows: its table.
        states_of: where a training keeps state with its client.
        ticket: the product's word for the client, in a study that asks for it.
        class_weights: how much a row of each class counts in the training; all the same if None.
        evaluates: whether the rows are held out, so that it tells of classes which were taken for which.
        backoff: how to post again; the usual one if None.
        sleep: how to wait.

    Raises:
        InvalidSettings: the line has an upload link that clients do not have, or asks for too much work; or the folder
            is of another study.

    Attributes:
        changed: what the study asks for otherwise than when that was agreed to.
        evaluates: as given.
    """

    def __init__(
        self,
        transport: Transport,
        study: PublicStudy,
        member: Membership,
        folder: StateFolder,
        rows: Table,
        states_of: StatesOf,
        ticket: str | None = None,
        *,
        class_weights: tuple[float, ...] | None = None,
        evaluates: bool = False,
        backoff: Backoff | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        check_work(member.line.training, len(rows), member.model, member.line.spec.m)
        source = OwnTable(rows, class_weights)
        check_rows(member, source.weight)
        self._joined = Joined(
            study=study.name, line=member.line.name, spec_digest=member.line.spec.digest, asked=requested_terms(member)
        )
        self.changed = _changes(folder.belongs_to(self._joined), self._joined)
        self.study, self.member, self.folder, self.rows = study, member, folder, rows
        self._participation = member.line.participation  # which the operator may change meanwhile
        self._transport = CheckedTransport(transport, study.name, member.line)
        self._roster = Roster(study, 1, folder.seed)
        # The others' lines are none of its business, and may have what it does not. Whether it takes part in a version
        # is decided by `has_new`.
        alone = replace(study, lines=(replace(member.line, participation=1.0),))
        self.evaluates, self._shelf = evaluates, (shelf := Shelf(alone))
        random = Random(folder.seed)
        self._fetcher = Fetcher(
            self._transport, study.name, self._roster, shelf, at_once=1, sleep=sleep, random=random, together=True
        )
        self._outbox = Outbox(
            self._transport, study.name, backoff=backoff or Backoff(), at_once=1, sleep=sleep, random=random
        )
        states, self.keeps_state = states_in(study.name, member.line, member.arm, member.model, folder.seed, states_of)
        self._states, self._contributions = _Held(states), Contributions(folder)
        self._private: PrivatePings | None = None
        if member.line.privacy is not None:
            counts, secret = self._contributions, folder.secret
            self._private = PrivatePings(alone, folder.seed, lambda owner, first: counts, OfThisMachine(secret))
        self._round = LearningRound(
            alone,
            self._roster,
            shelf,
            {member.line.name: member.model},
            lambda spec, model: source,
            FleetSettings(clients=1, seed=folder.seed, ticket_of=None if ticket is None else lambda client_id: ticket),
            {member.arm.name: self._states},
            private=self._private,
        )

    @property
    def version(self) -> int:
        """The version that it holds; -1 for none."""
        return int(self._roster.version[0])

    @property
    def trains_once(self) -> bool:
        """Whether a version gets one ping, whatever becomes of it: by it a state moves, or a contribution counts."""
        return self.keeps_state or self._private is not None

    @property
    def has_new(self) -> bool:
        """Whether it holds a version of which no ping was taken, and has something to send of it."""
        progress, private = self.folder.progress, self._private
        done = max(progress.version, progress.moved if self.trains_once else -1)
        if self.version <= done or not self._has_drawn:
            return False
        if private is None:
            return True
        line = self.member.line.name
        return line not in private.waits and bool(
            private.willing(line, _ME, np.array([self.version]), self._roster.roots)[0]
        )

    @property
    def _has_drawn(self) -> bool:
        """Whether it is among those who send an update of the version that it holds, where clients draw who does."""
        share = self._participation
        if share >= 1 or not self.member.arm.submits:
            return True
        line, client = self.member.line.name, str(self.member.client_id)
        return is_selected(self.study.name, line, self.version, share, client)

    @property
    def gave_all(self) -> bool:
        """Whether it has contributed to a private line as often as it may, so that it sends nothing any more."""
        most = self.member.line.privacy.contributions if self.member.line.privacy is not None else None
        return most is not None and self.folder.progress.contributed >= most

    def agree(self) -> None:
        """Agree to what the study asks for now."""
        self.folder.agree(self._joined)
        self.changed = ()

    async def look(self) -> str | None:
        """Ask once for a newer version; return why none could be had, if so."""
        if self._private is not None and self._private.needs_offers:
            if isinstance(found := await self.study_as_it_was(), str):
                return found
            self._private.look_for_offers(found)
        before = self._fetcher.counts.copy()
        await self._fetcher.fetch([0])
        waits = self._private.waits if self._private is not None else {}
        return next(iter(self._fetcher.counts.unavailable - before.unavailable), waits.get(self.member.line.name))

    async def study_as_it_was(self) -> PublicStudy | str:
        """Look whether the study asks for what it did when it was joined; return it, or why it could not be had.

        Raises:
            StudyEnded: it has ended.
            StudyChanged: it asks for something else by now.
        """
        try:
            found = await self._transport.fetch_study(self.study.name)
        except TransportError as error:
            if type(error) is TransportError:  # away for now, as models may be
                return str(error)
            raise
        try:
            now = requested_terms(membership(found, self.folder.seed))
        except InvalidSettings as error:
            raise StudyChanged(f"study '{self.study.name}' is not what it was when you joined: {error}") from error
        if changed := _changes(self._joined, replace(self._joined, asked=now)):
            raise StudyChanged(changed_in_words(self.study.name, changed))
        self._participation = next(line.participation for line in found.lines if line.name == self.member.line.name)
        return found

    def make(self) -> Waiting:
        """Train on the version that is held, and return the ping; nothing is kept of it yet."""
        ((letter,),) = [letters for letters, _ in self._round.letters(_ME, self.version) if letters]
        body = self._with_confusion(letter.body) if self.evaluates else letter.body
        made = Waiting(version=self.version, document_id=letter.document_id, body=Raw(body))
        describe(made)
        return made

    def _with_confusion(self, body: bytes) -> bytes:
        weights = self._shelf.weights(self.member.line.name, self.version)
        found = confusion(self.member.model, weights, of_one(self.rows).batch(_ME))
        if found is None:
            return body
        ping: Ping = msgspec.json.decode(body, type=MODEL_UPDATE.ping)
        payload: Any = ping.payload
        return msgspec.json.encode(replace(ping, payload=replace(payload, confusion=found)))

    def keep(self, ping: Waiting) -> Waiting:
        """Have on disk what :meth:`make` has made, ping and state, and return it as it is to be posted."""
        # First that the state has moved, or a contribution counts: who is killed here goes on with the next version, as
        # in a fleet. Two pings of one version, with two draws of noise, would tell more than a private line may.
        progress = self.folder.progress
        if self._private is not None:
            progress = self._contributions.counted(progress)
        if self.trains_once:
            self.folder.advance(replace(progress, moved=ping.version))
            self._states.move()
        if (privacy := self.member.line.privacy) is not None:
            ping = replace(ping, not_before=time.time() + drawn_delay(privacy))
        self.folder.keep(ping)
        return ping

    def seconds_until(self, ping: Waiting) -> float:
        """Return for how long a ping is kept before it may be sent; whatever the clock says, no longer than it may."""
        privacy = self.member.line.privacy
        longest = 60 * privacy.delay_minutes if privacy is not None else 0.0
        return min(max(0.0, ping.not_before - time.time()), longest)

    async def post(self, ping: Waiting) -> Outcome:
        """Try for a while to have a kept ping taken; the answer is for good, unless it is to try again.

        The ping is in the log first: a server may have read it that never answers.
        """
        before = self._outbox.counts.copy()
        if not self._outbox.undelivered:
            self.folder.begin(_line(ping, UNANSWERED))
            self._outbox.add([Letter(ping.document_id, bytes(ping.body))])
        await self._outbox.deliver()
        counts = self._outbox.counts
        if counts.accepted > before.accepted:
            return ACCEPTED
        if refused := counts.rejected - before.rejected:
            return Outcome(Delivery.REJECTED, next(iter(refused)))
        return Outcome(Delivery.RETRY, next(iter(counts.retries - before.retries), "the server asked for more time"))

    def settle(self, ping: Waiting, outcome: Outcome) -> None:
        """Note the last word on a ping.

        One that is refused never counts, so that its version may have another: from a table that was corrected, or
        with a ticket. It is logged all the same, because the server has read it.
        """
        progress = self.folder.progress
        if outcome.delivery is Delivery.ACCEPTED:
            progress = replace(progress, version=ping.version, sent=progress.sent + 1)
        self.folder.settle(progress, _line(ping, outcome.delivery.value, outcome.reason))


def _line(ping: Waiting, outcome: str, reason: str = "") -> Sent:
    """Return the line of the log about a ping."""
    says = describe(ping)
    return Sent(
        time=utc_now(),
        version=ping.version,
        document_id=ping.document_id,
        examples=says.examples,
        loss=says.loss,
        bytes=says.bytes,
        sha256=hashlib.sha256(bytes(ping.body)).hexdigest(),
        outcome=outcome,
        reason=reason,
        numbers=says.numbers,
        norm=says.norm,
        encoding=says.encoding,
    )


class _Held:
    """A :class:`ClientStates` that keeps what a training saves to itself until it is to move."""

    def __init__(self, states: ClientStates) -> None:
        self._states = states
        self._saved: tuple[NDArray[np.integer[Any]], State] | None = None

    def load(self, clients: NDArray[np.integer[Any]]) -> State:
        """See :meth:`ClientStates.load`; what has not moved is not there."""
        return self._states.load(clients)

    def save(self, clients: NDArray[np.integer[Any]], state: State) -> None:
        """See :meth:`ClientStates.save`."""
        self._saved = clients.copy(), {name: values.copy() for name, values in state.items()}

    def move(self) -> None:
        """Save what the last training has left."""
        if self._saved is not None:
            self._states.save(*self._saved)
            self._saved = None
