"""The extension in real browsers: a choice in the address bar leads to the next version, which then ranks there."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedping.client_sim.models import VisitType
from tests.browser.garden import START, garden_store, page_of, ranked_by, scores_by, seeded, take_part, update_of
from tests.browser.harness.waiting import wait_for
from tests.browser.pages import serving
from tests.browser.tools import landed_rows
from tests.browser.users import FirefoxUser, User
from tests.support.ingest_server import ROOT, running_ingest

pytestmark = pytest.mark.browser


def spark_round(folder: Path) -> None:
    """Run one round in a separate process, as an operator does."""
    where = ["--store", str(folder / "store"), "--landing", str(folder / "landing")]
    command = [sys.executable, "-m", "fedping", "round", "garden", *where, "--master", "local[2]"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=200)


def test_a_choice_becomes_the_next_version_which_then_ranks(user: User, tmp_path: Path) -> None:
    store, pages = garden_store(tmp_path), seeded()
    with (
        running_ingest(tmp_path / "store", tmp_path / "landing") as server,
        serving(server.url) as web,
        user.browsing(),
    ):
        take_part(user, web.relay)
        user.says("#version", "0")

        before = user.type("garden")
        assert before == ranked_by(START, pages)
        chosen = 3
        user.choose(chosen)
        wait_for(lambda: user.address() == before[chosen], "the page that was chosen")
        wait_for(lambda: len(web.posts()) == 1, "its ping")
        server.flush()
        (row,) = landed_rows(tmp_path / "landing").values()
        assert (row["study_variation"], row["model_version"], row["rank_selected"]) == ("treatment", 0, chosen + 1)
        assert row["frecency_scores"] == scores_by(START, [pages[url] for url in before])
        assert np.frombuffer(row["update"], "<f4").tolist() == update_of([pages[url] for url in before], chosen)

        spark_round(tmp_path)
        version = store.head("garden", "main")
        assert version.iteration == 1
        user.click("#fetch")
        user.says("#version", "1")

        known = {
            page["url"]: page_of(page) for page in user.ask({"ask": "search", "typed": "garden"})["listed"]["pages"]
        }
        # The visit to the chosen page, which Chromium counts as a typed address.
        newest = max(known[before[chosen]].visits, key=lambda visit: visit.time)
        assert newest.type == (VisitType.LINK if isinstance(user, FirefoxUser) else VisitType.TYPED)
        after = user.type("garden")
        assert after == ranked_by(version.model, known)
        assert after != ranked_by(START, known)
        user.choose(0)
        wait_for(lambda: len(web.posts()) == 2, "the second ping")
        server.flush()
    (second,) = [row for row in landed_rows(tmp_path / "landing").values() if row["model_version"] == 1]
    assert second["frecency_scores"] == scores_by(version.model, [known[url] for url in after])
