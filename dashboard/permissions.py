"""Permissions: each request that makes a change, with the least role that may make it and a description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedping.dashboard.team import ROLES, Member, Role


class Action(NamedTuple):
    """A change that a page offers: the least role that may make it, and a description such as "roll back a line"."""

    role: Role
    words: str


ACTIONS: dict[str, Action] = {
    "live.rollback": Action("operator", "roll back a line"),
    "live.held": Action("operator", "decide about a held version"),
    "results.count": Action("analyst", "count results"),
    "results.stop": Action("analyst", "stop a count"),
    "notes.add": Action("analyst", "write a note"),
    "notes.edit": Action("analyst", "edit a note"),
    "notes.remove": Action("analyst", "remove a note"),
    "runs.start": Action("analyst", "start an experiment"),
    "runs.stop": Action("analyst", "stop an experiment"),
    "runs.go_on": Action("analyst", "continue an experiment"),
    "runs.labels": Action("analyst", "change a run's tags and note"),
    "runs.delete": Action("operator", "delete a run"),
}
"""The changes by endpoint; any other change needs an operator."""

HARMLESS = frozenset({"runs.new_from_text", "runs.text_from_form", "runs.describe", "enter", "leave"})
"""Endpoints that accept POST requests but change nothing."""


def action_of(endpoint: str) -> Action:
    """Return the change that a request for an endpoint makes."""
    return ACTIONS.get(endpoint, Action("operator", endpoint))


@dataclass(frozen=True)
class Visitor:
    """A visitor whose identity is known.

    Attributes:
        name: the name in the list of changes.
        role: the visitor's role, which determines the permitted changes.
        alone: whether the dashboard has no team for this visitor, so that pages need not mention roles.
        entry: the visitor's entry in the team; None without one.
    """

    name: str
    role: Role
    alone: bool = False
    entry: Member | None = None

    def may(self, endpoint: str) -> bool:
        """Return whether the person may request a change."""
        return ROLES.index(self.role) >= ROLES.index(action_of(endpoint).role)


def needs(endpoint: str) -> str:
    """Return a sentence with the role that a change needs."""
    role, words = action_of(endpoint)
    return f"To {words}, you need the role {role}."


def refusal(visitor: Visitor, endpoint: str) -> str:
    """Return the error message for a change that a visitor may not make."""
    role, words = action_of(endpoint)
    article = "an" if visitor.role[0] in "aeiou" else "a"
    return f"to {words}, you need the role {role}; {visitor.name} is {article} {visitor.role} here"


OPEN = Visitor("everyone", "operator", alone=True)
"""A visitor of a dashboard without a token."""

SHARED = Visitor("the dashboard's token", "operator", alone=True)
"""A visitor with the single token of a dashboard without a team."""
