"""Measures the delays of typing in the extension's search page: `python -m tests.browser.benchmark_typing [PAGES]`.

Runs in Chromium, with a history of 10,000 pages of ten visits each and real key events, one at a time. It reports the
longest task of the search page's thread and of the background script's thread: the longest that another key would
have waited. The times are from Chromium's own trace, whose work is included: wall time, and processor time, which
other load doesn't lengthen. `key to list` is the time from the key event to the changed list.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from fedping.client_sim.models import VisitType
from tests.browser.harness.chromium import Profile, chromium_profile, new_profile
from tests.browser.harness.seeds import Seed, seed_chromium
from tests.browser.users import packed

GOAL_MS = 16
BACKGROUND = "ServiceWorker thread"
THREADS = {"CrRendererMain": "search page", BACKGROUND: "background script"}
PAGES = 10_000
WORDS = ("news", "map", "mail", "wiki", "shop", "video", "docs", "issue", "music", "travel", "weather", "garden")
TYPED = ("news map", "wiki 12", "page 9999", "garden sh", "zzz", "http exa")

_WATCH = """
    () => {
      globalThis.keys = [];
      const query = document.getElementById("query");
      let pressed = null;
      query.addEventListener("input", (event) => { pressed = event.timeStamp; });
      const parts = [document.getElementById("results"), document.getElementById("status")];
      const drawn = new MutationObserver(() => {
        if (pressed !== null) keys.push(performance.now() - pressed);
        pressed = null;
      });
      parts.forEach((part) => drawn.observe(part, { childList: true, characterData: true, subtree: true }));
    }
"""


def history(pages: int) -> Iterator[Seed]:
    """Yield pages whose titles share words, with ten visits each over 80 days."""
    for i in range(pages):
        words = " ".join(WORDS[(i * step + shift) % len(WORDS)] for step, shift in ((1, 0), (5, 3), (7, 1)))
        visits = tuple(
            ((i * 7 + j * 13) % 79 + 0.5 + j / 100, VisitType.TYPED if (i + j) % 9 == 0 else VisitType.LINK)
            for j in range(10)
        )
        yield Seed(f"https://{WORDS[i % len(WORDS)]}.example/page/{i}", f"{words} page {i}", visits)


def measure(pages: int, folder: Path) -> dict[str, list[float]]:
    """Return milliseconds by measurement, one number for each keystroke."""
    extension, _ = packed(folder)
    with sync_playwright() as playwright:
        new_profile(playwright, folder / "profile")
        seed_chromium(folder / "profile", list(history(pages)))
        with chromium_profile(playwright, folder / "profile", extension) as profile:
            search = profile.open("search/search.html")
            search.wait_for_function(
                """async (pages) => {
                     const { value } = await chrome.runtime.sendMessage({ ask: "state" });
                     return value.pages === pages && value.reading === null;
                   }""",
                arg=pages,
            )
            return _typed(profile, search)


def _typed(profile: Profile, search: Page) -> dict[str, list[float]]:
    for text in TYPED:  # to warm up
        _type(search, text)
    search.evaluate(_WATCH)
    browser = profile.context.browser
    assert browser is not None
    browser.start_tracing(page=search, categories=["toplevel", "devtools.timeline", "__metadata"])
    for text in TYPED:
        _type(search, text)
    events: list[dict[str, Any]] = json.loads(browser.stop_tracing())["traceEvents"]
    return {"shown": search.evaluate("keys"), **_stretches(events)}


def _type(search: Page, text: str) -> None:
    search.locator("#query").fill("")
    for letter in text:
        search.keyboard.press(letter)
        search.wait_for_function("([typed]) => document.getElementById('query').value.endsWith(typed)", arg=[letter])
        search.wait_for_function(
            "() => new Promise((done) => setTimeout(() => requestAnimationFrame(() => done(true)), 60))"
        )


def _stretches(events: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the durations of the tasks of the extension's process, of its pages' thread and of its background's."""
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    extension = {pid for (pid, _), name in names.items() if name == BACKGROUND}
    found: dict[str, list[float]] = {}
    for event in events:
        thread = names.get((event["pid"], event["tid"]))
        is_task = event.get("ph") == "X" and "RunTask" in event["name"] and event["pid"] in extension
        if is_task and thread in THREADS:
            found.setdefault(THREADS[thread], []).append(event["dur"] / 1000)
            found.setdefault(f"{THREADS[thread]}, CPU", []).append(event.get("tdur", 0) / 1000)
    return found


def summary(figures: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return the median and 95th percentile of the time to the list, and the longest and too long tasks."""
    shown = figures["shown"]
    tasks = {what: times for what, times in sorted(figures.items()) if what != "shown"}
    return {
        "key to list": {"median": float(np.median(shown)), "p95": float(np.quantile(shown, 0.95))},
        **{
            what: {"longest": max(times), f"longer than {GOAL_MS} ms": sum(time > GOAL_MS for time in times)}
            for what, times in tasks.items()
        },
    }


def main(pages: int) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        figures = summary(measure(pages, Path(folder)))
    print(f"{pages} pages")
    for name, of in figures.items():
        print(name.ljust(24), "   ".join(f"{which} {figure:6.1f}" for which, figure in of.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PAGES)
