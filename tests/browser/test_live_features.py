"""The Live page of a study of features: a table by feature, which follows the selected version."""

import math
from pathlib import Path

import pytest
from playwright.sync_api import expect

from fedping.protocol.features import Category, Flag, Number
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, Study
from tests.browser.dashboards import dashboard_over
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.walks import walked_store

pytestmark = pytest.mark.browser

STUDY = Study(
    name="shop",
    pings="list-update",
    arms=(Arm(name="ranked", share=1.0, line="main", applies=True, submits=True),),
    lines=(
        Line(
            name="main",
            spec=ModelSpec(
                name="shop",
                model="features",
                places=2,
                features=(
                    Number(name="shop_score", start=1.0),
                    Flag(name="in_stock"),
                    Category(name="condition", values=("<b>new</b>", "used")),
                ),
            ),
        ),
    ),
)


def test_the_weights_are_shown_by_feature_in_units_of_the_product(tmp_path: Path, chromium: Pages) -> None:
    store = walked_store(tmp_path / "store", STUDY, 3)
    newest, first = (store.version("shop", "main", number).model for number in (3, 1))
    with dashboard_over(tmp_path) as dashboard:
        page = chromium.new_page(f"{dashboard.url}/live/shop/main/", width=390)
        table = page.locator("#features table")
        expect(table.locator("thead")).to_contain_text("version 3")
        rows = table.locator("tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.cells].map((c) => c.textContent))"
        )
        assert [row[:2] for row in rows] == [
            ["shop_score number", "shop_score: 1 instead of 0"],
            ["in_stock flag", "in_stock: true"],
            ["condition category", "condition: <b>new</b>"],
            ["condition", "condition: used"],
            ["place", "place 2, not the top"],
        ]
        assert [row[2] for row in rows] == ["+1", "0", "0", "0", "0"]
        for row, weight in zip(rows, newest, strict=True):
            assert float(row[3].replace("−", "-")) == pytest.approx(weight, rel=0.01)
            assert float(row[4].removesuffix(" ×").replace(",", "")) == pytest.approx(math.exp(weight), rel=0.01)
        page.locator("#version-number").fill("1")
        page.locator("#version-number").press("Enter")
        expect(table.locator("thead")).to_contain_text("version 1")
        expect(table.locator("tbody tr").first.locator("td").nth(2)).to_have_text(f"{first[0]:+.3g}".replace("-", "−"))
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert axe_violations(page, "#features") == []
        assert chromium.complaints == []
        page.close()  # before the server that it follows
