"""A study of model updates is analysed like a study of interactions: by loss and examples of every arm."""

import csv
import dataclasses
import html
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest
from scipy.stats import mannwhitneyu

from fedping.analysis.statistics import ValueCounts
from fedping.analysis.study import METRICS, MODEL_METRICS, StudyTally, count_study
from fedping.analysis.verdict import Asked, Verdict, as_document, plan_of, reach_verdict
from fedping.dashboard.results.counts import ASKED, LANDED
from fedping.dashboard.results.landed import Landed
from fedping.dashboard.results.question import asked_by, key_of, query_of
from fedping.experiments.run_process import ENDED, PROCESS, STDERR, STDOUT, Ended, Process
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.support.dashboard import dashboard_client
from tests.support.landed import random_ids
from tests.support.model_updates import STUDY, model_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WHEN = "2026-01-01T00:00:00.000+00:00"
RECEIVED = 1_790_000_000_000
CLIENTS = {"treatment": 800, "control": 790, "plain": 410}
LOSS = {"treatment": 0.6, "control": 1.0, "plain": 1.0}
ASK = Asked(metrics=("loss", "examples"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a store after one round, and pings of two versions of three arms, one without a line."""
    folder, study = tmp_path_factory.mktemp("models"), model_study()
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    land(folder / "landing", version=0, seed=1)
    with engine_named("numpy") as engine:
        done = run_round(
            store, folder / "landing", STUDY, "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test")
        )
    assert done.status == "published"
    land(folder / "landing", version=1, seed=2)
    return folder


def land(landing: Path, version: int, seed: int) -> None:
    """Land one or two pings for each client, a tenth without an example, and a few documents twice."""
    people, rng = np.random.default_rng(7), np.random.default_rng(seed)
    for arm, count in CLIENTS.items():
        ids = random_ids(people, count)
        clients = np.concatenate([ids, ids[: count // 2]])
        k = len(clients)
        examples = np.where(rng.random(k) < 0.1, 0, rng.integers(1, 40, k))
        there = examples > 0
        updates = rng.normal(size=(k, 3)).astype(np.float32) * there[:, None] if arm == "treatment" else None
        pings = ModelPings(
            document_ids=random_ids(rng, k),
            client_ids=clients,
            arm=arm,
            version=-1 if arm == "plain" else version,
            updates=updates,
            losses=rng.gamma(4.0, LOSS[arm] / 4, k) * there,
            examples=examples,
        )
        received = RECEIVED + version * 7_200_000 + rng.integers(0, 5_400_000, k)
        table = landed_model_updates(pings, received)
        line = None if arm == "plain" else "main"
        where = partition(landing, STUDY, line, -1 if arm == "plain" else version)
        write_landed(where, table, RECEIVED + seed)
        write_landed(where, table.slice(0, 20), RECEIVED + seed + 10)


KEPT: dict[str, Any] = {}


@pytest.fixture
def counted(spark: "SparkSession", folder: Path) -> StudyTally:
    """Give the landed study's tally of everything, counted once."""
    if "tally" not in KEPT:
        KEPT["tally"] = count_study(spark, folder / "landing", model_study(), MODEL_METRICS, first_values=True)
    tally: StudyTally = KEPT["tally"]
    return tally


def rows_of(landing: Path) -> pd.DataFrame:
    columns = ["document_id", "client_id", "study_variation", "loss", "examples", "received_at"]
    rows = ds.dataset(landing, partitioning="hive").to_table(columns=columns).to_pandas()
    return rows.drop_duplicates("document_id")


def judged(tally: StudyTally, asked: Asked, study: Study | None = None) -> Verdict:
    study = study or model_study()
    return reach_verdict(study, plan_of(study, asked), tally, asked.enrolled)


def test_every_count_is_that_of_the_rows_in_every_arm(counted: StudyTally, folder: Path) -> None:
    rows = rows_of(folder / "landing")
    assert counted.duplicates == 2 * 3 * 20
    assert counted.mixed == 0
    assert list(counted.arms) == list(CLIENTS)
    for name, arm in counted.arms.items():
        here = rows[rows.study_variation == name]
        used = here[here.examples > 0]
        assert (arm.pings, arm.clients) == (len(here), CLIENTS[name])
        assert (arm.selections, arm.exposed) == (len(used), used.client_id.nunique())
        assert arm.selections < arm.pings
        assert arm.metrics["examples"].pings.to_mapping() == ValueCounts.of(used.examples).to_mapping()
        loss = arm.metrics["loss"]
        assert loss.pings.mean == pytest.approx(used.loss.mean(), rel=1e-4)
        assert loss.clients.mean == pytest.approx(used.groupby("client_id").loss.mean().mean(), rel=1e-4)
        assert loss.sums.total == pytest.approx(used.loss.sum())


def test_the_loss_is_tested_as_scipy_does_on_the_clients_means(counted: StudyTally, folder: Path) -> None:
    verdict = judged(counted, ASK)
    rows = rows_of(folder / "landing")
    means = rows[rows.examples > 0].groupby(["study_variation", "client_id"], observed=True).loss.mean()
    for one in verdict.comparisons[:3]:
        theirs = mannwhitneyu(*(means[arm] for arm in one.pair), method="asymptotic")
        assert one.metric.name == "loss"
        assert one.clients.test.log10_p == pytest.approx(np.log10(theirs.pvalue), rel=0.01, abs=0.01)


def test_the_verdict_finds_the_lower_loss_and_no_difference_of_examples(counted: StudyTally) -> None:
    verdict = judged(counted, msgspec.structs.replace(ASK, guardrails=("loss",)))
    found = {(one.metric.name, one.pair): one.finding for one in verdict.comparisons}
    assert found["loss", ("treatment", "control")] == found["loss", ("treatment", "plain")] == "less"
    assert found["loss", ("control", "plain")] == "inconclusive"
    assert {finding for (metric, _), finding in found.items() if metric == "examples"} == {"inconclusive"}
    assert "users of treatment had a lower loss than control and plain" in verdict.headline
    assert not verdict.ratio.mismatch


def test_an_interim_look_is_marked_and_decides_by_its_own_interval(counted: StudyTally) -> None:
    verdict = judged(counted, msgspec.structs.replace(ASK, interim=True, planned_clients=3000))
    assert verdict.headline.startswith("Interim look, not the final verdict.")
    assert "first pings differ by" in verdict.sentences[0]
    assert verdict.comparisons[0].sequence is not None
    assert as_document(verdict)["comparisons"][0]["anytime_valid"]["high"] < 0


def test_more_examples_are_neither_better_nor_worse(counted: StudyTally) -> None:
    arms = dict(counted.arms)
    many = arms["control"].metrics["examples"]
    shifted = dataclasses.replace(
        many, clients=ValueCounts(many.clients.values + 10, many.clients.counts), pings=many.pings
    )
    arms["control"] = dataclasses.replace(arms["control"], metrics={**arms["control"].metrics, "examples": shifted})
    verdict = judged(dataclasses.replace(counted, arms=arms), ASK)
    document = as_document(verdict)
    one = document["comparisons"][3]
    assert (one["metric"], one["pair"]) == ("examples", ["treatment", "control"])
    assert (one["finding"], one["worse"]) == ("less", False)
    assert document["metrics"]["examples"] == {"title": "examples", "better": None}
    assert "users of treatment had fewer examples than control" in document["verdict"]


def test_wrong_sizes_are_said_before_everything(counted: StudyTally) -> None:
    study = model_study()
    arms = tuple(msgspec.structs.replace(arm, share=1 / 3) for arm in study.arms)
    verdict = judged(counted, ASK, msgspec.structs.replace(study, arms=arms))
    assert verdict.headline.startswith("Do not rely on this: the arms have the wrong sizes.")


def test_an_arm_without_an_example_is_told_in_a_sentence(spark: "SparkSession", tmp_path: Path) -> None:
    for arm, examples in (("treatment", 3), ("control", 0)):
        pings = ModelPings(
            document_ids=random_ids(np.random.default_rng(examples), 30),
            client_ids=random_ids(np.random.default_rng(examples + 9), 30),
            arm=arm,
            version=0,
            updates=None,
            losses=np.full(30, float(examples)),
            examples=np.full(30, examples),
        )
        write_landed(partition(tmp_path, STUDY, "main", 0), landed_model_updates(pings, RECEIVED), examples)
    tally = count_study(spark, tmp_path, model_study(), MODEL_METRICS)
    with pytest.raises(FedpingError, match=r"none of the 30 pings of arm 'control' .* example"):
        judged(tally, msgspec.structs.replace(ASK, pairs=("treatment:control",)))


@pytest.fixture
def printed(folder: Path, warm_commands: object, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the command once and return its JSON output; it also writes a report and figures next to the store."""
    if "printed" not in KEPT:
        options = ["--store", str(folder / "store"), "--landing", str(folder / "landing"), "--json"]
        options += ["--enrolled", "5000", "--html", str(folder / "report.html"), "--subsample", "200"]
        code = main(["analyze", STUDY, *options, "--figures", str(folder / "figures")])
        said = capsys.readouterr()
        assert code == 0, said.err
        KEPT["printed"] = json.loads(said.out) | {"text": said.out}
    found: dict[str, Any] = KEPT["printed"]
    return found


@pytest.mark.long
def test_the_command_reports_what_there_is_and_leaves_out_what_there_is_not(
    printed: dict[str, Any], folder: Path
) -> None:
    assert printed["pings"] == "model-update"
    assert list(printed["metrics"]) == ["loss", "examples"]
    assert list(printed["arms"]) == list(CLIENTS)
    assert "trained line 'main'" in printed["caution"]
    for arm in printed["arms"].values():
        assert {"clients", "exposed", "pings", "with_examples", "enrolled"} < arm.keys()
        assert list(arm["means"]) == ["loss", "examples"]
    drawn = {path.stem for path in (folder / "figures").iterdir()}
    lines = {"loss", "loss-smoothed", "pings-by-iteration", "subsamples-updates", "subsamples-signs", "subsamples-loss"}
    assert drawn == {"differences", "superiority", "pings-over-time", "over-time-loss", "over-time-examples"} | lines
    page = (folder / "report.html").read_text()
    for absent in ("selection", "typed", "rank_", "selected rank", "2018", "interaction", "Not drawn"):
        assert absent not in page, absent
        assert not re.search(rf"(?<![\d.]){absent}(?!\d)", printed["text"]), absent
    assert html.escape(printed["verdict"]) in page
    assert ">with examples<" in page


def test_the_results_page_shows_the_same_numbers_bit_for_bit(
    printed: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    study = model_study()
    (tmp_path / "store").symlink_to(folder / "store")
    (tmp_path / "landing").symlink_to(folder / "landing")
    client = dashboard_client(tmp_path)
    plain = client.get(f"/results/{STUDY}/", headers={"Accept": "text/html"}).get_data(as_text=True)
    assert re.findall(r'name="(metrics|guardrails)" value="(\w+)"', plain) == [
        ("metrics", "loss"),
        ("guardrails", "loss"),
        ("metrics", "examples"),
    ]
    asked = msgspec.structs.replace(asked_by({}, study), enrolled=5000)
    assert asked.metrics == ("loss", "examples")
    kept = tmp_path / "runs" / "results" / STUDY / f"{1:013d}-{key_of(asked)}"
    kept.mkdir(parents=True)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    left = {ASKED: asked, LANDED: Landed({}, {"main": 1}, "1"), PROCESS: Process(1, at), ENDED: Ended(0, at)}
    for name, value in left.items():
        (kept / name).write_bytes(msgspec.json.encode(value))
    (kept / STDOUT).write_text(printed["text"])
    (kept / STDERR).write_text("")
    assert client.get(f"/results/{STUDY}/document.json?{query_of(asked)}").get_data(as_text=True) == printed["text"]
    page = client.get(f"/results/{STUDY}/?{query_of(asked)}", headers={"Accept": "text/html"}).get_data(as_text=True)
    words = " ".join(html.unescape(re.sub(r"<script.*?</script>|<[^>]+>", " ", page, flags=re.S)).split())
    assert printed["verdict"] in words
    for sentence in printed["sentences"]:
        assert sentence in words
    assert "with examples" in words
    assert "selection" not in words
    for arm in printed["arms"].values():
        assert f"{arm['with_examples']:,}" in words
    comparisons = csv.DictReader(io.StringIO(client.get(f"/results/{STUDY}/comparisons.csv?{query_of(asked)}").text))
    for row, one in zip(comparisons, printed["comparisons"], strict=True):
        assert float(row["log10_p"]) == one["per_client"]["log10_p"]
        assert float(row["difference_low"]) == one["per_client"]["difference"]["low"]
    sizes = csv.DictReader(io.StringIO(client.get(f"/results/{STUDY}/sizes.csv?{query_of(asked)}").text))
    for row in sizes:
        arm = printed["arms"][row["arm"]]
        assert int(row["with_examples"]) == arm["with_examples"]
        assert float(row["loss_per_client"]) == arm["means"]["loss"]["per_client"]
        assert "selections" not in row


@pytest.mark.long
def test_power_takes_a_pilot_of_model_updates(
    folder: Path, warm_commands: object, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--store", str(folder / "store"), "--landing", str(folder / "landing")]
    effect = [
        "power",
        "effect",
        STUDY,
        "--arm",
        "control",
        "--simulations",
        "100",
        "--change",
        "-10%",
        "--json",
        *places,
    ]
    assert main([*effect, "--metric", "loss"]) == 0
    assert "loss" in capsys.readouterr().out
    assert main(effect) == 2
    assert "model-update pings have no metric 'num_chars_typed'; they have loss, examples" in capsys.readouterr().err


def test_metrics_of_interactions_are_what_they_were() -> None:
    assert [metric.name for metric in METRICS] == ["num_chars_typed", "rank_selected", "loss"]
