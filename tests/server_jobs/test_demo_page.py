"""The demo page served by ingest: only if enabled, only its own files, under a strict policy."""

import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

import pytest

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.ingest.pages import BROWSER, page_files
from tests.support.ingest_app import STUDY, IngestApp, ingest_app, make_store
from tests.support.ingest_server import running_ingest
from tests.support.pings import ping_json


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, demo_page=True)


def test_it_is_there_only_when_asked_for(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    for path in ("/demo/", "/demo", "/demo/fedping.js", "/demo/state.json"):
        answer = ingest.client.get(path)
        assert (answer.status_code, list(answer.json)) == (404, ["error"])


def test_every_file_that_the_page_asks_for_is_there_with_its_type(ingest: IngestApp) -> None:
    """Follows the page's links and the modules' imports like a browser."""
    page = ingest.client.get("/demo/")
    assert page.content_type == "text/html; charset=utf-8"
    wanted = [f"/demo/{link}" for link in re.findall(r'(?:src|href)="([^"#]+)"', page.text) if link != "data:,"]
    seen: set[str] = set()
    while wanted:
        path = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = ingest.client.get(path)
        assert answer.status_code == 200, path
        assert answer.content_type == f"text/{'css' if path.endswith('css') else 'javascript'}; charset=utf-8"
        imports = re.findall(r'^(?:import|export|\}) [^;]*?"(\.[^"]+)";$', answer.text, re.MULTILINE | re.DOTALL)
        wanted += [urljoin(path, each) for each in imports]
    assert {"/demo/demo/main.js", "/demo/demo/demo.css", "/demo/fedping.js", "/demo/study/ping.js"} <= seen
    assert all(path.startswith("/demo/") for path in seen)


def test_the_policy_is_strict_and_nothing_in_the_page_needs_less(ingest: IngestApp) -> None:
    for path in ("/demo/", "/demo/fedping.js", "/demo/state.json", "/demo/nothing"):
        headers = ingest.client.get(path).headers
        policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
    page = ingest.client.get("/demo/").text
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)|https?://", page)


def test_files_are_cached_by_their_entity_tag(ingest: IngestApp) -> None:
    first = ingest.client.get("/demo/fedping.js")
    assert first.headers["Cache-Control"] == "no-cache"
    again = ingest.client.get("/demo/fedping.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert "Content-Security-Policy" in again.headers
    assert ingest.client.get("/demo/client.js").headers["ETag"] != first.headers["ETag"]


@pytest.mark.parametrize(
    "path",
    [
        "/demo/../pyproject.toml",
        "/demo/demo/../../pyproject.toml",
        "/demo/%2e%2e/pyproject.toml",
        "/demo/..%2fpyproject.toml",
        "/demo/%252e%252e/pyproject.toml",
        "/demo//etc/passwd",
        "/demo/....//....//etc/passwd",
        "/demo/demo/main.js%00.css",
        "/demo/tests/support.js",
        "/demo/benchmarks/run.js",
        "/demo/package.json",
        "/demo/demo/",
        "/demo/demo",
    ],
)
def test_no_path_leads_out_of_the_page(ingest: IngestApp, path: str) -> None:
    answer = ingest.client.get(path, follow_redirects=True)
    assert answer.status_code == 404
    assert answer.json["error"]


def test_the_address_without_its_slash_leads_to_the_page(ingest: IngestApp) -> None:
    answer = ingest.client.get("/demo?study=study&seed=3")
    assert answer.status_code == 308
    assert answer.headers["Location"].endswith("/demo/?study=study&seed=3")


def test_the_state_counts_what_landed_for_the_next_round(ingest: IngestApp) -> None:
    def line() -> dict[str, object]:
        (told,) = ingest.client.get("/demo/state.json").json["lines"]
        return dict(told)

    assert line() == {"name": "main", "iteration": 0, "min_clients": 1, "pings": 0, "clients": 0}
    ids = [f"0000000{k}-0000-4000-8000-000000000000" for k in range(3)]
    for client in (ids[0], ids[0], ids[1]):
        assert ingest.ping(ping_json() | {"clientId": client}).status_code == 200
    ingest.land()
    assert (line()["pings"], line()["clients"]) == (3, 2)
    nothing = {"rank_selected": -1, "bookmark_and_history_rank_selected": -1, "loss": 0.0, "update": [0.0] * 22}
    assert ingest.ping(ping_json(**nothing) | {"clientId": ids[2]}).status_code == 200
    ingest.land()
    assert (line()["pings"], line()["clients"]) == (4, 2)


def test_the_state_is_of_the_first_study_or_of_the_one_asked_for(tmp_path: Path) -> None:
    from tests.support.versions import small_study

    ingest = ingest_app(tmp_path, others=[small_study("another", m=22)], demo_page=True)
    assert ingest.client.get("/demo/state.json").json["study"] == "another"
    assert ingest.client.get("/demo/state.json").json["studies"] == ["another", STUDY]
    assert ingest.client.get(f"/demo/state.json?study={STUDY}").json["study"] == STUDY
    unknown = ingest.client.get("/demo/state.json?study=neither")
    assert (unknown.status_code, list(unknown.json)) == (404, ["error"])


def test_a_damaged_file_in_the_landing_folder_does_not_stop_the_page(ingest: IngestApp) -> None:
    ingest.ping()
    ingest.land()
    (folder,) = {file.parent for file in ingest.settings.landing.rglob("*.parquet")}
    (folder / "1-damaged.parquet").write_bytes(b"no parquet")
    (line,) = ingest.client.get("/demo/state.json").json["lines"]
    assert line["pings"] == 1


def test_a_store_without_studies_is_told(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path, demo_page=True)
    ingest.services.catalogue._rules = {}
    answer = ingest.client.get("/demo/state.json")
    assert answer.status_code == 404
    assert "fedping study create" in answer.text


def test_a_store_that_goes_away_costs_the_page_nothing(ingest: IngestApp, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    answer = ingest.client.get("/demo/state.json")
    assert (answer.status_code, answer.json["study"]) == (200, STUDY)


def test_an_installation_without_the_page_says_so(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match="remove --demo-page"):
        page_files(tmp_path)
    assert "demo/index.html" in page_files(BROWSER)


def test_a_real_ingest_serves_it_over_http(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--demo-page", "--workers", "1") as server:
        with urllib.request.urlopen(f"{server.url}/demo/") as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert server.ask("/demo/state.json")["study"] == STUDY
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{server.url}/demo/%2e%2e/pyproject.toml")
        assert server.ask("/models/study/study.json")["name"] == STUDY
