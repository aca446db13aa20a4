"""A machine without browsers: tests that need them are skipped with one line; the installer says how to get them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.harness.available import PACKAGES, path_of
from tests.browser.harness.install import main

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=200
    )


def test_the_last_line_of_a_run_tells_what_was_skipped_and_what_to_do() -> None:
    tests = ("tests/browser/test_harness.py", "tests/browser/test_javascript.py", "-p", "no:cacheprovider")
    ended = run("pytest", "-m", "browser or not browser", *tests, FEDPING_WITHOUT=",".join(PACKAGES))
    assert ended.returncode == 0, ended.stdout
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("TESTS SKIPPED")]
    assert re.search(r"\d+ for want of chromium", line)
    assert re.search(r"\d+ for want of node 20 or newer", line)
    assert "make test-browser" in line


def test_where_nothing_can_be_installed_one_sentence_says_what_to_install() -> None:
    ended = run("tests.browser.harness.install", PATH="/nowhere")
    assert ended.returncode == 1
    (sentence,) = ended.stderr.splitlines()
    assert "sudo apt-get install chromium firefox-esr xvfb xdotool" in sentence


def test_node_comes_with_playwright_where_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    node = path_of("node")
    assert node is not None
    assert subprocess.run([node, "-p", "6 * 7"], capture_output=True, text=True).stdout.strip() == "42"


def test_where_nothing_is_missing_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.browser.harness.install.missing", list)
    assert main() == 0
    assert capsys.readouterr() == ("", "")
