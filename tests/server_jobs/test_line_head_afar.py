"""The newest version of a line with a slow store: it is looked up in parallel with the requests that need it."""

import threading
import time
from itertools import count

import pytest

from fedping.model_store import StoreError
from fedping.protocol.model import Staged
from fedping.server_jobs.ingest import admission
from fedping.server_jobs.ingest.admission import LineHead
from tests.support.processes import wait_until

AFAR = 1e-9
"""A minimal pause between lookups, in seconds, so that every request looks up a slow store."""


def now_ms() -> int:
    return int(time.time() * 1000)


def test_it_tells_what_is_published_and_what_is_staged() -> None:
    published, staged = [4], [None, Staged(iteration=6, share=0.1)]
    head = LineHead(3, lambda _: published[0], look_at_stage=lambda newest: staged[newest - 4], rest=AFAR)
    assert (head.latest(), head.staged()) == (4, None)
    published[0] = 5
    assert (head.latest(), head.staged()) == (5, staged[1])
    assert head.has(6, now_ms()), "some have the staged version"
    assert not head.has(7, now_ms())
    published[0] = 7
    staged += [None, None]
    assert head.has(7, now_ms())


def test_nobody_waits_long_for_a_look_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ANSWERS_WITHIN", 0.05)
    monkeypatch.setattr(admission, "SETTLES_WITHIN", 0.1)
    hangs, looks = threading.Event(), count()

    def look(known: int) -> int:
        next(looks)
        hangs.wait(60)
        return 9

    head = LineHead(3, look, rest=AFAR)
    try:
        assert [head.latest() for _ in range(100)] == [3] * 100
        for _ in range(100):
            with pytest.raises(Exception, match="does not respond"):
                head.has(9, now_ms())
        assert head.has(3, now_ms()), "what is known needs no look"
        assert next(looks) == 1, "one look at a time"
    finally:
        hangs.set()
    assert wait_until(lambda: head.latest() == 9)
    assert head.has(9, now_ms())


def test_a_store_that_is_away_settles_nothing() -> None:
    def away() -> None:
        raise StoreError("away")

    head = LineHead(3, lambda known: known, away, rest=AFAR)
    with pytest.raises(StoreError, match="away"):
        head.has(4, now_ms())
    assert head.latest() == 3


def test_a_flood_of_unknown_versions_costs_few_looks() -> None:
    looks = count()
    head = LineHead(3, lambda known: known if next(looks) >= 0 else 0, rest=60.0)
    until = time.monotonic() + 0.5
    asked = 0
    while time.monotonic() < until:
        assert not head.has(4 + asked, now_ms())
        asked += 1
    assert next(looks) < 2 + 0.6 / admission.AFAR_PAUSE + 2
