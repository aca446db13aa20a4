"""A worker's thread for periodic tasks: rolling, refreshing, finding connections that do not read."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import threading
import time

from fedping.protocol.log import tell
from fedping.server_jobs.ingest.edge.services import Services
from fedping.server_jobs.ingest.edge.slow_clients import Unread
from fedping.server_jobs.ingest.edge.submit import print_defect
from fedping.server_jobs.ingest.recent import MORE_DESCRIPTORS
from fedping.server_jobs.ingest.settings import LOGGED

TICK = 0.02
FLUSH_EVERY = 1.0
TELL_EVERY = 60.0


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
        self._probed = self._told = -math.inf
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
        if time.monotonic() - self._probed >= FLUSH_EVERY and not self._has_descriptors():
            return  # all else needs one
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

    def _has_descriptors(self) -> bool:
        """Return whether a file can be opened; if not, count that for the heartbeat, and log it once a minute."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._services.counters.add("no_descriptors", 1)
            if time.monotonic() - self._told >= TELL_EVERY:
                self._told = time.monotonic()
                tell(
                    f"no file descriptor is left in this worker ({error.strerror}; its limit is "
                    f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}), so that connections wait or fail; "
                    f"{MORE_DESCRIPTORS} and start ingest again",
                    before=LOGGED,
                )
            time.sleep(FLUSH_EVERY - TICK)
            return False
        self._probed = time.monotonic()
        return True

    def _current_period(self) -> int:
        return int(time.time() / self._services.settings.compact_every)

    def _flush_stamp(self) -> int:
        with contextlib.suppress(OSError):
            return self._services.settings.flush_request.stat().st_mtime_ns
        return 0
