"""Records the change of the current request: before the view makes it, and its outcome afterwards."""

from __future__ import annotations

from flask import Response, g, request
from msgspec.structs import replace

from fedping.dashboard.changes.log import Change, ChangeLog, Outcome, new_change
from fedping.dashboard.permissions import Visitor, action_of
from fedping.protocol.log import tell

_REFUSED, _FAILED = 400, 500


def begin(log: ChangeLog, visitor: Visitor, endpoint: str) -> None:
    """Record that the current request is about to make a change.

    Raises:
        FedpingError: the list can't be written, so the change must not be made.
    """
    about = " ".join([request.script_root, *map(str, (request.view_args or {}).values())]).strip()
    change = new_change(
        by=visitor.name, role=visitor.role, action=endpoint, what=action_of(endpoint).words, about=about
    )
    log.begin(change)
    g.change = change


def changed(*, before: str = "", after: str = "", about: str = "") -> None:
    """Record the change of the current request; no effect outside a recorded request."""
    change: Change | None = g.get("change")
    if change is not None:
        g.change = replace(change, before=before, after=after, about=about or change.about)


def refused(sentence: str) -> None:
    """Record why the current request made no change."""
    change: Change | None = g.get("change")
    if change is not None:
        g.change = replace(change, reason=sentence)


def end(log: ChangeLog, response: Response) -> Response:
    """Record the outcome of the current request; if that fails, log a warning and leave the outcome "unknown"."""
    change: Change | None = g.pop("change", None)
    if change is None:
        return response
    status = response.status_code
    outcome: Outcome = "done" if status < _REFUSED else "refused" if status < _FAILED else "unknown"
    try:
        log.end(replace(change, outcome=outcome))
    except OSError as error:
        tell(f"the outcome of a change by {change.by} could not be written into {log.folder}: {error}", "warning")
    return response
