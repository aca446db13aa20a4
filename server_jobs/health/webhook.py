"""Telling a webhook when the judgement of a study changes: bounded in time and memory, and in nobody's way.

A receiver may be slow, gone or hostile: the post is made in a thread that nobody waits for, an answer's body is never
read, a redirect is not followed, and of each study only the newest judgement waits to be told.
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

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.notation import utc_now
from fedping.protocol.own_login import login_in_address
from fedping.protocol.study import Declared
from fedping.server_jobs.health.checks import Health, Verdict

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
HANGS_SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 900.0
"""Seconds until a post that failed is made again: twice as long each time, up to the longest."""

Key: TypeAlias = tuple[object, ...]
Post: TypeAlias = Callable[[Mapping[str, Any]], str | None]
"""Hands over a message; returns why it could not be, without the address."""


def payload(study: str, declared: Declared, health: Health) -> dict[str, Any]:
    """Return a judgement as it is posted; ``text`` has all of it in words, and is the field that chat services show."""
    told = [f"{one.severity}: {one.sentence}" for one in health.findings]
    return {
        "format": 1,
        "time": utc_now(),
        "study": study,
        "state": declared.state,
        "verdict": health.verdict,
        "headline": health.headline,
        "findings": msgspec.to_builtins(health.findings),
        "over": list(health.over),
        "staged": msgspec.to_builtins(health.staged),
        "text": "\n".join(
            [f"fedping, study {study}: {health.headline}", *told, *(one.sentence for one in health.staged)]
        ),
    }


def dedup_key(declared: Declared, health: Health) -> Key:
    """Return what makes one judgement another: not the numbers in its sentences, which change all the time."""
    findings = tuple((one.name, one.severity) for one in health.findings)
    return declared.state, health.verdict, findings, health.over, tuple((s.line, s.version) for s in health.staged)


def make_poster(url: str) -> Post:
    """Return what posts to an address.

    Raises:
        InvalidSettings: it is none of http or https, or nothing could ever be sent there.
    """
    if not _is_address(url):
        raise InvalidSettings("the webhook is no http or https address; write one such as https://chat.example/hooks/x")

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
        except (requests.RequestException, OSError) as error:  # whose text has the address, which may be a secret
            return type(error).__name__

    return post


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        requests.Request("POST", url).prepare()  # refuses a host or a port that can be none
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of which those of requests are
        return False


@dataclass
class _Told:
    """What was posted of one study last, and from when on it may be posted again."""

    posted: Key | None = None
    verdict: Verdict | None = None
    failures: int = 0
    due: float = 0.0


@dataclass
class Webhook:
    """Posts the judgement of a study when it is first known, and whenever it has changed.

    Args:
        post: hands a message over.
        tell: is told of failures, in a sentence.
        clock: seconds, of any origin.
        begin: starts a thread; by default one that does not keep the program alive.
    """

    post: Post
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    begin: Callable[[Callable[[], None]], None] = lambda work: threading.Thread(target=work, daemon=True).start()
    _known: dict[str, _Told] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _began: float | None = None

    def judged(self, found: Mapping[str, tuple[Declared, Health]]) -> None:
        """Take the present judgements, by study, and return at once.

        One thread posts all that are due, one after the other, the study that has waited longest first.
        """
        with self._lock:
            self._known = {study: self._known.get(study) or _Told(due=self.clock()) for study in found}
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
        """Tell, once, that a receiver which answers byte by byte holds up the others; nothing else waits for it."""
        if self._began is not None and self.clock() - self._began > HANGS_SECONDS:
            self._began = math.inf
            self.tell("the webhook has not ended its answer for a minute; nothing is posted until it does")

    def _post_all(self, due: Sequence[tuple[str, tuple[Declared, Health], Mapping[str, Any]]]) -> None:
        """Post messages; the first that fails leaves the others for the next call, for the receiver may be gone."""
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
        """Post one message; return whether it was taken."""
        trouble: str | None = "a defect of ours"
        try:
            trouble = self.post(body)
        finally:
            with self._lock:
                told = self._known.get(study, _Told())
                if trouble is None:
                    told.posted, told.verdict, told.failures, told.due = key, verdict, 0, self.clock()
                else:
                    pause = min(FIRST_PAUSE * 2**told.failures, LONGEST_PAUSE)
                    told.failures, told.due = min(told.failures + 1, 30), self.clock() + pause
        if trouble is not None:
            self.tell(f"the webhook could not be told of study '{study}': {trouble}; it is tried again in {pause:g} s")
        return trouble is None
