"""A client as a state machine: enrol, fetch, train, send, retry, forget.

States are frozen, and a transition is a pure function of a state and an event. The network, the disk, the clock and
random draws belong to the drivers, which share these transitions::

    enrol:   arm_position            study, client id           -> position of its arm
    fetch:   version_after           held version, answer       -> held version
    train:   is_due, sends_update    progress, held version     -> whether it trains
             after_training          progress, version          -> progress
    send:    after_attempt           Sending, outcome           -> Sending, SetAside or Settled
    forget:  after_answer            progress, final outcome    -> progress

A fleet (`fleet/`) drives thousands of clients, with their versions in an array: in an iteration all of them fetch, then
all train, then all send. `fedping join` (`joining/`) drives one client, whose state is on disk, by :func:`next_action`.
A replay starts with pending pings. The laboratory's HTTP rounds send batches, each as one ping.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from msgspec import UNSET, Struct
from msgspec.structs import replace

from fedping.client_sim.transport import Delivery, Fetched, NotModified, Outcome, Unavailable
from fedping.protocol.enrolment import enrol, is_selected, staged_for
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.study import Arm, PublicStudy

NOT_ENROLLED = -1
"""Position that stands for no arm: the client doesn't take part in the study."""


# Enrol


def arm_position(study: PublicStudy, client_id: UUID) -> int:
    """Return the position of a client's arm in a study, :data:`NOT_ENROLLED` if it has none."""
    arm = enrol(study, str(client_id))
    return NOT_ENROLLED if arm is None else study.arms.index(arm)


# Fetch


def version_after(held: int, answer: Fetched | NotModified | Unavailable) -> int:
    """Return the version that a client holds after a server's answer: the fetched one, else the one it held before."""
    return answer.document.iteration if isinstance(answer, Fetched) else held


def gets_staged(study: str, arm: Arm, newest: Fetched, client_id: UUID) -> bool:
    """Return whether a client fetches the staged version that ``newest`` names, rather than the newest version."""
    staged = newest.document.staged
    if staged is UNSET or not arm.applies or arm.line is None:
        return False
    return staged_for(study, arm.line, staged.iteration, staged.share, str(client_id))


# Train


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of a client that sends one ping a version. An institution stores it as a document on disk.

    Attributes:
        version: newest version with an accepted ping; -1 for none.
        moved: newest version that the client never trains on again, because its own state has changed with the version
            or, on a private line, it has contributed to the version; independent of the server's answer.
        sent: number of accepted pings.
        contributed: number of versions of a private line that it has contributed to, whatever the server answers.
        forbidden: version whose ping was rejected because of its sender, such as one without a ticket; it is sent once
            more. -1 for none.
        held_out: share of the rows that it doesn't train on, 0 for none; None in folders of older programs.
    """

    version: int = NO_VERSION
    moved: int = NO_VERSION
    sent: int = 0
    contributed: int = 0
    forbidden: int = NO_VERSION
    held_out: float | None = None

    def after_training(self, version: int, contributed: int | None = None) -> Progress:
        """Return the progress after training on a version, when the client has decided on its ping.

        Args:
            version: the version.
            contributed: the number of contributions with this one; None if the line isn't private.
        """
        times = self.contributed if contributed is None else contributed
        return replace(self, moved=version, contributed=times, forbidden=NO_VERSION)

    def after_answer(self, version: int, outcome: Outcome) -> Progress:
        """Return the progress after the final answer to a version's ping; a rejected ping leaves it unchanged."""
        if outcome.delivery is not Delivery.ACCEPTED:
            return self
        return replace(self, version=version, sent=self.sent + 1)


def is_due(progress: Progress, version: int, trains_once: bool) -> bool:
    """Return whether a client may train on a version.

    Args:
        progress: the client's.
        version: the version that it holds.
        trains_once: whether a version gets one ping, whatever the server answers; else a rejected ping may be replaced.
    """
    if version == progress.forbidden > progress.version:
        return True
    return version > max(progress.version, progress.moved if trains_once else NO_VERSION)


def sends_update(study: str, arm: Arm, participation: float, version: int, client_id: UUID) -> bool:
    """Return whether a client sends a ping of a version; in an arm that sends no updates, every client does.

    Args:
        study: the study's name.
        arm: the client's arm.
        participation: the line's share of clients that send an update of a version.
        version: the version that the client holds.
        client_id: the client's id.
    """
    if arm.line is None or not arm.submits or participation >= 1:
        return True
    return is_selected(study, arm.line, version, participation, str(client_id))


# Send, retry


@dataclass(frozen=True, slots=True, eq=False)
class OutgoingPing:
    """A ping as posted, the same in every attempt: its document id, and its JSON.

    A client may send it twice, and may get the outcome ``later`` for it. Two pings with the same document id, as a
    recording may have them, count as two.
    """

    document_id: UUID
    body: bytes
    twice: bool = False
    later: bool = False


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Waits between attempts, in seconds. After ``attempts`` failures a ping is set aside, to be sent again later.

    The wait after the k-th failure is drawn uniformly between half of ``first * factor ** (k - 1)`` and the whole, so
    that clients that failed together don't return together. With a factor of 2 or more a wait is at least as long as
    the previous one, up to ``longest``. A time that the server asks for is lengthened by up to ``first``, for the same
    reason.

    Raises:
        InvalidSettings: a number outside its range.
    """

    first: float = 0.5
    factor: float = 2.0
    longest: float = 60.0
    attempts: int = 6

    def __post_init__(self) -> None:
        if not (0 <= self.first <= self.longest and 1 <= self.factor <= 1000 and self.attempts >= 1):
            raise InvalidSettings(
                f"back-off {self.first:g} s x {self.factor:g} up to {self.longest:g} s, {self.attempts} attempts: the "
                "values don't fit together. Use 0 <= first <= longest, a factor from 1 to 1000, and at least 1 attempt."
            )

    def wait(self, failures: int, uniform: float, retry_after: float | None) -> float:
        """Return the seconds to wait after the ``failures``-th failure in a row, at least 1; ``uniform`` in [0, 1)."""
        ceiling = min(self.longest, self.first * self.factor ** min(failures - 1, 64))
        wait = ceiling * (0.5 + 0.5 * uniform)
        return wait if retry_after is None else max(wait, retry_after + self.first * uniform)


ONE_ATTEMPT = Backoff(attempts=1)
"""Back-off of a single attempt, without retries."""


@dataclass(frozen=True, slots=True)
class Sending:
    """A pending ping after ``failures`` failed attempts in a row; ``last`` is the outcome of the last one, if any."""

    failures: int = 0
    last: Outcome | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A ping without a final answer, after as many attempts as the back-off allows.

    Attributes:
        reason: reason of the last failure.
        closed_for: seconds for which the server asked clients to send nothing; 0 if it named no time.
    """

    reason: str
    closed_for: float = 0.0


@dataclass(frozen=True, slots=True)
class Settled:
    """A ping with a final answer: accepted, or rejected."""

    outcome: Outcome

    @property
    def accepted(self) -> bool:
        """Whether the server accepted the ping."""
        return self.outcome.delivery is Delivery.ACCEPTED


SendState: TypeAlias = Sending | SetAside | Settled


def after_attempt(state: Sending, outcome: Outcome, backoff: Backoff) -> SendState:
    """Return a ping's state after one more attempt."""
    if outcome.delivery is not Delivery.RETRY:
        return Settled(outcome)
    failures, closed_for = state.failures + 1, outcome.retry_after or 0.0
    if failures >= backoff.attempts or closed_for > backoff.longest:
        return SetAside(outcome.reason, closed_for)
    return Sending(failures, outcome)


# The next action of a client that sends one ping a version


class Action(Enum):
    """The next action of a client."""

    FETCH = "fetch"
    TRAIN = "train"
    POST = "post"
    WAIT = "wait"
    LEAVE = "leave"


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client between two actions.

    Attributes:
        version: the version that it holds; -1 for none.
        progress: the client's progress through versions.
        has_ping: whether a ping waits to be posted.
        has_fetched: whether it has asked for the newest version since it last waited.
        trains_once: whether a version gets one ping, whatever the server answers.
        is_selected: whether it sends a ping of the version that it holds.
        contributions: maximum number of contributions to a private line; None without a limit.
    """

    version: int
    progress: Progress
    has_ping: bool
    has_fetched: bool
    trains_once: bool
    is_selected: bool
    contributions: int | None = None


def next_action(client: Client) -> Action:
    """Return a client's next action. A pending ping comes before a new one, and a fetch before training."""
    if client.has_ping:
        return Action.POST
    if client.contributions is not None and client.progress.contributed >= client.contributions:
        return Action.LEAVE
    if not client.has_fetched:
        return Action.FETCH
    if client.is_selected and is_due(client.progress, client.version, client.trains_once):
        return Action.TRAIN
    return Action.WAIT
