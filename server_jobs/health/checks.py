"""Checks of a study's health, as pure functions from facts to findings.

All bounds are defined here. The messages of a check stand directly in front of it. To add a check, write a function
of :class:`CheckInput` decorated with :func:`check`, at its position in the list of findings, and add a row to the
table in docs/operators.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, KeysView, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias

from msgspec.structs import replace

from fedping.model_store.version import Outcome, date_trouble
from fedping.protocol.errors import as_sentence
from fedping.protocol.notation import format_count, milliseconds_of
from fedping.protocol.privacy import ReleasedMeans, standard_errors
from fedping.protocol.study import Arm, Declared
from fedping.server_jobs.health.facts import RECENT, CheckInput, ping_total
from fedping.server_jobs.health.findings import (
    Finding,
    Health,
    Message,
    Severity,
    StagedLine,
    Verdict,
    format_duration,
    format_percent,
    format_time,
    message,
)
from fedping.server_jobs.ingest.counters import OURS, POSTPONED, WINDOW_MINUTES, Came, Recently, failing_requests
from fedping.server_jobs.round_status import Failing

PACED = 10
"""Number of newest rounds from which the interval between rounds is computed, as a median."""

LATE, VERY_LATE = 2.0, 4.0
"""Ages of the newest version, in intervals between rounds, above which there is a warning, and a problem. One round
may find too few clients."""

LATE_AT_LEAST = 120.0
"""Age in seconds up to which the newest version never counts as late."""

WAITS = 300.0
"""Maximum seconds that an accepted ping may wait in the journal if the period of compaction is unknown."""

WAIT_PERIODS = 5
"""Maximum number of compaction periods that an accepted ping may wait."""

FEWEST = 50
"""Minimum number of pings for a check of shares."""

MANY_STALE, MOST_STALE = 0.2, 0.5
MANY_REFUSED, MOST_REFUSED = 0.05, 0.25
"""Shares of stale pings, and of rejected pings, above which there is a warning, and a problem."""

FEW_ACCEPTED = 0.1
"""Ratio of accepted to postponed pings at or below which clients hardly get through."""

SURELY = 4.0
"""Standard errors by which an arm's number of pings must differ from its share for a finding."""

OFF = 0.2
"""Fraction of an arm's share by which its number of pings must also differ for a finding. Among a million pings,
every difference is significant."""

KNOWN_HOURS, COMPARED_HOURS = 6, 48
"""Minimum hours of history for a check of new clients, and the number of earlier hours to compare with."""

MANY_NEW, MOST_NEW = 2.0, 5.0
"""Ratios of new clients to the maximum of earlier hours above which there is a warning, and a problem."""

FEWEST_NEW = 100
"""Number of new clients in an hour below which there is no finding."""

IN_A_ROW = 3
"""Number of consecutive withdrawals of staged versions from which there is a problem. A few clients' false claims can
cause withdrawals."""

MANY_CAPPED = 0.05
"""Share of clients with more claimed examples than the cap, above which the cap affects the weighted mean too much."""

WORSE, MUCH_WORSE = 0.05, 0.25
"""Excess of an arm's mean loss, relative to the control's, above which there is a warning, and a problem. The loss
must have been higher in all :data:`RECENT` rounds."""

FEW_LEFT = 0.1
"""Share of a private line's rounds; there is a warning if at most this share is left."""

State: TypeAlias = Literal["running", "paused", "ended", "simulated"]
Failure: TypeAlias = tuple[Severity, Message]


@dataclass(frozen=True)
class Check:
    """A check of a study: the name of its findings, the study states that it applies to, and its function."""

    name: str
    states: frozenset[State]
    run: Callable[[CheckInput], Iterator[Failure]]


CHECKS: dict[str, Check] = {}
"""The checks by name, in the order in which findings of the same severity are listed."""

FINDINGS: KeysView[str] = CHECKS.keys()
"""The names of all findings, in the order of :data:`CHECKS`."""


def check(
    name: str, *more: Literal["paused", "ended", "simulated"]
) -> Callable[[Callable[[CheckInput], Iterator[Failure]]], None]:
    """Register a check of running studies, and of those in ``more`` states.

    A study that isn't running needs no next version, but may still lose pings or versions.

    Raises:
        ValueError: another check has this name.
    """
    if name in CHECKS:
        raise ValueError(f"there are two checks '{name}'")

    def register(run: Callable[[CheckInput], Iterator[Failure]]) -> None:
        CHECKS[name] = Check(name, frozenset(("running", *more)), run)

    return register


def check_line(facts: CheckInput) -> Health:
    """Return the health of a line."""
    declared = facts.declared
    state: State = "simulated" if declared.simulated else declared.state
    findings = _sorted(
        Finding(name=each.name, severity=severity, message=text)
        for each in CHECKS.values()
        if state in each.states
        for severity, text in each.run(facts)
    )
    over = () if facts.over is None else (facts.line.name,)
    return replace(_health(declared, findings, _healthy_line(facts), over), staged=_staged(facts))


def merge_lines(declared: Declared, lines: Sequence[tuple[str, Health]]) -> Health:
    """Return the health of a study with these lines. A finding of all lines is listed once, others with their line."""
    if len(lines) == 1:
        return lines[0][1]
    common = set.intersection(*({*health.findings} for _, health in lines))
    own = [
        replace(finding, line=name) for name, health in lines for finding in health.findings if finding not in common
    ]
    over = tuple(name for _, health in lines for name in health.over)
    healthy = _healthy_lines(over=over, is_all=len(over) == len(lines))
    health = _health(declared, _sorted([*common, *own]), healthy, over)
    staged = (replace(one, is_one_of_many=True) for _, each in lines for one in each.staged)
    return replace(health, staged=tuple(staged))


def unreadable_study(why: str) -> Health:
    """Return the health of a study that cannot be read."""
    finding = Finding(name="store", severity="problem", message=_reported(text=why))
    return Health(verdict="problem", message=_not_healthy(state="running"), findings=(finding,))


def _sorted(findings: Iterator[Finding] | Sequence[Finding]) -> tuple[Finding, ...]:
    severities, names = ["problem", "warning"], [*CHECKS]
    return tuple(
        sorted(findings, key=lambda one: (severities.index(one.severity), names.index(one.name), one.sentence))
    )


def _health(declared: Declared, findings: tuple[Finding, ...], healthy: Message, over: tuple[str, ...]) -> Health:
    """Return health with its verdict. The declared state takes precedence, unless pings or versions are being lost."""
    verdict: Verdict = "healthy"
    text = healthy
    if any(one.severity == "problem" for one in findings):
        verdict, text = "problem", _not_healthy(state=declared.state)
    elif declared.state != "running":
        verdict, text = declared.state, _declared(declared)
    elif findings:
        verdict, text = "warning", _worth_a_look()
    return Health(verdict=verdict, message=text, findings=findings, over=over)


def _declared(declared: Declared) -> Message:
    since = format_time(declared.since)
    if declared.state == "paused":
        return _paused(since=since, why=declared.told)
    return _simulation_ended(at=since) if declared.simulated else _ended(at=since, why=declared.told)


def _healthy_line(facts: CheckInput) -> Message:
    if facts.declared.simulated:
        return _healthy_simulation()
    if facts.over is not None:
        return _healthy_and_trained(version=facts.line.outcomes[-1].iteration, repeats=facts.over)
    if facts.recent:
        return _healthy_lines(over=(), is_all=False)
    return _healthy_start(has_pings=facts.line.landed is not None and facts.line.landed.pings > 0)


def _staged(facts: CheckInput) -> tuple[StagedLine, ...]:
    held, stage = facts.line.held, facts.line.stage
    if held is None or held.stage is None or stage is None or facts.declared.state == "ended":
        return ()
    return (StagedLine(line=facts.line.name, version=held.iteration, stage=stage, state=held.stage),)


@message
def _not_healthy(*, state: str) -> str:
    although = {"running": "", "paused": ", and paused", "ended": ", although the study has ended"}
    return f"Not healthy{although[state]}."


@message
def _worth_a_look() -> str:
    return "Worth a look."


@message
def _paused(*, since: str, why: str) -> str:
    return f"Paused since {since}{why}: no round publishes a version; pings are still accepted and land."


@message
def _ended(*, at: str, why: str) -> str:
    return f"Ended on {at}{why}: pings are rejected, and no round publishes a version."


@message
def _simulation_ended(*, at: str) -> str:
    return f"A finished simulation; its clock stopped at {at}."


@message
def _healthy_simulation() -> str:
    return "Healthy: a running simulation."


@message
def _healthy_and_trained(*, version: int, repeats: int) -> str:
    return f"Healthy: training is over; version {version} repeats version {repeats}, which had the lowest loss."


@message
def _healthy_lines(*, over: tuple[str, ...], is_all: bool) -> str:
    if is_all:
        return "Healthy: ingest is running, and training of all lines is over."
    trained = f"; training of line{'s' * (len(over) > 1)} {', '.join(over)} is over" if over else ""
    return f"Healthy: ingest is running, and rounds publish versions{trained}."


@message
def _healthy_start(*, has_pings: bool) -> str:
    if has_pings:
        return "Healthy: pings land; the next round computes the first version from them."
    return "Healthy: ingest is running and waiting for the first pings."


@message
def _reported(*, text: str) -> str:
    """Return an error text of another part of the program unchanged; it already says where and what to do."""
    return as_sentence(text)


@message
def _rounds_fail(*, failing: Failing) -> str:
    return failures_in_words(failing)


def failures_in_words(failing: Failing) -> str:
    """Describe failing rounds: their number, the time of the first, and the reason of the last."""
    how = {
        "failed": "failed",
        "temporary": "failed with an error that may be temporary",
        "out_of_time": "reached its time limit (--max-time)",
        "crashed": "failed with an unforeseen error",
    }[failing.outcome]
    why = as_sentence(failing.why) if failing.why else "See the messages of the round on stderr."
    if failing.times == 1:
        return f"The last round {how}, on {format_time(failing.last)}. {why}"
    return f"The last {failing.times:,} rounds failed, since {format_time(failing.since)}; the last one {how}. {why}"


def _last_rounds(rounds: int) -> str:
    return "the last round" if rounds == 1 else f"the last {rounds} rounds"


def _pings(pings: int | None) -> str:
    return "pings" if pings is None else format_count(pings, "ping")


def _known(facts: CheckInput, pings: int) -> int | None:
    """Return a number of pings; None if sentences must not reveal it."""
    return None if facts.discreet and pings else pings


_OTHER_JOURNAL = "If it has another journal, name that with --journal or FEDPING_JOURNAL"


@message
def _ingest_unreadable(*, journal: str) -> str:
    return f"Unknown whether ingest is running: its journal {journal} is not readable."


@message
def _ingest_stopped_with_pings(*, pings: int | None) -> str:
    return (
        f"Ingest is not running: {_pings(pings)} that it has accepted {'waits' if pings == 1 else 'wait'} in its "
        "journal and can't land until it runs again. Start 'fedping ingest'."
    )


@message
def _ingest_stopped(*, journal: str) -> str:
    return (
        f"Ingest is not running with the journal {journal}: clients can neither send pings nor fetch the model. Start "
        f"'fedping ingest'. {_OTHER_JOURNAL}."
    )


@message
def _ingest_elsewhere(*, journal: str) -> str:
    return (
        f"Unknown whether ingest is running: pings have landed, but no ingest has run with the journal {journal}. "
        "Name your ingest's journal with --journal or FEDPING_JOURNAL; if it runs on another machine, check there."
    )


@message
def _ingest_never_ran(*, journal: str, study: str) -> str:
    return (
        f"No ingest has ever run with the journal {journal}, and no ping has landed. Start 'fedping ingest'. "
        f"{_OTHER_JOURNAL}. If no more pings are expected, declare the study ended: 'fedping study end {study}'."
    )


@check("ingest", "paused", "ended")
def _check_ingest(facts: CheckInput) -> Iterator[Failure]:
    ingest = facts.ingest
    if ingest.state == "running":
        trouble = failing_requests(ingest.requests, Path(ingest.journal), facts.discreet) if ingest.requests else None
        if trouble:
            yield "problem", _reported(text=trouble)
    elif facts.declared.state == "ended" and not ingest.pending:
        return
    elif ingest.state == "unknown":
        yield "warning", _ingest_unreadable(journal=ingest.journal)
    elif ingest.pending:
        yield "problem", _ingest_stopped_with_pings(pings=_known(facts, ingest.pending))
    elif ingest.state == "stopped":
        yield "problem", _ingest_stopped(journal=ingest.journal)
    elif facts.has_landed:  # so an ingest with another journal accepted them
        yield "warning", _ingest_elsewhere(journal=ingest.journal)
    else:
        yield "problem", _ingest_never_ran(journal=ingest.journal, study=facts.study)


@message
def _landing_late(*, pings: int | None, waited: str) -> str:
    return (
        f"{as_sentence(_pings(pings))[:-1]} {'waits' if pings == 1 else 'wait'} in ingest's journal, some for "
        f"{waited}, and should have landed. See the messages of ingest on stderr, and /__heartbeat__ on its operations "
        "port."
    )


@message
def _landing_unreadable(*, version: int, file: str, more: int) -> str:
    return (
        f"Rounds can't read the pings of version {version}: {file}{f' and {more} more' if more else ''} in its "
        "landing folder cannot be read. Move the damaged files out of there."
    )


@check("landing", "paused", "ended")
def _check_landing(facts: CheckInput) -> Iterator[Failure]:
    ingest, landed = facts.ingest, facts.line.landed
    for trouble in ingest.troubles:
        yield "problem", _reported(text=trouble)
    limit = WAITS if ingest.period is None else max(WAIT_PERIODS * ingest.period, LATE_AT_LEAST)
    waited = facts.now - (facts.now if ingest.waiting_since is None else ingest.waiting_since)
    if ingest.state == "running" and not ingest.troubles and ingest.pending and waited > limit:
        yield "problem", _landing_late(pings=_known(facts, ingest.pending), waited=format_duration(waited))
    if landed is not None and (files := landed.unreadable):
        yield "problem", _landing_unreadable(version=landed.version, file=files[0], more=len(files) - 1)
    if failing := facts.failing_by("landing"):
        yield "problem", _rounds_fail(failing=failing)


@check("store", "paused", "ended", "simulated")
def _check_store(facts: CheckInput) -> Iterator[Failure]:
    for trouble in facts.line.troubles:
        yield "problem", _reported(text=trouble)
    if failing := facts.failing_by("store"):
        yield "problem", _rounds_fail(failing=failing)


@message
def _rolled_back(*, version: int, alarms: tuple[str, ...]) -> str:
    return f"The line was rolled back by version {version}: {'; '.join(alarms)}."


@message
def _stage_withdrawn(*, version: int, alarms: tuple[str, ...]) -> str:
    return f"A staged version was withdrawn by version {version}: {'; '.join(alarms)}."


@message
def _stages_withdrawn(*, times: int, version: int, alarms: tuple[str, ...], line: str) -> str:
    return (
        f"The last {times} staged versions were withdrawn, the last by version {version}: {'; '.join(alarms)}. So "
        "the model does not improve. If you don't trust these losses, publish the next version while it is staged: "
        f"'fedping round {line} --release'."
    )


@message
def _version_held(*, version: int, alarms: tuple[str, ...], line: str) -> str:
    return (
        f"Version {version} is held: {'; '.join(alarms)}. Inspect it with 'fedping store held {line}'. 'fedping "
        f"round {line} --release' publishes it, --discard discards it."
    )


@check("held", "paused", "simulated")
def _check_held(facts: CheckInput) -> Iterator[Failure]:
    held, line = facts.line.held, f"{facts.study} {facts.line.name}"
    newest = facts.line.outcomes[-1] if facts.line.outcomes else None
    guard = newest.lineage.guard if newest else None
    if newest and guard and guard.decision == "rolled_back":
        yield "problem", _rolled_back(version=newest.iteration, alarms=guard.alarms)
    if newest and guard and guard.decision == "withdrawn":
        times = len(list(takewhile(_is_withdrawal, reversed(facts.line.outcomes))))
        if times < IN_A_ROW:
            yield "warning", _stage_withdrawn(version=newest.iteration, alarms=guard.alarms)
        else:
            yield (
                "problem",
                _stages_withdrawn(times=times, version=newest.iteration, alarms=guard.alarms, line=line),
            )
    if held is not None and held.stage is None:
        yield "problem", _version_held(version=held.iteration, alarms=held.alarms, line=line)


def _is_withdrawal(outcome: Outcome) -> bool:
    return outcome.lineage.guard is not None and outcome.lineage.guard.decision == "withdrawn"


@message
def _version_misdated(*, version: int, trouble: str) -> str:
    return f"Version {version} {trouble}, so its age is unknown. Set the clocks of all machines by NTP."


@message
def _version_late(*, version: int, age: str, every: str, why: Message) -> str:
    return f"Version {version} is {age} old; earlier versions were published every {every}. {why}"


@message
def _late_and_failing() -> str:
    return "Its rounds fail."


@message
def _late_without_pings() -> str:
    return "No pings of it have landed: check whether clients fetch it, and can send."


@message
def _late_with_pings(*, pings: int | None, clients: int) -> str:
    return (
        f"{as_sentence(_pings(pings))[:-1]} of it {'has' if pings == 1 else 'have'} landed, and a round needs "
        f"{format_count(clients, 'client')}: check that the schedule runs, and read its messages."
    )


@message
def _late_and_private() -> str:
    return "Its rounds need not wait for clients: check that the schedule runs, and read its messages."


@message
def _late_and_shared() -> str:
    return (
        "A round needs enough clients in every arm, and then an answer of the helper: check that the schedule runs, "
        "and read its messages."
    )


@message
def _late_and_staged(*, stage: str) -> str:
    return f"{stage} Check that rounds run, and that its clients can send."


@check("rounds")
def _check_rounds(facts: CheckInput) -> Iterator[Failure]:
    """Check for failing rounds, and compare the age of the newest version with the interval between rounds."""
    if failing := facts.failing_by(""):
        yield "problem" if failing.is_problem else "warning", _rounds_fail(failing=failing)
    outcomes, held, privacy = facts.line.outcomes, facts.line.held, facts.line.privacy
    is_over = facts.over is not None or facts.exhausted
    if not outcomes or is_over or (held is not None and held.stage is None):
        return
    newest, every = outcomes[-1], interval(outcomes)
    before = outcomes[-2].created if len(outcomes) > 1 else None
    if (trouble := date_trouble(newest.created, before, 1000 * facts.now)) is not None:
        yield "warning", _version_misdated(version=newest.iteration, trouble=trouble)
        return
    age = facts.now - milliseconds_of(newest.created) / 1000
    if every is None or age <= max(LATE * every, LATE_AT_LEAST) + facts.line.longest:
        return
    if privacy is not None and privacy.shared and privacy.waiting is not None:
        return  # the check 'helper' reports it
    yield (
        "problem" if age > max(VERY_LATE * every, LATE_AT_LEAST) + facts.line.longest else "warning",
        _version_late(
            version=newest.iteration, age=format_duration(age), every=format_duration(every), why=_lateness(facts)
        ),
    )


def _lateness(facts: CheckInput) -> Message:
    """Return the likely reason why the next version is late."""
    privacy, pings = facts.line.privacy, facts.line.landed.pings if facts.line.landed is not None else 0
    if staged := _staged(facts):
        return _late_and_staged(stage=staged[0].sentence)
    if facts.line.failing is not None:
        return _late_and_failing()
    if privacy is not None:
        return _late_and_shared() if privacy.shared else _late_and_private()
    return (
        _late_with_pings(pings=_known(facts, pings), clients=facts.line.min_clients) if pings else _late_without_pings()
    )


def interval(outcomes: Sequence[Outcome]) -> float | None:
    """Return the median time between the newest rounds, in seconds; None for fewer than two rounds."""
    times = [milliseconds_of(one.created) / 1000 for one in outcomes[-PACED - 1 :] if one.lineage.origin == "round"]
    distances = [b - a for a, b in zip(times, times[1:], strict=False) if b > a]
    return (median(distances) or None) if distances else None


@message
def _stale_pings(*, stale: int, total: int, rounds: int) -> str:
    return (
        f"{stale:,} of the {total:,} pings of {_last_rounds(rounds)} ({format_percent(stale, total)}) were stale: "
        "their clients still had an older version, so they were not used. Check that caches revalidate latest.json, "
        "and that rounds do not run just before clients fetch."
    )


@check("stale", "simulated")
def _check_stale(facts: CheckInput) -> Iterator[Failure]:
    """Check the share of pings of older versions, except those that a repeated version made stale."""
    repeats = {one.iteration for one in facts.line.outcomes if one.lineage.origin in ("rollback", "continued")}
    recent = tuple(one for one in facts.recent if one.iteration - 1 not in repeats)
    total, stale = ping_total(recent), sum(one.lineage.counts.get("stale", 0) for one in recent)
    if total < FEWEST or stale <= MANY_STALE * total:
        return
    severity: Severity = "problem" if stale > MOST_STALE * total else "warning"
    yield severity, _stale_pings(stale=stale, total=total, rounds=len(recent))


_SEE_REJECTIONS = "See 'Refused by ingest' on the study's Live page."


@message
def _many_rejected(*, rejected: int, total: int, of: str, when: str, reason: str, times: int) -> str:
    return (
        f"Ingest has rejected {rejected:,} of the {total:,} {of} {when} ({format_percent(rejected, total)}), "
        f"{'all' if times == rejected else f'{times:,}'} of them as '{reason}'. {_SEE_REJECTIONS}"
    )


@message
def _rejected_at_least(*, study: str, times: int, reason: str) -> str:
    return f"Ingest has rejected pings or requests {_for(study)} {_at_least(times, reason)}"


@message
def _postponed_at_least(*, study: str, times: int, reason: str) -> str:
    return f"Ingest has asked clients to retry pings {_for(study)} {_at_least(times, reason)}"


@message
def _hardly_any_accepted(*, study: str, is_any: bool, reason: str) -> str:
    return (
        f"{'Hardly any' if is_any else 'No'} ping of study {study} was accepted in the last {WINDOW_MINUTES} minutes: "
        f"clients were asked to retry later, mostly as '{reason}'. {_SEE_REJECTIONS}"
    )


def _for(study: str) -> str:
    return f"of study {study}" if study else "for unknown studies"


def _at_least(times: int, reason: str) -> str:
    return f"at least {times} times in the last {WINDOW_MINUTES} minutes, mostly as '{reason}'. {_SEE_REJECTIONS}"


@check("refused", "paused")
def _check_refused(facts: CheckInput) -> Iterator[Failure]:
    """Check the study's recent rejections, and those of requests without a study, which may be meant for this study."""
    own = facts.ingest.recent.get(facts.study, Recently())
    stray = facts.ingest.recent.get("", Recently())
    if facts.discreet:
        yield from _check_discreetly(own.window, facts.study)
        yield from _check_discreetly(stray.window, "")
        return
    accepted = sum(each.window.accepted for each in facts.ingest.recent.values())
    yield from _check_rejections(own.window, own.newest, f"pings and requests of study {facts.study}")
    yield from _check_rejections(
        replace(stray.window, accepted=accepted), Came(), "pings for unknown studies and accepted pings of all"
    )
    yield from _check_postponements(facts.study, own.window)


def _check_discreetly(window: Came, study: str) -> Iterator[Failure]:
    """Check rejections by number only, because a share would reveal the number of accepted pings.

    An attacker could cause rejections one at a time until the share is reached. The newest rejections aren't checked,
    because their number depends on the pings accepted after them.
    """
    for came, text in ((_rejections(window), _rejected_at_least), (_postponements(window), _postponed_at_least)):
        if came.total() >= FEWEST:
            yield "warning", text(study=study, times=FEWEST, reason=_main_reason(came))


def _check_rejections(window: Came, newest: Came, of: str) -> Iterator[Failure]:
    """Check a window's rejections, and the newest pings: a series of rejections is a problem in any window."""
    came, accepted, when = _rejections(window), window.accepted, f"of the last {WINDOW_MINUTES} minutes"
    latest = _rejections(newest)
    sent = latest.total() + newest.accepted
    if latest.total() > MOST_REFUSED * sent and sent >= FEWEST:
        came, accepted, when = latest, newest.accepted, "that came last"
    rejected, total = came.total(), came.total() + accepted
    if total < FEWEST or rejected <= MANY_REFUSED * total:
        return
    reason = _main_reason(came)
    yield (
        "problem" if rejected > MOST_REFUSED * total else "warning",
        _many_rejected(rejected=rejected, total=total, of=of, when=when, reason=reason, times=came[reason]),
    )


def _check_postponements(study: str, window: Came) -> Iterator[Failure]:
    """Check postponed pings. They are harmless as long as nearly all pings are accepted in the end."""
    came = _postponements(window)
    if came.total() >= FEWEST and window.accepted <= FEW_ACCEPTED * came.total():
        is_any = window.accepted > 0
        text = _hardly_any_accepted(study=study, is_any=is_any, reason=_main_reason(came))
        yield "warning" if is_any else "problem", text


def _rejections(came: Came) -> Counter[str]:
    """Return the final rejections by reason, without those that clients retry or that the check 'ingest' reports."""
    others = POSTPONED | OURS | {"study_ended"}  # the operator declared the end
    return Counter({reason: n for reason, n in came.rejected.items() if reason not in others})


def _postponements(came: Came) -> Counter[str]:
    return Counter({reason: n for reason, n in came.rejected.items() if reason in POSTPONED})


def _main_reason(came: Counter[str]) -> str:
    return max(came, key=lambda reason: (came[reason], reason))


@message
def _arm_silent(*, arm: str, rounds: int, share: str) -> str:
    return (
        f"Arm {arm} has sent no ping in {_last_rounds(rounds)}, although its share is {share}. Check whether its "
        "clients can send, and what ingest rejects."
    )


@message
def _arm_off(*, arm: str, pings: int, total: int, rounds: int, share: str) -> str:
    return (
        f"Arm {arm} has sent {pings:,} of the {total:,} pings of {_last_rounds(rounds)} "
        f"({format_percent(pings, total)}), although its share is {share}. The missing clients may differ from the "
        "others: find the reason before you trust the results."
    )


@message
def _free_arms_off(*, arms: tuple[str, ...], pings: int, total: int, rounds: int, share: str) -> str:
    names, one = ", ".join(arms), len(arms) == 1
    who = f"Arm {names}, which follows no line, has" if one else f"Arms {names}, which follow no line, have"
    return (
        f"{who} sent {pings:,} of the {total:,} pings of {_last_rounds(rounds)} ({format_percent(pings, total)}), "
        f"although {'its' if one else 'their'} share among the line's arms is {share}. Check whether all clients can "
        "send, and what ingest rejects, before you trust the results."
    )


@check("arms", "simulated")
def _check_arms(facts: CheckInput) -> Iterator[Failure]:
    """Check the sample ratio: compare the arms' shares of pings with the study's shares.

    A client sends several pings, so their number varies more than that of independent pings. If activity is
    exponentially distributed, the variance is multiplied by about twice the number of pings per client. Rounds with
    earlier settings are ignored, because the shares may have been different.
    """
    yield from _check_free_arms(facts)
    arms, recent = facts.following, [one for one in facts.recent if one.lineage.settings == facts.settings]
    sent = [one.lineage.arms for one in recent]
    pings = {arm.name: sum(each[arm.name].pings for each in sent if arm.name in each) for arm in arms}
    total, shares = sum(pings.values()), sum(arm.share for arm in arms)
    if len(arms) < 2 or total < FEWEST:
        return
    spread, noise = _spread(recent), _noise(facts)
    off = [
        arm
        for arm in arms
        if _is_off(pings[arm.name], total, share := arm.share / shares, spread, noise * _carried(share, len(arms)))
    ]
    # if one arm has too few pings, others have too many; that isn't another finding
    short = [arm for arm in off if pings[arm.name] < total * arm.share / shares]
    for arm in short or off:
        number, expected = pings[arm.name], format_percent(arm.share, shares)
        if number:
            yield "warning", _arm_off(arm=arm.name, pings=number, total=total, rounds=len(recent), share=expected)
        else:
            yield "problem", _arm_silent(arm=arm.name, rounds=len(recent), share=expected)


def _check_free_arms(facts: CheckInput) -> Iterator[Failure]:
    """Check arms without a line by their pings that landed during the line's rounds.

    Their number is compared with that of all pings of these rounds, including stale pings. Only the landing times
    relate both numbers.
    """
    free, recent = facts.free, facts.recent
    if not free or facts.beside is None or any(one.lineage.settings != facts.settings for one in recent):
        return
    total = facts.beside + ping_total(recent)
    of_free, shares = (_share(arms) for arms in (free, (*free, *facts.following)))
    if total < FEWEST or not _is_off(facts.beside, total, of_free / shares, _spread(recent)):
        return
    yield (
        "warning" if facts.beside else "problem",
        _free_arms_off(
            arms=tuple(arm.name for arm in free),
            pings=facts.beside,
            total=total,
            rounds=len(recent),
            share=format_percent(of_free, shares),
        ),
    )


def _share(arms: Sequence[Arm]) -> float:
    return sum(arm.share for arm in arms)


def _spread(recent: Sequence[Outcome]) -> float:
    """Return the variance of the number of pings, relative to the variance for independent pings."""
    clients = max((one.lineage.aggregate.clients for one in recent if one.lineage.aggregate), default=0)
    used = sum(one.lineage.aggregate.pings for one in recent if one.lineage.aggregate)
    return max(1.0, 2 * used / clients) if clients else 1.0


def _noise(facts: CheckInput) -> float:
    """Return the noise variance of an arm's number of clients over the recent rounds; 0 if not a private line."""
    return len(facts.recent) * facts.line.privacy.noise**2 if facts.line.privacy is not None else 0.0


def _carried(share: float, arms: int) -> float:
    """Return the variance of an arm's distance from its share, for noise of variance 1 on every arm."""
    return (1 - share) ** 2 + (arms - 1) * share**2


def _is_off(pings: int, total: int, share: float, spread: float, noise: float = 0.0) -> bool:
    """Return whether a number of pings differs from its share significantly and by a relevant amount.

    ``noise`` is the variance that added noise contributes to the difference.
    """
    error = math.sqrt(total * share * (1 - share) * spread + noise)
    return abs(pings - total * share) > max(SURELY * error, OFF * total * share)


@message
def _loss_above_control(*, arm: str, control: str, rounds: int, excess: str, study: str) -> str:
    return (
        f"The loss of arm {arm} was above that of {control} in each of {_last_rounds(rounds)}, by {excess} on average: "
        "the model makes things worse. 'fedping store rollback' publishes an earlier version again; 'fedping study "
        f"pause {study}' stops rounds meanwhile."
    )


@check("loss", "simulated")
def _check_loss(facts: CheckInput) -> Iterator[Failure]:
    """Compare the loss of each arm that applies the model with the loss of the first arm that doesn't.

    A personal arm is not checked: its loss may be of its clients' own models, not of the version.
    """
    recent = facts.recent
    control = next((arm for arm in facts.following if not arm.applies), None)
    if control is None or len(recent) < RECENT:
        return
    for arm in (arm for arm in facts.following if arm.applies and not arm.personal):
        levels = [
            (one.lineage.arms[arm.name].level("loss"), one.lineage.arms[control.name].level("loss"))
            for one in recent
            if {arm.name, control.name} <= one.lineage.arms.keys()
        ]
        pairs = [(a.value, b.value) for a, b in levels if a is not None and b is not None and b.value > 0]
        if len(pairs) < RECENT or not all(a > b for a, b in pairs):
            continue
        excess = sum(a for a, _ in pairs) / sum(b for _, b in pairs) - 1
        if excess > WORSE and _is_beyond_noise(facts, arm.name, control.name):
            yield (
                "problem" if excess > MUCH_WORSE else "warning",
                _loss_above_control(
                    arm=arm.name,
                    control=control.name,
                    rounds=len(recent),
                    excess=format_percent(excess, 1),
                    study=facts.study,
                ),
            )


def _is_beyond_noise(facts: CheckInput, arm: str, control: str) -> bool:
    """Return whether two arms' losses in the recent rounds differ by more than a private line's noise explains."""
    private = facts.line.privacy
    if private is None or not private.noise:
        return True
    distance = variance = 0.0
    for one in facts.recent:
        for name, sign in ((arm, 1), (control, -1)):
            summary = one.lineage.arms[name]
            means = ReleasedMeans(summary.pings, summary.loss, None) if summary.pings else ReleasedMeans(0, None, None)
            error = standard_errors(means, private.noise, private.loss).loss
            if means.loss is None or error is None:
                return False
            distance, variance = distance + sign * means.loss, variance + error**2
    return distance > SURELY * math.sqrt(variance)


@message
def _many_newcomers(*, clients: int, before: int, study: str) -> str:
    return (
        f"{clients:,} clients sent their first ping within an hour, and at most {before:,} in any of the "
        f"{COMPARED_HOURS} hours before. If the product has no reason for this, an attacker may be inventing "
        f"clients: 'fedping study pause {study}' stops rounds meanwhile, and tickets keep invented clients out."
    )


@check("newcomers", "paused")
def _check_newcomers(facts: CheckInput) -> Iterator[Failure]:
    """Compare the number of new clients in this and the last hour with earlier hours, to detect invented clients.

    Private lines aren't checked, because their client ids are new with every version.
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
    severity: Severity = "problem" if new > MOST_NEW * before else "warning"
    yield severity, _many_newcomers(clients=new, before=before, study=facts.study)


@message
def _examples_capped(*, share: str, rounds: int, most: int | None) -> str:
    limit = "the study's limit of" if most is None else f"{most:,}"
    return (
        f"{share} of the clients of {_last_rounds(rounds)} claim more than {limit} examples, the maximum that "
        "counts, so the mean is not the mean of all examples. Set 'examples' in [limits] to the maximum of an honest "
        "client, with 'fedping study change'."
    )


@check("capped")
def _check_capped(facts: CheckInput) -> Iterator[Failure]:
    """Check the share of clients whose claimed examples exceed the cap, if clients are weighted by examples."""
    aggregates = [one.lineage.aggregate for one in facts.recent if one.lineage.aggregate is not None]
    capped, clients = sum(one.capped or 0 for one in aggregates), sum(one.clients for one in aggregates)
    if capped > MANY_CAPPED * clients:
        share = format_percent(capped, clients)
        yield "warning", _examples_capped(share=share, rounds=len(facts.recent), most=facts.line.most_examples)


@message
def _guarantee_exhausted(*, rounds: int, study: str) -> str:
    return (
        f"The privacy budget of the line is spent: all its {format_count(rounds, 'round')} are over, so no version "
        f"follows. Clients still send pings, which rounds ignore: end the study with 'fedping study end {study}'."
    )


@message
def _few_rounds_left(*, left: int, rounds: int) -> str:
    return (
        f"{'1 round is' if left == 1 else f'{left:,} rounds are'} left of the {rounds:,} that the guarantee of the "
        "line allows; after that, no further version follows."
    )


@check("privacy", "simulated")
def _check_privacy(facts: CheckInput) -> Iterator[Failure]:
    """Check the number of rounds that the guarantee of a private line still allows."""
    private = facts.line.privacy
    if private is None or private.rounds is None or private.rounds_left is None:
        return
    if facts.exhausted:
        yield "problem", _guarantee_exhausted(rounds=private.rounds, study=facts.study)
    elif private.rounds_left <= max(1, FEW_LEFT * private.rounds) and private.releases:
        yield "warning", _few_rounds_left(left=private.rounds_left, rounds=private.rounds)


@message
def _helper_lost(*, since: str, why: str) -> str:
    return (
        f"The helper can no longer answer the request of {since}: {why}. The next round prints the 'fedping store "
        "continue' command to use."
    )


@message
def _helper_awaited(*, since: str, why: str) -> str:
    return (
        f"The line has waited for its helper since {since}: {why}. The pings of the request are kept until it has "
        "answered."
    )


@check("helper")
def _check_helper(facts: CheckInput) -> Iterator[Failure]:
    """Compare a two-server line's wait for its helper with the interval between rounds."""
    waiting = facts.line.privacy.waiting if facts.line.privacy is not None else None
    if waiting is None:
        return
    since, why = format_time(waiting.since), waiting.why.rstrip(".")
    if waiting.for_good:
        yield "problem", _helper_lost(since=since, why=why)
        return
    every = interval(facts.line.outcomes) or 0.0
    waited = facts.now - milliseconds_of(waiting.since) / 1000
    if waited > max(LATE * every, LATE_AT_LEAST):
        is_problem = waited > max(VERY_LATE * every, VERY_LATE * LATE_AT_LEAST)
        yield "problem" if is_problem else "warning", _helper_awaited(since=since, why=why)
