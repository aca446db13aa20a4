"""Reading a round again gives the round's own pings, means and update."""

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from fedping.analysis.curves import ArmCurve, arm_curves
from fedping.analysis.rounds import (
    Series,
    TrainingPings,
    made_by_rounds,
    metric_series,
    round_traffic,
    series_of,
    smoothed,
    subsample_errors,
    subsample_quality,
    training_pings,
)
from fedping.analysis.rounds.history import Missing, line_history
from fedping.analysis.rounds.subsamples import mean_update
from fedping.experiments.simulate import experiment_from_toml, simulate
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.arrow import landed_schema
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import landed_files, partition, write_landed
from fedping.protocol.ping import MODEL_UPDATE
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.study import Study
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.support.landed import ids_column, landed_table, random_ids
from tests.support.model_updates import STUDY, model_study
from tests.support.rounds import WHEN, Ping, land, store_with
from tests.support.small_experiment import experiment_file
from tests.support.versions import small_study


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a small simulated study with a training arm and three others, one without a line."""
    folder = tmp_path_factory.mktemp("rounds")
    simulate(*experiment_from_toml(experiment_file(folder, clients=900)), folder / "out", 1)
    return folder / "out"


def store_of(out: Path) -> ModelStore:
    return open_store(out / "store")


def test_the_losses_and_ranks_read_again_are_those_of_the_lineage(out: Path) -> None:
    curves = arm_curves(store_of(out), "small", "main")
    for column, series in (("loss", series_of(curves, "loss")), ("rank_selected", series_of(curves, "rank_selected"))):
        again = metric_series(store_of(out), out / "landing", "small", "main", column)
        assert set(again) == set(series) == {"treatment", "validation", "control"}
        for name, found in again.items():
            assert found.iterations == series[name].iterations
            assert found.values == pytest.approx(series[name].values, rel=1e-12)


def test_characters_typed_are_the_mean_of_the_landed_rows(out: Path) -> None:
    typed = metric_series(store_of(out), out / "landing", "small", "main", "num_chars_typed")
    rows = ds.dataset(out / "landing" / "study=small" / "line=main" / "iteration=2").to_table().to_pandas()
    rows = rows[(rows.study_variation == "control") & (rows.rank_selected >= 0)]
    assert typed["control"].values[2] == pytest.approx(rows.num_chars_typed.mean(), rel=1e-12)


def test_traffic_counts_the_pings_that_the_rounds_counted(out: Path) -> None:
    traffic = round_traffic(store_of(out), "small", "main")
    lineages = [version.lineage for version in made_by_rounds(store_of(out), "small", "main")]
    assert traffic.iterations == (0, 1, 2, 3, 4)
    assert traffic.ended_ms == tuple(lineage.window_end_ms for lineage in lineages)
    assert traffic.arms["control"] == tuple(lineage.arms["control"].pings for lineage in lineages)
    assert traffic.total == tuple(sum(arm.pings for arm in lineage.arms.values()) for lineage in lineages)


@pytest.mark.parametrize("weighting", ["client", "ping"])
def test_training_pings_average_to_the_rounds_own_mean(tmp_path: Path, weighting: str) -> None:
    """Covers duplicates, other arms, searches without a choice, unreadable updates, and clients with several pings."""
    study = reweighted(small_study(), weighting)
    store = store_with(tmp_path / "store", study)
    land(tmp_path / "landing", mixed_pings(), at_ms=1)
    land(tmp_path / "landing", mixed_pings()[:4], at_ms=2)
    run_one_round(store, tmp_path / "landing")
    (version,) = made_by_rounds(store, "study", "main")
    pings = training_pings(tmp_path / "landing", study, version)
    assert version.lineage.aggregate is not None
    assert len(pings) == version.lineage.counts["used"] == 6
    assert mean_update(pings, np.arange(6)[None])[0] == pytest.approx(version.lineage.aggregate.mean, rel=1e-12)


@pytest.mark.parametrize("weighting", ["client", "examples"])
def test_pings_of_any_model_are_read_with_their_examples(tmp_path: Path, weighting: str) -> None:
    study = model_study(weighting=weighting)  # type: ignore[arg-type]
    store = store_with(tmp_path / "store", study)
    write_landed(partition(tmp_path / "landing", STUDY, "main", 0), model_table(40), 1)
    run_one_round(store, tmp_path / "landing", STUDY)
    (version,) = made_by_rounds(store, STUDY, "main")
    pings = training_pings(tmp_path / "landing", study, version)
    assert version.lineage.aggregate is not None
    assert len(pings) == version.lineage.counts["used"] == 30
    assert set(pings.examples) == {1, 2, 3}
    mean = mean_update(pings, np.arange(30)[None])[0]
    assert mean == pytest.approx(version.lineage.aggregate.mean, rel=1e-6)
    history = line_history(store, tmp_path / "landing", STUDY, "main", size=10)
    assert history.typed == Missing("The pings of study 'models' have no 'num_chars_typed'; theirs are model-update.")
    assert not isinstance(history.quality, Missing)
    assert history.quality.pings == (30,)


def model_table(k: int) -> pa.Table:
    """Return pings of model updates: two for each client, and every fourth ping without an example."""
    rng, schema = np.random.default_rng(5), landed_schema(MODEL_UPDATE)
    made = {
        "document_id": ids_column(random_ids(rng, k)),
        "client_id": ids_column(np.repeat(random_ids(rng, k // 2), 2, axis=0)),
        "received_at": pa.array(np.arange(k)).cast(pa.timestamp("ms", tz="UTC")),
        "model_version": pa.array(np.zeros(k, np.int32)),
        "study_variation": pa.array(["treatment"] * k).dictionary_encode(),
        "update_encoding": pa.array(["dense"] * k).dictionary_encode(),
        "update": dense_payloads(rng.normal(1, 1, (k, 3))),
        "loss": pa.array(rng.exponential(1, k)),
        "examples": pa.array((np.arange(k) % 4).astype(np.int32)),
    }
    return pa.table({name: made.get(name, pa.nulls(k)) for name in schema.names}, schema=schema)


def run_one_round(store: ModelStore, landing: Path, study: str = "study") -> None:
    with engine_named("numpy") as engine:
        result = run_round(store, landing, study, "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test"))
    assert result.status == "published"


def reweighted(study: Study, weighting: str) -> Study:
    pipeline = Pipeline(weighting=weighting, min_clients=1)  # type: ignore[arg-type]
    line = msgspec.structs.replace(study.lines[0], pipeline=pipeline)
    return msgspec.structs.replace(study, lines=(line,))


def mixed_pings() -> list[Ping]:
    used = [Ping(i, i // 3, (float(i), -2.0), loss=float(i)) for i in range(6)]
    unused = [
        Ping(10, 1, (99.0, 99.0), rank=-1),
        Ping(11, 7, None, arm="control"),
        Ping(12, 8, payload=b"short"),
        Ping(13, 9, (99.0, 99.0), encoding="unknown"),
        Ping(14, 9, (99.0, 99.0), version=3),
        Ping(15, 9, (99.0, 99.0), loss=float("nan")),
    ]
    return [*used, *unused]


def some_pings(k: int = 400, m: int = 3, *, vote: str = "client") -> TrainingPings:
    rng = np.random.default_rng(7)
    return TrainingPings(
        iteration=0,
        updates=rng.normal(0.1, 1, (k, m)).astype(np.float32),
        losses=rng.exponential(10, k),
        clients=rng.integers(0, k // 4, k),
        examples=rng.integers(1, 5, k),
        vote=vote,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("vote", ["client", "ping", "examples"])
def test_errors_of_subsamples_are_those_of_a_direct_computation(vote: str) -> None:
    pings = some_pings(vote=vote)
    found = subsample_errors(pings, np.random.default_rng(3), size=50, draws=4)
    rng = np.random.default_rng(3)
    for draw in range(4):
        chosen = rng.choice(400, 50, replace=False, shuffle=False)
        part, whole = direct_mean(pings, chosen), direct_mean(pings, np.arange(400))
        assert found.update[draw] == pytest.approx(np.abs(part - whole).sum(), rel=1e-9)
        assert found.signs[draw] == np.abs(np.sign(part) - np.sign(whole)).sum()
        losses = [np.average(pings.losses[at], weights=pings.examples[at]) for at in (chosen, np.arange(400))]
        assert found.loss[draw] == pytest.approx(abs(losses[0] - losses[1]), rel=1e-9)


def direct_mean(pings: TrainingPings, chosen: np.ndarray) -> np.ndarray:
    """Return the mean update of chosen pings, computed in a plain loop."""
    weights = {
        "ping": [1.0] * len(chosen),
        "examples": pings.examples[chosen].tolist(),
        "client": [1 / int((pings.clients[chosen] == client).sum()) for client in pings.clients[chosen]],
    }[pings.vote]
    total = sum(weight * pings.updates[at].astype(float) for weight, at in zip(weights, chosen, strict=True))
    return np.asarray(total) / sum(weights)


def test_a_subsample_of_all_pings_has_no_error() -> None:
    errors = subsample_errors(some_pings(), np.random.default_rng(0), size=400, draws=3)
    assert errors.update == pytest.approx([0, 0, 0], abs=1e-12)
    assert errors.loss == pytest.approx([0, 0, 0], abs=1e-12)


def test_errors_shrink_with_the_root_of_the_subsample_and_need_replacement_to_do_so_to_the_end() -> None:
    pings = replace(some_pings(1000), clients=np.arange(1000))
    errors = [
        subsample_errors(pings, np.random.default_rng(1), size=size, draws=400, replacement=True).loss.mean()
        for size in (100, 400)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.15)
    without = subsample_errors(pings, np.random.default_rng(1), size=900, draws=400).loss.mean()
    with_replacement = subsample_errors(pings, np.random.default_rng(1), size=900, draws=400, replacement=True)
    assert without / with_replacement.loss.mean() == pytest.approx(np.sqrt(1 - 900 / 1000), rel=0.15)


def test_quality_is_seeded_by_iteration_and_says_what_it_left_out(out: Path) -> None:
    arguments = (store_of(out), out / "landing", "small", "main")
    sizes = [version.lineage.counts["used"] for version in made_by_rounds(store_of(out), "small", "main")]
    size = sorted(sizes)[2]
    found, again = (subsample_quality(*arguments, size=size, draws=6, seed=9) for _ in range(2))
    assert found.skipped == {i: count for i, count in enumerate(sizes) if count <= size}
    assert found.pings == tuple(count for count in sizes if count > size)
    assert found.update.shape == (len(found.iterations), 6)
    assert (found.update == again.update).all()
    version = store_of(out).version("small", "main", found.iterations[-1] + 1)
    pings = training_pings(out / "landing", store_of(out).study("small"), version)
    rng = np.random.default_rng([9, found.iterations[-1]])
    assert (subsample_errors(pings, rng, size=size, draws=6).signs == found.signs[-1]).all()
    assert (subsample_quality(*arguments, size=size, draws=6, seed=8).update != found.update).any()


def test_a_file_that_is_gone_is_named_and_leaves_the_rest_of_a_history(out: Path, tmp_path: Path) -> None:
    for iteration in (0, 1):
        for file in landed_files(partition(out / "landing", "small", "main", iteration)):
            folder = partition(tmp_path, "small", "main", iteration)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(FedpingError, match=r"iteration=2/.*\.parquet is missing, but a round read it"):
        metric_series(store_of(out), tmp_path, "small", "main", "num_chars_typed")
    history = line_history(store_of(out), tmp_path, "small", "main")
    assert len(history.curves) == 3
    assert isinstance(history.typed, Missing)
    assert isinstance(history.quality, Missing)


def test_a_damaged_file_is_named(out: Path, tmp_path: Path) -> None:
    for version in made_by_rounds(store_of(out), "small", "main"):
        for file in version.lineage.inputs:
            (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file.path).write_bytes((out / "landing" / file.path).read_bytes()[:1000])
    with pytest.raises(FedpingError, match=r"iteration=0/.*\.parquet is not a whole Parquet file"):
        metric_series(store_of(out), tmp_path, "small", "main", "loss")


def test_too_few_pings_to_draw_from_are_told(out: Path) -> None:
    quality = line_history(store_of(out), out / "landing", "small", "main", size=100_000).quality
    assert isinstance(quality, Missing)
    assert "has more than 100,000 usable pings to draw from" in quality.reason


def test_a_column_that_the_pings_do_not_have_is_told(out: Path) -> None:
    with pytest.raises(FedpingError, match="The pings of study 'small' have no 'speed'"):
        metric_series(store_of(out), out / "landing", "small", "main", "speed")


def test_a_line_without_rounds_has_an_empty_history(tmp_path: Path) -> None:
    study = small_study()
    history = line_history(store_with(tmp_path / "store", study), tmp_path / "landing", "study", "main")
    assert history.curves == {}
    assert history.traffic.iterations == ()
    assert isinstance(history.typed, Missing)
    assert isinstance(history.quality, Missing)


def test_smoothing_takes_the_last_five() -> None:
    assert smoothed([1, 2, 3, 4, 5, 6, 16]) == pytest.approx([1, 1.5, 2, 2.5, 3, 4, 6.8])
    assert smoothed([3, 5], over=1) == [3, 5]
    assert smoothed([9.0, 7.0, 8.0, 5.0, 6.0, 6.5, 7.0], over=2) == [9.0, 8.0, 7.5, 6.5, 5.5, 6.25, 6.75]
    gaps = smoothed([math.nan, 2.0, math.nan, math.nan, 4.0], over=2)
    assert gaps == pytest.approx([math.nan, 2.0, 2.0, math.nan, 4.0], nan_ok=True)


def test_a_series_leaves_out_what_is_not_known() -> None:
    curve = ArmCurve((0, 1, 2), (3.0, 2.0, 1.0), (float("nan"), 0.5, float("nan")), (9, 9, 9))
    assert series_of({"a": curve}, "rank_selected") == {"a": Series((1,), (0.5,))}
    nothing = ArmCurve((0,), (3.0,), (float("nan"),), (9,))
    assert series_of({"a": nothing}, "rank_selected") == {}


def test_arms_of_files_that_number_their_texts_differently_are_told_apart(tmp_path: Path) -> None:
    """Two files have the same arms in different dictionaries, as two workers would write them."""
    study = small_study()
    store = store_with(tmp_path / "store", study)
    folder = partition(tmp_path / "landing", "study", "main", 0)
    for at, arms in enumerate([("treatment", "control"), ("control", "treatment")]):
        table = landed_table(60, at, m=2, arms=arms)
        typed = np.where(np.array(table.column("study_variation").to_pylist()) == "control", 7, 3).astype(np.int32)
        at_column = table.schema.get_field_index("num_chars_typed")
        write_landed(folder, table.set_column(at_column, table.schema.field(at_column), pa.array(typed)), at + 1)
    run_one_round(store, tmp_path / "landing")
    typed_by_arm = metric_series(store, tmp_path / "landing", "study", "main", "num_chars_typed")
    assert typed_by_arm == {"treatment": Series((0,), (3.0,)), "control": Series((0,), (7.0,))}
