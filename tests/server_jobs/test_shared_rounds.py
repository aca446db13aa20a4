"""Rounds of lines of shares: with the helper's answer they come to what plain private rounds come to, and wait for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.model_store.store import ModelStore
from fedping.protocol.privacy import frame_of
from fedping.server_jobs.privacy.budget import spent
from fedping.server_jobs.round import RoundResult, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.private_rounds import land_private
from tests.support.rounds import FIRST_MS, WHEN, store_with
from tests.support.shared_rounds import CENTRAL, KEY, shared_line

ENGINE = NumpyEngine()


def round_of(store: ModelStore, landing: Path, helper: Any = None, **more: Any) -> RoundResult:
    given = {"privacy_key": KEY, "helper": helper, **more}
    return run_round(store, landing, "private", "main", ENGINE, clock=lambda: WHEN, code_version="test", **given)


def test_smoke(tmp_path: Path) -> None:
    line = shared_line(tmp_path)
    store = store_with(tmp_path / "store", line.study)
    crowd = [*line.crowd(30), *line.crowd(20, arm="control")]
    land_private(tmp_path / "landing", line.study, crowd)
    result = round_of(store, tmp_path / "landing")
    print(result.sentence)
    result = round_of(store, tmp_path / "landing", line.way)
    print(result.sentence)
    v = store.head("private", "main")
    sums = np.stack([line.vectors(30).sum(axis=0), line.vectors(20).sum(axis=0)])
    print(sums, v.lineage.privacy)
    print(list((tmp_path / "store").rglob("*")))
    assert recompute(store, tmp_path / "landing", "private", "main", 1, ENGINE).identical
    assert 0
