"""Python environments with a selection of this environment's packages, and fedping from the checkout or a wheel."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return the installed distributions of some requirements, with all their dependencies."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if str(wanted) in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(str(wanted))
        found[name] = distribution(name)
        for text in found[name].requires or ():
            needed = Requirement(text)
            environments = [{"extra": extra} for extra in ("", *wanted.extras)]
            if needed.marker is None or any(needed.marker.evaluate(each) for each in environments):
                needed.marker = None
                waiting.append(needed)
    return found


def megabytes(distributions: Iterable[Distribution]) -> float:
    """Return the size of distributions on disk in MB, without compiled files."""
    sizes = (file.stat().st_size for dist in distributions for file in _files(dist) if file.is_file())
    return sum(sizes) / 1e6


def _files(distribution: Distribution) -> Iterable[Path]:
    """Return the files of a distribution; if an old pip installed it by setup.py, all files of its packages."""
    if distribution.read_text("RECORD") is not None:
        return (Path(str(distribution.locate_file(file))) for file in distribution.files or ())
    packages = (distribution.read_text("top_level.txt") or "").split()
    folders = (Path(str(distribution.locate_file(package))) for package in packages)
    found = (file for folder in folders for file in folder.rglob("*"))
    return (file for file in found if "__pycache__" not in file.parts)


def environment(folder: Path, requirements: Iterable[str]) -> tuple[Path, Path]:
    """Make a virtual environment without pip, with the requirements' packages; return its Python and its packages.

    The packages are links to this environment's; nothing is downloaded.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for dist in closure(requirements).values():
        for entry in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
            (site / entry).symlink_to(Path(str(dist.locate_file(entry))))
    return folder / "bin" / "python", site


def built_wheel(folder: Path, checkout: Path = ROOT) -> Path:
    """Build the wheel of a checkout with the installed setuptools, without a package index."""
    source = folder / "source"
    kept = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info", "demo-out")
    shutil.copytree(checkout, source, ignore=kept, symlinks=True)
    command = [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", str(source), "-w", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = folder.glob("fedping-*.whl")
    return wheel


def install_wheel(python: Path, wheel: Path) -> None:
    """Install a wheel into an environment, without its dependencies."""
    command = [*PIP, "--python", str(python), "install", "--no-index", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)


def installed_wheel(folder: Path, checkout: Path = ROOT) -> Path:
    """Return the Python of a new environment with a wheel and, without downloads, this environment's other packages."""
    python, _ = environment(folder / "venv", ())
    share_packages(folder / "venv")
    install_wheel(python, built_wheel(folder, checkout))
    return python


def share_packages(venv: Path) -> None:
    """Let a virtual environment find this environment's packages, except fedping."""
    (site,) = venv.glob("lib/python*/site-packages")
    # Path files in a folder named by a path file aren't read; one of them may install this checkout.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")
