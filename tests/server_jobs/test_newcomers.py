"""New client ids are counted in bounded space, without storing ids."""

import json
import uuid
from pathlib import Path

import numpy as np

from fedping.server_jobs.ingest.compactor_counts import HOUR_MS, KEPT_HOURS, Newcomers, Seen, newcomers
from tests.support.ingest_app import PATH, ingest_app
from tests.support.landed import random_ids
from tests.support.pings import ping_json

KEYS = np.arange(1, 5, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def test_ids_are_new_once() -> None:
    rng = np.random.default_rng(1)
    seen, ids = Seen(KEYS), random_ids(rng, 50_000)
    assert seen.add(np.concatenate([ids, ids[:1000]])) == 50_000
    assert seen.add(ids[::-1]) == 0
    assert seen.add(np.concatenate([ids[:10], random_ids(rng, 5_000)])) == 5_000


def test_in_filters_that_are_too_small_what_was_seen_lately_is_known() -> None:
    """Runs 40,000 ids through filters of 32,768 bits: a flood makes them forget, but their size stays fixed."""
    rng = np.random.default_rng(2)
    seen, new = Seen(KEYS, 2**15), 0
    for _ in range(40):
        ids = random_ids(rng, 1_000)
        new += seen.add(ids)
        assert seen.add(ids) == 0
    assert 0.85 < new / 40_000 <= 1


def test_hours_are_counted_by_study_and_forgotten(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    counts, ids = Newcomers(tmp_path), random_ids(rng, 300)
    counts.add("a", ids[:100], 5 * HOUR_MS)
    counts.add("a", ids[50:300], 6 * HOUR_MS + 1)
    counts.add("b", ids, 6 * HOUR_MS)
    counts.write()
    assert newcomers(tmp_path) == {"a": {5: 100, 6: 200}, "b": {6: 300}}
    counts.add("a", ids, (5 + KEPT_HOURS) * HOUR_MS)
    counts.write()
    assert newcomers(tmp_path)["a"] == {6: 200, 5 + KEPT_HOURS: 0}


def test_ingest_counts_what_lands_and_writes_no_id(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    clients = [uuid.uuid4() for _ in range(30)]
    for client in [*clients, *clients[:9]]:
        body = json.dumps({**ping_json(), "clientId": str(client)}).encode()
        assert ingest.post(f"{PATH}/{uuid.uuid4()}", body).status_code == 200
    ingest.land()
    assert sum(newcomers(ingest.settings.counters)["study"].values()) == 30
    (file,) = ingest.settings.counters.glob("*.newcomers")
    assert len(file.read_bytes()) < 60
