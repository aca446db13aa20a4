"""A version that sells less is rolled back, regardless of its loss."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from fedping.model_store.store import ModelStore
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.guard import Guard, Guardrail
from fedping.protocol.landed_table import id_column, landed_table
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.outcomes import CategoryOutcome, CountOutcome, FlagOutcome, NumberOutcome, Outcome
from fedping.protocol.study import Study
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.recompute import recompute
from fedping.server_jobs.round.result import RoundResult
from fedping.server_jobs.round.run import RoundOptions, run_round
from tests.support.landed import random_ids
from tests.support.outcomes import SHOP, M, shop_study
from tests.support.rounds import store_with

WHEN = "2026-11-26T00:00:00+00:00"

OUTCOMES: tuple[Outcome, ...] = (
    FlagOutcome(name="basket", better="more"),
    NumberOutcome(name="seconds", low=0.0, high=600.0, round=0.5, better="less"),
    CountOutcome(name="opened", most=20),
    CategoryOutcome(name="device", values=("phone", "desktop")),
    NumberOutcome(name="paid", low=0.0, high=500.0, round=0.01, within="48h", better="more"),
)


def guarded(metric: str, rounds: int = 2) -> Study:
    study = shop_study(*OUTCOMES)
    guard = Guard(guardrail=Guardrail(metric=metric, most=1.1, rounds=rounds))
    return replace(study, lines=(replace(study.lines[0], guard=guard),))


def land(folder: Path, study: Study, version: int, values: dict[str, float], column: str, clients: int = 300) -> None:
    """Land two lists for each client; arms that apply the model have a lower loss and the given mean of the outcome."""
    rng = np.random.default_rng(version)
    for arm, mean in values.items():
        n = 2 * clients
        own = rng.random(n) < mean if column == "basket" else np.round(rng.gamma(4, mean / 4, n) * 2) / 2
        client = np.repeat(random_ids(rng, clients), 2, axis=0)
        update = rng.normal(0, 0.1, (n, M)).astype("<f4")
        columns = {
            "document_id": id_column(random_ids(rng, n)),
            "client_id": id_column(client),
            "received_at": pa.array(np.full(n, 1_790_000_000_000 + version)),
            "model_version": pa.array(np.full(n, version, np.int32)),
            "study_variation": pa.array([arm] * n).dictionary_encode(),
            "loss": pa.array(np.full(n, 0.5 if arm == "treatment" else 1.0)),
            "place": pa.array(np.full(n, 2)),
            "candidates": pa.array(np.full(n, 8)),
            column: pa.array(own),
        }
        table = landed_table(study.document, columns, update if arm == "treatment" else None)
        write_landed(partition(folder, SHOP, "main", version), table, 1 + version, token=f"{version}{arm}")


def play(store: ModelStore, landing: Path) -> RoundResult:
    return run_round(store, landing, SHOP, "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test"))


@pytest.mark.parametrize(
    ("metric", "good", "bad"),
    [("basket", (0.4, 0.4), (0.2, 0.4)), ("seconds", (20.0, 20.0), (40.0, 20.0))],
)
def test_a_version_with_a_worse_outcome_is_rolled_back_although_its_loss_is_lower(
    metric: str, good: tuple[float, float], bad: tuple[float, float], tmp_path: Path
) -> None:
    study = guarded(metric)
    store = store_with(tmp_path / "store", study)
    said = []
    for version, (treated, control) in enumerate([good, good, bad, bad]):
        land(tmp_path, study, version, {"treatment": treated, "control": control}, metric)
        said.append(play(store, tmp_path))
    assert [result.status for result in said] == ["published"] * 3 + ["rolled_back"]
    assert (said[-1].restored, store.head(SHOP, "main").weights) == (1, store.version(SHOP, "main", 1).weights)
    assert f"the outcome '{metric}' where the model is applied was worse than the control's" in said[-1].sentence
    told = store.version(SHOP, "main", 3).lineage.arms["control"].outcomes
    assert isinstance(told, dict)
    assert told[metric].clients == 300
    assert told[metric].mean == pytest.approx(bad[1], rel=0.15)
    assert recompute(store, tmp_path, SHOP, "main", 4, NumpyEngine()).identical


def test_chance_and_few_clients_roll_nothing_back(tmp_path: Path) -> None:
    """In 40 rounds without an effect, a correct guardrail rolls back once with probability .04."""
    study = guarded("basket", rounds=1)
    store = store_with(tmp_path / "store", study)
    for version in range(40):
        few = version % 2
        arms = {"treatment": 0.0 if few else 0.3, "control": 0.9 if few else 0.3}
        land(tmp_path, study, version, arms, "basket", clients=20 if few else 100)
        assert play(store, tmp_path).status == "published"
        assert (store.head(SHOP, "main").lineage.guard or 0).beyond == 0  # type: ignore[union-attr]


def test_the_column_may_be_missing_and_counts_as_0(tmp_path: Path) -> None:
    study = guarded("basket", rounds=2)
    store = store_with(tmp_path / "store", study)
    land(tmp_path, study, 0, {"treatment": 0.4, "control": 0.4}, "basket")
    for file in sorted(tmp_path.glob("study=*/line=main/iteration=0/*treatment*.parquet")):
        table = pq.read_table(file).drop_columns(["basket"])
        file.unlink()
        write_landed(file.parent, table, 9, token="without")
    assert play(store, tmp_path).status == "published"
    told = store.head(SHOP, "main").lineage.arms["treatment"].outcomes
    assert isinstance(told, dict)
    assert (told["basket"].mean, told["basket"].error) == (0.0, 1 / 300)


def test_a_line_without_such_a_guardrail_says_nothing_of_outcomes(tmp_path: Path) -> None:
    study = guarded("loss")
    store = store_with(tmp_path / "store", study)
    land(tmp_path, study, 0, {"treatment": 0.4, "control": 0.4}, "basket")
    play(store, tmp_path)
    assert all(arm.outcomes is None for arm in store.head(SHOP, "main").lineage.arms.values())


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("paid", "a later outcome, and no round reads those"),
        ("opened", "neither more nor less is better. Set 'better'"),
        ("device", "neither more nor less is better"),
        ("sold", "no such outcome. .*it has basket, seconds, opened, device"),
    ],
)
def test_a_guardrail_names_an_outcome_that_rounds_read_and_that_has_a_direction(metric: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        guarded(metric)
