"""Fixtures and hooks for all tests."""

import os
import random
import re
import shutil
import signal
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

from tests.browser.harness.available import loud_line
from tests.browser.harness.fixtures import chromium, chromium_browser, firefox, firefox_browser, playwright, screen
from tests.support.effort import VARIABLE
from tests.support.object_server import object_servers
from tests.support.spark import SHARED, no_shared_session, spark, warm_commands

__all__ = [
    "chromium",
    "chromium_browser",
    "firefox",
    "firefox_browser",
    "no_shared_session",
    "object_servers",
    "playwright",
    "screen",
    "spark",
    "warm_commands",
]

# No test asserts a wall time, so Hypothesis gets no deadline for an example either. Its examples are the same in every
# run, so that what passes here passes there; `make test-anew` searches for others.
settings.register_profile("fedping", deadline=None, derandomize=True)
settings.register_profile("anew", deadline=None)
settings.load_profile("fedping")


@pytest.fixture(autouse=True)
def seeded_draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed a test's draws from the operating system, such as client ids, by the test's name."""
    drawn = random.Random(request.node.nodeid)
    monkeypatch.setattr(os, "urandom", drawn.randbytes)
    monkeypatch.setattr(random, "_urandom", drawn.randbytes)


# A shell starts background processes with Ctrl-C ignored, and their children inherit this, so commands in tests of
# Ctrl-C would not notice it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


FORKED = "use of fork() may lead to deadlocks"
"""Python's warning, from 3.12 on, about a fork in a process with threads. Turned into an error it would be lost,
because Python drops an exception there. So it is searched in the tests' warnings, and in their processes' output."""

_forked: list[str] = []


MEMORY = Path("/dev/shm")
"""A file system in memory, for faster temporary folders; no test simulates a power cut."""

MEMORY_BYTES = 4 << 30
"""Bytes that must be free in memory; a run uses a tenth."""


def pytest_configure(config: pytest.Config) -> None:
    """Let `make test-long`, which selects long tests, run in full the tests that `make test` runs in part."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    filters = [os.environ.get("PYTHONWARNINGS"), "always:This process (pid=:DeprecationWarning"]
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, filters))
    config.addinivalue_line("markers", "thorough: does a part of its work; all of it by `make test-long`")
    if wants_long(config):
        os.environ[VARIABLE] = "all"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count thorough tests among the long ones; shuffle files, and the tests of each, on request."""
    if seed := os.environ.get("FEDPING_TESTS_ORDER"):
        order = random.Random(seed)
        files = list(dict.fromkeys(item.path for item in items))
        place = dict(zip(files, order.sample(range(len(files)), len(files)), strict=True))
        items.sort(key=lambda item: (place[item.path], order.random()))
    else:
        one_spark_session_first(items)
    for item in items if wants_long(config) else []:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.long)


def one_spark_session_first(items: list[pytest.Item]) -> None:
    """Put files that use the shared Spark session first, after those that need it ended.

    Then only one worker of xdist starts a JVM, not every worker: the first worker gets the first files, and others
    take over only the last ones.
    """
    place: dict[Path, int] = {}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        shares, ends = "spark" in fixtures, "no_shared_session" in fixtures
        place[item.path] = 1 if shares or place.get(item.path) == 1 else 0 if ends else place.get(item.path, 2)
    items.sort(key=lambda item: place[item.path])


def pytest_warning_recorded(warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
    """Record a test whose process forked although it has threads."""
    if FORKED in str(warning_message.message):
        _forked.append(f"{nodeid or when}: {warning_message.filename}:{warning_message.lineno}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record a test that started a process which forked although it has threads."""
    if report.when == "teardown":
        _forked.extend(f"{report.nodeid}: {line}" for line in report.capstderr.splitlines() if FORKED in line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the Spark session that tests have shared; fail if anything was forked from a process with threads."""
    SHARED.end()
    if _forked:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def wants_long(config: pytest.Config) -> bool:
    """Return whether this run selects long tests by marker."""
    return bool(re.search(r"(?<!not )\blong\b", config.option.markexpr))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report tests that forked with threads, and in one line the tests skipped for a missing browser, Node or nginx."""
    for line in _forked:
        terminalreporter.write_line(f"FORKED WITH THREADS, which may deadlock: {line}", red=True, bold=True)
    skipped = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []) if report.longrepr]
    if line := loud_line(skipped):
        terminalreporter.write_line(line, red=True, bold=True)
