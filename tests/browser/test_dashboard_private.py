"""The pages of a private study: they show the spent and remaining budget, in both themes, and no empty parts."""

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import expect

from fedping.protocol.privacy import Central, Privacy
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.browser.dashboards import Dashboard, dashboard_over, drawn
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.support.private import private_study
from tests.support.private_rounds import land_private, private_crowd
from tests.support.rounds import store_with

ROUNDS = 19


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("private")
    central = Central(epsilon=8, delta=1e-6, rounds=20, population=5000, noise_multiplier=4.0)
    study = private_study(privacy=Privacy(central=central))
    store, landing = store_with(folder / "store", study), folder / "landing"
    for n in range(ROUNDS):
        crowd = private_crowd(study, 150, seed=n, version=n)
        crowd += private_crowd(study, 150, seed=100 + n, version=n, arm="control")
        land_private(landing, study, crowd, iteration=n)
        when = str(np.datetime64("2026-01-01T00:00:00.000") + np.timedelta64(n, "h")) + "+00:00"
        run_round(
            store,
            landing,
            "private",
            "main",
            NumpyEngine(),
            RoundOptions(clock=lambda when=when: when, code_version="test"),
        )
    with dashboard_over(folder) as running:
        yield running


@pytest.mark.long
def test_the_live_page_tells_what_is_spent_and_left(chromium: Pages, dashboard: Dashboard) -> None:
    for dark in (False, True):
        page = drawn(chromium.new_page(dashboard.url + "/live/private/main/", dark=dark, height=2600))
        expect(page.locator("#health")).to_contain_text("Rounds left")
        expect(page.locator("#health")).to_contain_text("of 20")
        expect(page.locator("#guarantee")).to_contain_text("(epsilon = 8, delta = 1e-06) differential privacy")
        expect(page.locator("#findings")).to_contain_text("1 round is left of the 20")
        expect(page.locator("#lineage")).to_contain_text("Spent so far")
        for gone in ("#influence", "#left-out", "#refused"):
            expect(page.locator(gone)).to_have_count(0)
        assert axe_violations(page) == []
        page.close()


def test_results_and_card_are_told_in_words_and_numbers(chromium: Pages, dashboard: Dashboard) -> None:
    for address, words in (
        ("/results/private/", "doesn't differ from control"),
        ("/live/private/privacy", "Who trusts whom"),
    ):
        for dark in (False, True):
            page = chromium.new_page(dashboard.url + address, dark=dark)
            expect(page.locator("main")).to_contain_text(words)
            assert axe_violations(page) == []
            page.close()
