"""Follows the README of a first study block by block: check, ingest, the page in a browser, a round, the verdict."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from benchmarks.ingest import free_port
from fedping.experiments.first_study import TEMPLATES
from tests.browser.harness.accessible import axe_violations
from tests.browser.harness.chromium import Pages
from tests.browser.harness.waiting import wait_for
from tests.support.environments import installed_wheel

pytestmark = pytest.mark.browser

SECTIONS = ["Check", "Serve", "Rehearse", "Choose", "Round", "Verdict", "Then"]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STAYING = ("fedping ingest", "python3 -m http.server")
MOST_VISITORS = 30
"""Maximum visitors to try. Each arm has half of the ids, so one stays empty in 1 of 2 ** 29 runs."""


def in_the_shop(page: Page) -> None:
    page.get_by_role("button", name="Add to basket").nth(3).click()
    page.get_by_role("button", name=re.compile("^Pay")).click()
    page.get_by_role("button", name="Back to the shop").click()


def in_the_feed(page: Page) -> None:
    page.get_by_role("button", name="Open").nth(5).click()
    page.get_by_role("button", name="Close it at the end").click()
    page.get_by_role("button", name="Nothing for me").click()


def in_the_form(page: Page) -> None:
    page.get_by_label("City").fill("b")
    page.get_by_role("button", name="Take").nth(2).click()
    page.get_by_role("button", name="It was another one").click()


def of_a_visitor(page: Page) -> None:
    for name, place in (("Finished", 2), ("Left", 6)):
        page.get_by_role("button", name=name).nth(place).click()
        page.get_by_role("button", name="Back to the visitors").click()


CHOOSE: dict[str, Callable[[Page], None]] = {
    "shop": in_the_shop,
    "feed": in_the_feed,
    "autocomplete": in_the_form,
    "prediction": of_a_visitor,
}
VERDICTS = {"shop": "basket", "feed": "chosen place", "autocomplete": "typed", "prediction": "loss"}
"""Text that the verdict must contain, by template."""


@dataclass
class Reader:
    """A reader who types the README's commands in order, with free ports of this machine."""

    python: Path
    folder: Path
    running: list["subprocess.Popen[str]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ingest, self.operations, self.web = free_port(), free_port(), free_port()
        self.path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"

    def begin(self, template: str) -> None:
        self.run(f"fedping study init mine --template {template} --folder {shlex.quote(str(self.folder))}", Path.cwd())
        for name in ("ranker.js", "page.html", "README.md"):
            path = self.folder / name
            text = path.read_text().replace("127.0.0.1:8080", f"127.0.0.1:{self.ingest}")
            path.write_text(re.sub(r"\b8000\b", str(self.web), text))

    def run(self, command: str, cwd: Path | None = None) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDPING_STORE")}
        ran = subprocess.run(
            command,
            shell=True,
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            env={**environment, "PATH": self.path},
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def start(self, command: str) -> None:
        words = shlex.split(command)
        if words[0] == "fedping":
            words += ["--port", str(self.ingest), "--operations-port", str(self.operations)]
        environment = {**os.environ, "PATH": self.path}
        with (self.folder.parent / f"{words[0]}.log").open("w") as log:
            self.running.append(
                subprocess.Popen(words, cwd=self.folder, env=environment, stdout=log, stderr=log, text=True)
            )
        port = self.ingest if words[0] == "fedping" else self.web
        wait_for(lambda: is_open(port), f"{command} to answer")

    def stop(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(60)

    def sections(self) -> dict[str, str]:
        _, *parts = re.split(r"^## (.*)$", (self.folder / "README.md").read_text(), flags=re.MULTILINE)
        return dict(zip(parts[::2], parts[1::2], strict=True))

    def type(self, section: str) -> str:
        """Type the blocks of a section; return the commands' output."""
        said = ""
        for block in BLOCK.findall(self.sections()[section]):
            if block.startswith(STAYING):
                self.start(block)
            else:
                flush = f"fedping landing flush http://127.0.0.1:{self.operations}"
                said += self.run("set -e\n" + block.replace("fedping landing flush", flush))
        return said


def is_open(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reads = Reader(Path(sys.executable), tmp_path / "mine")
    with contextlib.ExitStack() as stack:
        stack.callback(reads.stop)
        yield reads


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_wheel(tmp_path_factory.mktemp("wheel"))


def typed(reader: Reader, template: str, chromium: Pages, *, to: str) -> None:
    """Type a README up to a section."""
    reader.begin(template)
    assert list(reader.sections()) == SECTIONS
    assert "study 'mine'" in reader.type("Check")
    reader.type("Serve")
    if to == "Verdict":
        rehearsed = reader.type("Rehearse")
        assert "published version 5" in rehearsed
        assert template == "prediction" or "of the possible gain" in rehearsed
    (address,) = re.findall(r"<(http://[^>]+page\.html)>", reader.sections()["Choose"])
    page = chromium.new_page(address)
    choose_in_both_arms(page, CHOOSE[template])
    assert axe_violations(page) == []
    (version,) = re.findall(r"published version (\d+)", reader.type("Round"))
    page.get_by_role("button", name="Ask for the newest model").click()
    page.get_by_text(f"holds version {version}").wait_for()
    assert page.locator("#trouble").inner_text() == ""
    assert chromium.complaints == []
    if to == "Verdict":
        said = reader.type("Verdict")
        assert VERDICTS[template] in said, said


def choose_in_both_arms(page: Page, choose: Callable[[Page], None]) -> None:
    """Choose as successive visitors until both arms have one."""
    arms: list[str] = []
    for _ in range(MOST_VISITORS):
        page.get_by_text("This browser is in the arm").wait_for()
        choose(page)
        page.get_by_text(re.compile(r"taken by the server: [1-9]\d*; waiting: 0")).wait_for()
        arms += re.findall(r'in the arm "(\w+)"', page.locator("#state").inner_text())
        if {"ranked", "control"} <= set(arms):
            return
        another = page.get_by_role("button", name="Be another")
        another.click()
        expect(another).to_be_enabled()
    raise AssertionError(f"one arm has no visitor: {arms}")


def test_the_readme_of_a_shop_leads_to_a_version_that_the_page_ranks_by(reader: Reader, chromium: Pages) -> None:
    typed(reader, "shop", chromium, to="Round")


@pytest.mark.long
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_readme_leads_from_an_installed_wheel_to_a_verdict(
    installed: Path, reader: Reader, chromium: Pages, template: str
) -> None:
    reader.python = installed
    reader.__post_init__()
    typed(reader, template, chromium, to="Verdict")
