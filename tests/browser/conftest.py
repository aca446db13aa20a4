"""A fixture with a user of the extension in each browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.harness.available import needed


@pytest.fixture(params=["chromium", "firefox"])
def user(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[object]:
    """Give a :class:`tests.browser.users.User` with the history of `tests/browser/garden.py`."""
    needed(request.param)
    from tests.browser.garden import SEEDS
    from tests.browser.harness.little_web import running_web
    from tests.browser.users import ChromiumUser, FirefoxUser

    with running_web({seed.url: seed.title for seed in SEEDS}) as web:
        if request.param == "firefox":
            yield FirefoxUser(tmp_path / "user", SEEDS, web)
        else:
            playwright, screen = request.getfixturevalue("playwright"), request.getfixturevalue("screen")
            yield ChromiumUser(playwright, screen, tmp_path / "user", SEEDS, web)
