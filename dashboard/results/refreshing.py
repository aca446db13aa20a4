"""Counts on a schedule: every study is counted repeatedly, as interim looks, of which there may be any number.

The question is the last interim one that somebody asked, or that about the study's own metrics. Studies are counted
only if something has changed. The newest of these looks are kept, because nothing is corrected for their number.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from fedping.analysis.study.metrics import window_folders
from fedping.analysis.verdict import Asked, default_metrics, plan_of
from fedping.dashboard.results.counts import Count, Counts
from fedping.dashboard.results.question import key_of
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.study import Study

KEPT = 24
"""Finished looks kept per question."""

log = logging.getLogger(__name__)


def refresh(counts: Counts) -> Iterator[Count]:
    """Request a count of every study with something new; yield the counts, which may have been requested before."""
    store = open_store(counts.store)
    for name in store.studies.names():
        study = store.study(name)
        asked = _question(counts, study)
        try:
            plan_of(study, asked)
            window_folders(counts.landing, study, asked.window)
        except FedpingError:  # only one arm, or nothing landed: there is nothing to compare yet
            continue
        yield counts.ask(study, asked)
        counts.forget(name, key_of(asked), KEPT)


def _question(counts: Counts, study: Study) -> Asked:
    looked = (one.asked for one in counts.of(study.name) if one.asked.interim)
    return next(looked, Asked(metrics=default_metrics(study), interim=True))


def keep_refreshing(counts: Counts, minutes: float, stop: threading.Event) -> None:
    """Refresh now and at this interval in minutes, until told to stop; errors are logged, and do not end it."""
    while True:
        try:
            for count in refresh(counts):
                log.debug("scheduled count %s", count.id)
        except (FedpingError, OSError) as error:
            log.warning("results cannot be refreshed: %s", error)
        if stop.wait(60 * minutes):
            return
