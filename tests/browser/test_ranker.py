"""A shop's page in a real browser, end to end: a choice, a later outcome, Parquet, a round, the next version."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow.dataset as ds
import pytest
from playwright.sync_api import Page

from fedping.client_sim.features import reference
from fedping.model_store import open_store
from fedping.model_store.store import ModelStore
from fedping.protocol.features import Category, Cross, Hashed, Number
from fedping.protocol.outcomes import FlagOutcome, NumberOutcome
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.browser.harness.available import needed, skip_for_want_of
from tests.browser.harness.chromium import Pages
from tests.browser.harness.waiting import wait_for
from tests.browser.pages import Web, serving
from tests.browser.tools import BROWSER, landed_rows
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.versions import WHEN

pytestmark = pytest.mark.browser

STUDY = Study(
    name="shop",
    pings="list-update",
    arms=(Arm(name="ranked", share=1.0, line="main", applies=True, submits=True),),
    outcomes=(
        FlagOutcome(name="basket"),
        NumberOutcome(name="paid", low=0, high=500, round=0.01, within="48h", linked=True),
    ),
    lines=(
        Line(
            name="main",
            spec=ModelSpec(
                name="shop",
                model="features",
                places=5,
                features=(
                    Number(name="shop_score", start=1.0),
                    Number(name="price", low=0, high=5000, log=True, center=3.5, spread=1.2, missing=True),
                    Hashed(name="brand", buckets=100),
                    Category(name="device", on="query", values=("phone", "desktop")),
                    Cross(name="device.price", of=("device", "price")),
                ),
            ),
            pipeline=Pipeline(optimizer=GradientDescent(rate=50.0), min_clients=1, weighting="client"),
        ),
    ),
)

PAGE = """<!doctype html><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src 'self'; connect-src {relay}">
<title>A shop</title><ol id="list"></ol>
<script type="module" src="shop.js"></script>
"""

SCRIPT = """
import { Ranker } from "./ranker.js";

const product = (id) => ({ id, shop_score: 20 - id, price: 5 + 13 * id, brand: `brand ${id % 7}` });
window.products = Array.from({ length: 20 }, (_, id) => product(id));
window.told = [];
document.cookie = "who=somebody";
window.shop = new Ranker({ ingest: "{relay}", study: "shop", onTrouble: (trouble) => told.push(trouble) });
window.ranked = () => (window.list = shop.rank(products, { device: "phone" }, 10));
ranked();
"""

WORKER = """
import { Ranker } from "./ranker.js";

const shop = new Ranker({ ingest: "{relay}", study: "shop" });
const products = [{ shop_score: 1, price: 3, brand: "a" }, { shop_score: 2, price: 3, brand: "b" }];
addEventListener("message", async ({ ports: [port] }) => {
  await shop.ready;
  const list = shop.rank(products, { device: "phone" });
  const sent = list.choose(products[0]);
  await shop.deliver();
  port.postMessage({ first: list.items[0].brand, sent, counts: shop.counts, trouble: shop.trouble });
});
"""

ASK_WORKER = """async () => {
  const registered = await navigator.serviceWorker.register("worker.js", { type: "module" });
  await navigator.serviceWorker.ready;
  const { port1, port2 } = new MessageChannel();
  registered.active.postMessage("go", [port2]);
  return new Promise((done) => (port1.onmessage = ({ data }) => done(data)));
}"""


@dataclass
class Shop:
    """A shop's pages, its ingest and its landing folder."""

    store: ModelStore
    landing: Path
    server: IngestServer
    web: Web
    chromium: Pages

    def open(self) -> Page:
        page = self.chromium.new_page(f"{self.web.address}/shop.html")
        page.evaluate("async () => { await shop.ready }")
        return page

    def next_version(self) -> None:
        options = RoundOptions(clock=lambda: WHEN, code_version="test")
        with engine_named("numpy") as engine:
            assert run_round(self.store, self.landing, "shop", "main", engine, options).status == "published"

    def outcomes(self) -> list[dict[str, Any]]:
        return ds.dataset(self.landing / "_outcomes", partitioning="hive").to_table().to_pylist()


@pytest.fixture
def shop(tmp_path: Path, chromium: Pages) -> Iterator[Shop]:
    store = open_store(tmp_path / "store", create=True)
    store.create_study(STUDY, first_versions(STUDY, created=WHEN, code_version="test"))
    with running_ingest(tmp_path / "store", tmp_path / "landing") as server, serving(server.url) as web:
        for path, text in {"/shop.html": PAGE, "/shop.js": SCRIPT, "/worker.js": WORKER}.items():
            web.more[path] = text.replace("{relay}", web.relay)
        yield Shop(store, tmp_path / "landing", server, web, chromium)


def test_a_choice_becomes_a_ping_a_round_and_another_order(shop: Shop) -> None:
    page = shop.open()
    assert page.evaluate("[list.version, list.items.map(({ id }) => id)]") == [-1, list(range(10))]
    assert page.evaluate("[ranked().version, list.items.map(({ id }) => id)]") == [0, list(range(10))]
    assert page.evaluate("(list.seen(8), list.choose(products[6], { basket: true }))")
    assert not page.evaluate("list.choose(products[5])")
    assert page.evaluate("told.map(({ code }) => code)") == ["chosen_already"]
    kept = page.evaluate("JSON.stringify(list)")
    wait_for(lambda: len(shop.web.posts()) == 1, "the ping of the choice")

    page.goto(f"{shop.web.address}/shop.html#paid")
    page.reload()
    page.evaluate("async () => { await shop.ready }")
    assert page.evaluate("(kept) => shop.resume(kept).outcome({ paid: 49.904 })", kept)
    wait_for(lambda: len(shop.web.posts()) == 2, "the ping of the outcome")
    assert page.evaluate("(kept) => shop.resume(kept).outcome({ paid: 49.9 })", kept)
    page.evaluate("async () => { await shop.deliver() }")
    status = shop.server.flush()
    # The repetition is sent as a separate request, or shares the first one if it was still in flight.
    assert (status["accepted"], status["rejected"]) == (len(shop.web.posts()), {})
    assert len(shop.web.posts()) in (2, 3)

    ((document, row),) = landed_rows(shop.landing).items()
    assert (row["place"], row["candidates"], row["seen"], row["swapped"], row["pinned"]) == (7, 10, 8, False, False)
    assert (row["basket"], row["model_version"], row["study_variation"]) == (True, 0, "ranked")
    scores = np.arange(20, 12, -1.0)
    assert row["loss"] == pytest.approx(math.log(np.exp(scores - 20).sum()) + 6, rel=1e-12)
    update = np.frombuffer(row["update"], "<f4")
    assert len(update) == STUDY.lines[0].spec.m
    assert update[STUDY.lines[0].spec.names.index("place 5")] > 0
    paid = {UUID(bytes=each["document_id"]): each for each in shop.outcomes()}
    ((_, outcome),) = paid.items()
    assert (outcome["paid"], outcome["age"], str(UUID(bytes=outcome["choice"]))) == (49.9, 0, document)

    shop.next_version()
    assert page.evaluate("async () => await shop.fetchModel()")
    version, ids = page.evaluate("[ranked().version, list.items.map(({ id }) => id)]")
    assert version == 1
    weights = shop.store.version("shop", "main", 1).weights
    spec, products = STUDY.lines[0].spec, page.evaluate("products")
    given = [reference.values(spec, {"device": "phone"}, each) for each in products]
    assert ids == reference.order([reference.score(spec, weights, each) for each in given])[:10] != list(range(10))
    assert not page.evaluate("document.cookie.includes('fedping')")
    for each in shop.web.passed:
        assert not {"cookie", "referer", "authorization"} & set(each.headers)
        assert each.method in ("GET", "POST")


def test_forgetting_in_one_tab_is_forgetting_in_all(shop: Shop) -> None:
    one, other = shop.open(), shop.open()
    other.evaluate("ranked()")
    one.evaluate("async () => { await shop.forget() }")
    wait_for(lambda: other.evaluate("shop.arm") is None, "the other tab to leave")
    assert not other.evaluate("list.choose(list.items[0])")
    assert other.evaluate("told.map(({ code }) => code)") == ["forgotten"]
    kept = one.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('fedping/'))")
    assert kept == []
    assert shop.web.posts() == []


def test_a_service_worker_ranks_and_reports(shop: Shop) -> None:
    told = shop.open().evaluate(ASK_WORKER)
    assert told["first"] == "b"
    assert told["sent"] is True
    assert told["counts"] == {"accepted": 1, "refused": 0, "dropped": 0, "waiting": 0}
    assert told["trouble"] is None
    shop.server.flush()
    (row,) = landed_rows(shop.landing).values()
    assert (row["place"], row["candidates"]) == (2, 2)


def test_a_study_of_another_kind_is_told_and_the_page_ranks_as_before(shop: Shop) -> None:
    published = f"/models/{STUDY.name}/study.json"
    shop.web.instead[published] = json.dumps({"name": "shop", "pings": "frecency-update"}).encode()
    page = shop.open()
    assert page.evaluate("[shop.trouble.code, list.items.length, list.choose(products[0])]")[:2] == ["study_unfit", 10]


def test_the_page_of_the_documentation_works(shop: Shop) -> None:
    """The page's code blocks as written, except for the server's address and the module's path."""
    text = (BROWSER.parent / "docs" / "ranker.md").read_text()
    page, later = re.findall(r"```(?:html|js)\n(.*?)```", text, re.DOTALL)[:2]
    assert len(page.splitlines()) + len(later.splitlines()) <= 30
    page = page.replace("https://telemetry.example.org", shop.web.relay).replace("./fedping/ranker.js", "/ranker.js")
    products = [{"title": f"no. {i}", "shop_score": i, "price": 5 + i, "brand": "a"} for i in range(30)]
    shop.web.more["/products.json"] = json.dumps(products)
    script = page.partition('<script type="module">')[2].partition("</script>")[0]
    script = script.replace("let shown;", "window.shop = shop; let shown;")
    shop.web.more["/docs.html"] = '<ol id="list"></ol><script type="module" src="docs.js"></script>'
    shop.web.more["/docs.js"] = script
    opened = shop.chromium.new_page(f"{shop.web.address}/shop.html")
    opened.evaluate("localStorage.clear(); localStorage.setItem('consent', 'yes')")
    opened.goto(f"{shop.web.address}/docs.html")
    opened.wait_for_function("document.querySelectorAll('li').length === 20")
    opened.evaluate("async () => { await shop.ready }")
    opened.reload()
    opened.wait_for_function("document.querySelectorAll('li').length === 20")
    opened.get_by_text("no. 27", exact=True).click()
    opened.evaluate("() => { " + later + " }")
    opened.evaluate("async () => { await shop.deliver() }")
    shop.server.flush()
    (row,) = landed_rows(shop.landing).values()
    assert (row["place"], row["candidates"], row["basket"], row["model_version"]) == (3, 20, True, 0)
    (outcome,) = shop.outcomes()
    assert outcome["paid"] == 49.9


@pytest.mark.long
def test_the_example_in_react_ranks_chooses_and_pays(shop: Shop, tmp_path: Path) -> None:
    """Built as its README says, with the packed package; skipped if npm can't fetch React."""
    example, package = tmp_path / "react", tmp_path / "package"
    shutil.copytree(BROWSER / "examples" / "react", example)
    needed("node")
    npm = needed("npm")
    packed = subprocess.run(
        [sys.executable, str(BROWSER / "npm" / "pack.py"), str(package)], capture_output=True, text=True, timeout=200
    )
    if packed.returncode:
        skip_for_want_of("TypeScript, esbuild or terser, which npm could not fetch")
    install = [npm, "install", "--no-audit", "--no-fund", packed.stdout.strip()]
    if subprocess.run(install, cwd=example, capture_output=True, timeout=200).returncode:
        skip_for_want_of("React, which npm could not fetch")
    built = subprocess.run([npm, "run", "build"], cwd=example, capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stderr

    products = [{"id": i, "title": f"no. {i}", "shop_score": i, "price": 5 + i, "brand": "a"} for i in range(30)]
    shop.web.more["/products.json"] = json.dumps(products)
    shop.web.more["/shop-in-react.js"] = (example / "built" / "shop.js").read_text()
    body = f'<div id="shop" data-ingest="{shop.web.relay}"></div><script type="module" src="shop-in-react.js"></script>'
    shop.web.more["/react.html"] = f"<!doctype html>{body}"
    page = shop.chromium.new_page(f"{shop.web.address}/react.html")
    page.get_by_role("button", name="no. 27", exact=True).click()
    page.get_by_role("button", name="Pay for no. 27").click()
    wait_for(lambda: len(shop.web.posts()) == 2, "the choice and the payment", 60)
    shop.server.flush()
    (row,) = landed_rows(shop.landing).values()
    assert (row["place"], row["candidates"], row["basket"], row["model_version"]) == (3, 10, True, 0)
    assert [each["paid"] for each in shop.outcomes()] == [32.0]
