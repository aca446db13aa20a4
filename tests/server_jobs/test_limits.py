"""A client's claims have bounded weight: at the edge, in a round, and in an arm's metrics."""

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
from msgspec.structs import replace

from fedping.model_store.store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.limits import Limits, UpdateLimits, usual_limits
from fedping.protocol.links import Rotation
from fedping.protocol.ping import FRECENCY_UPDATE, MODEL_UPDATE, DocumentType
from fedping.protocol.study import Arm, Study, protected
from fedping.protocol.upload import receiving
from fedping.server_jobs.round import NumpyEngine, RoundOptions, recompute, run_round
from tests.support.ingest_app import ingest_app, ingest_study
from tests.support.landed import random_ids
from tests.support.pings import ping_json
from tests.support.rounds import FIRST_MS, WHEN, crowd, land, line_of, store_with
from tests.support.versions import small_study


def rows_of(landing: Path) -> list[dict[str, Any]]:
    files = [str(file) for file in landing.glob("study=*/**/*.parquet")]
    return ds.dataset(files, partitioning=None).to_table().to_pylist()


def bounded_study() -> Study:
    study = ingest_study()
    line = replace(study.lines[0], limits=UpdateLimits(weight=2.0, norm=3.0))
    return replace(study, name="bounded", lines=(line,), limits=Limits(loss=(0.0, 100.0), rank=20))


@pytest.mark.parametrize(
    ("payload", "reason", "words"),
    [
        ({}, None, ""),
        ({"loss": 100.0, "rank_selected": 20, "num_suggestions_displayed": 30}, None, ""),
        ({"loss": 100.5}, "beyond_limits", "loss is 100.5, and lies between 0 and 100"),
        ({"loss": -0.1}, "beyond_limits", "loss is -0.1"),
        ({"rank_selected": 21, "num_suggestions_displayed": 30}, "beyond_limits", "selected rank is 21"),
        ({"update": [0.0] * 21 + [-2.5]}, "update_range", "has a number of size 2.5, and each is within ±2"),
        ({"update": [1.0] * 10 + [0.0] * 12}, "update_range", "has the norm 3.16228, and may have 3"),
        ({"update": [1e30] * 22}, "update_range", "has a number of size 1e+30"),
    ],
)
def test_ingest_refuses_what_is_beyond_the_limits(
    tmp_path: Path, payload: dict[str, Any], reason: str | None, words: str
) -> None:
    ingest = ingest_app(tmp_path, others=(bounded_study(),))
    body = json.dumps(ping_json(**{"update": [0.5] * 22, **payload})).encode()
    answer = ingest.post(f"/submit/bounded/frecency-update/1/{uuid.uuid4()}", body)
    assert answer.status_code == (200 if reason is None else 400)
    if reason is not None:
        assert words in answer.json["error"]
        assert ingest.totals()[f"rejected.{reason}"] == 1
    assert ingest.post(f"/submit/study/frecency-update/1/{uuid.uuid4()}", body).status_code == 200


def test_ingest_leaves_a_rotated_update_to_the_round(tmp_path: Path) -> None:
    """A rotation turns one number of 2.4 among 16 into 16 numbers of 0.6."""
    bounded = bounded_study()
    line = replace(bounded.lines[0], upload=(Rotation(),))
    [undo] = receiving(line).undone
    sent = [2.4, *[0.0] * 21]
    assert np.abs(undo(np.array([sent], np.float32))).max() == pytest.approx(0.6)
    ingest = ingest_app(tmp_path, others=(replace(bounded, lines=(line,)),))
    body = json.dumps(ping_json(update=sent)).encode()
    assert ingest.post(f"/submit/bounded/frecency-update/1/{uuid.uuid4()}", body).status_code == 200


def test_a_round_leaves_out_what_is_beyond_the_limits(tmp_path: Path) -> None:
    """Of 40 pings that bypassed ingest, one has a huge loss, one a huge rank, and two a huge update."""
    study = small_study(min_clients=2)
    line = replace(study.lines[0], limits=UpdateLimits(norm=50.0))
    study = replace(study, lines=(line,), limits=Limits(loss=(0.0, 100.0), rank=20))
    odd = ({"loss": 1e6}, {"rank": 21}, {"update": (1e29, 0.0)}, {"update": (40.0, 40.0)})
    pings = [*crowd(36), *(crowd_ping(100 + i, **each) for i, each in enumerate(odd))]
    store = store_with(tmp_path / "store", study)
    land(tmp_path / "landing", pings)
    result = run_round(
        store,
        tmp_path / "landing",
        "study",
        "main",
        NumpyEngine(),
        RoundOptions(clock=lambda: WHEN, code_version="test"),
    )
    assert (result.counts["used"], result.counts["beyond_limits"], result.counts["bad_update"]) == (36, 2, 2)
    aggregate = store.head("study", "main").lineage.aggregate
    assert aggregate is not None
    np.testing.assert_allclose(aggregate.mean, np.mean([p.update for p in pings[:36]], axis=0), rtol=1e-12)
    assert recompute(store, tmp_path / "landing", "study", "main", 1, NumpyEngine()).identical


def crowd_ping(number: int, **said: Any) -> Any:
    import dataclasses

    return dataclasses.replace(crowd(1)[0], document=number, client=number, **said)


def model_study(limits: Limits | None) -> Study:
    line = line_of(2, weighting="examples", min_clients=2)
    arms = (Arm(name="all", share=1.0, line="main", applies=True, submits=True),)
    return Study(name="study", pings="model-update", arms=arms, lines=(line,), limits=limits)


def aggregated(folder: Path, limits: Limits | None) -> tuple[np.ndarray, float, int]:
    """Return the mean update, the arm's loss and its examples after 20 honest clients and one that claims the most."""
    rng = np.random.default_rng(1)
    examples = np.append(np.full(20, 30), 2**31 - 1)
    updates = np.append(np.tile([[1.0, -1.0]], (20, 1)), [[-9.0, 9.0]], axis=0)
    losses = np.append(np.ones(20), 500.0)
    ids = random_ids(rng, 42)
    pings = ModelPings(ids[:21], ids[21:], "all", 0, updates.astype(np.float32), losses, examples)
    store = store_with(folder / "store", model_study(limits))
    write_landed(partition(folder / "landing", "study", "main", 0), landed_model_updates(pings, 0), FIRST_MS)
    run_round(
        store, folder / "landing", "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    lineage = store.head("study", "main").lineage
    assert recompute(store, folder / "landing", "study", "main", 1, NumpyEngine()).identical
    assert lineage.aggregate is not None
    arm = lineage.arms["all"]
    assert arm.loss is not None
    return np.array(lineage.aggregate.mean), arm.loss, arm.examples


def test_one_ping_of_two_billion_examples_decides_a_round_unless_examples_are_limited(tmp_path: Path) -> None:
    mean, loss, _ = aggregated(tmp_path / "believed", None)
    np.testing.assert_allclose(mean, [-9, 9], rtol=1e-5)
    assert loss == pytest.approx(500, rel=1e-3)
    mean, loss, examples = aggregated(tmp_path / "limited", Limits(examples=30, votes="client"))
    np.testing.assert_allclose(mean, [(20 - 9) / 21, (9 - 20) / 21], rtol=1e-6)
    assert loss == pytest.approx(520 / 21)
    assert examples == 21 * 30


@pytest.mark.parametrize(
    ("limits", "weighting", "capped"),
    [
        (Limits(examples=1000), "examples", 2),
        (Limits(examples=4000), "examples", None),
        (Limits(examples=1000), "client", None),
        (Limits(), "examples", None),
        (None, "examples", None),
    ],
)
def test_a_round_tells_how_many_clients_count_for_fewer_examples_than_they_claim(
    tmp_path: Path, limits: Limits | None, weighting: Any, capped: int | None
) -> None:
    """Two of three clients have 4,000 rows, one of them in two pings; FedAvg's mean needs all rows."""
    line = line_of(1, weighting=weighting, min_clients=2)
    study = replace(model_study(limits), lines=(line,))
    examples, updates = np.array([4000, 4000, 3000, 500]), np.array([[-2.0], [-2.0], [-2.0], [1.0]], np.float32)
    ids = random_ids(np.random.default_rng(1), 7)
    pings = ModelPings(ids[:4], ids[[4, 5, 5, 6]], "all", 0, updates, np.ones(4), examples)
    store, landing = store_with(tmp_path / "store", study), tmp_path / "landing"
    write_landed(partition(landing, "study", "main", 0), landed_model_updates(pings, 0), FIRST_MS)
    result = run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    head = store.head("study", "main")
    assert head.lineage.aggregate is not None
    assert (result.capped, head.lineage.aggregate.capped) == (capped, capped)
    assert store.versions.outcome("study", "main", 1).lineage.aggregate.capped == capped
    assert recompute(store, landing, "study", "main", 1, NumpyEngine()).identical


def test_a_version_from_before_capped_clients_were_counted_is_recomputed(tmp_path: Path) -> None:
    aggregated(tmp_path, Limits(examples=30))
    store = open_store(tmp_path / "store")
    head = store.head("study", "main")
    assert head.lineage.aggregate is not None
    assert head.lineage.aggregate.capped == 1
    older = replace(head, lineage=replace(head.lineage, aggregate=replace(head.lineage.aggregate, capped=None)))
    again = store_with(tmp_path / "older", model_study(Limits(examples=30)))
    again.publish(older)
    assert recompute(again, tmp_path / "landing", "study", "main", 1, NumpyEngine()).identical


def test_a_client_with_many_pings_has_one_vote_in_its_arms_loss(tmp_path: Path) -> None:
    honest, loud = crowd(9), [crowd_ping(100 + i, loss=90.0) for i in range(50)]
    pings = [*honest, *(p.__class__(**{**vars(p), "client": 77}) for p in loud)]
    losses = {}
    for votes in ("examples", "client"):
        study = replace(small_study(min_clients=2), limits=Limits(votes=votes))
        store = store_with(tmp_path / votes / "store", study)
        land(tmp_path / votes / "landing", pings)
        result = run_round(
            store,
            tmp_path / votes / "landing",
            "study",
            "main",
            NumpyEngine(),
            RoundOptions(clock=lambda: WHEN, code_version="t"),
        )
        losses[votes] = result.arms["treatment"]
    mine = sum(p.loss for p in honest)
    assert losses["examples"].loss == pytest.approx((mine + 50 * 90) / 59)
    assert losses["client"].loss == pytest.approx((mine + 90) / 10)
    assert losses["client"].examples == losses["examples"].examples == 59


def test_a_new_study_has_the_usual_limits_and_can_refuse_them() -> None:
    assert protected(model_study(None)).limits == usual_limits(MODEL_UPDATE)
    assert protected(small_study()).limits == usual_limits(FRECENCY_UPDATE)
    assert protected(model_study(Limits())).limits == Limits()


HEAVY = (2.5e6, 4e7, 3e9)
"""Losses reported by unmodified clients of 2018 with long histories: sums of differences of frecency scores."""


@pytest.mark.parametrize("document", [FRECENCY_UPDATE, MODEL_UPDATE])
def test_a_new_study_takes_the_losses_of_long_histories_and_no_more_than_can_be(document: DocumentType) -> None:
    limits = usual_limits(document)
    assert [limits.trouble(loss, -1) for loss in (0.0, *HEAVY)] == [None] * 4
    assert limits.trouble(1e16, -1) is not None
    assert limits.beyond(np.array([*HEAVY, 1e16, -1e16]), None).tolist() == [False] * 3 + [True] * 2


def test_ingest_takes_a_loss_that_a_round_clips_and_the_lineage_says_how_many(tmp_path: Path) -> None:
    study = replace(protected(replace(ingest_study(), name="new")), enrolment="elsewhere")
    ingest = ingest_app(tmp_path, others=(study,))
    honest = [float(loss) for loss in range(1, 48)]
    for number, loss in enumerate((*honest, *HEAVY)):
        ping = ping_json(loss=loss, update=[0.01] * 22) | {"clientId": str(uuid.UUID(int=number, version=4))}
        answer = ingest.post(f"/submit/new/frecency-update/1/{uuid.uuid4()}", json.dumps(ping).encode())
        assert answer.status_code == 200, answer.json
    beyond = json.dumps(ping_json(loss=1e16, update=[0.01] * 22)).encode()
    assert ingest.post(f"/submit/new/frecency-update/1/{uuid.uuid4()}", beyond).status_code == 400
    ingest.land()
    store, landing = ingest.services.store, ingest.settings.landing
    result = run_round(
        store, landing, "new", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    arm = store.head("new", "main").lineage.arms["treatment"]
    assert "beyond_limits" not in result.counts
    assert (arm.pings, arm.clipped) == (50, 3)
    assert arm.loss == pytest.approx((sum(honest) + 3e6) / 50)
    assert arm.winsorised is not None
    assert recompute(store, landing, "new", "main", 1, NumpyEngine()).identical
    assert max(row["loss"] for row in rows_of(landing)) == max(HEAVY), "a ping is stored as it came"


def test_a_study_without_clipping_goes_by_losses_as_they_were_sent(tmp_path: Path) -> None:
    limits = Limits(votes="client")
    assert limits.clipped(np.array([1e29, -3.0])).tolist() == [1e29, -3.0]
    _, loss, _ = aggregated(tmp_path, limits)
    assert loss == pytest.approx(520 / 21)
    _, loss, _ = aggregated(tmp_path / "clipped", Limits(votes="client", clip_loss=(0.0, 41.0)))
    assert loss == pytest.approx(61 / 21)


def test_limits_of_what_there_is_not_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="have a 'rank', which model-update pings do not have"):
        model_study(Limits(rank=3))
    with pytest.raises(InvalidSettings, match="have 'examples', but each"):
        replace(small_study(), limits=Limits(examples=3))
    with pytest.raises(InvalidSettings, match="a least loss of 2 above the greatest"):
        Limits(loss=(2.0, 1.0))
    with pytest.raises(InvalidSettings, match="'clip_loss' of 2 above 1"):
        Limits(clip_loss=(2.0, 1.0))
