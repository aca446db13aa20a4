"""Asynchronous merging: stale pings count once over all rounds, weighted by age, and reproducibly."""

import dataclasses
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedping.protocol.landing
from fedping.model_store.decisions import continue_at, rollback
from fedping.model_store.store import ModelStore
from fedping.model_store.version import Version
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import SHARDS, landed_files, open_landing, partition
from fedping.protocol.pipeline import GradientDescent, MeanOfSigns, Pipeline, Staleness
from fedping.protocol.study import Study
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.manifest import Window, late_for, list_landed, work_on
from fedping.server_jobs.round.ping_filter import age_weights
from fedping.server_jobs.round.plan import rules_for, tasks_for
from fedping.server_jobs.round.shard import shard_partials
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.effort import few_or_all
from tests.support.rounds import FIRST_MS, WHEN, Ping, crowd, land, store_with
from tests.support.versions import small_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINE = NumpyEngine()


def async_study(staleness: Staleness | None = None, **more: Any) -> Study:
    study = small_study()
    pipeline = Pipeline(
        min_clients=1, optimizer=GradientDescent(rate=0.1), staleness=staleness or Staleness(most=2), **more
    )
    return msgspec.structs.replace(study, lines=(msgspec.structs.replace(study.lines[0], pipeline=pipeline),))


def play(store: ModelStore, landing: Path, **more: Any) -> Version:
    result = run_round(
        store, landing, "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="t", **more)
    )
    assert result.status == "published", result.sentence
    return store.head("study", "main")


def of_version(n: int, clients: Sequence[int], first_document: int, value: float = 1.0) -> list[Ping]:
    return [Ping(first_document + i, c, (value, -value), version=n) for i, c in enumerate(clients)]


@dataclasses.dataclass(frozen=True)
class Landing:
    """Pings that land before the round on version ``before``, computed with a version that is ``age`` older."""

    before: int
    age: int
    pings: tuple[Ping, ...]


@st.composite
def timelines(draw: st.DrawFn, rounds: int = 4) -> list[Landing]:
    """Draw the landings of a few rounds; some pings land again later, in their version's folder."""
    landings, number = [], 0
    for before in range(rounds):
        for age in sorted({0, *draw(st.lists(st.integers(1, before), max_size=3))} if before else {0}):
            size = draw(st.integers(1, 5))
            values = st.tuples(*[st.floats(-100, 100, width=32)] * 2)
            pings = [
                Ping(number + i, draw(st.integers(0, 5)), draw(values), version=before - age, loss=float(age))
                for i in range(size)
            ]
            number += size
            again = [p for one in landings if one.before - one.age == before - age for p in one.pings]
            if again and draw(st.booleans()):
                pings.append(draw(st.sampled_from(again)))
            landings.append(Landing(before, age, tuple(pings)))
    return landings


def expected_mean(pings: Sequence[Ping], n: int, weight: str, weighting: str) -> tuple[list[float], float]:
    """Return the weighted mean by exact sums, and the sum of the weights."""
    of_age = {"1/sqrt(1+a)": lambda a: (1 + a) ** -0.5, "1/(1+a)": lambda a: 1 / (1 + a), "1": lambda a: 1.0}[weight]
    per_client = Counter(p.client for p in pings)
    weights = [of_age(n - p.version) / (per_client[p.client] if weighting == "client" else 1) for p in pings]
    total = math.fsum(weights)
    return [math.fsum(w * p.update[i] for w, p in zip(weights, pings, strict=True)) / total for i in (0, 1)], total


@pytest.mark.thorough
@settings(max_examples=few_or_all(20, 100))
@given(
    timelines(),
    st.integers(1, 3),
    st.sampled_from(["1/sqrt(1+a)", "1/(1+a)", "1"]),
    st.sampled_from(["client", "ping"]),
)
def test_each_round_takes_what_has_come_by_age_and_no_ping_twice(
    timeline: list[Landing], most: int, weight: Any, weighting: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        landing = Path(folder) / "landing"
        store = store_with(
            Path(folder) / "store", async_study(Staleness(most=most, weight=weight), weighting=weighting)
        )
        counted: set[int] = set()
        moment = FIRST_MS
        for n in range(4):
            fresh: dict[int, Ping] = {}
            copies = 0
            for one in timeline:
                if one.before == n:
                    moment += 1
                    land(landing, one.pings, iteration=n - one.age, at_ms=moment)
                    if one.age <= most:
                        copies += sum(p.document in counted or p.document in fresh for p in one.pings)
                        fresh |= {p.document: p for p in one.pings if p.document not in counted}
            lineage = play(store, landing).lineage
            mean, total = expected_mean(list(fresh.values()), n, weight, weighting)
            np.testing.assert_allclose(lineage.aggregate.mean, mean, rtol=1e-12, atol=1e-10)
            np.testing.assert_allclose(lineage.aggregate.weight, total, rtol=1e-12)
            ages = Counter(n - p.version for p in fresh.values())
            assert lineage.ages == tuple(ages[a] for a in range(most + 1))
            assert lineage.counts["used"] == len(fresh) == lineage.aggregate.pings
            assert lineage.aggregate.clients == len({p.client for p in fresh.values()})
            assert lineage.counts["duplicate"] == copies
            too_old = [one for one in timeline if one.before == n and one.age > most]
            assert lineage.counts["stale"] == sum(len(one.pings) for one in too_old)
            assert lineage.arms["treatment"].loss == 0.0, "late pings say nothing about the parent"
            counted |= set(fresh)
        for n in range(5):
            assert recompute(store, landing, "study", "main", n, ENGINE).identical


def test_the_default_weight_is_one_over_the_root_of_one_and_the_age() -> None:
    np.testing.assert_allclose(age_weights(Staleness(most=3)), [1, 2**-0.5, 3**-0.5, 0.5], rtol=1e-15)


def test_a_weighted_step_is_shorter_even_if_all_pings_are_equally_late(tmp_path: Path) -> None:
    """In a weighted mean of votes, an equal age cancels out; earlier, all weights had this effect."""
    heads = {}
    for on in ("votes", "step"):
        for weight in ("1", "1/sqrt(1+a)", "1/(1+a)"):
            folder = tmp_path / f"{on}{len(weight)}"
            store = store_with(folder / "store", async_study(Staleness(most=3, weight=weight, on=on)))  # type: ignore[arg-type]
            for n in range(3):
                land(folder, of_version(n, [1], 100 * n, 0.0), iteration=n, at_ms=FIRST_MS + n)
                play(store, folder)
            land(folder, of_version(0, [1, 2, 3], 1000, 2.0), iteration=0, at_ms=FIRST_MS + 10)
            head = play(store, folder)
            assert head.lineage.ages == (0, 0, 0, 3)
            heads[on, weight] = head.weights[0]
            assert recompute(store, folder, "study", "main", 4, ENGINE).identical
    for weight, share in (("1", 1), ("1/sqrt(1+a)", 1 / 2), ("1/(1+a)", 1 / 4)):
        assert heads["votes", weight] == pytest.approx(10.2, abs=1e-12)
        assert heads["step", weight] == pytest.approx(10 + 0.2 * share, abs=1e-12)


def test_a_sign_has_no_length_to_be_weighted() -> None:
    with pytest.raises(InvalidSettings, match="Set on = "):
        async_study(Staleness(on="step"), aggregate=MeanOfSigns())


def test_by_hand(tmp_path: Path) -> None:
    """Three current votes of 2, one of -1 from a version ago with weight 1/2: (3·2 - 1/2) / 3.5, at the rate 0.1."""
    store = store_with(tmp_path / "store", async_study(Staleness(most=1, weight="1/(1+a)")))
    land(tmp_path, of_version(0, [1], 0, 0.0))
    play(store, tmp_path)
    land(tmp_path, of_version(1, [1, 2, 3], 10, 2.0), iteration=1, at_ms=FIRST_MS + 2)
    late = land(tmp_path, of_version(0, [4], 20, -1.0), iteration=0, at_ms=FIRST_MS + 3)
    head = play(store, tmp_path)
    np.testing.assert_allclose(head.weights[0], 10 + 0.1 * 5.5 / 3.5, rtol=1e-15)
    assert head.lineage.ages == (3, 1)
    assert [(file.path, file.rows, file.age) for file in head.lineage.inputs][1:] == [
        (late.relative_to(tmp_path).as_posix(), 1, 1)
    ]


def test_without_the_setting_late_pings_are_counted_as_stale(tmp_path: Path) -> None:
    study = small_study()
    assert study.lines[0].pipeline.staleness is None
    store = store_with(tmp_path / "store", study)
    land(tmp_path, of_version(0, [1], 0))
    play(store, tmp_path)
    land(tmp_path, of_version(0, [4], 20), iteration=0, at_ms=FIRST_MS + 3)
    land(tmp_path, of_version(1, [1], 10), iteration=1, at_ms=FIRST_MS + 4)
    lineage = play(store, tmp_path).lineage
    assert (lineage.counts["used"], lineage.counts["stale"], lineage.ages) == (1, 1, ())


def test_late_pings_alone_are_enough_for_a_step(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", async_study())
    land(tmp_path, of_version(0, [1], 0))
    play(store, tmp_path)
    land(tmp_path, of_version(0, [4, 5], 20, 3.0), iteration=0, at_ms=FIRST_MS + 3)
    lineage = play(store, tmp_path).lineage
    assert (lineage.aggregate.mean, lineage.ages) == ((3.0, -3.0), (0, 2, 0))


def test_a_ping_that_was_used_and_landed_again_is_a_duplicate_in_every_later_round(tmp_path: Path) -> None:
    """A client that missed the answer sends again; its ping lands after the round that used it."""
    store = store_with(tmp_path / "store", async_study())
    first = of_version(0, [1, 2], 0)
    land(tmp_path, first)
    play(store, tmp_path)
    for n in (1, 2):
        land(tmp_path, [*first, *of_version(0, [7], 70 + n)], iteration=0, at_ms=FIRST_MS + 10 * n)
        land(tmp_path, of_version(n, [1], 10 * n), iteration=n, at_ms=FIRST_MS + 10 * n + 1)
        lineage = play(store, tmp_path).lineage
        assert (lineage.counts["used"], lineage.counts["duplicate"]) == (2, 2)
        assert sum(lineage.counts.values()) == 4, "what an earlier round has counted is not counted again"


def test_what_a_rollback_took_back_is_not_merged(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", async_study(Staleness(most=5)))
    for n in (0, 1):
        land(tmp_path, of_version(n, [1], 10 * n), iteration=n, at_ms=FIRST_MS + n)
        play(store, tmp_path)
    rollback(store, "study", "main", 1, created=WHEN, code_version="t")  # version 3
    land(tmp_path, of_version(2, [5, 6], 50, -99.0), iteration=2, at_ms=FIRST_MS + 20)
    land(tmp_path, of_version(3, [1], 60, 4.0), iteration=3, at_ms=FIRST_MS + 21)
    lineage = play(store, tmp_path).lineage
    assert (lineage.aggregate.mean, lineage.counts["stale"]) == ((4.0, -4.0), 2)
    land(tmp_path, of_version(3, [5], 70, 2.0), iteration=3, at_ms=FIRST_MS + 30)
    assert play(store, tmp_path).lineage.ages == (0, 1, 0, 0, 0, 0)
    assert recompute(store, tmp_path, "study", "main", 5, ENGINE).identical


class Killed(Exception): ...


@pytest.mark.parametrize("moment", ["repaired", "listed", "aggregated", "stepped"])
def test_a_round_that_broke_off_takes_the_same_late_pings_when_it_is_run_again(tmp_path: Path, moment: str) -> None:
    ends = []
    for name in ("calm", "broken"):
        store = store_with(tmp_path / name, async_study())
        landing = tmp_path / f"landing-{name}"
        for n, moment_ms, age in ((0, 1, 0), (1, 2, 0), (1, 3, 1)):
            sent = crowd(30, seed=moment_ms, version=n - age, first_document=100 * moment_ms)
            file = land(landing, sent, iteration=n - age, at_ms=FIRST_MS + moment_ms)
            file.rename(file.parent / f"{FIRST_MS + moment_ms:013d}-same.parquet")
            if (n, age) == (0, 0):
                play(store, landing)

        def die(step: str, name: str = name) -> None:
            if name == "broken" and step == moment:
                raise Killed

        if name == "broken":
            with pytest.raises(Killed):
                play(store, landing, on_step=die)
        ends.append(play(store, landing))
    assert ends[0] == ends[1]
    assert ends[0].lineage.ages == (30, 30, 0)


def test_a_used_file_that_is_gone_is_asked_for(tmp_path: Path) -> None:
    """Without the file, used and unused late pings can't be distinguished."""
    store = store_with(tmp_path / "store", async_study())
    gone = land(tmp_path, of_version(0, [1], 0))
    play(store, tmp_path)
    gone.unlink()
    land(tmp_path, of_version(0, [4], 20), iteration=0, at_ms=FIRST_MS + 3)
    with pytest.raises(FedpingError, match=f"{gone.name} is missing"):
        play(store, tmp_path)
    assert store.iterations("study", "main") == [0, 1]


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    """Give a store at version 2, with thousands of late pings landed in shards below tmp_path, some of them copies."""
    monkeypatch.setattr(fedping.protocol.landing, "SINGLE_GROUP_ROWS", 1)
    store = store_with(tmp_path / "store", async_study())
    moment = FIRST_MS
    for n in (0, 1, 2):
        for age in range(n + 1):
            moment += 1
            version = n - age
            sent = crowd(2000, seed=moment, version=version, first_document=moment * 10_000)
            again = crowd(500, seed=FIRST_MS + 1, version=0, first_document=(FIRST_MS + 1) * 10_000)
            land(tmp_path, [*sent, *again] if version == 0 and n else sent, iteration=version, at_ms=moment)
        if n < 2:
            play(store, tmp_path)
    return store


@pytest.mark.parametrize("number", [32_767, 40_000, 2_147_483_000])
def test_rounds_run_under_large_numbers_too(tmp_path: Path, number: int) -> None:
    store = store_with(tmp_path / "store", async_study())
    continue_at(store, "study", "main", number, created=WHEN, code_version="t")
    land(tmp_path, of_version(number, range(10), 0), iteration=number)
    assert play(store, tmp_path).iteration == number + 1
    land(tmp_path, of_version(number, range(4), 20), iteration=number, at_ms=FIRST_MS + 1)
    wrong = of_version(number, range(2), 30)
    land(tmp_path, [*of_version(number + 1, range(6), 40), *wrong], iteration=number + 1, at_ms=FIRST_MS + 1)
    lineage = play(store, tmp_path).lineage
    assert (lineage.counts["used"], lineage.counts["wrong_version"], lineage.ages) == (10, 2, (6, 4, 0))
    assert recompute(store, tmp_path, "study", "main", number + 2, ENGINE).identical


def work_of_head(store: ModelStore, landing: Path) -> Any:
    study = store.study("study")
    head = store.head("study", "main")
    late = late_for(store, "study", study.line("main"), head.iteration)
    manifest = list_landed(landing, study, "main", head.iteration, Window(head.lineage.window_end_ms), late)
    assert len(landed_files(partition(landing, "study", "main", 0))) == 3
    return work_on(
        open_landing(landing), manifest.inputs, rules_for(study, "main", head.iteration, key=b""), manifest.before
    )


@pytest.mark.parametrize("tasks", [1, 3, SHARDS])
def test_who_computes_which_shard_changes_no_bit(large: ModelStore, tmp_path: Path, tasks: int) -> None:
    work = work_of_head(large, tmp_path)
    whole = combined(ENGINE.partials(work), work.rules)
    assert (whole.counts["used"], whole.counts["duplicate"], whole.ages) == (6000, 500, (2000, 2000, 2000))
    split = tasks_for(work, tasks)[::-1]
    parts = [p for shards in split for p in shard_partials(work.paths, shards, work.rules, work.late)]
    assert combined(parts, work.rules) == whole


@pytest.fixture
def engine(spark: "SparkSession") -> SparkEngine:
    return SparkEngine(lambda: nullcontext(spark))


@pytest.mark.spark
def test_spark_merges_late_pings_to_the_same_bits(large: ModelStore, tmp_path: Path, engine: SparkEngine) -> None:
    work = work_of_head(large, tmp_path)
    assert combined(engine.partials(work), work.rules) == combined(ENGINE.partials(work), work.rules)
