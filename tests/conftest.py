"""What holds for every test."""

import signal

import pytest
from hypothesis import settings

from tests.browser.harness.available import loud_line
from tests.browser.harness.fixtures import chromium, chromium_browser, playwright

__all__ = ["chromium", "chromium_browser", "playwright"]

# No test asserts a wall time, so Hypothesis gets no deadline for an example either.
settings.register_profile("fedping", deadline=None)
settings.load_profile("fedping")

# A shell starts what it puts into the background with Ctrl-C ignored, and whatever is started from there inherits it:
# commands that are tested for how they end on Ctrl-C would not even notice it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line which tests were skipped because this machine has no browser, or no node."""
    skipped = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []) if report.longrepr]
    if line := loud_line(skipped):
        terminalreporter.write_line(line, red=True, bold=True)
