"""Audits: a line that keeps its guarantee passes, and each known kind of defect is found."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedping.experiments.privacy.auditing import Audit, Effort, audit
from fedping.experiments.privacy.membership import auc_of
from fedping.main import main
from fedping.protocol.privacy import Central, ClippedFlat, Privacy
from fedping.protocol.study import Study
from fedping.server_jobs.privacy import keys
from fedping.server_jobs.round import ping_filter, private_sums
from tests.support.private import private_study

RUNS = 1000
"""Number of runs with, and without, the canary. A bound is wrong in at most one of 20 audits; seeds are fixed."""


class Drawn:
    """Fast noise for many laboratory runs, with a multiple of the requested standard deviation."""

    def __init__(self, times: float = 1.0) -> None:
        self._rng, self._times = np.random.default_rng(20), times

    def integers(self, sigma: float, d: int) -> NDArray[np.int64]:
        return np.rint(self._rng.normal(0, self._times * sigma, d)).astype(np.int64)


def study_with(sampling: float = 1.0, **more: Any) -> Study:
    central = Central(epsilon=1, delta=1e-6, rounds=48, population=1000, sampling=sampling, noise_multiplier=1.0)
    return private_study(22, privacy=Privacy(central=central, **more))


def audited(study: Study, times: float = 1.0, runs: int = RUNS) -> Audit:
    return audit(study, study.lines[0], Effort(runs=runs), Drawn(times))


@pytest.mark.parametrize("more", [{}, {"contribution": ClippedFlat(norm=3.0)}, {"left_out": ("w0", "w7")}])
def test_a_line_that_keeps_its_promise_passes(more: dict[str, Any]) -> None:
    found = audited(study_with(**more)).release
    assert found is not None
    assert found.holds
    assert found.claimed == pytest.approx(4.886554, abs=1e-5)  # the exact Gaussian with one standard deviation
    assert 0 < found.proven < found.claimed


def test_the_noise_of_the_product_passes() -> None:
    study = study_with()
    assert audit(study, study.lines[0], Effort(runs=200)).holds


@pytest.mark.parametrize("times", [0.5**0.5, 1 / 8])
def test_too_little_noise_is_found_such_as_noise_that_was_divided_twice(times: float) -> None:
    assert not audited(study_with(), times, runs=3000).holds


def test_a_vector_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        private_sums, "bounded_vectors", lambda privacy, frame, vectors: np.clip(vectors, -1e6, 1e6).astype(int)
    )
    assert not audited(study_with(), runs=100).holds


def test_pings_that_count_each_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ping_filter, "_not_first", lambda documents, clients: np.zeros(len(documents), np.bool_))
    assert not audited(study_with()).holds


@pytest.mark.long
def test_a_coin_that_is_tossed_once_for_all_versions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fair = audited(study_with(sampling=0.4), runs=500).release
    assert fair is not None
    assert fair.holds
    once = keys.Coins.counting

    def counting(self: keys.Coins, clients: NDArray[np.uint64]) -> NDArray[np.bool_]:
        first = keys.Coins(self.study, self.line, 0, self.digest, self.share, self.key)
        return once(first, np.zeros_like(clients))

    monkeypatch.setattr(keys.Coins, "counting", counting)
    uneven = audited(study_with(sampling=0.4), runs=500).release
    assert uneven is not None
    assert uneven.coins is not None
    assert not uneven.holds


def test_one_release_of_a_large_model_gives_away_noise_that_is_too_small() -> None:
    central = Central(epsilon=1, delta=1e-6, rounds=48, population=1000, noise_multiplier=3.0)
    study = private_study(10_000, privacy=Privacy(central=central))
    kept, lost = (audited(study, times, runs=20).release for times in (1.0, 0.05))
    assert kept is not None
    assert lost is not None
    assert kept.one_run is not None
    assert lost.one_run is not None
    assert kept.one_run <= kept.claimed < lost.one_run


def test_the_area_under_the_curve_and_its_interval() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(4000) < 2000
    found = auc_of(rng.normal(truth * 1.0, 1.0), truth)
    assert found.low < 0.7602 < found.high  # Φ(1/√2)
    assert found.high - found.low == pytest.approx(0.03, abs=0.005)
    assert auc_of(np.array([0.0, 0, 1, 1]), np.array([False, False, True, True])).auc == 1


@pytest.mark.long
def test_a_single_ping_with_noise_of_its_own_tells_next_to_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {}
    for epsilon in (1.0, 8.0):
        file = tmp_path / f"local-{epsilon:g}.toml"
        spec = Path("experiments/firefox_2018.toml").read_text().split(SPEC)[1]
        file.write_text(LOCAL.format(epsilon=epsilon) + spec)
        assert main(["audit", str(file), "--runs", "20", "--json"]) == 0
        [told[epsilon]] = json.loads(capsys.readouterr().out)
    for name, guess in told[1.0]["unprotected"].items():
        assert guess["auc"] > 0.9, name
    assert max(guess["auc"] for guess in told[8.0]["attributes"].values()) <= 0.60
    assert max(guess["auc"] for guess in told[1.0]["attributes"].values()) <= 0.53


SPEC = "[lines.spec]"

LOCAL = """
name = "local"
pings = "private-update"

[[arms]]
name = "treatment"
share = 1.0
line = "main"
applies = true
submits = true

[[lines]]
name = "main"

[lines.privacy.local]
mechanism = "one-sign"
epsilon = {epsilon}

[lines.spec]
"""
