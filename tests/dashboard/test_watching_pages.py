"""The page of a run and the comparison page: their contents, downloads and rejections."""

from __future__ import annotations

import csv as standard_csv
import io
import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient
from pyarrow import csv

from fedping.dashboard.watching.comparing import compared_runs, drawn, pairs, settings_apart
from fedping.dashboard.watching.curves import Measured
from fedping.dashboard.watching.views import metrics_as_csv
from fedping.experiments.laboratory.comparing import chosen, compared
from fedping.experiments.laboratory.report import write_report
from tests.support.dashboard import dashboard_client
from tests.support.laboratory import small_file
from tests.support.watched import Going, ended, finished_run, noted

A, B, GOES, FAILED, STUDY = (f"20260102-030405-{letter}" for letter in "abcde")
HTML = {"Accept": "text/html"}
JSON = {"Accept": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with two finished runs, a running one, a failed one, a study, and one of the command line."""
    folder = tmp_path_factory.mktemp("dashboard")
    runs = folder / "runs"
    finished_run(runs, A, "five <b>rounds</b>", "rounds=5")
    finished_run(runs, B, "two rounds, other seeds", "rounds=2", "seeds=[2,3,4]")
    write_report(runs / A / "out", runs / A / "out" / "report.html")
    (runs / B / "out").rename(runs / "by_hand")
    (runs / B).rename(folder / "aside")
    run = Going(runs, GOES)
    log, progress = run.begin()
    log.add(0, "test", {"accuracy": 0.5, "loss": float("nan")})
    progress.write()
    failed = noted(runs, FAILED, "fails")
    ended(failed, 1)
    (failed / "stderr").write_text("fedping: there is no such data set\n")
    ended(noted(runs, STUDY, "a study", 'study = "demo.toml"\n'))
    return folder


@pytest.fixture
def finished(folder: Path, tmp_path: Path) -> Path:
    """Give a finished run for tests to damage."""
    shutil.copytree(folder / "runs" / A, tmp_path / "runs" / A)
    return tmp_path


@pytest.fixture
def client(folder: Path) -> FlaskClient:
    return dashboard_client(folder)


def text_of(client: FlaskClient, address: str) -> str:
    answer = client.get(address, headers=HTML)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    return answer.get_data(as_text=True)


@pytest.mark.parametrize(
    ("id", "words"),
    [
        (A, ["five &lt;b&gt;rounds&lt;/b&gt;", "finished", "★", "Metrics, Parquet", "local, three", "/runs/new?like="]),
        (GOES, ["goes on", "No variant has a finished run", "lost", "Go on"]),
        (FAILED, ["fails", "there is no such data set", 'action="/runs/' + FAILED + '/go-on"']),
        (STUDY, ["a study", f"/runs/{STUDY}/study/live/"]),
        ("by_hand", ["by_hand", "finished", "All settings (JSON)"]),
    ],
)
def test_the_page_of_a_run_shows_what_it_is(client: FlaskClient, id: str, words: list[str]) -> None:
    page = text_of(client, f"/runs/{id}/")
    for word in words:
        assert word in page
    assert "<style" not in page
    assert " style=" not in page


def test_a_state_has_one_colour_on_every_page_and_in_the_script(client: FlaskClient) -> None:
    page = text_of(client, f"/runs/{FAILED}/")
    given = json.loads(page.partition('id="run">')[2].partition("</script>")[0])
    tag = f'<span class="tag {given["tags"]["failed"]}">failed</span>'
    for address in (f"/runs/{FAILED}/", "/runs/", "/compare/"):
        assert tag in text_of(client, address)
    assert f'<span class="tag {given["tags"]["finished"]}">finished</span>' in text_of(client, "/runs/by_hand/")


def test_stop_and_go_on_are_there_when_they_can_be_done(client: FlaskClient) -> None:
    finished, failed = text_of(client, f"/runs/{A}/"), text_of(client, f"/runs/{FAILED}/")
    assert 'data-when="stopped failed lost" hidden' in finished
    assert 'data-when="stopped failed lost">' in failed
    assert 'data-when="running waiting" hidden' in failed
    assert "go-on" not in text_of(client, "/runs/by_hand/")


def test_the_feed_is_of_the_metric_that_is_asked_for(client: FlaskClient) -> None:
    first = client.get(f"/runs/{A}/feed", headers=JSON).get_json()
    assert first["data"]["whole"]
    loss = client.get(f"/runs/{A}/feed?split=train&metric=loss", headers=JSON).get_json()
    assert loss["data"]["units"][0]["x"] == [0, 1, 2, 3, 4]
    assert first["data"]["units"][0]["x"] == [0, 1, 2, 3, 4, 5]
    nothing = client.get(f"/runs/{A}/feed?since={quote(first['position'])}", headers=JSON)
    assert nothing.status_code == 204


def test_metrics_are_downloaded_as_they_were_written(client: FlaskClient, folder: Path) -> None:
    whole = pq.read_table(folder / "runs" / A / "out/metrics.parquet")
    assert pq.read_table(io.BytesIO(client.get(f"/runs/{A}/metrics.parquet").data)).equals(whole)
    table = csv.read_csv(io.BytesIO(client.get(f"/runs/{A}/metrics.csv").data))
    assert table.column_names == whole.column_names
    np.testing.assert_array_equal(table["value"].to_numpy(), whole["value"].to_numpy())
    so_far = pq.read_table(io.BytesIO(client.get(f"/runs/{GOES}/metrics.parquet").data)).to_pylist()
    assert [(row["variant"], row["metric"]) for row in so_far] == [("v", "accuracy"), ("v", "loss")]
    assert np.isnan(so_far[1]["value"])


def test_a_run_with_a_clock_shows_its_hours_and_they_are_downloaded(tmp_path: Path, client: FlaskClient) -> None:
    changes = ("rounds=2", "seeds=1", "evaluation.baselines=['start']", "clock.seconds_per_example=60.0")
    finished_run(tmp_path / "runs", A, "timed", *changes)
    timed = dashboard_client(tmp_path)
    assert "simulated<br>hours" in timed.get(f"/runs/{A}/").text
    assert "simulated<br>hours" not in client.get(f"/runs/{A}/").text
    table = csv.read_csv(io.BytesIO(timed.get(f"/runs/{A}/metrics.csv").data)).to_pylist()
    hours = [row["value"] for row in table if (row["variant"], row["metric"]) == ("gradient", "simulated_hours")]
    assert len(hours) == 2
    assert hours[1] == pytest.approx(2 * hours[0])


def test_no_name_of_a_variant_becomes_a_formula_and_numbers_stay_what_they_are() -> None:
    names = ["=HYPERLINK(A1)", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "-3", "+1e5", "rate=1", "'x", None]
    columns = {"variant": names, "value": [-0.5] * len(names), "fold": [None] * len(names)}
    written = metrics_as_csv(
        pa.table(columns, pa.schema([("variant", "string"), ("value", "float64"), ("fold", "int32")]))
    )
    read = list(standard_csv.reader(io.StringIO(written.decode(), newline="")))
    guarded = [f"'{name}" for name in names[:5]]
    assert read[1:] == [[name, "-0.5", ""] for name in [*guarded, "-3", "+1e5", "rate=1", "'x", ""]]


def test_the_report_has_a_policy_of_its_own_that_lets_nothing_run(client: FlaskClient) -> None:
    report = client.get(f"/runs/{A}/report.html")
    policy = report.headers["Content-Security-Policy"]
    assert report.status_code == 200
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert "script-src" not in policy
    assert client.get(f"/runs/{A}/summary.json").get_json()["best"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (f"/runs/{FAILED}/summary.json", "written when the run is finished"),
        ("/runs/nothing/feed", "the run"),
        ("/runs/..%2F..%2Faside/", "does not exist"),
        (f"/compare/curves.json?of={A}:nobody", "no variant 'nobody'"),
        ("/compare/curves.json?of=nothing:gradient", "the run"),
        ("/compare/curves.json?" + "&".join(f"of={A}:{n}" for n in range(13)), "too many"),
        (f"/runs/{A}/?than=shipped:nothing", "is shipped"),
    ],
)
def test_what_is_not_there_is_told_in_a_sentence(client: FlaskClient, address: str, words: str) -> None:
    answer = client.get(address, headers=JSON)
    assert answer.status_code in (400, 404)
    assert words in answer.get_json()["error"]


def test_a_run_is_held_against_another_and_against_what_is_shipped(client: FlaskClient) -> None:
    other = text_of(client, f"/runs/{A}/?than=by_hand").partition('id="changes"')[2]
    assert "rounds" in other
    assert "model.name" not in other
    shipped = text_of(client, f"/runs/{A}/?than=shipped:breast_cancer").partition('id="changes"')[2]
    assert "partition.clients" in shipped
    assert "data.name" not in shipped.partition("</table>")[0]


def keys(*names: str) -> str:
    return "&".join(f"of={quote(name)}" for name in names)


def test_variants_of_several_runs_are_compared_over_the_seeds_that_they_share(
    client: FlaskClient, folder: Path
) -> None:
    address = keys(f"{A}:gradient", "by_hand:local, three", f"{A}:centralised", f"{GOES}:v")
    said = client.get(f"/compare/curves.json?{address}&split=test&metric=loss", headers=JSON).get_json()
    by_command = compared(
        chosen(str(folder / "runs" / A / "out:gradient")), chosen(str(folder / "runs/by_hand:local, three"))
    )
    assert by_command.seeds == (2,)
    expected = next(each for each in by_command.differences if (each.split, each.metric) == ("test", "loss"))
    first, baseline = said["differences"]
    assert (first["mean"], first["half"], first["seeds"]) == (expected.difference.mean, None, 1)
    assert baseline["seeds"] == 2
    assert [[len(run["x"]) for run in curve["runs"]] for curve in said["curves"]] == [[6, 6], [3, 3, 3], [1, 1], [1]]
    assert said["curves"][3]["runs"][0]["y"] == [None]
    assert said["curves"][3]["final"] is None
    page = text_of(client, f"/compare/?{address}")
    assert "1 seed in common, so there is no interval" in page
    assert "has no finished run yet" in page
    assert "sampling.clients" in page


def test_what_has_no_seed_in_common_is_not_paired(folder: Path) -> None:
    runs = folder / "runs"
    ones = compared_runs(runs, [f"{A}:gradient", "by_hand:gradient"])
    assert pairs(ones)[0].comparison is not None
    without = [one for one in ones[1].units if one.note.seed != 2]
    other = type(ones[1])(ones[1].key, ones[1].label, ones[1].place, ones[1].name, tuple(without))
    [pair] = pairs([ones[0], other])
    assert pair.comparison is None
    assert "no seed in common" in str(pair.why_not)


def test_final_values_have_the_band_of_the_summary(folder: Path) -> None:
    [one] = compared_runs(folder / "runs", [f"{A}:gradient"])
    summary = json.loads((folder / "runs" / A / "out/summary.json").read_text())
    [curve] = drawn([one], Measured("local", "accuracy"))
    final: Any = curve["final"]
    assert final == summary["variants"]["gradient"]["metrics"]["local"]["accuracy"]
    assert final["seeds"] == 2


def test_settings_that_a_baseline_does_not_depend_on_are_no_difference(folder: Path) -> None:
    ones = compared_runs(folder / "runs", [f"{A}:gradient", f"{A}:local, three", f"{A}:centralised"])
    assert {row.setting.split(".")[0] for row in settings_apart(ones)} == {"sampling", "training"}
    assert settings_apart([ones[0], ones[2]]) == []


def test_the_chooser_lists_every_run_and_keeps_what_is_chosen(client: FlaskClient) -> None:
    page = text_of(client, f"/compare/?of={A}:gradient")
    assert f'value="{A}:gradient" checked' in page
    assert 'value="by_hand:local, three"' in page
    assert "There is no laboratory run yet" not in page


@pytest.mark.parametrize(("file", "content"), [("units.json", b'{"'), ("experiment.json", b'{"a": "\xff"}')])
def test_a_damaged_run_is_named_and_the_others_are_listed(finished: Path, file: str, content: bytes) -> None:
    damaged = finished / "runs" / "by_hand"
    damaged.mkdir()
    (damaged / "experiment.json").write_bytes(b"{}")
    (damaged / file).write_bytes(content)
    client = dashboard_client(finished)
    page = text_of(client, "/compare/")
    assert f'value="{A}:gradient"' in page
    assert f"The file {damaged / file} is damaged" in page
    assert "It has not begun" not in page
    answer = client.get("/runs/by_hand/", headers=JSON)
    assert answer.status_code == 400
    assert f"{file} is damaged" in answer.get_json()["error"]


def spoiled(file: Path, at: float) -> None:
    """Write nonsense into a file, from a fraction of its length on."""
    data = file.read_bytes()
    begin = int(at * len(data))
    file.write_bytes(data[:begin] + b"\xff" * 300 + data[begin + 300 :])


@pytest.mark.parametrize("at", [0.0, 0.02, 1.0], ids=["from the beginning", "from the data", "behind the end"])
@pytest.mark.parametrize("whole", [True, False], ids=["of the experiment", "of a run"])
def test_metrics_that_are_damaged_are_told_in_a_sentence(finished: Path, whole: bool, at: float) -> None:
    out = finished / "runs" / A / "out"
    if not whole:
        (out / "metrics.parquet").unlink()
    file = out / ("metrics.parquet" if whole else "runs/gradient/seed-1/metrics.parquet")
    spoiled(file, at)
    client = dashboard_client(finished)
    addresses = [f"/runs/{A}/feed", f"/runs/{A}/metrics.csv", f"/runs/{A}/metrics.parquet"]
    for address in [*addresses, f"/compare/curves.json?of={A}:gradient"]:
        answer = client.get(address, headers=JSON)
        assert answer.status_code == 400, address
        assert answer.get_json()["error"].startswith(f"the file {file} is damaged; delete ")
        assert ("its folder" in answer.get_json()["error"]) == (not whole)


def test_without_runs_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    small_file(tmp_path)
    assert "There is no laboratory run yet" in text_of(dashboard_client(tmp_path), "/compare/")
