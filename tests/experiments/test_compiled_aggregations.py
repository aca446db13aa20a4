"""Aggregations inside compiled rounds, compared with the NumPy engine's, on the same updates and over rounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.experiments.laboratory.rounds import aggregating
from fedping.experiments.laboratory.rounds.inside import between
from fedping.protocol.pipeline import CenteredClip, GeometricMedian, Krum, Median, TrimmedMean
from fedping.server_jobs.round import robust
from tests.experiments.test_compiled_methods import LOCAL, run, setup

jax = pytest.importorskip("jax")


def updates_and_votes(seed: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    updates = random.standard_normal((int(random.integers(1, 30)), 17)).astype(np.float32)
    if ties:
        updates = np.round(updates)
        updates[:, 3] = 0.0
    votes = random.integers(1, 4, len(updates)).astype(float) if seed % 2 else np.full(len(updates), 1 / 3)
    return updates, votes


RULES: dict[str, tuple[Any, Any]] = {
    "median": (Median(), robust.median_of),
    "trimmed mean": (TrimmedMean(share=0.1), lambda u, v: robust.trimmed_mean_of(u, v, 0.1)),
    "trimmed mean of little": (TrimmedMean(share=0.45), lambda u, v: robust.trimmed_mean_of(u, v, 0.45)),
    "geometric median": (GeometricMedian(), lambda u, v: robust.geometric_median_of(u, v, GeometricMedian())),
    "Krum": (Krum(), lambda u, v: robust.krum_of(u, v, Krum())),
    "multi-Krum": (Krum(keep=5, hostile=0.3), lambda u, v: robust.krum_of(u, v, Krum(keep=5, hostile=0.3))),
    "centered clip": (
        CenteredClip(radius=2.0),
        lambda u, v: robust.centered_clip_of(u, v, np.zeros(u.shape[1]), CenteredClip(radius=2.0)),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_agree_on_the_same_updates(name: str) -> None:
    """Tested with padding rows, which have no votes, with ties, and with unequal votes."""
    settings, reference = RULES[name]
    rule = jax.jit(aggregating.rule_of(settings))
    for seed in range(24):
        updates, votes = updates_and_votes(seed, ties=seed % 3 == 0 and "Krum" not in name)
        rows = np.zeros((32, 17), np.float32)
        more = np.zeros(32)
        at = np.sort(np.random.default_rng(seed).choice(32, len(updates), replace=False))
        rows[at], more[at] = updates, votes
        with jax.enable_x64(True):
            found, _ = rule(rows, more, aggregating.first_state_of(settings, 17))
        np.testing.assert_allclose(found, reference(updates, votes), rtol=1e-12, atol=1e-12, err_msg=str(seed))


def test_a_median_is_one_of_the_numbers_to_the_bit() -> None:
    """Tested for numbers of any size and sign."""
    values = np.array([-3e38, -1e-37, 0.0, 1e-37, 1.5, 3e38, -2.0], np.float32)[:, None]
    with jax.enable_x64(True):
        found = aggregating.median_of(jax.numpy.asarray(values), jax.numpy.ones(7))
        [below] = aggregating.median_of(jax.numpy.asarray(values[:5]), jax.numpy.array([1.0, 9, 1, 1, 1]))
    assert float(found[0]) == 0.0
    assert float(below) == float(np.float32(-1e-37))


SERVER: dict[str, Any] = {"optimizer": {"optimizer": "gradient_descent"}, "min_clients": 1, "weighting": "client"}

OVER_ROUNDS: dict[str, dict[str, Any]] = {
    "the median": {"server": SERVER | {"aggregate": {"by": "median"}}},
    "the trimmed mean, clipped, of whoever throws heads": {
        "server": SERVER | {"aggregate": {"by": "trimmed_mean"}, "clip": {"by": "norm", "norm": 0.2}},
        "sampling": {"sampling": "bernoulli", "share": 0.5},
    },
    "Krum": {"server": SERVER | {"aggregate": {"by": "krum"}}},
    "the geometric median, weighted by examples": {
        "server": SERVER | {"aggregate": {"by": "geometric_median"}, "weighting": "examples"}
    },
    "the centered clip, with momentum": {
        "server": SERVER | {"aggregate": {"by": "centered_clip", "radius": 0.1, "beta": 0.5}}
    },
    "the majority": {
        "server": SERVER
        | {"aggregate": {"by": "mean_of_signs"}, "optimizer": {"optimizer": "gradient_descent", "rate": 0.01}}
    },
    "the majority of bits": {
        "server": SERVER
        | {
            "aggregate": {"by": "mean_of_signs", "zero": "up"},
            "optimizer": {"optimizer": "gradient_descent", "rate": 0.01},
        }
    },
}


@pytest.mark.parametrize("case", OVER_ROUNDS)
def test_rounds_agree_with_numpy(case: str, tmp_path: Path) -> None:
    asked = OVER_ROUNDS[case] | {"training": LOCAL}
    assert between(setup(engine="jax", **asked)) == ()
    weights, metrics = run(tmp_path, "numpy", **asked)
    compiled, same = run(tmp_path, "jax", **asked)
    np.testing.assert_allclose(compiled, weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(same["train loss"], metrics["train loss"], rtol=1e-12)


def test_clients_that_are_drawn_twice_are_one_point_by_numpy() -> None:
    asked = setup(
        engine="jax",
        training=LOCAL,
        server=OVER_ROUNDS["the median"]["server"],
        sampling={"sampling": "by_size", "clients": 8},
    )
    assert between(asked) == ("'aggregate' in [server]",)
