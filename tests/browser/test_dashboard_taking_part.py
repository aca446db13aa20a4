"""The Live page of a study of institutions, in a real browser: participants, and evaluation on held-out rows."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import expect

from fedping.protocol.limits import Limits
from tests.browser.dashboards import dashboard_over, scrolls_sideways
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.institutions import ARMS, STUDY, tumours
from tests.support.model_pings import Said, client_in, land
from tests.support.rounds import store_with

pytestmark = pytest.mark.browser


def test_who_takes_part_is_listed_and_whoever_comes_is_added(chromium: Pages, tmp_path: Path) -> None:
    study = replace(tumours(arms=ARMS), enrolment="hash", limits=Limits(examples=1000))
    store_with(tmp_path / "store", study)
    landing = tmp_path / "landing"
    land(landing, study, Said(client=1, arm="hospitals", received_ms=1_700_000_000_000, examples=569))
    with dashboard_over(tmp_path) as dashboard:
        page = chromium.new_page(f"{dashboard.url}/live/{STUDY}/main/", height=4000)
        rows = page.locator("#taking-part-rows tbody tr")
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text(str(client_in(study, "hospitals", 1))[:8])
        expect(rows.first).to_contain_text("569")
        expect(page.locator("#held-out")).to_be_hidden()
        land(landing, study, Said(client=2, arm="held-out", examples=50, confusion=(20, 5, 5, 20), document=1))
        expect(rows).to_have_count(2)
        expect(page.locator("#taking-part-words")).to_have_text("2 clients have sent valid pings.")
        expect(page.locator("#held-out-rows tbody tr")).to_contain_text("0.8000")
        assert axe_violations(page) == []
        page.set_viewport_size({"width": 390, "height": 4000})
        assert not scrolls_sideways(page)
        page.close()
