"""Many runs: pages of rows over HTTP, groups by seed, filters in the address, and an index that follows the files."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests
from flask.testing import FlaskClient

from fedping.dashboard.runs import index as index_of_runs
from fedping.dashboard.runs import listing
from fedping.dashboard.runs.choosing import ON_A_PAGE
from fedping.dashboard.runs.index import FILE, FOLDER, Condition, RunIndex, index_of
from tests.support.dashboard import dashboard_client
from tests.support.dashboard_server import start_dashboard
from tests.support.forked import run
from tests.support.many_runs import (
    SEEDS,
    accuracy_of,
    band_of,
    ids_of,
    many_runs,
    rate_of,
    retell,
    summary_of,
    write_summary,
)
from tests.support.processes import wait_until

HTML = {"Accept": "text/html"}
RUNS = 300
FEW = 12
FOREVER = float("inf")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a dashboard over 300 finished runs, once they are indexed."""
    folder = tmp_path_factory.mktemp("many")
    many_runs(folder / "runs", RUNS)
    places = [f"--{name}={folder / name}" for name in ("store", "landing", "runs")]
    server = start_dashboard(folder / "dashboard.log", *places)
    try:
        url = f"{server.url}/runs/"
        assert wait_until(lambda: requests.get(f"{url}feed", timeout=60).json()["data"]["progress"] is None)
        yield url
    finally:
        server.stop()


def rows_of(page: str) -> list[tuple[str, str]]:
    """Return the id and the contents of each row."""
    return re.findall(r'<tr id="run-([^"]+)"[^>]*>(.*?)</tr>', page, re.DOTALL)


def page_of(address: str, query: str = "") -> str:
    answer = requests.get(f"{address}{query}", headers=HTML, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def titles_of(page: str) -> list[str]:
    return [re.findall(r"point \d+", row)[0] for _, row in rows_of(page)]


def test_runs_that_differ_only_by_seed_are_one_row_with_their_mean_and_interval(address: str) -> None:
    page = page_of(address)
    rows = rows_of(page)
    assert (len(rows), f"{RUNS} runs in {RUNS // SEEDS} rows" in page) == (ON_A_PAGE, True)
    assert "the newest is compared" in page
    assert "the newest is compared" not in page_of(address, "?group=none")
    _, newest = rows[0]
    band = band_of([accuracy_of(number) for number in range(RUNS - SEEDS, RUNS)])
    assert band.mean is not None
    assert band.half is not None
    assert "4 runs, seeds 1 to 4" in newest
    assert f"{band.mean:.4g}" in newest
    assert f"± {band.half:.2g}" in newest
    [link] = re.findall(r'href="/runs/(\?alike=[^"]+)"', newest)
    inside = page_of(address, link.replace("&amp;", "&"))
    assert titles_of(inside) == [f"point {number}" for number in reversed(range(RUNS - SEEDS, RUNS))]


def test_pages_hold_a_bounded_number_of_rows_and_no_run_is_on_two(address: str) -> None:
    first, second = page_of(address), page_of(address, "?page=2")
    assert 'rel="next" href="/runs/?page=2"' in first
    assert 'rel="next"' not in second
    seen = titles_of(first) + titles_of(second)
    assert len(seen) == len(set(seen)) == RUNS // SEEDS
    assert titles_of(page_of(address, "?group=none&page=6"))[-1] == "point 0"
    assert rows_of(page_of(address, "?page=99")) == []
    for query, words in (
        ("?page=none", "is not a page"),
        ("?page=0", "is not a page"),
        ("?where=x", "not a condition"),
    ):
        answer = requests.get(f"{address}{query}", headers=HTML, timeout=60)
        assert (answer.status_code, words in answer.text) == (400, True)


def test_an_address_holds_filter_order_columns_and_groups(address: str) -> None:
    asked = {
        "add_column": "settings.server.optimizer.rate",
        "add_is": "<=",
        "add_value": "0.01",
        "sort": "test accuracy",
        "group": "none",
        "column": ["test accuracy", "settings.server.optimizer.rate"],
    }
    answer = requests.get(address, params=asked, headers=HTML, timeout=60)
    kept = parse_qsl(urlsplit(answer.url).query)
    assert ("where", "settings.server.optimizer.rate <= 0.01") in kept
    assert not {name for name, _ in kept} & {"add_column", "add_is", "add_value"}
    assert page_of(answer.url).count("<tr id=") == answer.text.count("<tr id=") == 40
    expected = sorted((n for n in range(RUNS) if rate_of(n) <= 0.01), key=lambda n: (accuracy_of(n), -n))
    assert titles_of(answer.text) == [f"point {number}" for number in expected]
    assert titles_of(page_of(answer.url + "&backwards=1"))[0] == f"point {expected[-1]}"
    _, row = rows_of(answer.text)[0]
    assert f'data-label="server.optimizer.rate">{rate_of(expected[0])}</td>' in row
    assert row.count("<td") == 6, "the two chosen columns and the four that every row has"


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("settings.server.optimizer.rate = 0.005", SEEDS),
        ("settings.server.optimizer.rate != 0.005", RUNS - SEEDS),
        ("settings.model.name ~ LOGISTIC", RUNS),
        ("test accuracy > 0.9525", sum(accuracy_of(n) > 0.9525 for n in range(RUNS))),
        ("state = finished", RUNS),
        ("state != finished", 0),
        ("no.such = 1", 0),
        ("title = point 7", 1),
    ],
)
def test_conditions_choose_what_they_say(address: str, where: str, number: int) -> None:
    told = requests.get(f"{address}feed", params={"where": where, "group": "none"}, timeout=60).json()["data"]
    assert (told["matching"], told["all"]) == (number, RUNS)


def test_groups_by_a_setting_have_the_mean_over_their_runs(address: str) -> None:
    page = page_of(address, "?group=settings.model.l2&column=test+accuracy")
    [(_, row)] = rows_of(page)
    mean = sum(map(accuracy_of, range(RUNS))) / RUNS
    assert f"{mean:.4g}" in row
    assert f"{RUNS} runs" in row
    assert "standard deviation" in page


def test_drawings_have_the_values_of_the_rows_and_are_bounded(address: str) -> None:
    axes = ["settings.server.optimizer.rate", "settings.model.name", "test accuracy"]
    drawn = requests.get(f"{address}points.json", params={"axis": axes}, timeout=60).json()
    assert (drawn["rows"], len(drawn["points"]), drawn["axes"]) == (RUNS // SEEDS, RUNS // SEEDS, axes)
    newest = drawn["points"][0]
    mean = sum(accuracy_of(number) for number in range(RUNS - SEEDS, RUNS)) / SEEDS
    assert newest["runs"] == SEEDS
    assert newest["values"] == [rate_of(RUNS - 1), "logistic-regression", pytest.approx(mean)]
    page = page_of(address, "drawing")
    assert '<option value="settings.server.optimizer.rate">' in page
    for count in (0, 9):
        asked = {"axis": [f"settings.{number}" for number in range(count)]}
        refused = requests.get(f"{address}points.json", params=asked, timeout=60)
        assert (refused.status_code, "choose 1 to 8" in refused.json()["error"]) == (400, True)


def test_only_what_differs_between_runs_is_shown(address: str) -> None:
    one, other, third = ids_of(RUNS)[:2] + ids_of(RUNS)[8:9]
    url = address.replace("/runs/", "/compare/differences")
    seeds = requests.get(url, params={"run": [one, other]}, headers=HTML, timeout=60).text
    assert "settings are the same" in seeds
    assert ">seeds</th>" in seeds
    rates = requests.get(url, params={"run": [one, third]}, headers=HTML, timeout=60).text
    assert re.findall(r'<th scope="row"><code>([^<]+)</code>', rates) == ["server.optimizer.rate"]
    assert "server.weighting" not in rates
    for ids in ([one], ids_of(RUNS)[:13]):
        answer = requests.get(url, params={"run": ids}, headers=HTML, timeout=60)
        assert (answer.status_code, "choose 2 to 12" in answer.text) == (400, True)


def test_comparing_is_bounded_and_says_so(address: str) -> None:
    page = requests.get(address.replace("/runs/", "/compare/"), headers=HTML, timeout=60).text
    assert page.count("<fieldset>") == 20
    assert f"newest 20 of {RUNS}" in page
    found = requests.get(
        address.replace("/runs/", "/compare/"), params={"q": "point 17"}, headers=HTML, timeout=60
    ).text
    assert "point 17 " in found
    assert "point 299 " not in found


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    many_runs(tmp_path / "runs", FEW)
    return tmp_path / "runs"


@pytest.fixture
def client(runs: Path) -> FlaskClient:
    return dashboard_client(runs.parent, runs_at_once=0)


def shown(client: FlaskClient, query: str = "?group=none") -> str:
    return client.get(f"/runs/{query}", headers=HTML).get_data(as_text=True)


def test_a_group_has_the_best_variant_of_all_its_seeds_and_each_seed_once(client: FlaskClient, runs: Path) -> None:
    ids = ids_of(3)
    retell(runs / ids[0], a={1: 0.5, 2: 0.9}, b={1: 0.1, 2: 0.2})
    retell(runs / ids[1], a={2: 0.6, 3: 0.7}, b={2: 0.8, 3: 0.82})
    retell(runs / ids[2], a={4: 0.9, 5: 0.91}, b={4: 0.89, 5: 0.87})
    [(_, row)] = [each for each in rows_of(shown(client, "?column=test+accuracy")) if "3 runs" in each[1]]
    of_b = [0.8, 0.82, 0.89, 0.87]  # the newest run has a as its best, and the oldest repeats seed 2
    mean = sum(of_b) / 4
    deviation = (sum((value - mean) ** 2 for value in of_b) / 3) ** 0.5
    assert 'data-label="best variant">b</td>' in row
    assert f"{mean:.4g} " in row
    assert f"± {3.182446 * deviation / 2:.2g}" in row
    assert 'title="of 4 seeds"' in row
    ungrouped = dict(rows_of(shown(client, "?group=none&column=test+accuracy")))
    assert [re.findall(r'best variant">(\w+)<', ungrouped[id])[0] for id in ids] == ["a", "b", "a"]
    differing = client.get("/runs/feed?where=settings.server.optimizer.rate+%3D+2").get_json()["data"]
    assert differing["matching"] == 3, "a condition is met by any variant"


def test_each_variant_may_be_a_row_with_its_own_settings_and_conditions(client: FlaskClient, runs: Path) -> None:
    ids = ids_of(2)
    retell(runs / ids[0], a={1: 0.5}, b={1: 0.1})
    retell(runs / ids[1], a={1: 0.6}, b={1: 0.8}, c={1: 0.7})
    query = "?group=variant&column=settings.server.optimizer.rate&column=test+accuracy&sort=test+accuracy"
    rows = [row for _, row in rows_of(shown(client, query)) if "variants" in row]
    cells = re.compile(r'<p class="said">(\w)</p>.*?rate"[^>]*>([\d.]+)<.*?test"[^>]*>([\d.]+)<', re.DOTALL)
    expected = ["b 2.0 0.1", "a 1.0 0.5", "a 1.0 0.6", "c 3.0 0.7", "b 2.0 0.8"]
    assert [" ".join(cells.findall(row)[0]) for row in rows] == expected
    asked = "&where=settings.server.optimizer.rate+%3E%3D+1&where=test+accuracy+%3C+0.75&where=settings.rounds+=+5"
    rows = [row for _, row in rows_of(shown(client, query + asked)) if "variants" in row]
    assert len(rows) == 4
    asked = "&where=settings.server.optimizer.rate+!=+1&where=settings.server.optimizer.rate+~+."
    names = [re.findall(r'<p class="said">(\w)</p>', row) for _, row in rows_of(shown(client, query + asked))]
    assert [name for [name] in filter(None, names)] == ["b", "c", "b"]
    points = client.get(f"/runs/points.json{query}&axis=settings.server.optimizer.rate&axis=test+accuracy").get_json()
    drawn = {point["title"]: point["values"] for point in points["points"]}
    assert drawn["point 1: c"] == [3.0, 0.7]
    compared = client.get(f"/compare/?of={ids[0]}:a&run={ids[1]}")
    assert compared.location.count("of=") == 2


def test_files_overrule_the_index(client: FlaskClient, runs: Path) -> None:
    ids = ids_of(FEW)
    assert "0.1234" not in shown(client)
    write_summary(runs / ids[3] / "out", summary_of(federated={4: 0.1234}))
    page = shown(client)
    assert "0.1234" in dict(rows_of(page))[ids[3]]
    assert titles_of(shown(client, "?group=none&sort=test+accuracy"))[0] == "point 3"
    shutil.rmtree(runs / ids[5])
    (runs / ids[6] / "ended.json").unlink()
    states = {id: re.findall(r'class="tag[^>]*>(\w+)<', row)[0] for id, row in rows_of(shown(client))}
    assert states == {id: "lost" if id == ids[6] else "finished" for id in ids if id != ids[5]}
    told = client.get("/runs/feed?where=state+%3D+lost").get_json()["data"]
    assert ([each["id"] for each in told["runs"]], told["all"]) == ([ids[6]], FEW - 1)


@pytest.mark.parametrize("damage", ["empty", "noise", "noise inside", "other tables", "other rows", "gone", "a folder"])
def test_a_damaged_index_is_made_anew(runs: Path, damage: str) -> None:
    before = RunIndex(runs)
    before.look(FOREVER)
    expected = [(row.id, row.alike) for row in before.choose([], [])]
    file = runs / FOLDER / FILE
    if damage == "other rows":
        with sqlite3.connect(file) as database:
            database.execute("UPDATE run SET kept = zeroblob(length(kept))")
    elif damage == "other tables":
        file.unlink()
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE run (id TEXT)")
    elif damage in ("gone", "a folder"):
        shutil.rmtree(file.parent)
        if damage == "a folder":
            file.mkdir(parents=True)
    else:
        data = bytearray(file.read_bytes())
        begin = 100 if damage == "noise inside" else 0
        noise = b"" if damage == "empty" else os.urandom(len(data) - begin)
        file.write_bytes(data[:begin] + noise)
    for index in (before, RunIndex(runs)):  # an index that was open, and a newly opened one
        for _ in range(3):
            index.fresh(ids_of(FEW))
            index.look(FOREVER)
            if index.complete:
                break
        assert [(row.id, row.alike) for row in index.choose([], [])] == expected
        assert [one.kept.row["state"] for one in index.fresh(ids_of(FEW))] == ["finished"] * FEW


def test_an_index_that_another_process_holds_is_left_alone(
    client: FlaskClient, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_of_runs, "_WAIT", 0.05)
    assert len(rows_of(shown(client))) == FEW
    with sqlite3.connect(runs / FOLDER / FILE, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        held = client.get("/runs/?q=point", headers=HTML)
        assert (held.status_code, "process has been writing the index" in held.get_data(as_text=True)) == (409, True)
        other.execute("ROLLBACK")
    assert len(rows_of(shown(client, "?q=point&group=none"))) == FEW


WRITER = """
import sys
from pathlib import Path
from fedping.dashboard.runs.index import RunIndex
for _ in range(8):
    index = RunIndex(Path(sys.argv[1]))
    for folder in Path(sys.argv[1]).glob("2*"):
        (folder / "out" / "summary.json").touch()
    index.look(float("inf"))
assert index.count() == 12, index.count()
"""


def test_two_processes_may_write_it(runs: Path) -> None:
    ended: list[int] = []
    other = threading.Thread(target=lambda: ended.append(run([sys.executable, "-c", WRITER, str(runs)]).returncode))
    other.start()
    while other.is_alive():
        index = RunIndex(runs)
        index.look(FOREVER)
        assert index.count() in range(FEW + 1)
    other.join()
    assert ended == [0]
    index.look(FOREVER)
    assert [row.id for row in index.choose([], [Condition("state", "=", "finished")])] == ids_of(FEW)[::-1]


def test_the_first_page_does_not_wait_for_the_index(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PATIENCE", 0.0)
    monkeypatch.setattr(index_of_runs, "_AT_ONCE", 0)
    monkeypatch.setattr(index_of_runs, "_CHUNK", 1)
    client = dashboard_client(runs.parent, runs_at_once=0)
    page = shown(client)
    assert 'id="indexing">' in page
    assert f"of {FEW}</span>" in page
    assert wait_until(lambda: index_of(runs).complete)
    assert 'id="indexing" hidden' in shown(client)
    assert len(rows_of(shown(client))) == FEW
