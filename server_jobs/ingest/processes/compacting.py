"""The compactor process: empties the journal as segments are rolled, and a last time when told to stop."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from fedping.protocol.log import tell, tell_defect
from fedping.protocol.object_store import StorageAway
from fedping.protocol.storage import open_storage
from fedping.server_jobs.ingest.edge.health import COMPACTOR_LOCK
from fedping.server_jobs.ingest.processes.process_lock import Lock, exit_with_parent
from fedping.server_jobs.ingest.settings import LOGGED, IngestSettings
from fedping.server_jobs.stop_event import Wakeup

if TYPE_CHECKING:
    from fedping.server_jobs.ingest.compaction.compactor import Compactor
    from fedping.server_jobs.ingest.compaction.quarantine import FailureNote

LOOK_EVERY = 0.02
GATHER = 0.05
"""Seconds to wait after one worker has rolled its segment: the others roll at the same time, and share its file."""
PAUSE_AFTER_FAILURE = 1.0
LAST_ATTEMPTS = 3
"""In a folder. What fails in a bucket was tried again for long enough already, and whoever stops ingest waits."""


def run_compactor(settings: IngestSettings, parent: int) -> None:
    """Compact until SIGTERM, then the rest, and exit; exit code 1 if something had to stay in the journal."""
    exit_with_parent(parent)
    os.setpgrp()
    wakeup = _asked_by_signals()
    if not Lock(settings.journal / COMPACTOR_LOCK).take(patience=30.0):
        tell("another compactor works on this journal; stop it", before=LOGGED)
        sys.exit(1)
    from fedping.server_jobs.ingest.compaction.compactor import Compactor, clear_unfinished
    from fedping.server_jobs.ingest.compaction.quarantine import FailureNote
    from fedping.server_jobs.ingest.counters import Counters

    clear_unfinished(settings)
    compactor = Compactor(settings, Counters(settings.counters))
    note = FailureNote(settings.compaction_failing)
    try:
        while not wakeup.asked:
            if compactor.has_work():
                wakeup.wait(GATHER)
            found = attempt(compactor, note)
            wakeup.wait(PAUSE_AFTER_FAILURE if found is None else 0.0 if found else LOOK_EVERY)
        emptied = compact_the_rest(compactor, note, 1 if open_storage(settings.landing).far else LAST_ATTEMPTS)
    except Exception:  # nor does the log quote a ping
        tell_defect(LOGGED)
        sys.exit(1)
    sys.exit(0 if emptied else 1)


def attempt(compactor: Compactor, note: FailureNote) -> bool | None:
    """Run one pass; return whether there was anything to compact, or None if it failed, which is logged and noted."""
    try:
        found = compactor.run_once()
    except (OSError, StorageAway) as error:
        tell(f"compaction failed and is tried again: {error}", before=LOGGED)
        note.failed(str(error))
        return None
    except Exception as error:  # this process ends; the message may quote a ping, which nobody may read
        note.failed(f"{type(error).__name__}, of which ingest's log has more")
        raise
    note.succeeded()
    return found


def compact_the_rest(compactor: Compactor, note: FailureNote, attempts: int = LAST_ATTEMPTS) -> bool:
    """Compact until nothing is left; return False if so many attempts have failed."""
    failures = 0
    while failures < attempts:
        match attempt(compactor, note):
            case False:
                return True
            case None:
                failures += 1
    return False


def _asked_by_signals() -> Wakeup:
    wakeup = Wakeup()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        wakeup.ask()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return wakeup
