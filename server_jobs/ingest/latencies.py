"""How long ingest takes to answer, counted by page and by class of status, for the operator.

The clock runs from when a request is there, with its body, to its answer: anybody can send slowly, and an alarm that
anybody can raise is none. Each worker counts in a mapped file, as it does all else
(:mod:`fedping.server_jobs.ingest.counters`); the one thread that answers is the one that counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from fedping.server_jobs.ingest.counters import mapped_numbers, summed_numbers

if TYPE_CHECKING:
    from prometheus_client import Metric

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The buckets' upper bounds in seconds, each 2 to 2.5 times the last.

From less than a flush of a fast disk takes, to the time after which clients give up.
"""

PING = "/submit/<study>/<type>/<version>/<document id>"
BATCH = "/submit/<study>/<type>/<version>"
TELEMETRY = "/submit/telemetry/…"
OTHER = "other"
ROUTES = (
    PING,
    BATCH,
    TELEMETRY,
    "/models/<study>/study.json",
    "/models/<study>/<line>/latest.json",
    "/models/<study>/<line>/staged-<name>.json",
    "/models/<study>/<line>/<name>.json",
    "/demo/",
    "/demo/<path:path>",
    "/demo/state.json",
    "/__lbheartbeat__",
    "/__heartbeat__",
    "/__version__",
    OTHER,
)
"""Every page, as its view names it, so that nothing that a client writes is the name of a series."""

STATUSES = ("2xx", "3xx", "4xx", "5xx")
WATCH = "fedping.stopwatch"
"""Where a request's environment has its :class:`Stopwatch`, for who finds out what page is asked for."""

COARSE_REQUESTS = 1000
COARSE_SECONDS = 10
"""What requests that went well, and their seconds, are rounded down to where a study is private."""

_WIDTH = len(BOUNDS) + 2  # the last bucket has no bound; then the sum of all, in nanoseconds
_NUMBERS = len(ROUTES) * len(STATUSES) * _WIDTH
_SUFFIX = ".latencies"
_FIRST = {route: index * len(STATUSES) * _WIDTH for index, route in enumerate(ROUTES)}
_BOUNDS_NS = tuple(int(bound * 1e9) for bound in BOUNDS)
ELSEWHERE = _FIRST[OTHER]
SUBMITTED = {4: _FIRST[BATCH], 5: _FIRST[PING], 8: _FIRST[TELEMETRY]}
"""Where paths below ``/submit/`` are counted, by how many slashes they have; any others elsewhere."""


class Stopwatch:
    """The time of one request.

    Attributes:
        began: when it was there, by the clock in nanoseconds.
        page: where its page is counted; of a path below ``/submit/`` what :data:`SUBMITTED` has for its slashes.
    """

    began: int
    page = ELSEWHERE

    def asks_for(self, route: str) -> None:
        """Say which page is asked for; one that is none of :data:`ROUTES` counts as other."""
        self.page = _FIRST.get(route, ELSEWHERE)


class Latencies:
    """What one process counts; call it from one thread.

    Raises:
        OSError: its file cannot be made in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._numbers = mapped_numbers(folder, _SUFFIX, _NUMBERS)

    def answered(self, watch: Stopwatch, status: int) -> None:
        """Count the answer that is given at this moment."""
        took = perf_counter_ns() - watch.began
        numbers, first = self._numbers, watch.page + (status // 100 - 2) * _WIDTH
        numbers[first + bisect_left(_BOUNDS_NS, took)] += 1
        numbers[first + _WIDTH - 1] += took


class Answered(NamedTuple):
    """The answers of one route and one class of status.

    ``counts`` has how many took no longer than each of :data:`BOUNDS`, and how many there were; ``seconds`` is what
    they took together.
    """

    counts: tuple[int, ...]
    seconds: float

    @property
    def coarse(self) -> Answered:
        """The same, so that no single answer shows."""
        counts = tuple(count - count % COARSE_REQUESTS for count in self.counts)
        return Answered(counts, self.seconds - self.seconds % COARSE_SECONDS if counts[-1] else 0.0)


def latencies(folder: Path) -> dict[tuple[str, str], Answered]:
    """Return what was counted by route and class of status, where there was any, summed over the processes."""
    numbers = summed_numbers(folder, _SUFFIX, _NUMBERS)
    found = {}
    for route, first in _FIRST.items():
        for status in STATUSES:
            counts = tuple(accumulate(numbers[first : first + _WIDTH - 1]))
            if counts[-1]:
                found[route, status] = Answered(counts, numbers[first + _WIDTH - 1] / 1e9)
            first += _WIDTH
    return found


def latency_families(answered: Mapping[tuple[str, str], Answered], private: bool) -> Iterator[Metric]:
    """Yield the histogram.

    Args:
        answered: by route and class of status.
        private: whether a study is, so that of what went well only thousands are told.
    """
    from prometheus_client.core import HistogramMetricFamily

    text = "Time from when a request has come, with its body, to its answer."
    family: Any = HistogramMetricFamily("fedping_ingest_request_seconds", text, labels=["route", "status"])
    bounds = [*map(str, BOUNDS), "+Inf"]
    for (route, status), one in answered.items():
        counts, seconds = one.coarse if private and status < "4" else one
        if counts[-1]:
            family.add_metric([route, status], list(zip(bounds, counts, strict=True)), seconds)
    yield family
