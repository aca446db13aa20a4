"""Bytes sent in a laboratory's rounds: the reported sizes of a round's pings and versions are the real ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from fedping.client_sim.fleet.pings import encoded_pings
from fedping.experiments.laboratory.comparing import chosen, compared
from fedping.experiments.laboratory.latex import escaped
from fedping.experiments.laboratory.report_curves import Curve, over_bytes
from fedping.experiments.laboratory.results import ESTIMATED, METRICS_SCHEMA, Outcome
from fedping.experiments.laboratory.rounds.landed import pings_of
from fedping.experiments.laboratory.rounds.updates import WRITTEN_OUT, Updates, fetched_bytes, posted_bytes
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.laboratory.summary import Summary
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.update import Payloads

SETTINGS = """
name = "bytes"
rounds = 4
seeds = 2
[model]
name = "logistic-regression"
[data]
name = "breast-cancer"
[partition]
partition = "iid"
clients = 5
[training]
algorithm = "gradient"
[evaluation]
baselines = []
[[variants]]
name = "dense"
[[variants]]
name = "signs"
upload = [{ link = "sign" }]
"""


def block(k: int, m: int) -> Updates:
    rng = np.random.default_rng(k)
    updates = (rng.standard_normal((k, m)) * np.exp(rng.standard_normal((k, m)))).astype(np.float32)
    updates[rng.random((k, m)) < 0.4] = 0
    return Updates(
        clients=np.arange(k),
        repeats=np.zeros(k, np.int64),
        pings=np.ones(k, np.int64),
        updates=updates,
        losses=rng.random(k),
        examples=rng.integers(1, 2000, k),
    )


def written(one: Updates) -> int:
    pings = pings_of(one, np.zeros((len(one.clients), 16), np.uint8), 0, 0)
    return sum(len(body) for _, body in encoded_pings(pings))


@pytest.mark.parametrize(("k", "m"), [(1, 1), (7, 22), (90, 91)])
def test_small_blocks_are_told_to_the_byte(k: int, m: int) -> None:
    assert k * m <= WRITTEN_OUT
    assert posted_bytes(block(k, m)) == written(block(k, m))


def test_of_large_blocks_a_sample_is_written_out() -> None:
    assert posted_bytes(block(20, 5000)) == pytest.approx(written(block(20, 5000)), rel=0.02)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 500])
def test_payloads_are_told_to_the_byte_whatever_their_padding(m: int) -> None:
    dense = block(8, m)
    assert isinstance(dense.updates, np.ndarray)
    encoded = replace(dense, updates=Payloads("float32", dense_payloads(dense.updates)))
    assert posted_bytes(encoded) == written(encoded)


def test_an_empty_block_posts_nothing() -> None:
    nobody = block(0, 3)
    assert posted_bytes(nobody) == 0


def test_a_version_weighs_more_by_the_text_of_its_weights() -> None:
    names = ("a", "b")
    assert fetched_bytes(names, np.array([0.5, -12.25])) - fetched_bytes(names, np.array([0.0, 0.0])) == 3
    large = np.random.default_rng(1).standard_normal(50_000)
    text = len(msgspec.json.encode(large.tolist()))
    assert fetched_bytes((), large) == pytest.approx(text, rel=0.01)


def test_bytes_are_in_outcomes_metrics_reports_and_comparisons(tmp_path: Path) -> None:
    file = tmp_path / "bytes.toml"
    file.write_text(SETTINGS)
    run_experiment(experiment_from_toml(file), tmp_path / "out", jobs=1)
    summary = msgspec.json.decode((tmp_path / "out/summary.json").read_bytes(), type=Summary)
    dense, signs = summary.variants["dense"], summary.variants["signs"]
    assert dense.update_bytes.mean == 4 * 5 * 31 * 4
    assert signs.update_bytes.mean == 4 * 5 * 8
    posted = [variant.posted_bytes.mean or 0.0 for variant in (dense, signs)]
    assert posted[0] > 2 * posted[1] > 4 * 160
    assert all((found.fetched_bytes.mean or 0) > 4 * 5 * 31 for found in (dense, signs))
    comparison = compared(chosen(f"{tmp_path / 'out'}:dense"), chosen(f"{tmp_path / 'out'}:signs"))
    found = {each.metric: each for each in comparison.differences if each.split == "bytes"}
    assert list(found) == ["update", "posted", "fetched"]
    assert found["posted"].better == "b"
    assert (found["update"].a, found["update"].b) == (2480, 160)


def test_bytes_that_compiled_rounds_estimate_make_no_run_better(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    file = tmp_path / "engines.toml"
    engines = "".join(f'[[variants]]\nname = "{name}"\nengine = "{name}"\n' for name in ("numpy", "jax"))
    file.write_text(SETTINGS.partition("[[variants]]")[0] + engines)
    run_experiment(experiment_from_toml(file), tmp_path / "out", jobs=1)
    numpy, jax = (chosen(f"{tmp_path / 'out'}:{name}") for name in ("numpy", "jax"))
    for first, second in ((numpy, jax), (jax, numpy), (jax, jax)):
        comparison = compared(first, second)
        found = {each.metric: each for each in comparison.differences if each.split == "bytes"}
        assert [found[name].estimated for name in ("posted", "fetched")] == [True, True]
        assert {(found[name].better, found[name].p) for name in ("posted", "fetched")} == {(None, None)}
        assert (found["update"].estimated, found["update"].p) == (msgspec.UNSET, 1.0)
        assert [note for note in comparison.notes or () if ESTIMATED in note and "jax" in note]
        assert escaped(ESTIMATED) in comparison.to_latex()
    exact = compared(numpy, numpy)
    assert not exact.notes
    assert all(each.estimated is msgspec.UNSET for each in exact.differences)


def metrics(posted: dict[str, float]) -> pa.Table:
    rows = [
        (name, 1, None, round_, "train", "posted_bytes", each) for name, each in posted.items() for round_ in range(4)
    ]
    return pa.table(dict(zip(METRICS_SCHEMA.names, zip(*rows, strict=True), strict=True)), METRICS_SCHEMA)


def test_curves_over_bytes_are_those_over_rounds_at_what_was_posted_by_then() -> None:
    line = Curve("a", np.arange(0.0, 5.0, 2), np.arange(3.0), np.zeros(3))
    slim = replace(line, name="b")
    first, second = over_bytes([line, slim], metrics({"a": 5e6, "b": 1e6}))
    np.testing.assert_array_equal(first.at, [10, 20])
    np.testing.assert_array_equal(second.at, [2, 4])
    np.testing.assert_array_equal(first.mean, [1, 2])


@pytest.mark.parametrize("posted", [{"a": 5e6, "b": 5.1e6}, {"a": 5e6}, {"a": 5e6, "b": 0.0}])
def test_there_is_no_picture_over_bytes_that_are_alike_or_unknown(posted: dict[str, float]) -> None:
    line = Curve("a", np.arange(5.0), np.arange(5.0), np.zeros(5))
    assert over_bytes([line, replace(line, name="b")], metrics(posted)) == []


def test_results_of_an_earlier_fedping_have_their_bytes_under_the_name_of_today() -> None:
    told: dict[str, Any] = {
        **dict.fromkeys(("seed", "rounds", "best_round", "updates", "clients", "seconds"), 1),
        "variant": "v",
        "fold": None,
        "final": {},
        "shown": [],
        "notes": [],
        "uplink_bytes": 124,
    }
    outcome = msgspec.convert(told, Outcome)
    assert (outcome.update_bytes, outcome.posted_bytes) == (124, None)
    assert "uplink_bytes" not in msgspec.to_builtins(outcome)
