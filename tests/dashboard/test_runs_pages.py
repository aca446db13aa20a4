"""The Experiments page without scripts: runs are described, started, stopped, resumed and deleted by plain forms."""

import os
import re
import time
from html import unescape
from html.parser import HTMLParser

import pytest

from fedping.dashboard.runs.form.values import tables_of
from fedping.dashboard.runs.judging import preset
from fedping.dashboard.runs.listing import RunsFeed
from fedping.dashboard.runs.registry import RunBook
from tests.support.dashboard import csrf_token, dashboard_client

HTML = {"Accept": "text/html"}


@pytest.fixture
def client(tmp_path):
    """Return a client of a dashboard in which every run waits, so that none is started."""
    return dashboard_client(tmp_path, runs_at_once=0)


@pytest.fixture
def book(tmp_path):
    return RunBook(tmp_path / "runs", at_most=0)


class Inputs(HTMLParser):
    """The values that a browser without scripts would send of a page's form ``description``."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sent: dict[str, str] = {}
        self.ids: list[str] = []
        self.described: list[str] = []
        self._in, self._select, self._textarea = False, None, None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        has = dict(attributes)
        if tag == "form":
            self._in = has.get("id") == "description"
        if tag == "template":
            self._in = False
        self.ids += [has["id"]] if "id" in has else []
        self.described += has.get("aria-describedby", "").split() + has.get("aria-labelledby", "").split()
        if not self._in:
            return
        if tag == "input" and (has.get("type") != "checkbox" or "checked" in has):
            self.sent[has["name"]] = has.get("value", "")
        if tag == "select":
            self._select = has["name"]
        if tag == "option" and (self._select not in self.sent or "selected" in has):
            self.sent[self._select] = has.get("value", "")
        if tag == "textarea":
            self._textarea = has["name"]
            self.sent[has["name"]] = ""

    def handle_data(self, data):
        if self._textarea:
            self.sent[self._textarea] += data

    def handle_endtag(self, tag):
        if tag == "textarea":
            self._textarea = None
        if tag == "form":
            self._in = False


def inputs_of(client, address: str) -> Inputs:
    return Inputs(client.get(address, headers=HTML).get_data(as_text=True))


def test_the_form_begins_with_an_experiment_that_can_be_started_at_once(client, book):
    form = inputs_of(client, "/runs/new")
    assert client.post("/runs/start", data=form.sent).headers["Location"].startswith("/runs/")
    run = book.runs()[0]
    assert (run.title, run.state) == ("breast-cancer", "waiting")
    shown = client.get("/runs/", headers=HTML).get_data(as_text=True)
    assert "5 variants × 5 seeds" in shown
    assert "breast-cancer" in client.get(f"/runs/{run.id}/row", headers=HTML).get_data(as_text=True)


@pytest.mark.parametrize(
    "address", ["/runs/", "/runs/new", "/runs/text", "/runs/new?from=demo_study", "/runs/text?from=demo_study"]
)
def test_every_id_of_a_page_is_there_once_and_what_is_pointed_at_is_there(client, address):
    page = inputs_of(client, address)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.described) <= set(page.ids)


def test_what_is_wrong_is_told_beside_its_field_and_nothing_is_lost(client, book):
    form = inputs_of(client, "/runs/new").sent | {"rounds": "many", "title": "kept"}
    answer = client.post("/runs/start", data=form, headers={"Accept": "text/html"})
    page = answer.get_data(as_text=True)
    assert answer.status_code == 400
    assert re.search(r'id="rounds-wrong">[^<]*many', page)
    assert Inputs(page).sent | {"csrf_token": ""} == form | {"csrf_token": ""}
    assert book.runs() == []


def errors_of(page: str) -> str:
    """Return the summary of errors, which must be first on the page and have the focus."""
    summary = re.search(r'<section class="alarm errors" id="errors"[^>]*>.*?</section>', page, re.DOTALL)
    assert 'tabindex="-1"' in summary[0]
    assert page.index(summary[0]) < page.index("<form")
    return summary[0]


def test_everything_wrong_is_summed_up_on_top_with_links_to_the_fields(client, book):
    wrong = {"rounds": "many", "partition@iid.clients": "-1", "training@local.rate": "0", "arm.1.value.0": "fast"}
    form = inputs_of(client, "/runs/new").sent | wrong
    page = client.post("/runs/start", data=form, headers=HTML).get_data(as_text=True)
    summary = errors_of(page)
    links = re.findall(r'<a href="#([^"]+)">([^<]+)</a>: ([^<]+)</li>', summary)
    ids = Inputs(page).ids
    assert " autofocus" in summary
    assert "<title>Error: " in page
    assert {input for input, _, _ in links} >= {"rounds", "partition@iid.clients"}
    assert all(input in ids and f'id="{input}-wrong"' in page for input, _, _ in links)
    assert ("rounds", "Rounds") in [(input, label) for input, label, _ in links]
    assert book.runs() == []
    fine = client.get("/runs/new", headers=HTML).text
    assert " hidden" in errors_of(fine).partition(">")[0]
    assert "<title>Error" not in fine


def test_what_is_wrong_with_a_text_is_summed_up_on_top_and_leads_to_it(client):
    form = inputs_of(client, "/runs/text").sent | {"text": "rounds = "}
    summary = errors_of(client.post("/runs/start", data=form, headers=HTML).get_data(as_text=True))
    assert '<a href="#text">' in summary
    assert "not valid TOML" in summary


def test_the_script_is_told_the_file_its_size_and_what_is_wrong(client):
    form = inputs_of(client, "/runs/new").sent
    token = {"X-CSRF-Token": csrf_token(client, "/runs/new")}
    told = client.post("/runs/describe", json=form, headers=token).get_json()
    assert told["size"] == "5 variants × 5 seeds"
    assert 'name = "breast-cancer"' in told["text"]
    wrong = client.post("/runs/describe", json=form | {"partition@iid.clients": "none"}, headers=token).get_json()[
        "problems"
    ]
    assert [each["input"] for each in wrong] == ["partition@iid.clients"]
    assert "'none'" in wrong[0]["sentence"]
    text = client.post("/runs/describe", json={"text": "rounds = "}, headers=token).get_json()
    assert "not valid TOML" in text["problems"][0]["sentence"]


def test_a_variant_and_a_difference_can_be_added_without_a_script(client):
    form = inputs_of(client, "/runs/new").sent
    page = client.post("/runs/new", data=form | {"add": "difference.0"}).get_data(as_text=True)
    assert 'name="arm.0.value.0"' in page
    assert 'name="arm.0.value.1"' not in page
    form = {name: value for name, value in form.items() if not name.startswith("arm.")}
    form |= {"arm.0.name": "slow", "arm.0.key.0": "training.rate", "arm.0.value.0": "0.1"}
    assert 'name="arm.1.name"' in client.post("/runs/new", data=form | {"add": "arm"}).get_data(as_text=True)


def test_form_and_text_lead_into_each_other(client):
    form = inputs_of(client, "/runs/new").sent
    text = Inputs(client.post("/runs/text", data=form | {"rounds": "7"}).get_data(as_text=True)).sent
    assert "rounds = 7" in text["text"]
    back = Inputs(client.post("/runs/new", data=text).get_data(as_text=True)).sent
    assert tables_of(back, []) == tables_of(form | {"rounds": "7"}, [])
    unknown = client.post("/runs/new", data=text | {"text": text["text"] + "\n[wind]\nspeed = 3"}).get_data(
        as_text=True
    )
    assert "has no field for wind" in unknown


def test_a_run_can_be_described_again_like_another(client, book):
    run = book.start(preset("rodriguez_barroso_2020_k_means").text.encode(), "centroids")
    form = inputs_of(client, f"/runs/new?like={run.id}").sent
    assert (form["model.name"], form["title"], form["arm.1.name"]) == ("k-means", "centroids", "recluster, IID")


@pytest.mark.parametrize(
    ("address", "held"),
    [
        ("/runs/new", "breast_cancer"),
        ("/runs/new?from=attacks", "attacks"),
        ("/runs/text?from=demo_study", "demo_study"),
        ("/runs/new?like=RUN", ""),
    ],
)
def test_the_list_to_begin_with_names_what_the_form_holds(client, book, address, held):
    run = book.start(preset("attacks").text.encode(), "mine")
    page = client.get(address.replace("RUN", run.id), headers=HTML).get_data(as_text=True)
    options = page.partition('name="from"')[2].partition("</select>")[0]
    chosen = re.findall(r"<option value=\"([^\"]*)\"[^>]* selected>", options)
    assert chosen == [held]
    again = client.post("/runs/new", data=inputs_of(client, "/runs/new").sent | {"add": "arm"}).get_data(as_text=True)
    assert '<option value="" selected>choose one' in again


def test_a_study_is_described_in_the_form_and_brings_its_file(client, book):
    form = inputs_of(client, "/runs/new?from=notebooks").sent
    assert (form["study"], form["clients"], "text" in form) == ("demo.toml", "20000", False)
    wrong = client.post("/runs/start", data=form | {"clients": "none"}, headers=HTML)
    assert (wrong.status_code, 'id="clients-wrong"' in wrong.text) == (400, True)
    text = Inputs(client.post("/runs/text", data=form).get_data(as_text=True)).sent
    assert "clients = 20000" in text["text"]
    assert Inputs(client.post("/runs/new", data=text).get_data(as_text=True)).sent["clients"] == "20000"
    client.post("/runs/start", data=form)
    assert (book.runs()[0].folder / "demo.toml").is_file()
    assert "a study" in client.get("/runs/", headers=HTML).get_data(as_text=True)


def test_stopping_going_on_and_deleting(client, book):
    id = book.start(b"rounds = 1", "mine").id
    token = {"csrf_token": csrf_token(client, "/runs/")}
    client.post(f"/runs/{id}/stop", data=token)
    assert book.run(id).state == "stopped"
    again = client.post(f"/runs/{id}/stop", data=token, headers=HTML)
    assert (again.status_code, "you can stop only running and waiting runs" in again.text) == (409, True)
    client.post(f"/runs/{id}/go-on", data=token)
    assert book.run(id).state == "waiting"
    asked = client.get(f"/runs/{id}/delete", headers=HTML).get_data(as_text=True)
    assert "You cannot undo it" in asked
    assert book.run(id)
    assert client.post(f"/runs/{id}/delete", data=token).headers["Location"] == "/runs/"
    assert book.runs() == []
    assert client.post(f"/runs/{id}/stop", data=token).status_code == 404


def test_nothing_is_changed_without_the_token_of_the_page(client, book):
    id = book.start(b"rounds = 1", "mine").id
    for address in ("/runs/start", f"/runs/{id}/stop", f"/runs/{id}/delete", "/runs/describe"):
        assert client.post(address, data={"text": "rounds = 1"}).status_code == 403
    assert [run.state for run in book.runs()] == ["waiting"]


def test_the_list_is_told_anew_only_when_something_has_changed(client, book):
    first = client.get("/runs/feed").get_json()
    assert (first["data"]["whole"], first["data"]["runs"], first["data"]["all"]) == (True, [], 0)
    assert client.get("/runs/feed", query_string={"since": first["position"]}).status_code == 204
    book.start(b"rounds = 1", "mine")
    changed = client.get("/runs/feed", query_string={"since": "0"}).get_json()
    assert [run["title"] for run in changed["data"]["runs"]] == ["mine"]
    assert changed["position"] != first["position"]


def test_a_list_of_which_nothing_runs_is_read_again_once_somebody_goes_on(tmp_path, book):
    id = book.start(b"rounds = 1", "mine").id
    book.stop(id)
    long_ago = time.time() - 60
    os.utime(book.folder, (long_ago, long_ago))
    feed = RunsFeed(book.folder, 0)
    first = feed.since(None)
    assert feed.since(first.position) is None
    book.resume(id)
    assert [run["state"] for run in feed.since(first.position).data["runs"]] == ["waiting"]


def test_an_unknown_run_or_preset_is_refused_with_a_sentence(client):
    unknown = client.get("/runs/new?like=20260101-000000-none", headers=HTML)
    assert (unknown.status_code, "may have been deleted" in unknown.text) == (404, True)
    unknown = client.get("/runs/new?from=none", headers=HTML)
    assert (unknown.status_code, "choose one from the list" in unknown.text) == (400, True)


def test_a_program_with_the_token_starts_a_run(tmp_path, book):
    client = dashboard_client(tmp_path, runs_at_once=0, token="a token of the tests")
    described = {"text": preset("breast_cancer").text, "title": "by a program"}
    assert client.post("/runs/start", data=described).status_code in (401, 403)
    bearer = {"Authorization": "Bearer a token of the tests"}
    assert client.post("/runs/start", data=described, headers=bearer).status_code == 302
    assert [run.title for run in book.runs()] == ["by a program"]


@pytest.mark.parametrize("damage", ["binary", "folder", "gone"])
def test_a_run_whose_description_cannot_be_read_still_has_its_page(client, book, damage):
    run = book.start(preset("breast_cancer").text.encode(), "mine")
    run.description.unlink()
    if damage == "binary":
        run.description.write_bytes(b"\xff\xfe study")
    elif damage == "folder":
        run.description.mkdir()
    assert client.get("/runs/", headers=HTML).status_code == 200
    assert client.get(f"/runs/{run.id}/", headers=HTML).status_code == 200
    again = client.get(f"/runs/new?like={run.id}", headers=HTML)
    assert again.status_code == 404
    assert "can't be read; start from an example" in unescape(again.get_data(as_text=True))
