"""The present state of a line: its health, and what its next round waits for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fedping.protocol.study import Declared
from fedping.server_jobs.health.checks import check_line
from fedping.server_jobs.health.facts import CheckInput, HeldVersion, Ingest, Landed, PrivateFacts, Uploads
from fedping.server_jobs.health.findings import Health, as_document, format_duration


class Now(Struct, frozen=True, kw_only=True):
    """What can change without a new version.

    ``hint`` says what there is to do next, if anything is; ``held`` is a version that waits for somebody's decision.
    ``privacy`` is there for a private line. In a ``discreet`` store, which has a private study, neither ``ingest`` nor
    ``landed`` tell how many pings there are: that changes with every client that sends one.
    """

    newest: int
    landed: Landed
    ingest: Ingest
    declared: Declared
    health: dict[str, Any]
    hint: str
    held: HeldVersion | None = None
    privacy: PrivateFacts | None = None
    discreet: bool = False


def now_of(newest: int, facts: CheckInput) -> Now:
    """Return the present state of a line with this newest version, as long as nothing newer has been seen."""
    landed = facts.line.landed or Landed(version=newest, pings=0, files=0, newest_ms=None)
    health = check_line(facts)
    return Now(
        newest=landed.version,
        landed=replace(landed, pings=0, files=0, newest_ms=None) if facts.line.privacy is not None else landed,
        ingest=_discreet(facts.ingest, facts)
        if facts.discreet
        else replace(facts.ingest, uploads=_own(facts), recent={}, requests={}),
        declared=facts.declared,
        health=as_document(health),
        hint=_hint(landed, facts, health),
        held=facts.line.held,
        privacy=facts.line.privacy,
        discreet=facts.discreet,
    )


def _discreet(ingest: Ingest, facts: CheckInput) -> Ingest:
    """Return what may be told of ingest: nothing that a ping of a private study would change."""
    own = facts.ingest.studies.get(facts.study) if facts.line.privacy is None else None
    return Ingest(
        state=ingest.state,
        period=ingest.period,
        rejected=own.rejected if own else {},
        troubles=ingest.troubles,
        studies={facts.study: own} if own else {},
    )


def _own(facts: CheckInput) -> tuple[Uploads, ...]:
    """Return what has come for the line; of a discreet store nobody is told."""
    own = facts.study, facts.line.name
    return tuple(one for one in facts.ingest.uploads if (one.study, one.line) == own)


def _hint(landed: Landed, facts: CheckInput, health: Health) -> str:
    """Return what to do first, or what the line waits for; empty if findings already say so."""
    if health.staged:
        return health.staged[0].sentence
    if facts.declared.state != "running" or facts.declared.simulated or facts.ingest.state != "running":
        return ""
    if facts.exhausted:
        return ""
    if any(one.name in ("landing", "rounds") for one in health.findings):
        return ""
    if landed.pings:
        return (
            f"There is only version 0. A round makes the next: 'fedping round {facts.study}', or schedule them."
            if landed.version == 0
            else ""
        )
    if facts.ingest.pending:
        return f"No ping of version {landed.version} has landed yet; {_lands(facts.ingest.period)}."
    return f"No ping of version {landed.version} has come yet; clients send them once they have fetched it."


def _lands(period: float | None) -> str:
    return (
        "what ingest accepts lands soon"
        if period is None
        else f"what ingest accepts lands within {format_duration(period)}"
    )
