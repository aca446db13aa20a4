"""The list of runs as a table: all runs with their results, sorted and searched; tags; a sweep as a grid."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from fedping.dashboard.runs.places import Labels, labelled, labels_of, write_labels
from fedping.dashboard.watching.comparing import axes_of
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_of
from fedping.experiments.laboratory.settings.merging import with_grid
from tests.support.dashboard import csrf_token, dashboard_client
from tests.support.laboratory import SMALL
from tests.support.watched import ended, finished_run, noted

LONG, SHORT, SWEEP, CUBE = (f"20260102-030405-{name}" for name in ("long", "short", "sweep", "cube"))
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dashboard's folder with two runs of the book, two sweeps, and one run of the command line."""
    folder = tmp_path_factory.mktemp("dashboard")
    runs = folder / "runs"
    finished_run(runs, LONG, "the long one", "rounds=6", "seeds=[1,2]")
    finished_run(runs, SHORT, "the short one", "rounds=1", "seeds=[1,2]")
    (runs / SHORT / "out").rename(runs / "by_hand")
    finished_run(runs, f"{SHORT}-2", "another", "rounds=2", "seeds=[1]")
    _sweep(runs, SWEEP, "server.optimizer.rate=0.1,1.0,0.5", "model.l2=0.1,0.01")
    _sweep(runs, CUBE, "server.optimizer.rate=0.1,1.0", "model.l2=0.1,0.01", "partition.clients=3,6")
    return folder


def _sweep(runs: Path, id: str, *over: str) -> None:
    raw = {key: value for key, value in tomllib.loads(SMALL).items() if key != "variants"}
    raw |= {
        "training": {"algorithm": "gradient"},
        "server": {"optimizer": {"optimizer": "gradient_descent"}},
        "rounds": 2,
        "seeds": 1,
        "evaluation": {"baselines": []},
    }
    run = noted(runs, id, f"a sweep over {len(over)}")
    run_experiment(experiment_of(with_grid(raw, over), name="sweep", folder=Path()), run / "out", jobs=1)
    ended(run)


@pytest.fixture
def client(folder: Path) -> FlaskClient:
    return dashboard_client(folder, runs_at_once=0)


def listed(client: FlaskClient, query: str = "") -> list[str]:
    """Return the ids of the table's rows, in order."""
    page = client.get(f"/runs/{query}", headers=HTML).get_data(as_text=True)
    return re.findall(r'<tr id="run-([^"]+)"', page)


def summary_of(folder: Path, id: str) -> dict:
    out = folder / "runs" / id
    return json.loads(((out / "out" if (out / "out").is_dir() else out) / "summary.json").read_bytes())


def test_runs_of_the_command_line_are_rows_like_others_with_the_metrics_of_the_best(
    client: FlaskClient, folder: Path
) -> None:
    page = client.get("/runs/", headers=HTML).get_data(as_text=True)
    assert set(listed(client)) == {LONG, SHORT, f"{SHORT}-2", SWEEP, CUBE, "by_hand"}
    rows = dict(re.findall(r'<tr id="run-([^"]+)"[^>]*>(.*?)</tr>', page, re.DOTALL))
    for id in (LONG, "by_hand"):
        summary = summary_of(folder, id)
        found = summary["variants"][summary["best"]]["metrics"][summary["split"]][summary["metric"]]["mean"]
        assert f"{found:.4g}" in rows[id]
        assert f'name="run" value="{id}"' in rows[id]
        assert summary["best"] in rows[id]
    assert "command line" in rows["by_hand"]
    assert "/delete" in rows[LONG]
    assert "/delete" not in rows["by_hand"], "what the command line has made is not the dashboard's to delete"
    fed = client.get("/runs/feed").get_json()["data"]["runs"]
    assert {each["id"] for each in fed} == set(rows)
    alone = client.get("/runs/by_hand/row?columns=test loss", headers=HTML).get_data(as_text=True)
    assert alone.count('class="number"') == 1


def test_a_heading_sorts_by_its_metric_both_ways_and_rows_without_one_come_last(
    client: FlaskClient, folder: Path
) -> None:
    upwards, downwards = listed(client, "?sort=test+loss"), listed(client, "?sort=test+loss&backwards=1")
    without = [SHORT]
    means = []
    for id in upwards[: -len(without)]:
        summary = summary_of(folder, id)
        means.append(summary["variants"][summary["best"]]["metrics"]["test"]["loss"]["mean"])
    assert means == sorted(means)
    assert upwards[-1:] == downwards[-1:] == without
    assert set(upwards[:-1]) == set(downwards[:-1])
    page = client.get("/runs/?sort=test+loss&q=one", headers=HTML).get_data(as_text=True)
    assert 'aria-sort="ascending"' in page
    assert "sort=test+loss&amp;backwards=1" in page
    assert "q=one" in page
    assert listed(client, "?sort=nothing") == listed(client)


def test_tags_and_a_note_are_kept_shown_and_found(client: FlaskClient, folder: Path) -> None:
    for id in (LONG, "by_hand"):
        token = {"csrf_token": csrf_token(client, f"/runs/{id}/")}
        said = {"tags": f" baseline , <b>x</b>,baseline,, {id[:4]}", "note": "Kept for\nthe paper"}
        assert client.post(f"/runs/{id}/labels", data=token | said).location == f"/runs/{id}/"
    assert labels_of(folder / "runs", LONG) == Labels(("baseline", "<b>x</b>", "2026"), "Kept for\nthe paper")
    page = client.get("/runs/", headers=HTML).get_data(as_text=True)
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert set(listed(client, "?tag=baseline")) == {LONG, "by_hand"}
    assert listed(client, "?tag=2026") == [LONG]
    assert listed(client, "?q=PAPER+long") == [LONG]
    assert "1 of 6" in client.get("/runs/?q=paper+long", headers=HTML).get_data(as_text=True)
    assert listed(client, "?q=nowhere") == []
    token = {"csrf_token": csrf_token(client, f"/runs/{LONG}/")}
    many = client.post(f"/runs/{LONG}/labels", data=token | {"tags": ",".join(map(str, range(21))), "note": ""})
    assert (many.status_code, "at most 20 tags" in many.get_json()["error"]) == (400, True)
    assert client.post(f"/runs/{LONG}/labels", data={"tags": "x"}).status_code == 403
    assert client.post("/runs/none/labels", data=token).status_code == 404


def test_the_labels_of_a_run_are_deleted_with_it(tmp_path: Path) -> None:
    client = dashboard_client(tmp_path, runs_at_once=0)
    ended(noted(tmp_path / "runs", LONG, "mine"))
    write_labels(tmp_path / "runs", LONG, Labels(("mine",)))
    client.post(f"/runs/{LONG}/delete", data={"csrf_token": csrf_token(client, "/runs/")})
    assert labels_of(tmp_path / "runs", LONG) == Labels()


def test_a_run_whose_folder_has_the_longest_name_is_listed_and_labelled(tmp_path: Path) -> None:
    longest = "é" * 127
    (tmp_path / "runs" / longest).mkdir(parents=True)
    (tmp_path / "runs" / longest / "experiment.json").write_text("{}")
    client = dashboard_client(tmp_path)
    assert listed(client) == [longest]
    write_labels(tmp_path / "runs", longest, Labels(("mine",)))
    assert listed(client, "?tag=mine") == [longest]


def test_what_is_ticked_is_compared_variant_by_variant_or_the_best_of_many(client: FlaskClient, folder: Path) -> None:
    few = client.get(f"/compare/?run={LONG}&run=by_hand")
    assert few.status_code == 302
    variants = [*summary_of(folder, LONG)["variants"], *summary_of(folder, "by_hand")["variants"]]
    assert few.location.count("of=") == len(variants)
    assert client.get(few.location, headers=HTML).status_code == 200
    many = client.get(f"/compare/?run={SWEEP}&run={CUBE}")
    assert many.location.count("of=") == 2, "14 variants are too many for one page"
    assert client.get("/compare/?run=none").status_code == 404


def test_a_finished_run_begins_with_its_result_and_progress_is_folded(client: FlaskClient) -> None:
    page = client.get(f"/runs/{LONG}/", headers=HTML).get_data(as_text=True)
    assert page.index('id="results"') < page.index('id="curves"') < page.index("How it went")
    assert re.search(r"<details><summary><h2[^>]*>How it went", page)
    going = client.get(f"/runs/{SHORT}/", headers=HTML).get_data(as_text=True)
    assert "How it went" in going, "its process has ended well"


def test_a_run_that_is_not_finished_begins_with_how_far_it_is(tmp_path: Path) -> None:
    ended(noted(tmp_path / "runs", LONG, "mine"), 1)
    page = dashboard_client(tmp_path).get(f"/runs/{LONG}/", headers=HTML).get_data(as_text=True)
    assert page.index("How far it is") < page.index('id="results"')


def test_a_sweep_is_shown_best_first_with_its_axes_in_full_and_as_a_heat_map(client: FlaskClient, folder: Path) -> None:
    page = client.get(f"/runs/{SWEEP}/", headers=HTML).get_data(as_text=True)
    heat = page.partition('class="heat"')[2].partition("</table>")[0]
    assert re.findall(r'<th scope="row">([^<]+)</th>', heat) + re.findall(
        r'<th scope="col" class="number">([^<]+)</th>', heat
    ) == ["0.01", "0.1", "0.1", "0.5", "1.0"]
    assert all(name in heat for name in ("<code>server.optimizer.rate</code>", "<code>model.l2</code>"))
    assert heat.count("shade-") == 6
    summary = summary_of(folder, SWEEP)
    metric, split = summary["metric"], summary["split"]
    table = page.partition("The best first")[2].partition("</table>")[0]
    names = re.findall(r'<th scope="row">([^<]+)</th>', table)
    means = [summary["variants"][name]["metrics"][split][metric]["mean"] for name in names]
    assert len(names) == 6
    assert means in (sorted(means), sorted(means, reverse=True))
    assert (
        names[0] == summary["best"]
        or means[0] == summary["variants"][summary["best"]]["metrics"][split][metric]["mean"]
    )


def test_more_axes_are_parallel_coordinates(client: FlaskClient) -> None:
    page = client.get(f"/runs/{CUBE}/results", headers=HTML).get_data(as_text=True)
    drawing = page.partition('<svg class="parallel"')[2].partition("</svg>")[0]
    assert drawing.count("<polyline") == 8
    assert all(name in drawing for name in ("server.optimizer.rate", "model.l2", "partition.clients"))
    assert "style=" not in drawing, "the policy allows none"


@pytest.mark.parametrize(
    "settings",
    [
        [{"a": "1"}, {"a": "2"}],
        [{"a": "1", "b": "1"}, {"a": "2", "b": "2"}, {"a": "3", "b": "3"}],
        [{"a": "1"}, {"a": "2"}, {"b": "2"}],
        [{"a": "1"}, {"a": "1"}, {"a": "1"}],
    ],
)
def test_what_makes_no_grid_is_no_sweep(settings: list[dict[str, str]]) -> None:
    assert axes_of({str(number): each for number, each in enumerate(settings)}) == ()


def test_a_note_keeps_what_people_need_and_no_signs_that_mislead() -> None:
    assert (
        labelled("", "one\u202e\x1b[31m\r\n\ttwo\u00a0می\u200cخواهم 👩\u200d🔬 ").note
        == "one[31m\n two\u00a0می\u200cخواهم 👩\u200d🔬"
    )
