"""What each role may do: every request that changes something, with the least role for it and words for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedping.dashboard.team import ROLES, Member, Role


class Action(NamedTuple):
    """A change that a page offers: the least role for it, and what is done, in words such as "roll back a line"."""

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
"""The changes by their endpoints; a change that is not among them needs an operator."""

HARMLESS = frozenset({"runs.new_from_text", "runs.text_from_form", "runs.describe", "enter", "leave"})
"""Endpoints that take a form and change nothing."""


def action_of(endpoint: str) -> Action:
    """Return the change that a request for an endpoint makes."""
    return ACTIONS.get(endpoint, Action("operator", endpoint))


@dataclass(frozen=True)
class Visitor:
    """A person who has shown who they are.

    Attributes:
        name: as it is written into the list of changes.
        role: what the person may do.
        alone: whether the visitor came by no list of people, so that pages need not speak of roles.
        entry: the member that the person is; None for others.
    """

    name: str
    role: Role
    alone: bool = False
    entry: Member | None = None

    def may(self, endpoint: str) -> bool:
        """Return whether the person may request a change."""
        return ROLES.index(self.role) >= ROLES.index(action_of(endpoint).role)


def needs(endpoint: str) -> str:
    """Return the sentence that says what role a change needs."""
    role, words = action_of(endpoint)
    return f"To {words}, you need the role {role}."


def refusal(visitor: Visitor, endpoint: str) -> str:
    """Return the sentence for a change that a visitor may not make."""
    role, words = action_of(endpoint)
    article = "an" if visitor.role[0] in "aeiou" else "a"
    return f"to {words}, you need the role {role}; {visitor.name} is {article} {visitor.role} here"


OPEN = Visitor("everyone", "operator", alone=True)
"""A visitor of a dashboard without a token."""

SHARED = Visitor("the dashboard's token", "operator", alone=True)
"""A visitor with the single token of a dashboard without a team."""
