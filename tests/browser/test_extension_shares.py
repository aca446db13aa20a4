"""The extension in a two-server study, in real browsers: its display, and the sum of both shares."""

from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from fedping.protocol.privacy import METRICS
from fedping.protocol.sharing.keys import opener
from fedping.protocol.sharing.shares import WORDS, info_of, layout, masks, words_of
from tests.browser.garden import take_part
from tests.browser.harness.waiting import wait_for
from tests.browser.test_browser_shares import running, shared, study_of_shares
from tests.browser.tools import landed_rows
from tests.browser.users import User

pytestmark = pytest.mark.browser

D = 22 + len(METRICS)


def test_a_choice_is_shared_by_two_servers(user: User, tmp_path: Path) -> None:
    study = study_of_shares(["treatment"], shared(), name="garden")
    with running(tmp_path, study) as made, user.browsing():
        made.publish(None)
        take_part(user, made.web.relay)
        user.says("#trouble", "has no offer of its helper yet")
        assert user.ask({"ask": "preview"})["ping"] is None
        made.publish(made.offer)
        user.click("#fetch")
        user.says("#would-send", "the helper, which someone else runs")
        user.says("#would-send", "which only this browser knows")
        before = user.type("garden")
        user.choose(1)
        wait_for(lambda: user.address() == before[1], "the page that was chosen")
        wait_for(lambda: len(made.web.posts()) == 1, "its ping")
        made.server.flush()
        [(document, row)] = landed_rows(tmp_path / "landing").items()
    rows = np.frombuffer(row["update"], np.uint8).reshape(1, -1)
    offer, share, sealed = layout(D, "x25519").parts(rows)
    assert offer.tobytes() == made.offer.id
    info = info_of("garden", "main", 0, "treatment", UUID(document), D, made.offer.id)
    seed = opener("x25519", made.private)(sealed.tobytes(), info)
    assert seed is not None
    [vector] = WORDS.centred(WORDS.plus(words_of(share), masks([seed], D))).tolist()
    assert {abs(number) for number in vector[:22]} == {0, 64}
    assert vector[22] == 75  # a browser: what √22 · 64 / 4 rounds to
    assert vector[24] == 0  # and its choice was not on top
