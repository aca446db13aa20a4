"""Takes the documentation's pictures: `make screenshots`, `python -m tests.browser.screenshots docs/pictures [KEPT]`.

They show real data: a simulated study, its results counted by Spark, a completed experiment, a search in a history.
Seeds, sizes and the pages' clock are fixed, and texts that depend on this machine's clock are replaced. KEPT is a
folder for data that take minutes to compute, to reuse for more pictures.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from PIL import Image
from playwright.sync_api import Page, Playwright, sync_playwright

from fedping.client_sim.models import VisitType
from fedping.experiments.demo import PLAYGROUND, STUDY, playground
from fedping.model_store import open_store
from fedping.protocol.study import study_from_toml
from fedping.server_jobs.optimize import first_versions
from tests.browser.dashboards import Dashboard, compared, dashboard_over, drawn
from tests.browser.harness.chromium import chromium_profile, new_profile, pages_of, running_chromium
from tests.browser.harness.seeds import Seed, seed_chromium
from tests.support.ingest_server import running_ingest
from tests.support.versions import WHEN

WIDE, NARROW = 1280, 390
COLOURS = 256
"""Number of colours in a picture: an eighth of the bytes, without a visible difference."""

CLOCK = datetime(2018, 6, 22, 12, 20, tzinfo=UTC)
"""The pages' time in the pictures: some minutes after the study has ended."""

RUN, EXPERIMENT = "20260102-030405-breast-cancer", "breast_cancer"

HISTORY = (
    Seed(
        "https://garden.example/", "The community garden", tuple((day, VisitType.TYPED) for day in (0.2, 1.3, 2.1, 5.4))
    ),
    Seed("https://shop.example/garden-tools", "Garden tools: spades, rakes and shears", ((0.4, VisitType.LINK),)),
    Seed(
        "https://seeds.example/", "Seeds for a small garden", tuple((day, VisitType.LINK) for day in (3.2, 8.0, 20.0))
    ),
    Seed("https://news.example/2026/gardens", "Why gardens in cities bloom twice", ((12.5, VisitType.LINK),)),
    Seed("https://forum.example/t/garden-fence", "How high may a garden fence be?", ((40.0, VisitType.LINK),)),
)

SAME_NUMBERS = """
let seed = 1;
const next = () => (seed = (seed * 48271) % 2147483647);
Math.random = () => next() / 2147483647;
crypto.getRandomValues = (array) => array.fill(0).map(() => next() & 255);
crypto.randomUUID = () => "10000000-1000-4000-8000-100000000000".replace(/[018]/g,
    (digit) => (digit ^ ((next() & 15) >> (digit / 4))).toString(16));
"""
"""Script that replaces random numbers, so that ids are the same every time."""

WRITTEN_OVER = """
for (const cell of document.querySelectorAll(".matrix td"))
    cell.textContent = cell.textContent.replace(/[\\d.,]+ (ms|s|min)\\b.*/, "1 s");
for (const term of document.querySelectorAll(".verdict dt"))
    if (term.textContent === "Counting began") term.nextElementSibling.textContent = "22 June 2018, 12:20 UTC";
"""
"""Script that replaces texts which depend on this machine's clock."""


@dataclass(frozen=True)
class Picture:
    """A picture: its page, the actions before it is taken, and its height."""

    name: str
    address: str
    height: int
    before: Callable[[Page], None] = lambda page: None
    narrow: bool = False


def simulated(folder: Path) -> None:
    """Simulate fedping's example study to its end, which takes a minute."""
    from fedping.experiments.simulate import experiment_from_toml, simulate

    experiment = STUDY.with_name("demo_study.toml")
    simulate(*experiment_from_toml(experiment), folder / "simulated")
    for place in ("store", "landing"):
        shutil.move(folder / "simulated" / place, folder / place)


def run(folder: Path) -> None:
    """Run fedping's example experiment, as a run of the dashboard."""
    from fedping.experiments.laboratory.run import run_experiment
    from fedping.experiments.laboratory.settings import experiment_from_toml
    from fedping.experiments.run_process import ENDED, PROCESS, Ended, Process
    from tests.support.watched import BEGUN, noted

    text = STUDY.with_name(f"{EXPERIMENT}.toml").read_text()
    made = noted(folder / "runs", RUN, "One gradient or ten local steps", text)
    run_experiment(experiment_from_toml(made / "experiment.toml"), made / "out", jobs=2)
    (made / PROCESS).write_bytes(msgspec.json.encode(Process(1, BEGUN)))
    (made / ENDED).write_bytes(msgspec.json.encode(Ended(0, BEGUN + timedelta(seconds=9))))


def count(page: Page) -> None:
    """Ask the study's question: is treatment better than the controls after the last round?"""
    if page.locator("#verdict").count():
        return
    for box in page.locator("input[name=pairs][type=checkbox]").all():
        box.set_checked(str(box.get_attribute("value")).startswith("treatment:"))
    page.get_by_label("selected rank is a guardrail").check()
    page.get_by_label("Since (UTC)").fill("2018-06-20T10:00:00")
    page.get_by_role("button", name="Count", exact=True).click()
    page.locator("#verdict").wait_for(timeout=300_000)


def typed(page: Page) -> None:
    """Type into the demo page, and choose the third suggestion."""
    page.locator("#demo").wait_for()
    page.locator("#query").press_sequentially("weather")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#answer").get_by_text("accepted").wait_for()
    page.locator("#waiting").get_by_text("1 ping of version 0 has landed").wait_for()


DASHBOARD = (
    Picture("live", "/live/demo/main/", 1330, narrow=True),
    Picture("results", "/results/demo/", 1300, count),
    Picture("form", f"/runs/new?from={EXPERIMENT}", 900),
    Picture("run", f"/runs/{RUN}/?split=test&metric=loss", 1130),
    Picture("compare", compared(RUN, ("FedGD", "FedGD+")) + "&split=test&metric=loss", 1000),
)


def take(page: Page, file: Path) -> None:
    """Write a picture of a page's visible part."""
    page.wait_for_load_state("networkidle") if "/demo/" in page.url else drawn(page)
    page.evaluate(WRITTEN_OVER)
    page.screenshot(path=file)
    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(file, optimize=True)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB", flush=True)


def pictures(playwright: Playwright, url: str, of: Picture, out: Path) -> None:
    """Take a picture in both themes, and on a phone if requested."""
    looks = [("light", WIDE), ("dark", WIDE), *([("light", NARROW)] if of.narrow else [])]
    with running_chromium(playwright) as browser:
        for scheme, width in looks:
            with pages_of(browser, timezone_id="UTC", locale="en-GB") as opened:
                page = opened.new_page(dark=scheme == "dark", width=width, height=of.height)
                page.clock.set_fixed_time(CLOCK)
                page.add_init_script(SAME_NUMBERS)
                page.goto(url + of.address)
                of.before(page)
                take(page, out / f"{of.name}-{'narrow' if width == NARROW else scheme}.png")


@contextlib.contextmanager
def demo_page(folder: Path) -> Iterator[str]:
    """Serve the demo page over a study; yield its origin."""
    study = playground(study_from_toml(STUDY))
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="demo"))
    with running_ingest(folder / "store", folder / "landing", "--demo-page", "--workers", "1") as server:
        yield server.url


def extension(playwright: Playwright, folder: Path, out: Path) -> None:
    """Take a picture of the extension's search page with a seeded history."""
    from tests.browser.users import packed

    profile = folder / "profile"
    new_profile(playwright, profile)
    seed_chromium(profile, HISTORY)
    with chromium_profile(playwright, profile, packed(folder)[0]) as chromium:
        for scheme in ("light", "dark"):
            page = chromium.open("search/search.html")
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.set_viewport_size({"width": 760, "height": 520})
            page.locator("#query").press_sequentially("garden")
            page.locator("#results [role=option]").nth(3).wait_for()
            take(page, out / f"extension-{scheme}.png")


def main(out: Path, kept: Path) -> None:
    """Take all pictures."""
    out.mkdir(parents=True, exist_ok=True)
    if not (kept / "store").is_dir():
        simulated(kept)
    if not (kept / "runs" / RUN).is_dir():
        run(kept)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        with dashboard_over(kept) as dashboard:
            _of_dashboard(playwright, dashboard, out)
        with demo_page(Path(name)) as url:
            pictures(playwright, url, Picture("demo", f"/demo/?study={PLAYGROUND}&every=20", 1000, typed), out)
        extension(playwright, Path(name), out)


def _of_dashboard(playwright: Playwright, dashboard: Dashboard, out: Path) -> None:
    for each in DASHBOARD:
        pictures(playwright, dashboard.url, each, out)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as new:
        main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else new))
