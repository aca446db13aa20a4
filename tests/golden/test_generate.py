"""Golden documents can be frozen without a network: a commit's wheel is built with the installed packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import generate


@pytest.mark.long
def test_a_commit_s_wheel_is_built_and_installed_without_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/none")
    monkeypatch.setenv("PIP_RETRIES", "0")
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=generate.ROOT, capture_output=True).returncode:
        pytest.skip("the history of the repository is not here")
    found = generate.installed(tmp_path, "HEAD")
    words = [sys.executable, "-c", "import fedping; print(fedping.__file__)"]
    ran = subprocess.run(words, cwd=tmp_path, env={**os.environ, **found}, capture_output=True, text=True, check=True)
    assert Path(ran.stdout.strip()).is_relative_to(tmp_path / "site")
