"""Spark's counts of real Parquet files equal the landed rows, and the verdict follows from them."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from scipy.stats import mannwhitneyu

from benchmarks.landing_data import StudyTraffic, land_study
from fedping.analysis.statistics import ValueCounts
from fedping.analysis.study import METRICS, StudyTally, Window, count_study
from fedping.analysis.verdict import Plan, Verdict, all_pairs, reach_verdict
from fedping.dashboard.results.landed import Watch
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import OLDER, landed_files, partition, write_landed
from fedping.protocol.study import Arm, Study
from tests.support.effort import few_or_all
from tests.support.landed import landed_table
from tests.support.processes import wait_until
from tests.support.verdicts import made_tally
from tests.support.versions import small_study, version_0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TWO_CONTROLS = Study(name="aa", arms=(Arm(name="control-a", share=0.5), Arm(name="control-b", share=0.5)))
SHARES = {"treatment": 0.6, "control": 0.4}
Count = Callable[..., StudyTally]


@pytest.fixture
def count(spark: "SparkSession") -> Count:
    """Give a function that counts a study in the tests' shared session."""
    return lambda landing, study, metrics=METRICS, *args, **more: count_study(
        spark, landing, study, metrics, *args, **more
    )


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Land a study with an effect on the typed characters, over versions 8 to 11, with duplicates."""
    folder = tmp_path_factory.mktemp("effect") / "landing"
    traffic = StudyTraffic(
        pings=30_000,
        clients=4_000,
        arms=SHARES,
        effect={"treatment": 0.8},
        duplicates=0.05,
        iterations=(8, 9, 10, 11),
        study="study",
    )
    land_study(folder, traffic, seed=5, rows_per_file=5_000)
    return folder


RANK_OF_HISTORY = "bookmark_and_history_rank_selected"
COUNTED: dict[Path, StudyTally] = {}


@pytest.fixture
def counted(count: Count, landing: Path) -> StudyTally:
    """Give the landed study's tally of everything, counted once."""
    if landing not in COUNTED:
        COUNTED[landing] = count(landing, small_study(), first_values=True, parts=True)
    return COUNTED[landing]


def rows_of(folder: Path) -> pd.DataFrame:
    """Return the landed rows of a study, each document once, as pandas reads them."""
    columns = ["document_id", "client_id", "study_variation", "rank_selected", "num_chars_typed", "loss", "iteration"]
    names = [*columns[:-1], "received_at", "iteration"]
    table = ds.dataset(folder, partitioning="hive").to_table(columns=names)
    return table.to_pandas().drop_duplicates("document_id")


def test_every_count_is_that_of_the_rows(counted: StudyTally, landing: Path) -> None:
    tally = counted
    rows = rows_of(landing)
    raw = ds.dataset(landing).count_rows()
    assert tally.duplicates == raw - len(rows) > 1000
    assert tally.mixed == 0
    for name, arm in tally.arms.items():
        here = rows[rows.study_variation == name]
        chose = here[here.rank_selected >= 0]
        assert (arm.pings, arm.clients) == (len(here), here.client_id.nunique())
        assert (arm.selections, arm.exposed) == (len(chose), chose.client_id.nunique())
        hours = here.received_at.astype("int64") // 3_600_000
        assert dict(arm.by_hour) == hours.value_counts().to_dict()
        first_hours = hours[chose.index].groupby(chose.client_id).min()
        assert dict(arm.exposed_by_hour) == first_hours.value_counts().to_dict()
        for metric in METRICS[:2]:
            found, grouped = arm.metrics[metric.name], chose.groupby("client_id")[metric.name]
            assert found.pings.to_mapping() == ValueCounts.of(chose[metric.name]).to_mapping()
            means = ValueCounts.of([float(f"{mean:.6g}") for mean in grouped.mean()])
            assert found.clients.values == pytest.approx(means.values, rel=1e-12)
            assert (found.clients.counts == means.counts).all()
            first = chose.sort_values("received_at").groupby("client_id")[metric.name].first()
            assert found.first is not None
            assert found.first.n == len(first)
            assert found.first.mean == pytest.approx(first.mean(), rel=0.01)
            n, s = grouped.count(), grouped.sum()
            assert found.sums.pings == n.sum()
            assert (found.sums.total, found.sums.ss, found.sums.sn, found.sums.nn) == pytest.approx(
                (s.sum(), (s * s).sum(), (s * n).sum(), (n * n).sum())
            )


def test_a_continuous_metric_is_kept_to_four_digits_whatever_the_number_of_pings(
    counted: StudyTally, landing: Path
) -> None:
    rows = rows_of(landing)
    for name, arm in counted.arms.items():
        loss = rows[(rows.study_variation == name) & (rows.rank_selected >= 0)].loss
        kept = arm.metrics["loss"].pings
        rounded = ValueCounts.of([float(f"{one:.4g}") for one in loss])
        assert kept.n == len(loss)
        assert kept.mean == pytest.approx(loss.mean(), rel=1e-4)
        assert len(kept.values) == pytest.approx(len(rounded.values), rel=0.01)
        assert kept.values[-1] == pytest.approx(rounded.values[-1], rel=1e-9)


def test_the_verdicts_p_value_is_scipys_on_the_clients_means(counted: StudyTally, landing: Path) -> None:
    verdict = judged(counted, small_study())
    rows = rows_of(landing)
    means = (
        rows[rows.rank_selected >= 0].groupby(["study_variation", "client_id"], observed=True).num_chars_typed.mean()
    )
    theirs = mannwhitneyu(*(means[arm].round(9) for arm in SHARES), method="asymptotic")
    ours = verdict.comparisons[0].clients.test
    assert ours.u == pytest.approx(theirs.statistic, rel=1e-9)
    assert ours.log10_p == pytest.approx(np.log10(theirs.pvalue), rel=1e-6)


def judged(tally: StudyTally, study: Study, **plan: object) -> Verdict:
    return reach_verdict(study, Plan(metrics=METRICS[:2], pairs=all_pairs(study), **plan), tally)  # type: ignore[arg-type]


@pytest.mark.parametrize("interim", [False, True])
def test_an_effect_is_found_in_its_direction(counted: StudyTally, interim: bool) -> None:
    verdict = judged(counted, small_study(), interim=interim)
    typed, rank = verdict.comparisons
    assert (typed.finding, rank.finding) == ("less", "inconclusive")
    assert "users of treatment typed fewer characters than control" in verdict.headline
    assert verdict.headline.startswith("Interim look") == interim
    assert typed.clients.difference.high < 0
    assert typed.clients.superiority.high < 0.5
    assert not verdict.ratio.mismatch


def test_first_values_by_the_hour_in_which_clients_arrive_are_all_of_them(counted: StudyTally) -> None:
    for name, arm in counted.arms.items():
        for metric, counts in arm.metrics.items():
            of_parts = [part.arms[name][metric] for part in counted.arrivals if name in part.arms]
            merged = functools.reduce(ValueCounts.merged, of_parts)
            assert merged.to_mapping() == counts.first.to_mapping()  # type: ignore[union-attr]
        hours = {}
        for hour, clients in arm.exposed_by_hour.items():
            part = hour // counted.hours * counted.hours
            hours[part] = hours.get(part, 0) + clients
        assert {part.number: part.arms[name]["loss"].n for part in counted.arrivals if name in part.arms} == hours


@pytest.mark.long  # as test_false_alarms does without Spark
def test_a_study_of_two_controls_is_inconclusive(count: Count, tmp_path: Path) -> None:
    traffic = StudyTraffic(
        pings=30_000, clients=4_000, arms={"control-a": 0.5, "control-b": 0.5}, study="aa", line="none"
    )
    land_study(tmp_path, traffic, seed=11, rows_per_file=10_000)
    verdict = judged(count(tmp_path, TWO_CONTROLS), TWO_CONTROLS)
    assert {one.finding for one in verdict.comparisons} == {"inconclusive"}
    assert verdict.headline.startswith("Inconclusive: none of the 2 comparisons shows a difference")


@pytest.mark.thorough
def test_the_window_is_by_version_or_by_time(count: Count, landing: Path) -> None:
    rows = rows_of(landing)
    for first, last in few_or_all(0, 1) * [(10, 11)]:
        evaluated = count(landing, small_study(), METRICS[:1], Window(first=first, last=last))
        wanted = rows[rows.iteration.between(first, last)]
        assert sum(arm.pings for arm in evaluated.arms.values()) == wanted.document_id.nunique()
    middle = int(rows.received_at.astype("int64").median())
    early = count(landing, small_study(), METRICS[:1], Window(until=middle))
    late = count(landing, small_study(), METRICS[:1], Window(since=middle))
    parts = [sum(arm.pings for arm in half.arms.values()) for half in (early, late)]
    assert sum(parts) == len(rows)
    assert min(parts) > 0.49 * len(rows)


def test_a_client_of_two_arms_is_counted_for_neither(count: Count, tmp_path: Path) -> None:
    def five_clients(_rng: np.random.Generator, n: int) -> np.ndarray:
        return np.repeat(np.arange(5, dtype=np.uint8), n // 5)[:, None].repeat(16, axis=1)

    table = landed_table(50, 1, arms=("treatment", "control"), client_bytes=five_clients)
    honest = np.repeat(np.array(["treatment", "control", "control", "treatment", "mixed"]), 10).tolist()
    honest[40:] = ["treatment"] * 5 + ["control"] * 5
    at = table.schema.get_field_index("study_variation")
    table = table.set_column(at, table.schema.field(at), pa.array(honest).dictionary_encode())
    write_landed(partition(tmp_path, "study", "main", 0), table, 1)
    tally = count(tmp_path, small_study())
    assert tally.mixed == 1
    assert {name: arm.clients for name, arm in tally.arms.items()} == {"treatment": 2, "control": 2}


@pytest.mark.long
def test_an_arm_without_selections_is_told_in_a_sentence(count: Count, tmp_path: Path) -> None:
    table = landed_table(400, 2, arms=("treatment", "control"))
    ranks = np.where(np.array(table.column("study_variation").to_pylist()) == "control", -1, 0).astype(np.int32)
    table = table.set_column(table.schema.get_field_index("rank_selected"), "rank_selected", pa.array(ranks))
    write_landed(partition(tmp_path, "study", "main", 0), table.cast(landed_table(1, 0).schema), 1)
    tally = count(tmp_path, small_study())
    with pytest.raises(FedpingError, match=r"none of the .* pings of arm 'control' in the window .* ended with"):
        judged(tally, small_study())


@pytest.mark.long
def test_pings_that_rank_among_history_and_bookmarks_alone_count_by_that_rank(count: Count, tmp_path: Path) -> None:
    table = landed_table(400, 2, arms=("treatment", "control"))
    ranks = table.column("rank_selected")
    places = {name: table.schema.get_field_index(name) for name in ("rank_selected", RANK_OF_HISTORY)}
    apart = table.set_column(places[RANK_OF_HISTORY], table.schema.field(places[RANK_OF_HISTORY]), ranks)
    nulls = pa.nulls(len(table), pa.int32())
    apart = apart.set_column(places["rank_selected"], table.schema.field(places["rank_selected"]), nulls)
    tallies = []
    for name, each in (("all", table), ("apart", apart)):
        write_landed(partition(tmp_path / name, "study", "main", 0), each, 1)
        tallies.append(count(tmp_path / name, small_study()))
    assert str(tallies[0].arms) == str(tallies[1].arms)
    assert tallies[0].arms["control"].metrics["rank_selected"].pings.mean > 0


@pytest.mark.long  # as test_an_arm_without_pings_is_told_whatever_counted does without Spark
def test_an_arm_without_pings_is_told_in_a_sentence(count: Count, tmp_path: Path) -> None:
    write_landed(partition(tmp_path, "study", "main", 0), landed_table(100, 3, arms=("treatment",)), 1)
    with pytest.raises(FedpingError, match=r"arm 'control' .* has no pings"):
        judged(count(tmp_path, small_study()), small_study())


def test_an_arm_without_pings_is_told_whatever_counted() -> None:
    tally = made_tally({"treatment": 3.0, "control": 4.0})
    silent = replace(tally.arms["control"], pings=0, clients=0)
    with pytest.raises(FedpingError, match=r"arm 'control' .* has no pings"):
        judged(replace(tally, arms={**tally.arms, "control": silent}), small_study())


def test_wrong_sizes_are_said_before_everything(counted: StudyTally) -> None:
    study = small_study()
    arms = tuple(msgspec.structs.replace(arm, share=0.5) for arm in study.arms)
    verdict = judged(counted, msgspec.structs.replace(study, arms=arms))
    assert verdict.ratio.mismatch
    assert verdict.headline.startswith("Do not rely on this: the arms have the wrong sizes.")


def test_a_truncated_file_is_named(count: Count, tmp_path: Path) -> None:
    folder = partition(tmp_path, "study", "main", 0)
    for seed in (1, 2):
        write_landed(folder, landed_table(500, seed, arms=("treatment", "control")), seed)
    broken = landed_files(folder)[1]
    broken.write_bytes(broken.read_bytes()[:2000])
    with pytest.raises(FedpingError, match=rf"{broken.name} is not a whole Parquet file"):
        count(tmp_path, small_study())


def test_a_damaged_column_is_named_though_spark_would_read_it(count: Count, tmp_path: Path) -> None:
    folder = partition(tmp_path, "study", "main", 0)
    path = write_landed(folder, landed_table(500, 1, arms=("treatment", "control")), 1)
    chunk = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(FedpingError, match=rf"{path.name} is damaged"):
        count(tmp_path, small_study())


class _Outline(HTMLParser):
    """Collects a page's tags, and all addresses in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]


@dataclass(frozen=True)
class Analysed:
    """The output of `fedping analyze`, and the folder of its store, its report and its figures."""

    printed: str
    folder: Path


@pytest.fixture(scope="module")
def analysed(landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    """Run the command on the study."""
    study, folder = small_study(), tmp_path_factory.mktemp("analysed")
    open_store(folder / "store", create=True).create_study(study, (version_0(study),))
    command = [sys.executable, "-m", "fedping", "analyze", "study", "--store", str(folder / "store"), "--json"]
    command += ["--landing", str(landing), "--guardrails", "rank_selected", "--enrolled", "9000"]
    command += ["--html", str(folder / "report.html"), "--figures", str(folder / "figures")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return Analysed(ran.stdout, folder)


@pytest.mark.long
def test_the_command_counts_in_a_session_of_its_own(landing: Path, tmp_path: Path) -> None:
    check_report(tmp_path, lambda options: in_a_process(landing, tmp_path, *options))


def test_the_command_prints_json_and_writes_a_page_that_needs_nothing_else(
    landing: Path, tmp_path: Path, warm_commands: object, capsys: pytest.CaptureFixture[str]
) -> None:
    check_report(tmp_path, lambda options: in_this_process(landing, tmp_path, capsys, *options))


def in_a_process(landing: Path, folder: Path, *options: str) -> tuple[int, str, str]:
    """Run `fedping analyze` in a process; return its exit code, stdout and stderr."""
    command = [sys.executable, "-m", "fedping", "analyze", "study", "--store", str(folder / "store")]
    ran = subprocess.run([*command, "--landing", str(landing), *options], capture_output=True, text=True)
    return ran.returncode, ran.stdout, ran.stderr


def in_this_process(
    landing: Path, folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str, str]:
    code = main(["analyze", "study", "--store", str(folder / "store"), "--landing", str(landing), *options])
    said = capsys.readouterr()
    return code, said.out, said.err


def check_report(folder: Path, analyze: Callable[[list[str]], tuple[int, str, str]]) -> None:
    study = small_study()
    open_store(folder / "store", create=True).create_study(study, (version_0(study),))
    page = folder / "report.html"
    options = ["--json", "--guardrails", "rank_selected", "--enrolled", "9000", "--html", str(page)]
    code, out, err = analyze([*options, "--figures", str(folder / "figures")])
    assert code == 0, err
    said = json.loads(out)
    assert "users of treatment typed fewer characters" in said["verdict"]
    assert [one["role"] for one in said["comparisons"]] == ["goal", "guardrail"]
    assert said["arms"]["treatment"]["enrolled"] == pytest.approx(5400)
    assert said["comparisons"][0]["per_client"]["log10_p_bonferroni"] < -20
    check_page(page, said["verdict"])
    figures = ("differences", "superiority", "pings-over-time", "over-time-num_chars_typed", "over-time-rank_selected")
    drawn = {f"{name}.{kind}" for name in figures for kind in ("png", "svg")}
    assert {p.name for p in (folder / "figures").iterdir()} == drawn


def check_page(page: Path, verdict: str) -> None:
    text = page.read_text()
    outline = _Outline()
    outline.feed(text)
    assert verdict in text.replace("&#39;", "'")
    assert outline.tags.count("svg") == 5
    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    assert len(outline.ids) == len(set(outline.ids))
    assert all(address.startswith("#") for address in outline.addresses)
    assert "http" not in text
    assert [p.name for p in page.parent.glob("*.html*")] == [page.name]


@pytest.mark.long
def test_a_session_of_its_own_keeps_its_stack_traces_too(tmp_path: Path) -> None:
    check_truncated(tmp_path, lambda: in_a_process(tmp_path / "landing", tmp_path))


def test_the_command_tells_a_truncated_file_in_one_line_without_sparks_stack_trace(
    tmp_path: Path, warm_commands: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    def analyze() -> tuple[int, str, str]:
        code, out, err = in_this_process(tmp_path / "landing", tmp_path, capsys)
        heard = [err]
        warm_commands._jvm.java.lang.System.err.println("the end")  # after all output of the JVM, on the same pipe

        def complete() -> bool:
            heard.append(capsys.readouterr().err)
            return "the end" in "".join(heard)

        assert wait_until(complete)
        return code, out, "".join(heard).replace("the end\n", "")

    check_truncated(tmp_path, analyze)


def check_truncated(folder: Path, analyze: Callable[[], tuple[int, str, str]]) -> None:
    study = small_study()
    open_store(folder / "store", create=True).create_study(study, (version_0(study),))
    landed = partition(folder / "landing", "study", "main", 0)
    write_landed(landed, landed_table(500, 1, arms=("treatment", "control")), 1)
    (broken,) = landed_files(landed)
    broken.write_bytes(broken.read_bytes()[:2000])
    code, out, err = analyze()
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith(f"fedping: {broken} is not a whole Parquet file")


@pytest.mark.thorough
def test_pings_in_the_folder_of_old_versions_belong_to_the_window_of_their_version(
    count: Count, tmp_path: Path
) -> None:
    for version, n in ((3, 40), (5, 50), (200, 60)):
        folder = partition(tmp_path, "study", "main", version if version == 200 else OLDER)
        write_landed(folder, landed_table(n, version, model_version=version), 1_700_000_000_000 + version)
    write_landed(partition(tmp_path, "study", "main", 5), landed_table(7, 99, model_version=5), 1_700_000_000_099)
    watch = Watch(tmp_path)
    windows = (
        (Window(first=5, last=5), 57),
        (Window(last=5), 97),
        (Window(first=6), 60),
        (Window(), 157),
        (Window(first=5), 117),
        (Window(first=4, last=150), 57),
        (Window(first=3, last=3), 40),
    )
    for window, expected in windows[: few_or_all(3, len(windows))]:
        tally = count(tmp_path, small_study(), METRICS[:1], window)
        assert sum(arm.pings for arm in tally.arms.values()) == expected, window
        assert watch.since("none", small_study(), window, dict).pings == expected, "as the dashboard counts them"


@pytest.mark.long  # as PyArrow reads it, in the test after this
def test_hive_readers_take_the_folder_of_old_versions_for_a_number(spark: "SparkSession", tmp_path: Path) -> None:
    for version in (OLDER, -1, 7):
        write_landed(partition(tmp_path, "study", "main", version), landed_table(3, version + 9), 1_700_000_000_000)
    found = spark.read.parquet(str(tmp_path))
    assert dict(found.dtypes)["iteration"] == "int"
    assert sorted(row.iteration for row in found.select("iteration").distinct().collect()) == [OLDER, -1, 7]
    table = ds.dataset(tmp_path, partitioning="hive").to_table(filter=ds.field("iteration") == OLDER)
    assert table.num_rows == 3
