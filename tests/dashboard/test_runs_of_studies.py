"""A simulated study among the runs: its own page, its Live and Results pages, and its form."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from fedping.dashboard.runs.places import place
from fedping.experiments.run_folder import NOTE
from fedping.experiments.simulate import experiment_from_toml, simulate
from fedping.experiments.simulate.summary import Summary
from fedping.protocol.digest import canonical_json
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.formats import with_format
from tests.support.dashboard import csrf_token, dashboard_client
from tests.support.small_experiment import experiment_file, private_experiment_file
from tests.support.watched import ended, finished_run, noted

RUN, OTHER = "20260102-030405-a-study", "20260102-030405-a-laboratory"
HTML, JSON = {"Accept": "text/html", "Sec-Fetch-Site": "none"}, {"Accept": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dashboard's folder with a study whose run has finished."""
    folder = tmp_path_factory.mktemp("dashboard")
    file = experiment_file(folder / "files", min_clients=2, clients=300, iterations=3, ticks=1)
    run = noted(folder / "runs", RUN, "the study of a run", file.read_text())
    simulate(*experiment_from_toml(file), run / "out", threads=1)
    ended(run)
    return folder


@pytest.mark.parametrize("form", ["one document", "a line each, as before"])
def test_a_finished_study_is_a_run_like_others(folder: Path, tmp_path: Path, form: str) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    out = tmp_path / "runs" / RUN / "out"
    if form != "one document":
        settings = map(canonical_json, experiment_from_toml(tmp_path / "files" / "experiment.toml"))
        (out / NOTE).write_bytes(with_format(b"\n".join(settings)))
    client = dashboard_client(tmp_path)
    assert place(tmp_path / "runs", RUN).kind == "study"
    for address in ("", "feed", "log", "metrics.csv", "metrics.parquet", "summary.json"):
        answer = client.get(f"/runs/{RUN}/{address}", headers=JSON)
        assert answer.status_code == 200, (address, answer.get_data(as_text=True))
        assert b"damaged" not in answer.get_data()
    assert client.get(f"/compare/?of={RUN}:any", headers=HTML).status_code == 400
    assert "damaged" not in client.get("/compare/", headers=HTML).text


def test_what_an_earlier_version_has_begun_goes_on_and_another_study_does_not(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file, out = tmp_path / "files" / "experiment.toml", tmp_path / "runs" / RUN / "out"
    note = (out / NOTE).read_bytes()
    settings = list(map(canonical_json, experiment_from_toml(file)))
    (out / NOTE).write_bytes(with_format(b"\n".join(settings)))
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert simulate(*experiment_from_toml(file), out, threads=1) == summary
    assert (out / NOTE).read_bytes() == note
    assert set(msgspec.json.decode(note)) == {"format", "experiment", "study"}
    file.write_text(file.read_text().replace("seed = 4", "seed = 5"))
    with pytest.raises(InvalidSettings, match="another experiment"):
        simulate(*experiment_from_toml(file), out, threads=1)


def test_its_live_and_results_pages_open_in_their_place(folder: Path) -> None:
    client = dashboard_client(folder)
    page = client.get(f"/runs/{RUN}/", headers=HTML).text
    base = f"/runs/{RUN}/study"
    assert f'href="{base}/live/"' in page
    assert f'href="{base}/results/"' in page
    live = client.get(f"{base}/live/", headers=HTML)
    assert live.location == f"{base}/live/small/main/"
    shown = client.get(live.location, headers=HTML).text
    assert 'href="/runs/" aria-current="page"' in shown, "the page belongs to the runs"
    assert f'<a href="/runs/{RUN}/">the study of a run</a>' in shown
    rows = client.get(f"{base}/live/small/main/changes", headers=JSON).get_json()["data"]["rows"]
    assert len(rows) == 4
    results = client.get(f"{base}/results/", headers=HTML)
    assert results.location == f"{base}/results/small/"
    assert f'action="{base}/results/small/count"' in client.get(results.location, headers=HTML).text


def test_what_is_counted_of_it_stays_with_it_and_what_it_came_to_is_not_rolled_back(folder: Path) -> None:
    client = dashboard_client(folder)
    base = f"/runs/{RUN}/study"
    token = {"X-CSRF-Token": csrf_token(client, f"{base}/live/small/main/")}
    answer = client.post(f"{base}/live/small/main/rollback", json={"to": 1, "seen": "3.x"}, headers=token)
    assert (answer.status_code, "can't be rolled back" in answer.get_json()["error"]) == (409, True)
    answer = client.post(f"{base}/live/small/main/held", json={"choice": "release", "seen": "3.x"}, headers=token)
    assert (answer.status_code, "a simulated study" in answer.get_json()["error"]) == (409, True)
    assert client.post(f"{base}/live/small/main/rollback", json={}).status_code == 403
    assert not (folder / "runs" / RUN / ".dashboard-key").exists(), "one key signs the cookies of all pages"


def test_no_other_run_has_such_pages_and_nobody_without_the_token(folder: Path) -> None:
    finished_run(folder / "runs", OTHER, "a laboratory", "rounds=2", "seeds=[1]")
    client = dashboard_client(folder)
    for id in (OTHER, "none", "..", ".dashboard-key", "x" * 300):
        assert client.get(f"/runs/{id}/study/live/", headers=JSON).status_code == 404, id
    closed = dashboard_client(folder, token="a token of the tests")
    assert closed.get(f"/runs/{RUN}/study/live/", headers=JSON).status_code == 401
    door = closed.get(f"/runs/{RUN}/study/live/", headers=HTML)
    assert door.location == f"/enter?next=%2Fruns%2F{RUN}%2Fstudy%2Flive%2F"
    inside = closed.get(f"/runs/{RUN}/study/live/?token=a+token+of+the+tests", headers=HTML)
    assert inside.location == f"/runs/{RUN}/study/live/"
    assert closed.get(f"/runs/{RUN}/study/live/small/main/", headers=HTML).status_code == 200
    assert closed.get("/runs/", headers=HTML).status_code == 200


def test_a_private_study_tells_its_budget_and_its_noisy_results(tmp_path: Path) -> None:
    file = private_experiment_file(tmp_path / "files", rounds=2, iterations=3, ticks=1)
    run = noted(tmp_path / "runs", RUN, "a hushed study", file.read_text())
    simulate(*experiment_from_toml(file), run / "out", threads=1)
    ended(run)
    client = dashboard_client(tmp_path)
    page = client.get(f"/runs/{RUN}/", headers=HTML).text
    assert "Epsilon 8 of 8 is spent, by 2 rounds; its guarantee allows no further round." in page
    assert "Reproducible noise protects no one." in page
    assert "contributions, about" in page
    base = f"/runs/{RUN}/study"
    live = client.get(f"{base}/live/", headers=HTML).location
    assert "damaged" not in client.get(live, headers=HTML).text
    rows = client.get(f"{live}changes", headers=JSON).get_json()["data"]["rows"]
    assert len(rows) == 3
    now = client.get(f"{live}changes", headers=JSON).get_json()
    assert "simulated" in str(now)
    results = client.get(client.get(f"{base}/results/", headers=HTML).location, headers=HTML).text
    assert "This study is private: its pings are deleted after each round" in results
    assert client.get(f"{base}/live/hushed/privacy", headers=HTML).status_code == 200
