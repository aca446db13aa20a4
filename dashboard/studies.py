"""The Live and Results pages of a simulated run's study, below ``/runs/<id>/study/``.

They are the dashboard's own pages for the run's store and landing folder: one application per viewed run, behind the
same guard. A few applications are cached.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flask import Flask, request

from fedping.dashboard.answers import WrongState
from fedping.dashboard.runs.places import Place, place
from fedping.dashboard.runs.registry import UnknownRun

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PAGES = ("live", "results", "notes")

KEPT = 8
"""Maximum number of cached applications; others are made again on request, in milliseconds."""

_BELOW = re.compile(r"(/runs/([^/]+)/study)(/.*)")


@dataclass
class StudiesOfRuns:
    """WSGI middleware that passes requests about a run's study to the application for that run.

    Attributes:
        runs: the folder of the runs.
        rest: answers all other requests, including those about a run that does not exist.
        make: returns a new application for a run.
    """

    runs: Path
    rest: WSGIApplication
    make: Callable[[Place], Flask]
    _made: OrderedDict[Path, Flask] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        match = _BELOW.fullmatch(environ.get("PATH_INFO", ""))
        application = self._of(match[2]) if match else None
        if match is None or application is None:
            return self.rest(environ, start_response)
        moved = {"SCRIPT_NAME": environ.get("SCRIPT_NAME", "") + match[1], "PATH_INFO": match[3]}
        return application({**environ, **moved}, start_response)

    def _of(self, id: str) -> Flask | None:
        try:
            where = place(self.runs, id)
        except UnknownRun:  # the dashboard's own pages report it
            return None
        if where.kind != "study":
            return None
        with self._lock:
            if where.out not in self._made:
                self._made[where.out] = self.make(where)
            self._made.move_to_end(where.out)
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
            return self._made[where.out]


def refuse_publishing() -> None:
    """Refuse a request that would change a run's results.

    Raises:
        WrongState: the request would publish a version.
    """
    if request.endpoint in ("live.rollback", "live.rollback_plan"):
        raise WrongState("a simulated study can't be rolled back, because its versions are the run's results")
    if request.endpoint in ("live.held", "live.held_plan"):
        raise WrongState("a simulated study has no decisions to make, because its versions are the run's results")
