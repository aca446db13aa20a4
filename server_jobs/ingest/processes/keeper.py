"""A worker's thread for periodic tasks: rolling, refreshing, finding connections that do not read."""

from __future__ import annotations

import contextlib
import threading
import time

from fedping.server_jobs.ingest.edge.arrivals import Unread
from fedping.server_jobs.ingest.edge.services import Services
from fedping.server_jobs.ingest.edge.submit import print_defect

TICK = 0.02
FLUSH_EVERY = 1.0


class Keeper(threading.Thread):
    """Rolls the journal when its age or a flush requires it, refreshes the catalogue, and so on.

    All workers roll at the same moments of the wall clock, so that their segments are compacted into one file together.
    """

    def __init__(self, services: Services) -> None:
        super().__init__(name="keeper", daemon=True)
        self._services = services
        self._period = self._current_period()
        self._flush_seen = self._flush_stamp()
        self._refreshed = self._flushed = time.monotonic()
        self._unread = Unread(services.settings.limits.body_seconds, services.settings.limits.body_rate)

    def run(self) -> None:
        """Run the periodic tasks until the process ends."""
        while True:
            time.sleep(TICK)
            try:
                self.tick()
            except Exception:  # whatever happens, the next tick must come, because it rolls segments
                print_defect()

    def tick(self) -> None:
        """Do what is due."""
        self._services.journals.keep()
        period, stamp = self._current_period(), self._flush_stamp()
        if (period, stamp) != (self._period, self._flush_seen):
            self._period, self._flush_seen = period, stamp
            self._services.journals.roll()
        if time.monotonic() - self._flushed >= FLUSH_EVERY:
            self._services.flush()
            self._flushed = time.monotonic()
        if time.monotonic() - self._refreshed >= self._services.catalogue.every:
            self._services.catalogue.keep_up()
            self._refreshed = self._flushed = time.monotonic()
        self._unread.look(time.monotonic())

    def _current_period(self) -> int:
        return int(time.time() / self._services.settings.compact_every)

    def _flush_stamp(self) -> int:
        with contextlib.suppress(OSError):
            return self._services.settings.flush_request.stat().st_mtime_ns
        return 0
