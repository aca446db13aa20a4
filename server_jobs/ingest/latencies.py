"""Ingest's response times, counted by page and status class, for the operator.

Time is measured from the moment when a request has arrived with its body: any client can send slowly, so an alert on
the transfer time would be useless. Each worker counts in a mapped file, like its counters
(:mod:`fedping.server_jobs.ingest.counters`). Only the thread that sends responses counts.
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
"""Upper bounds of the histogram's buckets in seconds, each 2 to 2.5 times the previous bound. They range from less
than a flush of a fast disk to the time after which clients stop waiting."""

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
"""All pages, by the names of their views, so that clients can't create series in the metrics."""

STATUSES = ("2xx", "3xx", "4xx", "5xx")
WATCH = "fedping.stopwatch"
"""Key of the :class:`Stopwatch` in a request's environment. The view sets its page."""

COARSE_REQUESTS = 1000
COARSE_SECONDS = 10
"""Steps to which the number of successful requests and their seconds are rounded down if a study is private."""

_WIDTH = len(BOUNDS) + 2  # the last bucket has no bound; then the sum of all, in nanoseconds
_NUMBERS = len(ROUTES) * len(STATUSES) * _WIDTH
_SUFFIX = ".latencies"
_FIRST = {route: index * len(STATUSES) * _WIDTH for index, route in enumerate(ROUTES)}
_BOUNDS_NS = tuple(int(bound * 1e9) for bound in BOUNDS)
ELSEWHERE = _FIRST[OTHER]
SUBMITTED = {4: _FIRST[BATCH], 5: _FIRST[PING], 8: _FIRST[TELEMETRY]}
"""First index of the counts of a path below ``/submit/``, by its number of slashes."""


class Stopwatch:
    """Measures the time of one request.

    Attributes:
        began: time of the request's arrival, by the monotonic clock in nanoseconds.
        page: first index of the page's counts; for paths below ``/submit/`` from :data:`SUBMITTED`.
    """

    began: int
    page = ELSEWHERE

    def asks_for(self, route: str) -> None:
        """Set the requested page; a page outside :data:`ROUTES` counts as other."""
        self.page = _FIRST.get(route, ELSEWHERE)


class Latencies:
    """Response times counted by one process; not thread-safe.

    Raises:
        OSError: the process's file can't be created in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._numbers = mapped_numbers(folder, _SUFFIX, _NUMBERS)

    def answered(self, watch: Stopwatch, status: int) -> None:
        """Count a response that is being sent."""
        took = perf_counter_ns() - watch.began
        numbers, first = self._numbers, watch.page + (status // 100 - 2) * _WIDTH
        numbers[first + bisect_left(_BOUNDS_NS, took)] += 1
        numbers[first + _WIDTH - 1] += took


class Answered(NamedTuple):
    """Response times of one route and one status class.

    ``counts`` has the number of responses within each of :data:`BOUNDS`, and of all responses. ``seconds`` is the sum
    of response times.
    """

    counts: tuple[int, ...]
    seconds: float

    @property
    def coarse(self) -> Answered:
        """These counts, rounded down so that they don't reveal single responses."""
        counts = tuple(count - count % COARSE_REQUESTS for count in self.counts)
        return Answered(counts, self.seconds - self.seconds % COARSE_SECONDS if counts[-1] else 0.0)


def latencies(folder: Path) -> dict[tuple[str, str], Answered]:
    """Return response times by route and status class, summed over all processes, without empty entries."""
    numbers = summed_numbers(folder, _SUFFIX, _NUMBERS)
    answered = {}
    for route, first in _FIRST.items():
        for status in STATUSES:
            counts = tuple(accumulate(numbers[first : first + _WIDTH - 1]))
            if counts[-1]:
                answered[route, status] = Answered(counts, numbers[first + _WIDTH - 1] / 1e9)
            first += _WIDTH
    return answered


def latency_families(answered: Mapping[tuple[str, str], Answered], private: bool) -> Iterator[Metric]:
    """Yield the histogram of response times.

    Args:
        answered: response times by route and status class.
        private: whether a study is private; numbers of successful responses are then rounded down.
    """
    from prometheus_client.core import HistogramMetricFamily

    text = "Time from the arrival of a complete request to its answer."
    family: Any = HistogramMetricFamily("fedping_ingest_request_seconds", text, labels=["route", "status"])
    bounds = [*map(str, BOUNDS), "+Inf"]
    for (route, status), one in answered.items():
        counts, seconds = one.coarse if private and status < "4" else one
        if counts[-1]:
            family.add_metric([route, status], list(zip(bounds, counts, strict=True)), seconds)
    yield family
