"""The result of a round, as a sentence for people and as values for programs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from fedping.model_store.decisions import describe_staged
from fedping.model_store.version import ArmSummary, Influence, StageState, Version
from fedping.protocol.notation import format_count
from fedping.server_jobs.round.guard import describe_trial


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpent:
    """The budget of a private line after its last round.

    Attributes:
        releases: the number of rounds that have released sums.
        rounds_left: the number of remaining rounds; None without a bound.
        epsilon, delta: the guarantee so far; None if the operator provides no guarantee.
        most: the maximum epsilon of the line.
        noise: the standard deviation of the noise on an arm's number of clients; 0 if clients add it.
        stepped: whether the last round moved the weights.
        local: whether clients add noise themselves.
        refused: the number of clients that the last round left out because the helper couldn't use their shares.
        of_rows: whether rows, or persons, of institutions' tables are counted instead of clients.
    """

    releases: int
    rounds_left: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    most: float | None = None
    noise: float = 0.0
    stepped: bool = True
    local: bool = False
    refused: int = 0
    of_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The result of a round of one line on version ``iteration``.

    Attributes:
        status: one of these.

            - ``published``: version ``iteration + 1`` was published.
            - ``held``: that version is held, since this or an earlier round.
            - ``discarded``: the operator discarded the held version; ``restored`` was published again instead.
            - ``staged``: the version is offered to a share of the clients, since this or an earlier round.
            - ``withdrawn``: the staged version was withdrawn; version ``iteration + 2`` repeats ``restored``.
            - ``rolled_back``: the guard has rolled the line back to version ``restored``.
            - ``waiting``: there are too few clients; nothing was stored.
            - ``early``: the iteration isn't over; nothing was stored.
            - ``nothing``: no ping has landed.
            - ``lost``: another round has published that version first.
            - ``stopped``: training is over, and version ``restored`` was published again, after ``iteration + 1`` if
              the round published that.
            - ``over``: training was over before the round, which did nothing.
            - ``exhausted``: a private line has spent its budget; no ping was read.
            - ``asked``: a two-server line is waiting for its helper; the request is stored.
            - ``paused``, ``ended``: the study is paused or has ended, so the round didn't start.
        study, line, iteration: the line, and its newest version at the start of the round.
        clients: the number of clients with a usable update.
        min_clients: the number of clients that a step requires.
        counts, arms: as in :class:`fedping.model_store.version.Lineage`.
        alarms: the reasons why the version was held or withdrawn, or the line rolled back.
        restored: the version that was published again, if any.
        stage: the figures of a staged version.
        until: the latest end of an iteration that isn't over; without ``missing``, the earliest end.
        missing: clients or signs that would end the iteration sooner; for a two-server line, the reason to wait.
        since: the time of a two-server line's request to its helper, or of the study's pause, ISO 8601 in UTC.
        influence: as in :class:`fedping.model_store.version.Aggregate`.
        update_bytes: the encoded size of the used updates; 0 for a private line, or if no ping was read.
        privacy: the budget of a private line, whose numbers of clients have noise.
        capped: the number of clients whose claimed examples exceed the limit.
        noise_if_protected: the noise on each number of the mean update, if its clients are institutions with equal
            tables that protect their rows (:func:`fedping.server_jobs.row_noise.noise_of_round`).
    """

    status: Literal[
        "published",
        "held",
        "discarded",
        "staged",
        "withdrawn",
        "rolled_back",
        "waiting",
        "early",
        "nothing",
        "lost",
        "stopped",
        "over",
        "exhausted",
        "asked",
        "paused",
        "ended",
    ]
    study: str
    line: str
    iteration: int
    clients: int = 0
    min_clients: int
    counts: dict[str, int] = field(default_factory=dict)
    arms: dict[str, ArmSummary] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()
    restored: int | None = None
    until: str | None = None
    missing: str = ""
    since: str | None = None
    influence: Influence | None = None
    stage: StageState | None = None
    privacy: PrivacySpent | None = None
    update_bytes: int = 0
    capped: int | None = None
    noise_if_protected: float | None = None

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        where = f"{self.study}/{self.line}"
        match self.status:
            case "published":
                return f"{where}: {self._published}"
            case "stopped":
                version = f"{self._published}; " if self.counts else ""
                return (
                    f"{where}: {version}training is over; version {self.restored}, which had the lowest loss, is "
                    f"published again as version {self.iteration + (2 if self.counts else 1)}"
                )
            case "rolled_back":
                return (
                    f"{where}: rolled back to version {self.restored}, which version {self.iteration + 1} repeats: "
                    f"{'; '.join(self.alarms)}"
                )
            case "discarded":
                return (
                    f"{where}: published version {self.iteration + 1}, which repeats version {self.restored}; the "
                    "pings of the held version are discarded"
                )
            case "held":
                return (
                    f"{where}: version {self.iteration + 1} is held and version {self.iteration} stays: "
                    f"{'; '.join(self.alarms)}. {decide_by(self.study, self.line)}"
                )
            case "staged":
                waits = self.missing or (
                    f"it stays staged until at least {(self.until or '')[:19].replace('T', ' ')} UTC"
                )
                share = self.stage.share if self.stage else 0.0
                return f"{where}: {describe_staged(self.iteration + 1, share)}; {waits}"
            case "withdrawn":
                return (
                    f"{where}: version {self.iteration + 1} is withdrawn, and version {self.restored} is published "
                    f"again as version {self.iteration + 2}: {'; '.join(self.alarms)}"
                )
            case "over":
                return (
                    f"{where}: training is over; version {self.iteration} repeats version {self.restored}, which had "
                    f"the lowest loss. To train further, run 'fedping store rollback {self.study} {self.line} --to "
                    f"{self.restored}'"
                )
            case "early":
                until = f"until {(self.until or '')[:19].replace('T', ' ')} UTC"
                lasts = f"; {self.missing}, and its iteration lasts at most {until}" if self.missing else f" {until}"
                return f"{where}: version {self.iteration} stays{lasts}"
            case "asked":
                since = (self.since or "")[:19].replace("T", " ")
                return (
                    f"{where}: version {self.iteration} stays; the helper was asked for the sums of {self.clients:,} "
                    f"clients at {since} UTC and has not answered: {self.missing}"
                )
            case "waiting" if self.missing:
                return f"{where}: version {self.iteration} stays; {self.missing}"
            case "waiting":
                return (
                    f"{where}: version {self.iteration} stays; {self.clients:,} of at least {self.min_clients:,} "
                    "clients have sent a usable update"
                )
            case "paused" | "ended":
                return f"{where}: no round, because the study {'is paused' if self.status == 'paused' else 'has ended'}"
            case "nothing":
                return f"{where}: nothing to do; no pings of version {self.iteration} have landed"
            case "lost":
                return (
                    f"{where}: another round published version {self.iteration + 1} first, so this one published no "
                    "version; no data is lost"
                )
            case "exhausted":
                assert self.privacy is not None
                return (
                    f"{where}: version {self.iteration} stays, and nothing was read; the line has been released "
                    f"{self.privacy.releases:,} times, the maximum of its guarantee"
                )

    @property
    def _published(self) -> str:
        if self.privacy is not None:
            return self._released(self.privacy)
        used, others = self.counts["used"], sum(self.counts.values()) - self.counts["used"]
        tried = f": {describe_trial(self.stage)}" if self.stage is not None else ""
        return (
            f"published version {self.iteration + 1} from {format_count(used, 'ping')} of "
            f"{format_count(self.clients, 'client')} ({format_count(others, 'other ping')} not used){tried}"
        )

    def _released(self, spent: PrivacySpent) -> str:
        about = (
            f"about {self.clients:,} clients (noise of ± {spent.noise:,.0f})"
            if spent.noise
            else f"{self.clients:,} rows of institutions' tables"
            if spent.of_rows
            else (f"{self.clients:,} clients" + (", each with its own noise" if spent.local else ""))
        )
        sentence = f"published version {self.iteration + 1} from {about}"
        if not spent.stepped:
            why = f"too few for a step, which needs {self.min_clients:,}"
            if self.clients >= self.min_clients:
                why = "its step failed, or resulted in weights that clients can't read"
            sentence += f", which repeats version {self.iteration}: {why}"
        if spent.refused:
            of = "a client's share" if spent.refused == 1 else f"the shares of {spent.refused:,} clients"
            sentence += f"; the helper could not use {of} and left them out"
        if spent.epsilon is None or spent.rounds_left is None:
            return sentence
        one = "no round is" if spent.rounds_left == 0 else "1 round is"
        left = f"{one if spent.rounds_left < 2 else f'{spent.rounds_left:,} rounds are'} left"
        return f"{sentence}; epsilon {spent.epsilon:.3g} of {spent.most:g} so far, and {left}"


def decide_by(study: str, line: str) -> str:
    """Return the commands to decide about a held version."""
    return (
        f"Inspect it ('fedping store held {study} {line}'), then publish it with 'fedping round {study} {line} "
        "--release', or discard it and its pings with --discard."
    )


def with_lineage(version: Version, result: RoundResult) -> RoundResult:
    """Return a round's result with the figures from the lineage of its published or held version."""
    aggregate, guard = version.lineage.aggregate, version.lineage.guard
    return replace(
        result,
        clients=aggregate.clients if aggregate else 0,
        influence=aggregate.influence if aggregate else None,
        counts=version.lineage.counts,
        arms=version.lineage.arms,
        alarms=guard.alarms if guard else (),
        restored=version.lineage.restored,
    )
