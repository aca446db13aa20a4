"""Input of the health checks: snapshots of ingest and of a line, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from fedping.model_store.helper_requests import PendingRequest
from fedping.model_store.version import Outcome, StageState
from fedping.protocol.guard import Stage
from fedping.protocol.notation import milliseconds_of
from fedping.protocol.study import Arm, Declared
from fedping.server_jobs.ingest.counters import OfStudy, Recently
from fedping.server_jobs.round_status import Failing

RECENT = 5
"""Number of newest rounds over which shares and losses are computed. Pages show a mean over the same number."""


class Uploads(Struct, frozen=True, kw_only=True):
    """Number and encoded size in bytes of a line's updates in one encoding."""

    study: str
    line: str
    encoding: str
    updates: int
    update_bytes: int


class Ingest(Struct, frozen=True, kw_only=True):
    """Ingest at one moment, for all studies together.

    Attributes:
        state: ``running`` or ``stopped``; ``absent`` if there is no journal, so no ingest ever ran here; ``unknown``
            if its files aren't readable.
        journal: the folder that was read.
        pending: accepted pings that are not in Parquet yet.
        segments: segments of the journal that hold these pings.
        waiting_since: time at which the oldest pending ping arrived, in seconds since 1970; None without any.
        period: seconds between two compactions; None if unknown.
        accepted: pings since ingest was started, duplicates included.
        landed: pings written to Parquet since then.
        rejected: requests and lines rejected since then, by reason; only reasons that occurred.
        troubles: a sentence for each reason why accepted pings do not land.
        newcomers: by study and hour since 1970, the number of clients that sent their first ping.
        studies: accepted and rejected pings by study; rejections that name no study are in ``rejected`` alone.
        recent: recent pings by study; the empty name has rejections that name no study.
        requests: numbers of requests in the last minutes, and of those that failed because of a server error.
        uploads: the updates that have landed since ingest was started, by study, line and encoding.
    """

    state: Literal["running", "stopped", "absent", "unknown"]
    journal: str = ""
    pending: int = 0
    segments: int = 0
    waiting_since: float | None = None
    period: float | None = None
    accepted: int = 0
    landed: int = 0
    rejected: dict[str, int] = {}
    troubles: tuple[str, ...] = ()
    newcomers: dict[str, dict[int, int]] = {}
    studies: dict[str, OfStudy] = {}
    recent: dict[str, Recently] = {}
    requests: dict[str, int] = {}
    uploads: tuple[Uploads, ...] = ()


class Landed(Struct, frozen=True, kw_only=True):
    """The landed pings of one version.

    Attributes:
        version: number of the version.
        pings: pings of all arms, duplicates included.
        files: number of readable files.
        newest_ms: time at which the newest file landed, in milliseconds since 1970; None without a file.
        unreadable: names of the files that can't be read; rounds reject them.
    """

    version: int
    pings: int
    files: int
    newest_ms: int | None
    unreadable: tuple[str, ...] = ()


class HeldVersion(Struct, frozen=True, kw_only=True):
    """A version that a line's guard holds: its number, and a phrase for each alarm; or its ``stage``.

    The stage has the state that the last round recorded, or its initial state.
    """

    iteration: int
    alarms: tuple[str, ...]
    stage: StageState | None = None


class PrivateFacts(Struct, frozen=True, kw_only=True):
    """The guarantee of a private line, the part that its rounds have spent, and the size of its noise.

    All values are computed from settings and from sums that rounds have released.

    Attributes:
        guarantee: a sentence, as on the study's privacy card.
        epsilon, delta: budget spent so far; None if clients, not the operator, provide the guarantee.
        most: maximum epsilon of all rounds together; None as for ``epsilon``.
        releases: number of rounds that have released sums.
        rounds, rounds_left: total number of rounds, and number of remaining rounds; None without a bound.
        noise: standard deviation of the noise on an arm's number of clients; 0 where clients add it.
        loss: minimum and maximum of a released loss.
        local: whether clients add noise themselves.
        shared: whether the line has two servers.
        waiting: the request to the helper that is still unanswered.
    """

    guarantee: str
    epsilon: float | None
    delta: float | None
    most: float | None
    releases: int
    rounds: int | None
    rounds_left: int | None
    noise: float
    loss: tuple[float, float]
    local: bool = False
    shared: bool = False
    waiting: PendingRequest | None = None


class LineSnapshot(Struct, frozen=True, kw_only=True):
    """A line at one moment.

    Attributes:
        name: name of the line.
        min_clients: number of clients that a round needs.
        most_examples: maximum number of examples for which a ping counts; None without a limit.
        longest: maximum seconds that an iteration may wait for its end.
        stage: the line's settings for staged versions.
        outcomes: outcomes of the newest versions, oldest first; empty if no version can be read, see ``troubles``.
        landed: landed pings of the newest version.
        troubles: reasons why some of the line's data can't be read.
        held: held version, which would be the next one.
        failing: failures of rounds since the last round with a result.
        privacy: facts of a private line; None for other lines.
    """

    name: str
    min_clients: int
    most_examples: int | None = None
    longest: float = 0.0
    stage: Stage | None = None
    outcomes: tuple[Outcome, ...] = ()
    landed: Landed | None = None
    troubles: tuple[str, ...] = ()
    held: HeldVersion | None = None
    failing: Failing | None = None
    privacy: PrivateFacts | None = None


class CheckInput(Struct, frozen=True, kw_only=True):
    """All data that the checks of a line use.

    Attributes:
        study: name of the study.
        declared: the study's declared state.
        arms: the study's arms.
        line: the line.
        ingest: ingest at the same moment.
        now: seconds since 1970.
        beside: number of pings of arms without a line that landed during the :attr:`recent` rounds; None if unknown.
        discreet: whether the store has a private study. Sentences then give no exact number of pings.
        settings: number of the history entry with the study's current settings.
    """

    study: str
    declared: Declared
    arms: tuple[Arm, ...]
    line: LineSnapshot
    ingest: Ingest
    now: float
    beside: int | None = None
    discreet: bool = False
    settings: int = 0

    @property
    def recent(self) -> tuple[Outcome, ...]:
        """The newest versions published by rounds since the last rollback or continuation, oldest first."""
        versions: list[Outcome] = []
        for outcome in reversed(self.line.outcomes):
            if outcome.lineage.origin != "round":
                break
            versions.append(outcome)
        return tuple(reversed(versions[:RECENT]))

    @property
    def recent_ms(self) -> tuple[int, int] | None:
        """The period of the :attr:`recent` rounds: start and end in milliseconds since 1970; None without such rounds.

        It starts when the version before them was published, and ends when their last version was published.
        """
        recent = self.recent
        before = [one for one in self.line.outcomes if recent and one.iteration < recent[0].iteration]
        return (milliseconds_of(before[-1].created), milliseconds_of(recent[-1].created)) if before else None

    @property
    def following(self) -> tuple[Arm, ...]:
        """The arms that follow the line."""
        return tuple(arm for arm in self.arms if arm.line == self.line.name)

    @property
    def free(self) -> tuple[Arm, ...]:
        """The arms that follow no line."""
        return tuple(arm for arm in self.arms if arm.line is None)

    @property
    def over(self) -> int | None:
        """The version that early stopping republished at the end of training; None during training."""
        newest = self.line.outcomes[-1].lineage if self.line.outcomes else None
        return newest.restored if newest is not None and newest.stopped else None

    @property
    def has_landed(self) -> bool:
        """Whether pings have landed, of the newest version or in earlier rounds."""
        landed = self.line.landed
        return (landed is not None and landed.pings > 0) or ping_total(self.line.outcomes) > 0

    @property
    def exhausted(self) -> bool:
        """Whether this is a private line with no rounds left."""
        return self.line.privacy is not None and self.line.privacy.rounds_left == 0

    def failing_by(self, part: str) -> Failing | None:
        """Return the failures of rounds that ``part`` ("store", "landing" or "") caused; None without any."""
        failing = self.line.failing if self.declared.state == "running" and not self.declared.simulated else None
        return failing if failing is not None and failing.part == part else None


def ping_total(outcomes: Sequence[Outcome]) -> int:
    """Return the total number of pings of the rounds with these outcomes."""
    return sum(sum(one.lineage.counts.values()) for one in outcomes)
