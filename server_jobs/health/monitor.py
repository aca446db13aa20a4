"""Monitors the health of studies, and posts changes to a webhook in bounded time and memory.

A receiver may be slow, unreachable or hostile. So posts run in their own thread, response bodies are never read,
redirects aren't followed, and only the newest health of each study is queued.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
import requests

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.notation import utc_now
from fedping.protocol.own_login import login_in_address
from fedping.protocol.study import Declared
from fedping.server_jobs.health.findings import Health, Verdict, as_document
from fedping.server_jobs.health.snapshot import Judgement, StudyMonitor
from fedping.server_jobs.schedule import Clock

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
HANGS_SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 900.0
"""Seconds until a failed post is retried: the first pause, doubled after each failure, and the maximum."""

Key: TypeAlias = tuple[object, ...]
Post: TypeAlias = Callable[[Mapping[str, Any]], str | None]
"""Function that posts a message and returns None, or a reason for the failure that doesn't contain the address."""


def payload(study: str, declared: Declared, health: Health) -> dict[str, Any]:
    """Return the JSON message about a study's health. Chat services show its field ``text``, which is complete."""
    findings = [f"{one.severity}: {one.sentence}" for one in health.findings]
    stages = [one.sentence for one in health.staged]
    return {
        "format": 1,
        "time": utc_now(),
        "study": study,
        "state": declared.state,
        **as_document(health),
        "text": "\n".join([f"fedping, study {study}: {health.headline}", *findings, *stages]),
    }


def dedup_key(declared: Declared, health: Health) -> Key:
    """Return the parts of a health that are compared to detect changes. Values in findings are left out."""
    findings = tuple((one.name, one.severity) for one in health.findings)
    return declared.state, health.verdict, findings, health.over, tuple((s.line, s.version) for s in health.staged)


def make_poster(url: str) -> Post:
    """Return a function that posts to an address.

    Raises:
        InvalidSettings: the address isn't an http or https address, or nothing can be sent to it.
    """
    if not _is_address(url):
        raise InvalidSettings(
            "the webhook is not an http or https address; give one such as https://chat.example/hooks/x"
        )

    def post(body: Mapping[str, Any]) -> str | None:
        try:
            with requests.post(
                url,
                data=msgspec.json.encode(body),
                headers={"Content-Type": "application/json", "User-Agent": "fedping"},
                timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
                allow_redirects=False,
                stream=True,
                auth=login_in_address,
            ) as answer:
                return None if 200 <= answer.status_code < 300 else f"HTTP {answer.status_code}"
        except (requests.RequestException, OSError) as error:  # its text has the address, which may be secret
            return type(error).__name__

    return post


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        requests.Request("POST", url).prepare()  # rejects invalid hosts and ports
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # errors of requests are ValueErrors
        return False


@dataclass
class _LastPost:
    """The last post about a study, and the earliest time of the next post."""

    posted: Key | None = None
    verdict: Verdict | None = None
    failures: int = 0
    due: float = 0.0


@dataclass
class Webhook:
    """Posts the health of each study when it is first known and after each change.

    Args:
        post: posts a message.
        tell: called with a sentence about each failure.
        clock: returns seconds since any fixed moment.
        begin: starts a thread; by default a daemon thread.
    """

    post: Post
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    begin: Callable[[Callable[[], None]], None] = lambda work: threading.Thread(target=work, daemon=True).start()
    _known: dict[str, _LastPost] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _began: float | None = None

    def update(self, found: Mapping[str, tuple[Declared, Health]]) -> None:
        """Take the current health of studies, by name. This doesn't wait for posts.

        One thread posts all due messages, longest-waiting study first.
        """
        with self._lock:
            self._known = {study: self._known.get(study) or _LastPost(due=self.clock()) for study in found}
            waiting = [
                (self._known[study].due, study)
                for study, (declared, health) in found.items()
                if self._known[study].posted != dedup_key(declared, health) and self._known[study].due <= self.clock()
            ]
            if self._began is not None or not waiting:
                self._complain()
                return
            self._began = self.clock()
            due = [
                (study, found[study], {**payload(study, *found[study]), "was": self._known[study].verdict})
                for _, study in sorted(waiting)
            ]
        self.begin(lambda: self._post_all(due))

    def _complain(self) -> None:
        """Report once if a receiver's slow response delays other posts. Only posts wait for a receiver."""
        if self._began is not None and self.clock() - self._began > HANGS_SECONDS:
            self._began = math.inf
            self.tell("the webhook has not completed its answer within a minute; posts wait until it does")

    def _post_all(self, due: Sequence[tuple[str, tuple[Declared, Health], Mapping[str, Any]]]) -> None:
        """Post messages up to the first failure, because the receiver may be down. The next call posts the rest."""
        try:
            for study, (declared, health), body in due:
                with self._lock:
                    self._began = self.clock()
                if not self._post(study, dedup_key(declared, health), health.verdict, body):
                    return
        finally:
            with self._lock:
                self._began = None

    def _post(self, study: str, key: Key, verdict: Verdict, body: Mapping[str, Any]) -> bool:
        """Post one message; return whether it was accepted."""
        trouble: str | None = "a defect in fedping"
        try:
            trouble = self.post(body)
        finally:
            with self._lock:
                last = self._known.get(study, _LastPost())
                if trouble is None:
                    last.posted, last.verdict, last.failures, last.due = key, verdict, 0, self.clock()
                else:
                    pause = min(FIRST_PAUSE * 2**last.failures, LONGEST_PAUSE)
                    last.failures, last.due = min(last.failures + 1, 30), self.clock() + pause
        if trouble is not None:
            self.tell(f"can't post the health of study '{study}' to the webhook: {trouble}; retrying in {pause:g} s")
        return trouble is None


@dataclass(frozen=True)
class Reports:
    """Callbacks for reports about studies.

    Args:
        on_change: called with each study's first health, and after each change.
        on_error: called with a sentence if no study can be read; once, until the reason changes.
        webhook: receives the health of all studies, and posts changes.
    """

    on_change: Callable[[str, Judgement], None]
    on_error: Callable[[str], None]
    webhook: Webhook | None = None


def watch_studies(monitor: StudyMonitor, names: Sequence[str], clock: Clock, every: float, reports: Reports) -> None:
    """Check studies at regular intervals until the clock says to stop.

    Args:
        monitor: reads and checks the studies.
        names: names of the studies; empty for all.
        clock: source of the time, which also ends the checks.
        every: seconds between two checks.
        reports: receives changes and errors.
    """
    known: dict[str, Key] = {}
    last_error = ""
    while clock.wait_until(clock.now()):
        try:
            current, error = monitor.all(monitor.ingest(), names), ""
        except (FedpingError, OSError) as raised:
            current, error = {}, str(raised)
        if error and error != last_error:
            reports.on_error(error)
        last_error = error
        for name, judgement in current.items():
            if known.get(name) != dedup_key(*judgement):
                known[name] = dedup_key(*judgement)
                reports.on_change(name, judgement)
        if reports.webhook is not None:
            reports.webhook.update(current)
        if not clock.wait_until(clock.now() + every):
            return
