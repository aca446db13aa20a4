"""Freezes the golden documents, each with the program of its commit installed as a wheel.

    python -m tests.golden.generate                    all missing documents
    python -m tests.golden.generate NAME ...           these, replacing existing ones

It exports the commit, builds its wheel with this environment's setuptools, without a network, and installs it into a
folder outside any checkout. In a process that can import only that fedping, `tests/golden/writing` writes each
document; then `tests/golden/reading` reads, continues and recomputes a copy, and the result is frozen with the
document. `tests/support` is also the commit's.

Seeds, ids and the rounds' times are fixed, so that writing again gives the same document, except for secrets and
system randomness (helper keys, sealed shares, institutions) and for names from ingest's clock. Times in commands'
outputs are not compared.

Never write a document again because a test fails: it stands for the data on users' disks.
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
    """Install a commit's wheel and its tests' support into a folder; return an environment that finds only these."""
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
    """Freeze the requested documents."""
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
