"""The first-hour page of each role, typed as written, with an installed wheel and no checkout."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.harness.available import needed
from tests.support.environments import built_wheel, share_packages
from tests.support.typed_pages import DOCS, INSTALL, Terminal, follow, shown_by

PORTS = ("8000", "8080", "8081", "8082", "8083", "8443")
PAGES = {
    "operator": "tutorials/first_hour_operator.md",
    "product team": "first-study.md",
    "researcher": "tutorials/first_hour_researcher.md",
    "institution": "tutorials/first_hour_institution.md",
    "analyst": "tutorials/first_hour_analyst.md",
}
WHEELS = {
    "operator": "fedping-*.whl",
    "product team": '"$(ls fedping-*.whl)[analysis]"',
    "researcher": '"$(ls fedping-*.whl)[laboratory]"',
    "institution": "fedping-*.whl",
    "analyst": '"$(ls fedping-*.whl)[analysis]"',
}
"""The package that each role's page installs."""


def page(role: str) -> str:
    return (DOCS / PAGES[role]).read_text("utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


class Newcomer(Terminal):
    """A reader whose pip finds fedping's dependencies on this machine, without a network."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        folder.mkdir()
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        super().__init__(folder, PORTS, PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")

    def type(self, command: str) -> str:
        if command.startswith("fedping ingest"):
            port = "" if "--port" in command else "--port 8080 "
            command = command.replace("fedping ingest", f"fedping ingest {port}--operations-port 8082")
        if os.geteuid() == 0:  # otherwise nginx switches from root to a user without access to the tests' folders
            command = command.replace("\ndaemon off;\n", "\ndaemon off; user root;\n")
        said = super().type(command)
        if command == "python3 -m venv env":
            share_packages(self.folder / "env")
        if command.startswith("fedping deploy files"):
            for path in (self.folder / "deployment").glob("[sn]*/*"):
                path.write_text(self.here(path.read_text("utf-8")), "utf-8")
        return said


@pytest.fixture
def newcomer(tmp_path: Path, wheel: Path) -> Iterator[Newcomer]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    terminal = Newcomer(tmp_path / "hour", wheel)
    yield terminal
    terminal.close()


@pytest.mark.parametrize("role", WHEELS)
def test_each_page_begins_with_the_same_installation(role: str) -> None:
    assert INSTALL.format(wheel=WHEELS[role]) in page(role)


@pytest.mark.long
def test_the_hour_of_an_operator(newcomer: Newcomer) -> None:
    needed("nginx")
    needed("openssl")
    asked = [step.text for step, _ in follow(page("operator"), newcomer) if step.root]
    recipe = (newcomer.folder / "deployment" / "README.md").read_text()
    names = {f"{newcomer.folder}/data": "/srv/fedping", f"{newcomer.folder}/env": "/opt/fedping/.venv"}
    for here, there in names.items():
        recipe = recipe.replace(here, there)
    assert asked
    assert set(asked) <= set(recipe.splitlines())


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("role", [role for role in PAGES if role != "operator"])
def test_the_hour_of_another_role(newcomer: Newcomer, role: str) -> None:
    assert list(follow(page(role), newcomer))


@pytest.mark.parametrize(
    ("shows", "said", "same"),
    [
        ("a  3 of 0.25\n", "a 3 of 0.75\n", True),
        ("a 3 of 0.25\n", "a 4 of 0.25\n", False),
        ("first\n…\nlast …\n", "first\nx\ny\nlast one\n", True),
        ("first\n…\nlast\n", "first\nlast\n", True),
        ("first\n", "first\nand more\n", False),
        ("{…}\n", "{}\n", True),
        ("…\nnext\n", "trouble\n", False),
    ],
)
def test_what_a_page_does_not_show_is_noticed(shows: str, said: str, same: bool) -> None:
    assert shown_by(shows, said) == same
