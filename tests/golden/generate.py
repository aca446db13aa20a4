"""Freezes the golden documents, each with the program of its commit installed as a wheel.

    python -m tests.golden.generate                    all that are not there
    python -m tests.golden.generate NAME ...           these, in the place of those that are there

It exports the commit, builds its wheel with the setuptools of this environment, without a network, and installs that
into a folder outside any checkout. In a process that finds fedping there and nowhere else, each document is written by
`tests/golden/writing`; then `tests/golden/reading` reads, continues and recomputes a copy, and what that gives is
frozen beside it. `tests/support` is that of the commit, too.

Seeds and ids are fixed, and rounds are given their time, so that writing again gives the same document, but for what is
secret or drawn by the system (helper keys, sealed shares, institutions) and for what ingest names by its clock. What a
command says of the clock is not compared.

A document is never written anew because a test fails. It is what others have on their disks.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.frozen import COMMIT, FROZEN, GOLDEN, LATER

ROOT = Path(__file__).parents[2]
OFFLINE = ("--no-deps", "--no-index")


def installed(work: Path, commit: str) -> dict[str, str]:
    """Put a commit's wheel and its tests' support into a folder, and return the environment that finds them alone."""
    source, site, code = work / "source", work / "site", work / "code"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", work / "wheel", source], check=True)
    (wheel,) = (work / "wheel").glob("fedping-*.whl")
    subprocess.run([*pip, "install", *OFFLINE, "--target", site, wheel], check=True)
    (code / "tests").mkdir(parents=True)
    os.rename(source / "tests" / "support", code / "tests" / "support")
    (code / "tests" / "browser").mkdir()
    for name in ("experiments", "benchmarks", "tests/browser/tools.py", "tests/browser/harness"):
        os.rename(source / name, code / name)
    (code / "tests" / "golden").symlink_to(Path(__file__).parent)
    return {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{code}", "PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC"}


def main() -> None:
    """Freeze what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    asked = parser.parse_args().names
    names = asked or [name for name in GOLDEN if not (FROZEN / f"{name}.tar.gz").exists()]
    by_commit: dict[str, list[str]] = {}
    for name in names:
        by_commit.setdefault(LATER.get(name, COMMIT), []).append(name)
    for commit, of_commit in by_commit.items():
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder).resolve()
            environment = installed(work, commit)
            for name in of_commit:
                command = [sys.executable, "-m", "tests.golden.writing.one", name, work / "site"]
                subprocess.run(command, cwd=work / "code", env=environment, check=True)


if __name__ == "__main__":
    main()
