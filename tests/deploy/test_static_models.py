"""deploy/kubernetes/models.conf in a real nginx over a real store: answers like ingest, and nothing more."""

import contextlib
import http.client
import json
from collections.abc import Iterator

import pytest

from fedping.model_store import open_store
from tests.support.images import ROOT
from tests.support.ingest_app import STUDY, make_store
from tests.support.ingest_server import IngestServer, free_port, running_ingest
from tests.support.nginx import running_nginx
from tests.support.versions import after

AROUND = """
daemon off; pid {folder}/nginx.pid; worker_processes 1; {user}
events {{ worker_connections 64; }}
http {{
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/models.conf;
}}
"""


@pytest.fixture(scope="module")
def ingest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    folder = tmp_path_factory.mktemp("served")
    store = make_store(folder / "store")
    store.publish(after(store.head(STUDY, "main")))
    # As in pods, ingest reads the store and doesn't write it.
    with running_ingest(folder / "store", folder / "landing", "--workers", "1") as running:
        yield running


@pytest.fixture(scope="module")
def static(ingest: IngestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of nginx with the file, in which only addresses and paths are replaced."""
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    text = (ROOT / "deploy" / "kubernetes" / "models.conf").read_text()
    for old, new in {
        "listen 8080;": f"listen 127.0.0.1:{port};",
        "http://fedping-ingest:8080": ingest.url,
        "/srv/fedping/store/": f"{ingest.landing.parent / 'store'}/",
        "/dev/stderr": f"{folder}/error.log",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / "models.conf").write_text(text)
    with running_nginx(AROUND, folder, port):
        yield port


def ask(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@pytest.mark.parametrize("path", ["main/latest.json", "main/0.json", "main/1.json", "study.json"])
def test_a_client_is_told_what_ingest_tells(path: str, static: int, ingest: IngestServer) -> None:
    told, by_ingest = ask(static, f"/models/{STUDY}/{path}"), ask(ingest.port, f"/models/{STUDY}/{path}")
    assert (told[0], told[2]) == (by_ingest[0], by_ingest[2]) == (200, by_ingest[2])
    for name in ("cache-control", "access-control-allow-origin", "content-type"):
        assert told[1][name] == by_ingest[1][name], name
    if path == "main/latest.json":
        assert json.loads(told[2])["iteration"] == 1


def test_a_fetch_of_what_has_not_changed_costs_no_body(static: int) -> None:
    for packed in ("identity", "gzip"):
        _, headers, _ = ask(static, f"/models/{STUDY}/main/latest.json", Accept_Encoding=packed)
        again = ask(static, f"/models/{STUDY}/main/latest.json", Accept_Encoding=packed, If_None_Match=headers["etag"])
        assert (again[0], again[2]) == (304, b"")


def test_a_new_version_is_there_at_once(static: int, ingest: IngestServer) -> None:
    store = open_store(ingest.landing.parent / "store")
    version = after(store.head(STUDY, "main"))
    assert ask(static, f"/models/{STUDY}/main/{version.iteration}.json")[0] == 404
    store.publish(version)
    for name in ("latest", str(version.iteration)):
        assert json.loads(ask(static, f"/models/{STUDY}/main/{name}.json")[2])["iteration"] == version.iteration


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/models/",
        f"/models/{STUDY}/main/versions/0.json",
        f"/models/{STUDY}/main/asked/0.request",
        f"/models/{STUDY}/main/99.json",
        f"/models/{STUDY}/main/",
        f"/models/{STUDY}/state.json",
        f"/models/{STUDY}/main/../study.json/latest.json",
        f"/models/{STUDY}/..%2fmain/latest.json",
        "/models/no-such-study/main/latest.json",
        "/metrics",
        "/__status__",
        "/submit/study",
    ],
)
def test_nothing_else_of_the_store_or_of_ingest_can_be_reached(path: str, static: int) -> None:
    status, headers, body = ask(static, path)
    assert status == 404
    assert headers["access-control-allow-origin"] == "*", "a page could not tell it from a network that is down"
    assert "error" in json.loads(body)


def test_a_path_that_leads_out_of_the_store_is_refused(static: int) -> None:
    assert ask(static, f"/models/..%2f..%2f{STUDY}/main/latest.json")[0] == 400


def test_where_ingest_is_away_models_are_still_there(static: int, ingest: IngestServer) -> None:
    """The study's document is unavailable; the answer tells a client to retry."""
    ingest.stop()
    try:
        assert ask(static, f"/models/{STUDY}/main/latest.json")[0] == 200
        status, headers, body = ask(static, f"/models/{STUDY}/study.json")
        assert (status, headers["retry-after"]) == (503, "10")
        assert "error" in json.loads(body)
    finally:
        ingest.start()
