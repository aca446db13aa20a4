"""The demo page of a study of features: an item's choice, followed through ingest and a round to the next version."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from fedping.model_store import ModelStore, open_store
from fedping.protocol.study import study_from_toml
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import PATIENCE, Pages
from tests.browser.tools import landed_rows
from tests.support.copies import ROOT
from tests.support.ingest_server import IngestServer
from tests.support.versions import WHEN

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)

SHOP = (ROOT / "experiments/templates/shop/study.toml").read_text().replace("{{study}}", "shop")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    store = open_store(tmp_path / "store", create=True)
    (tmp_path / "shop.toml").write_text(SHOP)
    study = study_from_toml(tmp_path / "shop.toml")
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    return store


@pytest.fixture
def server(store: ModelStore, tmp_path: Path) -> Iterator[IngestServer]:
    server = IngestServer(tmp_path / "store", tmp_path / "landing", "--demo-page", "--workers", "1")
    server.start()
    try:
        yield server
    finally:
        server.stop()


def opened(chromium: Pages, server: IngestServer, **options: object) -> Page:
    page = chromium.new_page(f"{server.url}/demo/?study=shop&every=20", **options)  # type: ignore[arg-type]
    expect(page.locator("#demo")).to_be_visible()
    return page


def is_clean(page: Page) -> None:
    assert axe_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"


def test_an_item_is_chosen_and_followed_to_the_version_that_comes_back(
    store: ModelStore, server: IngestServer, chromium: Pages
) -> None:
    page = opened(chromium, server)
    items = page.locator("#items button")
    expect(items).to_have_count(8)
    scores = [float(text.replace("−", "-").split()[0]) for text in page.locator("#items .score").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    title = items.nth(2).locator(".title").inner_text()
    items.nth(2).click()
    expect(page.locator("#answer")).to_contain_text('200 {"accepted":1,"rejected":[]}')
    expect(page.locator("#computed")).to_contain_text(f"You chose “{title}”, the 3rd of 8 items.")
    expect(page.locator("#ping .groups")).to_contain_text("the 3rd of 8 items")
    page.locator("#ping summary").click()
    told = page.locator("#ping pre").inner_text()
    payload = json.loads(told[told.index("{") :])["payload"]
    assert (payload["place"], payload["candidates"]) == (3, 8)
    server.flush()
    (row,) = landed_rows(server.landing).values()
    assert np.frombuffer(row["update"], "<f4").tolist() == np.float32(payload["update"]).tolist()
    weights = [f"place {i}" for i in range(2, 9)]
    assert set(weights) & set(page.locator("#computed .bars th[scope=row]").all_inner_texts())
    page.get_by_role("button", name="Make 50 choices for me").click()
    expect(page.locator("#made")).to_contain_text("50 choices of made-up people were accepted")
    server.flush()
    with engine_named("numpy") as engine:
        result = run_round(
            store, server.landing, "shop", "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test")
        )
    assert result.status == "published"
    expect(page.locator("#version")).to_have_text("version 1")
    expect(page.locator("#said")).to_have_text("Version 1 of the model has arrived.")
    changed = sum(
        a != b for a, b in zip(store.head("shop", "main").model, store.version("shop", "main", 0).model, strict=True)
    )
    expect(page.locator("#arrived")).to_contain_text(f"Version 1 follows version 0: {changed} of ")
    assert page.locator("#arrived .order tbody tr").count() == 8
    expect(page.locator("#arrived .chosen")).to_contain_text(title)
    is_clean(page)
    page.get_by_role("button", name="Another list").click()
    items.first.click()
    expect(page.locator("#ping pre")).to_contain_text('"model_version": 1')
    is_clean(page)


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)])
def test_it_is_accessible_fits_and_compares_with_the_control_arm(
    server: IngestServer, chromium: Pages, dark: bool, width: int
) -> None:
    page = opened(chromium, server, dark=dark, width=width)
    is_clean(page)
    page.get_by_label("control", exact=True).check()
    expect(page.locator("#model")).to_contain_text("still rank with version 0")
    page.locator("#items button").first.press("Enter")
    expect(page.locator("#computed")).to_contain_text("The arm “control” is there to compare with")
    expect(page.locator("#answer")).to_contain_text("200")
    is_clean(page)
