"""Looking at studies now and then, and telling when the judgement of one changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.health.snapshot import Judgement, StudyMonitor, ingest_snapshot
from fedping.server_jobs.health.webhook import Key, Webhook, dedup_key
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.schedule import Clock


def watch_studies(
    watch: StudyMonitor,
    places: IngestSettings,
    names: Sequence[str],
    every: float,
    clock: Clock,
    on_change: Callable[[str, Judgement], None],
    complain: Callable[[str], None],
    webhook: Webhook | None = None,
) -> None:
    """Look every so many seconds until the clock says to stop.

    Args:
        watch: looks.
        places: where ingest's files are.
        names: of the studies; all without any.
        every: seconds.
        clock: the time.
        on_change: is told each study's first judgement, and each that differs from the one before.
        complain: is told, in a sentence, why nothing can be seen; once, until that changes.
        webhook: is given every judgement, and posts those that have changed.
    """
    told: dict[str, Key] = {}
    complaint = ""
    while clock.wait_until(clock.now()):
        try:
            found, trouble = watch.all(ingest_snapshot(places), names), ""
        except (FedpingError, OSError) as error:
            found, trouble = {}, str(error)
        if trouble and trouble != complaint:
            complain(trouble)
        complaint = trouble
        for name, judgement in found.items():
            if told.get(name) != dedup_key(*judgement):
                told[name] = dedup_key(*judgement)
                on_change(name, judgement)
        if webhook is not None:
            webhook.judged(found)
        if not clock.wait_until(clock.now() + every):
            return
