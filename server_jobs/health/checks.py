"""Whether a study is well: one pure function, by which pages, ``/metrics`` and the webhook all tell.

What it finds has a name of :data:`FINDINGS`, a severity and a sentence. The bounds are here and nowhere else. To add a
finding, write a function of :class:`Facts`, name it in :data:`FINDINGS`, and list it in :data:`_CHECKS`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from fedping.model_store.decisions import describe_missing, describe_staged
from fedping.model_store.version import Outcome, StageState, date_trouble
from fedping.protocol.clock import milliseconds_of
from fedping.protocol.errors import as_sentence
from fedping.protocol.guard import Stage
from fedping.protocol.privacy import ReleasedMeans, standard_errors
from fedping.protocol.study import Arm, Declared
from fedping.server_jobs.health.landed import Landed
from fedping.server_jobs.health.private import PrivateFacts
from fedping.server_jobs.ingest.counters import OfStudy
from fedping.server_jobs.ingest.recent import OURS, POSTPONED, WINDOW_MINUTES, Came, Recently, failing_requests
from fedping.server_jobs.round_status import Failing

FindingName: TypeAlias = Literal[
    "ingest",
    "landing",
    "store",
    "held",
    "rounds",
    "stale",
    "refused",
    "arms",
    "loss",
    "newcomers",
    "capped",
    "privacy",
    "helper",
]
FINDINGS: tuple[FindingName, ...] = get_args(FindingName)
"""Every name of a finding, in the order in which findings of the same severity are told."""

Severity: TypeAlias = Literal["warning", "problem"]
Verdict: TypeAlias = Literal["healthy", "warning", "problem", "paused", "ended"]
VERDICTS: tuple[Verdict, ...] = ("problem", "warning", "healthy", "paused", "ended")
"""Every verdict, the worst first."""

RECENT = 5
"""Rounds that shares and losses are taken over, as many as pages take a mean of."""

PACED = 10
"""Rounds whose distances in time give the interval between rounds."""

LATE, VERY_LATE = 2.0, 4.0
"""From how many intervals on a newest version is late: one round may find too few clients. Then a problem."""

LATE_AT_LEAST = 120.0
"""Seconds that a newest version may have in any case."""

WAITS = 300.0
"""Seconds that an accepted ping may wait in the journal, where ingest does not say how often it lands pings."""

WAIT_PERIODS = 5
"""How many times as long as ingest gathers pings they may wait in the journal."""

FEWEST = 50
"""Pings without which no share is judged."""

MANY_STALE, MOST_STALE = 0.2, 0.5
MANY_REFUSED, MOST_REFUSED = 0.05, 0.25
"""Shares that are a warning, and a problem."""

FEW_ACCEPTED = 0.1
"""Accepted pings for each answer that asked to send one again, up to which clients hardly get through."""

SURELY = 4.0
"""Standard errors by which an arm's pings differ from its share, before that is told."""

OFF = 0.2
"""By which part of its share an arm's pings have to differ as well: of a million pings, any difference is sure."""

KNOWN_HOURS, COMPARED_HOURS = 6, 48
"""How many hours have to be known before new clients are judged, and with the most of how many an hour is compared."""

MANY_NEW, MOST_NEW = 2.0, 5.0
"""By which factor new clients exceed the most of any earlier hour: a warning, and a problem."""

FEWEST_NEW = 100
"""New clients in an hour without which none are too many."""

IN_A_ROW = 3
"""Staged versions withdrawn one after the other before somebody has to look: a few claims of clients can do that."""

MANY_CAPPED = 0.05
"""Share of the clients that count for fewer examples than they claim, above which weights are no longer by examples."""

WORSE, MUCH_WORSE = 0.05, 0.25
"""By which part an arm's loss may exceed the control's, on average over :data:`RECENT` rounds that were all worse."""

FEW_LEFT = 0.1
"""The part of a private line's rounds from which on those that are left are few."""


class Finding(Struct, frozen=True, kw_only=True):
    """Something that is not well: a ``warning`` is worth a look, a ``problem`` costs pings or versions."""

    name: FindingName
    severity: Severity
    sentence: str


class StagedLine(Struct, frozen=True, kw_only=True):
    """A version of a line that a share of the clients has first, and how many of these the last round has heard."""

    line: str
    version: int
    share: float
    heard: int
    wanted: int
    sentence: str


class Health(Struct, frozen=True, kw_only=True):
    """The judgement of a study or of one of its lines.

    ``headline`` is one sentence and says the verdict; ``findings`` are the reasons, the worst first. ``over`` names the
    lines whose training is over, as early stopping found: no further version of them has to come. ``staged`` tells what
    a share of the clients has first, which is in order.
    """

    verdict: Verdict
    headline: str
    findings: tuple[Finding, ...] = ()
    over: tuple[str, ...] = ()
    staged: tuple[StagedLine, ...] = ()


class Uploads(Struct, frozen=True, kw_only=True):
    """How many updates of a line have come in an encoding, and how many bytes they are as encoded."""

    study: str
    line: str
    encoding: str
    updates: int
    update_bytes: int


class Ingest(Struct, frozen=True, kw_only=True):
    """Ingest at one moment, for all studies together.

    Attributes:
        state: ``running`` or ``stopped``; ``absent`` if there is no journal, so that none ever ran here; ``unknown`` if
            its files may not be read.
        journal: the folder that was looked at.
        pending: pings that were accepted and are not in Parquet yet.
        segments: of the journal, which hold them.
        waiting_since: when the oldest of them came, in seconds since 1970; None without any.
        period: after how many seconds it lands pings; None if it does not say.
        accepted: pings since it was started, duplicates included.
        landed: pings written to Parquet since then.
        rejected: requests and lines refused since then, by reason; without those that did not occur.
        troubles: a sentence for each way in which accepted pings do not land.
        newcomers: by study and hour since 1970, how many clients sent that had not before.
        studies: what was accepted and refused of each study; what is refused for another reason than a study's is in
            ``rejected`` alone.
        recent: what came lately by study; the empty name has what was refused for no study.
        requests: requests of the last minutes, and those that failed by a fault of ours.
        uploads: the updates that have landed since it was started, by study, line and encoding.
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


class HeldVersion(Struct, frozen=True, kw_only=True):
    """A version that the guard of a line holds back: its number, and a phrase for each reason; or its ``stage``.

    The stage is as the last round has seen it, or as it began.
    """

    iteration: int
    alarms: tuple[str, ...]
    stage: StageState | None = None


class LineSnapshot(Struct, frozen=True, kw_only=True):
    """A line at one moment.

    ``outcomes`` are those of its newest versions, oldest first; none if no version can be read, of which ``troubles``
    says why. ``landed`` is what has landed for the newest version. ``held`` is held back in the place of the next one.
    ``failing`` is how its rounds fail, since the last one with a result.
    ``privacy`` is there where it is a private line. ``longest`` is how long, in seconds, an iteration may wait for what
    would end it, and ``stage`` how versions are staged, by the line's own settings. ``most_examples`` is as how many
    examples a ping counts at most; None without a limit.
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
    """What a line of a study is judged by.

    ``now`` is in seconds since 1970. ``beside`` is how many pings of arms that follow no line have landed between the
    first of the :attr:`recent` rounds and the last; None where there is none to tell. ``discreet`` says that the store
    has a private study: how many pings have come exactly is then told in no sentence. ``settings`` is the entry of the
    study's history of which its settings are.
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
        """The newest versions that rounds made since the line was last rolled back or continued, oldest first."""
        found: list[Outcome] = []
        for outcome in reversed(self.line.outcomes):
            if outcome.lineage.origin != "round":
                break
            found.append(outcome)
        return tuple(reversed(found[:RECENT]))

    @property
    def recent_ms(self) -> tuple[int, int] | None:
        """When the version before the :attr:`recent` rounds was published, and the last of theirs; None without any.

        In milliseconds since 1970.
        """
        recent = self.recent
        before = [one for one in self.line.outcomes if recent and one.iteration < recent[0].iteration]
        return (milliseconds_of(before[-1].created), milliseconds_of(recent[-1].created)) if before else None

    @property
    def free(self) -> tuple[Arm, ...]:
        """The arms that follow no line."""
        return tuple(arm for arm in self.arms if arm.line is None)

    @property
    def over(self) -> int | None:
        """The version that was published again when early stopping found training to be over; None if it goes on."""
        newest = self.line.outcomes[-1].lineage if self.line.outcomes else None
        return newest.restored if newest is not None and newest.stopped else None

    @property
    def has_landed(self) -> bool:
        """Whether pings have landed, by what lies there for the newest version and by the last rounds."""
        landed = self.line.landed
        return (landed is not None and landed.pings > 0) or any(_pings([one]) for one in self.line.outcomes)

    @property
    def exhausted(self) -> bool:
        """Whether it is a private line that has no round left."""
        return self.line.privacy is not None and self.line.privacy.rounds_left == 0

    def fails_by(self, part: str) -> Failing | None:
        """Return how rounds fail by the store, by the landing folder, or (empty) otherwise; None if they do not."""
        failing = self.line.failing if self.declared.state == "running" and not self.declared.simulated else None
        return failing if failing is not None and failing.part == part else None

    @property
    def following(self) -> tuple[Arm, ...]:
        """The arms of the line."""
        return tuple(arm for arm in self.arms if arm.line == self.line.name)


def check_line(facts: CheckInput) -> Health:
    """Return the judgement of a line."""
    declared = facts.declared
    asked = _SIMULATED if declared.simulated else _ASKED[declared.state]
    findings = _sorted(finding for name in FINDINGS if name in asked for finding in _CHECKS[name](facts))
    over = () if facts.over is None else (facts.line.name,)
    return replace(_health(declared, findings, _healthy_headline(facts), over), staged=_staged(facts))


def _staged(facts: CheckInput) -> tuple[StagedLine, ...]:
    held, stage = facts.line.held, facts.line.stage
    if held is None or held.stage is None or stage is None or facts.declared.state == "ended":
        return ()
    told = describe_staged(held.iteration, held.stage.share)
    waits = describe_missing(stage, held.stage)
    one = StagedLine(
        line=facts.line.name,
        version=held.iteration,
        share=held.stage.share,
        heard=held.stage.tried.clients if held.stage.tried else 0,
        wanted=stage.clients,
        sentence=as_sentence(f"{told}; {waits}" if waits else told),
    )
    return (one,)


def merge_lines(declared: Declared, lines: Sequence[tuple[str, Health]]) -> Health:
    """Return the judgement of a study of these lines; a sentence that all have is told once, another with its line."""
    if len(lines) == 1:
        return lines[0][1]
    everywhere = set.intersection(*({*health.findings} for _, health in lines))
    found = [
        replace(finding, sentence=f"Line {name}: {finding.sentence}")
        for name, health in lines
        for finding in health.findings
        if finding not in everywhere
    ]
    over = tuple(name for _, health in lines for name in health.over)
    told = "Healthy: ingest is running, and versions come."
    if over:
        told = (
            f"{told[:-1]}; training of line{'s' * (len(over) > 1)} {', '.join(over)} is over."
            if len(over) < len(lines)
            else "Healthy: ingest is running, and training of all lines is over."
        )
    judgement = _health(declared, _sorted([*everywhere, *found]), told, over)
    staged = (replace(one, sentence=f"Line {name}: {one.sentence}") for name, health in lines for one in health.staged)
    return replace(judgement, staged=tuple(staged))


def unreadable_study(why: str) -> Health:
    """Return the judgement of a study that cannot be read."""
    return _health(Declared(), (_problem("store", as_sentence(why)),), "")


def _sorted(findings: Iterator[Finding] | Sequence[Finding]) -> tuple[Finding, ...]:
    order = {"problem": 0, "warning": 1}
    return tuple(sorted(findings, key=lambda one: (order[one.severity], FINDINGS.index(one.name), one.sentence)))


def _health(declared: Declared, findings: tuple[Finding, ...], well: str, over: tuple[str, ...] = ()) -> Health:
    """Return the judgement: what is declared stands first, unless something is lost meanwhile."""
    verdict: Verdict = "healthy"
    headline = well
    if any(one.severity == "problem" for one in findings):
        verdict, headline = "problem", f"Not healthy{_ALTHOUGH[declared.state]}."
    elif declared.state != "running":
        verdict, headline = declared.state, _declared_in_words(declared)
    elif findings:
        verdict, headline = "warning", "Worth a look."
    return Health(verdict=verdict, headline=headline, findings=findings, over=over)


_ALTHOUGH = {"running": "", "paused": ", and paused", "ended": ", although the study has ended"}


def _declared_in_words(declared: Declared) -> str:
    if declared.state == "paused":
        told = f"Paused since {format_time(declared.since)}{declared.told}"
        return f"{told}: no round makes a version; pings are still taken and land."
    if declared.simulated:
        return f"A simulation, which is over; its clock stopped at {format_time(declared.since)}."
    return f"Ended on {format_time(declared.since)}{declared.told}: no ping is taken, and no round makes a version."


def format_time(moment: str) -> str:
    """Return a time for people: 2026-01-31 10:00 UTC."""
    return f"{moment[:10]} {moment[11:16]} UTC"


def _healthy_headline(facts: CheckInput) -> str:
    if facts.declared.simulated:
        return "Healthy: a simulation, which goes on."
    if facts.over is not None:
        newest = facts.line.outcomes[-1].iteration
        return f"Healthy: training is over; version {newest} is version {facts.over} again, which had the lowest loss."
    if facts.recent:
        return "Healthy: ingest is running, and versions come."
    if facts.line.landed is not None and facts.line.landed.pings:
        return "Healthy: pings land; the next round makes the first version from them."
    return "Healthy: ingest is running, and waits for the first pings."


def _ingest(facts: CheckInput) -> Iterator[Finding]:
    ingest = facts.ingest
    ended = facts.declared.state == "ended"
    if ingest.state == "running" and ingest.requests:
        private = facts.discreet
        if trouble := failing_requests(ingest.requests, Path(ingest.journal), private):
            yield _problem("ingest", as_sentence(trouble))
    waiting = (
        f"{_ping_count(facts, ingest.pending)} that it has accepted {_wait_verb(facts, ingest.pending)} in its journal"
    )
    if ingest.state == "running" or (ended and not ingest.pending):
        return
    if ingest.state == "unknown":
        yield _warning(
            "ingest",
            f"Whether ingest is running cannot be seen from here, because its journal {ingest.journal} is not "
            "readable.",
        )
    elif ingest.pending:
        yield _problem(
            "ingest",
            f"Ingest is not running: {waiting} and will not land before it runs again. Start 'fedping ingest'.",
        )
    elif ingest.state == "absent":
        yield _no_journal(facts)
    else:
        yield _problem(
            "ingest",
            f"Ingest is not running with the journal {ingest.journal}, so no ping can come and no model be fetched. "
            f"Start 'fedping ingest'{_OTHER_JOURNAL}.",
        )


_OTHER_JOURNAL = ", or, if it has another journal, name that by --journal or FEDPING_JOURNAL"


def _no_journal(facts: CheckInput) -> Finding:
    """Tell that nothing ever ran with a journal; where pings have landed, somebody has taken them with another."""
    journal = facts.ingest.journal
    if facts.has_landed:
        return _warning(
            "ingest",
            f"Whether ingest is running cannot be seen from here: pings have landed, and none has run with the journal "
            f"{journal}. Name the journal of your ingest by --journal or FEDPING_JOURNAL, or, if it runs on another "
            "machine, look there.",
        )
    return _problem(
        "ingest",
        f"No ingest has ever run with the journal {journal}, and no ping has landed. Start 'fedping ingest'"
        f"{_OTHER_JOURNAL}; or, if nobody is to send pings any more, declare the study ended: 'fedping study end "
        f"{facts.study}'.",
    )


def _landing(facts: CheckInput) -> Iterator[Finding]:
    ingest, landed = facts.ingest, facts.line.landed
    for trouble in ingest.troubles:
        yield _problem("landing", trouble)
    waiting = f"{_ping_count(facts, ingest.pending)} {_wait_verb(facts, ingest.pending)}"
    limit = WAITS if ingest.period is None else max(WAIT_PERIODS * ingest.period, LATE_AT_LEAST)
    waited = facts.now - (facts.now if ingest.waiting_since is None else ingest.waiting_since)
    if ingest.state == "running" and not ingest.troubles and ingest.pending and waited > limit:
        yield _problem(
            "landing",
            f"{as_sentence(waiting)[:-1]} in ingest's journal, some for {format_duration(waited)}, "
            "and should have landed. See what ingest says on stderr, and /__heartbeat__ on its operator's port.",
        )
    if landed is not None and landed.unreadable:
        more = len(landed.unreadable) - 1
        yield _problem(
            "landing",
            f"No round can read the pings of version {landed.version}, for {landed.unreadable[0]}"
            f"{f' and {more} more' if more else ''} in its landing folder cannot be read. Move what is damaged out of "
            "there.",
        )
    if failing := facts.fails_by("landing"):
        yield _problem("landing", failures_in_words(failing))


def _store(facts: CheckInput) -> Iterator[Finding]:
    for trouble in facts.line.troubles:
        yield _problem("store", as_sentence(trouble))
    if failing := facts.fails_by("store"):
        yield _problem("store", failures_in_words(failing))


_FAILED = {
    "failed": "failed",
    "temporary": "failed with an error that may be temporary",
    "out_of_time": "reached its time limit (--max-time)",
    "crashed": "failed with an unforeseen error",
}


def failures_in_words(failing: Failing) -> str:
    """Return how rounds fail: the count of failures in a row, since when, and the reason of the last."""
    why = as_sentence(failing.why) if failing.why else "See what the round says on stderr."
    if failing.times == 1:
        return f"The last round {_FAILED[failing.outcome]}, on {format_time(failing.last)}. {why}"
    return (
        f"The last {failing.times:,} rounds failed, since {format_time(failing.since)}; the last one "
        f"{_FAILED[failing.outcome]}. {why}"
    )


def _held(facts: CheckInput) -> Iterator[Finding]:
    held, line = facts.line.held, f"{facts.study} {facts.line.name}"
    newest = facts.line.outcomes[-1] if facts.line.outcomes else None
    guard = newest.lineage.guard if newest else None
    if newest and guard and guard.decision == "rolled_back":
        yield _problem("held", f"The line was rolled back by version {newest.iteration}: {'; '.join(guard.alarms)}.")
    if newest and guard and guard.decision == "withdrawn":
        row = len(list(takewhile(_is_withdrawal, reversed(facts.line.outcomes))))
        why = f"by version {newest.iteration}: {'; '.join(guard.alarms)}"
        if row < IN_A_ROW:
            yield _warning("held", f"A staged version was withdrawn {why}.")
        else:
            yield _problem(
                "held",
                f"The last {row} staged versions were withdrawn, the last {why}. Nothing is learned that way. If these "
                f"losses are not to be believed, publish the next version while it is staged: 'fedping round {line} "
                "--release'.",
            )
    if held is not None and held.stage is None:
        yield _problem(
            "held",
            f"Version {held.iteration} is held back: {'; '.join(held.alarms)}. Look at it with 'fedping store held "
            f"{line}'; 'fedping round {line} --release' publishes it, --discard leaves it behind.",
        )


def _is_withdrawal(outcome: Outcome) -> bool:
    return outcome.lineage.guard is not None and outcome.lineage.guard.decision == "withdrawn"


def _rounds(facts: CheckInput) -> Iterator[Finding]:
    """Judge whether rounds fail, and the age of the newest version by the time between the last rounds."""
    if failing := facts.fails_by(""):
        severity_of: Severity = "problem" if failing.is_problem else "warning"
        yield Finding(name="rounds", severity=severity_of, sentence=failures_in_words(failing))
    held = facts.line.held
    over = facts.over is not None or facts.exhausted
    if not facts.line.outcomes or over or (held is not None and held.stage is None):
        return
    newest, every = facts.line.outcomes[-1], interval(facts.line.outcomes)
    before = facts.line.outcomes[-2].created if len(facts.line.outcomes) > 1 else None
    if (trouble := date_trouble(newest.created, before, 1000 * facts.now)) is not None:
        yield _warning(
            "rounds",
            f"Version {newest.iteration} {trouble}, so its age is not known: set the clocks of all machines by NTP.",
        )
        return
    age = facts.now - milliseconds_of(newest.created) / 1000
    if every is None or age <= max(LATE * every, LATE_AT_LEAST) + facts.line.longest:
        return
    pings = facts.line.landed.pings if facts.line.landed is not None else 0
    has = "has" if pings == 1 and not facts.discreet else "have"
    why = (
        f"{as_sentence(_ping_count(facts, pings))[:-1]} of it {has} landed, and a step takes "
        f"{format_count(facts.line.min_clients, 'client')}: see what the schedule says, and whether it runs."
        if pings
        else "No ping of it has landed: see whether clients fetch it, and can send."
    )
    if facts.line.privacy is not None and facts.line.privacy.shared:
        if facts.line.privacy.waiting is not None:  # which is told of it
            return
        why = (
            "A round of it needs clients enough in every arm, of whom it then asks the helper: see what the schedule "
            "says, and whether it runs."
        )
    elif facts.line.privacy is not None:
        why = "Its rounds need not wait for clients: see what the schedule says, and whether it runs."
    if facts.line.failing is not None:
        why = "Its rounds fail."
    if staged := _staged(facts):
        why = f"{staged[0].sentence} See that rounds run, and that its clients can send."
    severity: Severity = "problem" if age > max(VERY_LATE * every, LATE_AT_LEAST) + facts.line.longest else "warning"
    yield Finding(
        name="rounds",
        severity=severity,
        sentence=f"Version {newest.iteration} is {format_duration(age)} old, and versions came every "
        f"{format_duration(every)}. {why}",
    )


def _stale(facts: CheckInput) -> Iterator[Finding]:
    """Judge how many pings were of older versions, but for those that a version which repeats another left behind."""
    repeats = {one.iteration for one in facts.line.outcomes if one.lineage.origin in ("rollback", "continued")}
    recent = tuple(one for one in facts.recent if one.iteration - 1 not in repeats)
    total, stale = _pings(recent), sum(one.lineage.counts.get("stale", 0) for one in recent)
    if total < FEWEST or stale <= MANY_STALE * total:
        return
    yield Finding(
        name="stale",
        severity="problem" if stale > MOST_STALE * total else "warning",
        sentence=f"{stale:,} of the {total:,} pings of {_of_rounds(recent)} ({_percent(stale, total)}) were "
        "stale: their clients still had an older version, so they were not used. See that caches revalidate "
        "latest.json, and that rounds do not run just before clients fetch.",
    )


def _refused(facts: CheckInput) -> Iterator[Finding]:
    """Judge what was refused lately of the study, and of requests for no study, which may be meant for this."""
    own = facts.ingest.recent.get(facts.study, Recently())
    stray = facts.ingest.recent.get("", Recently())
    accepted = sum(each.window.accepted for each in facts.ingest.recent.values())
    if facts.discreet:
        yield from _refused_alone(own.window, f"of study {facts.study}")
        yield from _refused_alone(stray.window, "for no study that is here")
        return
    yield from _many_refused(own.window, own.newest, f"pings and requests of study {facts.study}")
    yield from _many_refused(
        replace(stray.window, accepted=accepted),
        Came(),
        "pings for no study that is here and accepted pings of all",
    )
    yield from _postponed(facts, own.window)


def _refused_alone(window: Came, which: str) -> Iterator[Finding]:
    """Judge refusals by nothing but their number, for what is accepted could be computed from a share.

    Anyone can have requests refused, one at a time, until a share is reached. Of the newest refusals nothing is judged:
    how many there are depends on what was accepted after them.
    """
    postponed = Counter({reason: n for reason, n in window.rejected.items() if reason in POSTPONED})
    for came, said in (
        (_refusals(window), f"Ingest has refused pings or requests {which}"),
        (postponed, f"Ingest has asked clients to send pings {which} again later"),
    ):
        if came.total() >= FEWEST:
            reason, _ = max(came.items(), key=lambda one: (one[1], one[0]))
            yield _warning(
                "refused",
                f"{said} at least {FEWEST} times in the last {WINDOW_MINUTES} minutes, mostly as '{reason}'. See "
                "'Refused by ingest' on the study's Live page.",
            )


def _many_refused(window: Came, newest: Came, which: str) -> Iterator[Finding]:
    """Judge the window and, as many in a row are a problem before they are many of the window, the newest."""
    told = f"of the last {WINDOW_MINUTES} minutes"
    refused, total = _refusals(window).total(), _refusals(window).total() + window.accepted
    last = _refusals(newest).total()
    if last > MOST_REFUSED * (last + newest.accepted) and last + newest.accepted >= FEWEST:
        window, refused, total, told = newest, last, last + newest.accepted, "that came last"
    if total < FEWEST or refused <= MANY_REFUSED * total:
        return
    reason, most = max(_refusals(window).items(), key=lambda one: (one[1], one[0]))
    severe = refused > MOST_REFUSED * total
    yield Finding(
        name="refused",
        severity="problem" if severe else "warning",
        sentence=f"Ingest has refused {refused:,} of the {total:,} {which} {told} ({_percent(refused, total)}), "
        f"{'all' if most == refused else f'{most:,}'} of them as '{reason}'. See 'Refused by ingest' on the study's "
        "Live page.",
    )


def _refusals(came: Came) -> Counter[str]:
    """Return what was refused for good, by reason: not what is to be sent again, and what is told as ingest's fault."""
    beside = POSTPONED | OURS | {"study_ended"}  # the last as was declared
    return Counter({reason: n for reason, n in came.rejected.items() if reason not in beside})


def _postponed(facts: CheckInput, window: Came) -> Iterator[Finding]:
    """Judge answers that asked to send a ping again later: no harm while nearly every ping is accepted in the end."""
    by_reason = {reason: n for reason, n in window.rejected.items() if reason in POSTPONED}
    postponed = sum(by_reason.values())
    if postponed < FEWEST or window.accepted > FEW_ACCEPTED * postponed:
        return
    reason = max(by_reason, key=lambda one: (by_reason[one], one))
    many = "Hardly any" if window.accepted else "No"
    yield Finding(
        name="refused",
        severity="warning" if window.accepted else "problem",
        sentence=f"{many} ping of study {facts.study} was accepted in the last {WINDOW_MINUTES} minutes: clients were "
        f"asked to send again later, mostly as '{reason}'. See 'Refused by ingest' on the study's Live page.",
    )


def _arms(facts: CheckInput) -> Iterator[Finding]:
    """Judge the arms' shares of pings against those of the study: the sample ratio.

    Pings of one client come together, so they vary more than independent ones would: where activity is spread like an
    exponential, the variance of a sum is about twice the pings a client as large. Rounds by settings of before tell
    nothing: the shares may have been others.
    """
    yield from _free_arms(facts)
    arms, recent = facts.following, [one for one in facts.recent if one.lineage.settings == facts.settings]
    sent = [one.lineage.arms for one in recent]
    seen = {arm.name: sum(each[arm.name].pings for each in sent if arm.name in each) for arm in arms}
    total, shares = sum(seen.values()), sum(arm.share for arm in arms)
    if len(arms) < 2 or total < FEWEST:
        return
    spread, noise = _spread(recent), _noise(facts)
    off = [
        arm
        for arm in arms
        if _is_off(seen[arm.name], total, share := arm.share / shares, spread, noise * _carried(share, len(arms)))
    ]
    # where one arm has too few pings the others have too many, which says the same once more
    short = [arm for arm in off if seen[arm.name] < total * arm.share / shares]
    for arm in short or off:
        pings = seen[arm.name]
        is_fair = f"where its share is {_percent(arm.share, shares)}"
        sentence = (
            f"Arm {arm.name} has sent no ping in {_of_rounds(recent)}, {is_fair}. See whether its clients can send, "
            "and what ingest refuses."
            if not pings
            else f"Arm {arm.name} has sent {pings:,} of the {total:,} pings of {_of_rounds(recent)} "
            f"({_percent(pings, total)}), {is_fair}. Whatever keeps clients away may keep certain ones away: find out "
            "why before you believe the results."
        )
        yield Finding(name="arms", severity="warning" if pings else "problem", sentence=sentence)


def _free_arms(facts: CheckInput) -> Iterator[Finding]:
    """Judge the arms that follow no line, and are in no round: what landed of them while the line's rounds were made.

    The line's clients send its pings and those that come late for its rounds; theirs are told from nothing but time.
    """
    free, recent = facts.free, facts.recent
    if not free or facts.beside is None or any(one.lineage.settings != facts.settings for one in recent):
        return
    total = facts.beside + _pings(recent)
    of_free, shares = (sum(arm.share for arm in arms) for arms in (free, (*free, *facts.following)))
    share, names = of_free / shares, ", ".join(arm.name for arm in free)
    if total < FEWEST or not _is_off(facts.beside, total, share, _spread(recent)):
        return
    who = f"Arm {names}, which follows no line, has" if len(free) == 1 else f"Arms {names}, which follow no line, have"
    is_fair = (
        f"where {'its' if len(free) == 1 else 'their'} share beside the line's arms is {_percent(of_free, shares)}"
    )
    yield Finding(
        name="arms",
        severity="warning" if facts.beside else "problem",
        sentence=f"{who} sent {facts.beside:,} of the {total:,} pings of {_of_rounds(recent)} "
        f"({_percent(facts.beside, total)}), {is_fair}. See whether all clients can send, and what ingest refuses, "
        "before you believe the results.",
    )


def _spread(recent: Sequence[Outcome]) -> float:
    """Return how many times as much as that of independent pings the variance of their number is."""
    clients = max((one.lineage.aggregate.clients for one in recent if one.lineage.aggregate), default=0)
    used = sum(one.lineage.aggregate.pings for one in recent if one.lineage.aggregate)
    return max(1.0, 2 * used / clients) if clients else 1.0


def _noise(facts: CheckInput) -> float:
    """Return the variance of the noise on an arm's clients over the recent rounds of a private line; else 0."""
    return len(facts.recent) * facts.line.privacy.noise**2 if facts.line.privacy is not None else 0.0


def _carried(share: float, arms: int) -> float:
    """Return how many times an arm's noise its distance from its share of all has: of its own noise, and of theirs."""
    return (1 - share) ** 2 + (arms - 1) * share**2


def _is_off(pings: int, total: int, share: float, spread: float, noise: float = 0.0) -> bool:
    """Return whether so many of all pings are surely not this share of them, by more than is worth a word.

    ``noise`` is the variance of the distance that noise adds.
    """
    error = math.sqrt(total * share * (1 - share) * spread + noise)
    return abs(pings - total * share) > max(SURELY * error, OFF * total * share)


def _loss(facts: CheckInput) -> Iterator[Finding]:
    """Judge the loss of each arm that applies the model against that of the first that does not.

    A personal arm's loss may be of what its clients made of the model, which says nothing of the version.
    """
    recent = facts.recent
    control = next((arm for arm in facts.following if not arm.applies), None)
    if control is None or len(recent) < RECENT:
        return
    for arm in (arm for arm in facts.following if arm.applies and not arm.personal):
        pairs = [
            (one.lineage.arms[arm.name].level("loss"), one.lineage.arms[control.name].level("loss"))
            for one in recent
            if {arm.name, control.name} <= one.lineage.arms.keys()
        ]
        both = [(a.value, b.value) for a, b in pairs if a is not None and b is not None and b.value > 0]
        if len(both) < RECENT or not all(a > b for a, b in both):
            continue
        against = sum(a for a, _ in both) / sum(b for _, b in both) - 1
        if against > WORSE and _beyond_noise(facts, arm.name, control.name):
            yield Finding(
                name="loss",
                severity="problem" if against > MUCH_WORSE else "warning",
                sentence=f"The loss of arm {arm.name} was above that of {control.name} in each of "
                f"{_of_rounds(recent)}, by {_percent(against, 1)} on average: the model makes things worse. 'fedping "
                f"store rollback' publishes an earlier version again; 'fedping study pause {facts.study}' stops rounds "
                "meanwhile.",
            )


def _beyond_noise(facts: CheckInput, arm: str, control: str) -> bool:
    """Return whether two arms' losses in the recent rounds differ by more than a private line's noise explains."""
    private = facts.line.privacy
    if private is None or not private.noise:
        return True
    apart = variance = 0.0
    for one in facts.recent:
        for name, sign in ((arm, 1), (control, -1)):
            seen = one.lineage.arms[name]
            told = ReleasedMeans(seen.pings, seen.loss, None) if seen.pings else ReleasedMeans(0, None, None)
            error = standard_errors(told, private.noise, private.loss).loss
            if told.loss is None or error is None:
                return False
            apart, variance = apart + sign * told.loss, variance + error**2
    return apart > SURELY * math.sqrt(variance)


def _privacy(facts: CheckInput) -> Iterator[Finding]:
    """Judge how many rounds the guarantee of a private line still allows."""
    private = facts.line.privacy
    if private is None or private.rounds is None or private.rounds_left is None:
        return
    if facts.exhausted:
        yield _problem(
            "privacy",
            f"The guarantee of the line is exhausted: all its {format_count(private.rounds, 'round')} have been made, "
            "and no version follows. Clients still send pings, which no round reads: declare the study ended with "
            f"'fedping study end {facts.study}'.",
        )
    elif private.rounds_left <= max(1, FEW_LEFT * private.rounds) and private.releases:
        left = "1 round is" if private.rounds_left == 1 else f"{private.rounds_left:,} rounds are"
        yield _warning(
            "privacy",
            f"{left} left of the {private.rounds:,} that the guarantee of the line allows; then it is exhausted, and "
            "no further version follows.",
        )


def _helper(facts: CheckInput) -> Iterator[Finding]:
    """Judge how long a line of shares has waited for its helper, by the time between the last rounds."""
    waiting = facts.line.privacy.waiting if facts.line.privacy is not None else None
    if waiting is None:
        return
    if waiting.for_good:
        yield _problem(
            "helper",
            f"No answer of the helper can come any more to what it was asked on {format_time(waiting.since)}: "
            f"{waiting.why.rstrip('.')}. The next round says how to go on, by 'fedping store continue'.",
        )
        return
    every = interval(facts.line.outcomes) or 0.0
    waited = facts.now - milliseconds_of(waiting.since) / 1000
    if waited <= max(LATE * every, LATE_AT_LEAST):
        return
    yield Finding(
        name="helper",
        severity="problem" if waited > max(VERY_LATE * every, VERY_LATE * LATE_AT_LEAST) else "warning",
        sentence=f"The line waits for its helper since {format_time(waiting.since)}: {waiting.why.rstrip('.')}. Pings "
        "that it was asked about are kept until it has answered.",
    )


def _newcomers(facts: CheckInput) -> Iterator[Finding]:
    """Judge the new clients of this hour or the last by the most of any hour before: whoever invents some is many.

    Of a private line all clients are new with every version, for their ids are.
    """
    if facts.line.privacy is not None:
        return
    hours, now = facts.ingest.newcomers.get(facts.study, {}), int(facts.now // 3600)
    if not hours or now - min(hours) < KNOWN_HOURS:
        return
    new = max(hours.get(now, 0), hours.get(now - 1, 0))
    before = max((n for hour, n in hours.items() if now - COMPARED_HOURS <= hour < now - 1), default=0)
    if new < FEWEST_NEW or new <= MANY_NEW * before:
        return
    yield Finding(
        name="newcomers",
        severity="problem" if new > MOST_NEW * before else "warning",
        sentence=f"{new:,} clients that had never sent a ping did within an hour, and {before:,} at most in any of the "
        f"{COMPARED_HOURS} hours before. If the product has no reason for so many, somebody invents them: 'fedping "
        f"study pause {facts.study}' stops rounds meanwhile, and tickets keep invented clients out.",
    )


def _capped(facts: CheckInput) -> Iterator[Finding]:
    """Judge how many clients of the last rounds count for fewer examples than they claim, where examples are votes."""
    made = [one.lineage.aggregate for one in facts.recent if one.lineage.aggregate is not None]
    capped, clients = sum(one.capped or 0 for one in made), sum(one.clients for one in made)
    if capped <= MANY_CAPPED * clients:
        return
    most = "the study's limit of" if facts.line.most_examples is None else f"{facts.line.most_examples:,}"
    yield _warning(
        "capped",
        f"{_percent(capped, clients)} of the clients of {_of_rounds(facts.recent)} claim more than {most} examples, "
        "for which a ping counts at most, so the mean is not that of all examples. Set 'examples' in [limits] to the "
        "most that an honest client has: 'fedping study change'.",
    )


_CHECKS: dict[FindingName, Callable[[CheckInput], Iterator[Finding]]] = {
    "ingest": _ingest,
    "landing": _landing,
    "store": _store,
    "held": _held,
    "rounds": _rounds,
    "stale": _stale,
    "refused": _refused,
    "arms": _arms,
    "loss": _loss,
    "newcomers": _newcomers,
    "capped": _capped,
    "privacy": _privacy,
    "helper": _helper,
}

_ASKED: dict[str, frozenset[FindingName]] = {
    "running": frozenset(FINDINGS),
    "paused": frozenset({"ingest", "landing", "store", "held", "refused", "newcomers"}),
    "ended": frozenset({"ingest", "landing", "store"}),
}
"""What is looked at: of a study that does not run what it has may be lost, but no version has to come."""

_SIMULATED: frozenset[FindingName] = frozenset({"store", "held", "stale", "arms", "loss", "privacy"})


def interval(outcomes: Sequence[Outcome]) -> float | None:
    """Return how many seconds lie between rounds, the median of the newest; None of fewer than two."""
    times = [milliseconds_of(one.created) / 1000 for one in outcomes[-PACED - 1 :] if one.lineage.origin == "round"]
    apart = [b - a for a, b in zip(times, times[1:], strict=False) if b > a]
    return (median(apart) or None) if apart else None


def _warning(name: FindingName, sentence: str) -> Finding:
    return Finding(name=name, severity="warning", sentence=sentence)


def _problem(name: FindingName, sentence: str) -> Finding:
    return Finding(name=name, severity="problem", sentence=sentence)


def _pings(outcomes: Sequence[Outcome]) -> int:
    return sum(sum(one.lineage.counts.values()) for one in outcomes)


def _of_rounds(outcomes: Sequence[Outcome]) -> str:
    return "the last round" if len(outcomes) == 1 else f"the last {len(outcomes)} rounds"


def _percent(part: float, whole: float) -> str:
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 1 or not share else "less than 1 %"


def format_count(number: int, what: str) -> str:
    """Return a number of things: 1 ping, 1,200 pings."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _ping_count(facts: CheckInput, pings: int) -> str:
    """Return how many pings, unless that is not to be told."""
    return "pings" if facts.discreet and pings else format_count(pings, "ping")


def _wait_verb(facts: CheckInput, pings: int) -> str:
    return "waits" if pings == 1 and not facts.discreet else "wait"


def format_duration(seconds: float) -> str:
    """Return a time in its largest unit, so that it seldom changes: 40 seconds, 12 minutes, 5 hours, 3 days."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size * (2 if size == 86400 else 1):
            return format_count(int(seconds // size), unit)
    return format_count(max(0, int(seconds)), "second")
