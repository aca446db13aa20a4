"""Pings as requests for the ingest benchmark: every document distinct, drawn from a seed."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.load import http_post

M = 22
CLIENTS = 2000
PATH = "/submit/bench/frecency-update/1"


def _ping(rng: np.random.Generator) -> dict[str, Any]:
    selected = int(rng.integers(0, 4))
    return {
        "clientId": _id(rng),
        "type": "frecency-update",
        "payload": {
            "model_version": 0,
            "study_variation": "treatment",
            "update": [round(float(x), 3) for x in rng.normal(0, 20, M)],
            "loss": round(float(rng.exponential(20)), 4),
            "frecency_scores": [float(x) for x in np.sort(rng.integers(10, 9000, 6))[::-1]],
            "num_suggestions_displayed": 6,
            "rank_selected": selected,
            "bookmark_and_history_num_suggestions_displayed": 5,
            "bookmark_and_history_rank_selected": selected,
            "num_chars_typed": 4,
            "num_key_down_events": 5,
            "num_key_down_events_at_selecteds_first_entry": 2,
            "time_start_interaction": 0,
            "time_end_interaction": 2345,
            "time_at_selecteds_first_entry": 812,
            "selected_style": "autofill heuristic",
            "selected_url_was_same_as_search_string": 0,
            "enter_was_pressed": 1,
            "study_addon_version": "2.0.0",
        },
    }


def _id(rng: np.random.Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16)))


def single_requests(seed: int) -> Iterator[bytes]:
    """Yield requests of one ping, without end."""
    rng = np.random.default_rng(seed)
    bodies = [json.dumps(_ping(rng)).encode() for _ in range(CLIENTS)]
    placeholder = "d" * 36
    templates = [http_post(f"{PATH}/{placeholder}", body).split(placeholder.encode(), 1) for body in bodies]
    number = 0
    while True:
        for before, after in templates:
            number += 1
            yield before + b"%08x-0000-4000-8000-%012x" % (seed, number) + after


def distinct_requests(number: int, seed: int = 1) -> Iterator[bytes]:
    """Yield requests of one ping, of as many clients, no two of which have anything in common."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        yield http_post(f"{PATH}/{_id(rng)}", json.dumps(_ping(rng)).encode())


def batch_requests(seed: int, size: int, batches: int) -> list[bytes]:
    """Return requests of ``size`` pings each, gzipped."""
    rng = np.random.default_rng(seed)
    pings = [_ping(rng) for _ in range(CLIENTS)]
    made = []
    for batch in range(batches):
        lines = [
            json.dumps({"documentId": _id(rng)} | pings[(batch * size + i) % CLIENTS]).encode() for i in range(size)
        ]
        made.append(http_post(PATH, gzip.compress(b"\n".join(lines), 6), "gzip"))
    return made
