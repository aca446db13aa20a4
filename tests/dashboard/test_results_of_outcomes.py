"""The Results page and its tables show the lifts of outcomes, with caps, left-out clients and adjustments."""

import csv
import html
import io
import json
import math
import re
from dataclasses import replace as with_fields
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from flask.testing import FlaskClient
from msgspec.structs import replace

from fedping.analysis.report import table_notes
from fedping.analysis.statistics import ClientSums, ClientTotals, ValueCounts
from fedping.analysis.study import ArmTally, MetricTally, StudyTally, Window
from fedping.analysis.study.means import caps_of
from fedping.analysis.study.metrics import metric_named
from fedping.analysis.study.tally import LaterCounts
from fedping.analysis.verdict import Asked, Verdict, as_document, effect_of, plan_of, reach_verdict
from fedping.dashboard.results.counts import ASKED, LANDED
from fedping.dashboard.results.landed import Folders, Landed, Since, Watch
from fedping.dashboard.results.question import asked_by, fields_of, key_of, options_of, query_of
from fedping.dashboard.results.views import comparisons_csv, sizes_csv
from fedping.experiments.run_process import ENDED, PROCESS, STDERR, STDOUT, Ended, Process
from fedping.model_store.store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landed_table import id_column, landed_table
from fedping.protocol.landing import outcome_folder, write_landed
from fedping.protocol.study import Study
from tests.support.dashboard import dashboard_client
from tests.support.outcomes import SHOP, shop_study
from tests.support.verdicts import metric_tally
from tests.support.versions import version_0

WHEN = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
ASKED_FOR = Asked(metrics=("place", "opened", "paid"), ratios=("opened/choices",), cap=0.99)
NONE = ValueCounts.of([])


def verdict_of(study: Study, asked: Asked = ASKED_FOR) -> Verdict:
    rng = np.random.default_rng(1)
    arms = {}
    for name, times in (("treatment", 1.6), ("control", 1.0)):
        opened = rng.poisson(times, (600, 3))
        paid = ValueCounts.of((rng.random(400) < 0.1) * rng.lognormal(2, 1, 400))
        arms[name] = ArmTally(
            pings=1800,
            clients=600 if name == "treatment" else 400,
            selections=1800,
            exposed=600,
            metrics={
                "place": metric_tally(rng.geometric(0.5, (600, 3))),
                "opened": metric_tally(opened),
                "paid": MetricTally(NONE, paid, ClientSums(400, 0, 0.0, 0.0, 0.0, 0.0)),
            },
            by_hour={425_000: 1800},
            exposed_by_hour={425_000: 600},
            ratios={"opened/choices": ClientTotals.of(opened.sum(axis=1), 3)},
        )
    later = LaterCounts(80, 7, 1, 2, 0, 5, {"treatment": (400, 600), "control": (400, 600)})
    tally = StudyTally(arms, duplicates=0, mixed=0, caps={"opened": 4.0, "paid": 30.0}, later={"paid": later})
    return reach_verdict(study, plan_of(study, asked), tally)


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    """Give a client of the dashboard over a store with a shop and one count."""
    study = shop_study()
    open_store(tmp_path / "store", create=True).create_study(study, (version_0(study),))
    folder = tmp_path / "runs" / "results" / SHOP / f"{1:013d}-{key_of(ASKED_FOR)}"
    folder.mkdir(parents=True)
    kept: dict[str, msgspec.Struct] = {
        ASKED: ASKED_FOR,
        LANDED: Landed({}, {"main": 0}, "1"),
        PROCESS: Process(1, WHEN),
        ENDED: Ended(0, WHEN),
    }
    for name, value in kept.items():
        (folder / name).write_bytes(msgspec.json.encode(value))
    verdict = verdict_of(study)
    (folder / STDOUT).write_text(json.dumps(as_document(verdict, None, table_notes(verdict)), allow_nan=False) + "\n")
    (folder / STDERR).write_text("")
    return dashboard_client(tmp_path)


def words(text: str) -> str:
    body = re.sub(r"<script.*?</script>|<[^>]+>", " ", text[text.index("<main") :], flags=re.S)
    return " ".join(html.unescape(body).split())


def test_the_page_has_the_lifts_and_what_was_done(client: FlaskClient) -> None:
    answer = client.get(f"/results/{SHOP}/?{query_of(ASKED_FOR)}", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    said = words(answer.get_data(as_text=True))
    assert said.index("opened per choices") < said.index("Sizes of the arms") < said.index("The lift")
    for part in (
        "opened per choices",
        "paid within 48h",
        "▲ more",
        "capped at 30",
        "by the largest",
        "paid: 800 of 1,200 clients are ripe; 80 outcomes counted; of those not counted, 7 came too late",
        "with one cap per metric for all arms",
    ):
        assert part in said


def test_the_tables_have_a_row_for_later_outcomes_without_pings() -> None:
    document = as_document(verdict_of(shop_study()))
    rows = {row["metric"]: row for row in csv.DictReader(io.StringIO(comparisons_csv(document)))}
    assert (rows["paid"]["ping_p"], rows["paid"]["cap"], rows["paid"]["adjusted"]) == ("", "30.0", "false")
    assert float(rows["opened"]["lift_low"]) > 0
    assert int(rows["opened"]["fragility_by_the_largest"]) > 0
    sizes = list(csv.DictReader(io.StringIO(sizes_csv(document))))
    assert [row["choices"] for row in sizes] == ["1800", "1800"]


def test_an_adjustment_by_arms_that_differed_before_is_told_and_read_again_from_the_document() -> None:
    study, asked = shop_study(), replace(ASKED_FOR, adjust=True, cap=None)
    verdict = verdict_of(study)
    rng = np.random.default_rng(2)
    arms = {}
    for name, arm in verdict.tally.arms.items():
        x = rng.gamma(2, 1, 600) + (name == "control")
        opened = with_fields(arm.metrics["opened"], totals=ClientTotals.of(x + rng.gamma(1, 1, 600), 1, x, 1))
        arms[name] = with_fields(arm, metrics={**arm.metrics, "opened": opened})
    verdict = reach_verdict(study, plan_of(study, asked), with_fields(verdict.tally, arms=arms, caps={}))
    assert any("the arms already differed in opened (treatment - control)" in note for note in verdict.means_notes)
    assert "before, which is known of 600 and 600 clients: the variance becomes" in verdict.lift_sentences[1]
    assert any("opened, treatment - control: the time before, which is known" in note for note in verdict.means_notes)
    fragile = " of the largest influence, of 1,200, this interval would contain 0"
    assert any(fragile in one for one in verdict_of(study).lift_sentences)
    document = json.loads(json.dumps(as_document(verdict)))
    again = [effect_of(one["means"]) for one in document["comparisons"]]
    assert again[1] == verdict.comparisons[1].effect
    assert document["comparisons"][1]["means"]["adjustment"]["standard_errors_apart_before"] < -3.3


@pytest.mark.parametrize(("above", "asked"), [(150, "0.99997"), (500_000, "0.9"), (244_000, "0.9512")])
def test_a_cap_of_0_is_refused_with_a_share_that_may_be_given(above: int, asked: str) -> None:
    study = shop_study()
    paid = metric_named("paid", study)
    tally = verdict_of(study).tally
    values = ValueCounts(np.array([0.0, 9.0]), np.array([5_000_000 - above, above]))
    arms = {
        name: with_fields(arm, metrics={"paid": with_fields(arm.metrics["paid"], clients=each)})
        for (name, arm), each in zip(tally.arms.items(), (values, NONE), strict=True)
    }
    with pytest.raises(InvalidSettings, match="would cap 'paid' at 0") as refused:
        caps_of([paid], with_fields(tally, arms=arms), 0.5)
    named = str(refused.value).rpartition(" ")[2]
    assert named == asked
    assert caps_of([paid], with_fields(tally, arms=arms), float(named) + 1e-6) == {"paid": 9.0}


def test_what_waits_for_ripe_clients_counts_in_the_correction() -> None:
    study = shop_study()
    tally = verdict_of(study).tally
    later = MetricTally(NONE, NONE, ClientSums(0, 0, 0.0, 0.0, 0.0, 0.0))
    arms = {name: with_fields(arm, metrics={**arm.metrics, "returned": later}) for name, arm in tally.arms.items()}
    verdict = reach_verdict(
        study, plan_of(study, replace(ASKED_FOR, metrics=("opened", "returned"))), with_fields(tally, arms=arms)
    )
    [opened] = verdict.comparisons
    assert [one.name for one in verdict.unripe] == ["returned"]
    assert (verdict.plan.tests, verdict.plan.confidence) == (3, 1 - 0.05 / 3)
    assert opened.log10_bonferroni == pytest.approx(opened.clients.test.log10_p + math.log10(3))
    assert opened.deciding.confidence == pytest.approx(1 - 0.05 / 3)


def test_an_interim_look_at_a_later_outcome_says_that_it_compares_totals_of_ripe_clients() -> None:
    study = shop_study()
    tally, asked = verdict_of(study).tally, Asked(metrics=("opened", "paid"), interim=True)
    paid = ValueCounts.of(np.repeat((0.0, 5.0, 9.0), (200, 100, 100)))
    arms = {}
    for name, arm in tally.arms.items():
        metrics = {**arm.metrics, "paid": with_fields(arm.metrics["paid"], clients=paid)}
        looked_at = {metric: with_fields(each, first=each.clients) for metric, each in metrics.items()}
        arms[name] = with_fields(arm, metrics=looked_at)
    verdict = reach_verdict(study, plan_of(study, asked), with_fields(tally, arms=arms, caps={}))
    opened, bought = verdict.sentences
    assert "so far, first lists differ by" in opened
    assert "so far, totals of ripe clients differ by" in bought
    assert "first list, and of a later outcome from the totals of ripe clients, which later" in table_notes(verdict)[-1]


def test_an_outcome_that_lands_makes_a_count_out_of_date(tmp_path: Path) -> None:
    study, folders = shop_study(), Folders()
    assert study.later_outcomes is not None
    before = folders.files(tmp_path, study, Window())
    columns = {
        "document_id": id_column(np.zeros((2, 16), np.uint8)),
        "client_id": id_column(np.zeros((2, 16), np.uint8)),
        "received_at": pa.array([1, 2]),
        "model_version": pa.array([0, 0]),
        "study_variation": pa.array(["treatment"] * 2).dictionary_encode(),
        "age": pa.array([0, 0]),
        "paid": pa.array([1.0, 2.0]),
    }
    write_landed(outcome_folder(tmp_path, SHOP, "2026-11-26"), landed_table(study.later_outcomes, columns, None), 1)
    after = folders.files(tmp_path, study, Window())
    assert (before, list(after)) == ({}, [f"_outcomes/study={SHOP}/day=2026-11-26"])
    watch = Watch(tmp_path)
    assert watch.since("count", study, Window(), lambda: before) == Since(2, complete=True)
    assert watch.since("later", study, Window(), lambda: after) == Since(0, complete=True)


def test_a_question_about_means_is_an_address_and_options() -> None:
    asked = replace(ASKED_FOR, adjust=True)
    study = shop_study()
    assert asked_by(fields_of(asked), study) == asked
    assert {"--ratios=opened/choices", "--cap=0.99", "--adjust"} <= set(options_of(asked))
