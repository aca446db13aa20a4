"""Cuts requirements.lock down to the packages that an image needs, with the same versions and hashes.

``python deploy/locked.py ingest`` prints an image's part, by the names in ``images.json``; it needs only Python,
because an image's build has nothing else yet. ``python deploy/locked.py --write`` updates these names from the packages
that are installed here; run it after `make lock`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOCK = "requirements.lock"
NAMES = HERE / "images.json"

EXTRAS: dict[str, tuple[str, ...]] = {
    "ingest": ("objects",),
    "round": ("analysis", "objects", "privacy"),
    "helper": ("privacy",),
}
"""The extras of pyproject.toml that each image has, in addition to fedping's own dependencies."""

PLATFORMS = tuple(
    {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    for python, machine in product(("3.11", "3.12", "3.13"), ("x86_64", "aarch64"))
)
"""Platforms on which images may run, as environments for the markers of requirements."""


def canonical(name: str) -> str:
    """Return a package's name in the spelling of package indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(lock: str) -> dict[str, str]:
    """Return the entries of a lock, requirements with their hashes, by the names of their packages.

    Raises:
        ValueError: an entry has no version or no hash.
    """
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", lock.strip()):
        name = re.match(r"([\w.-]+)==\S+", entry)
        if name is None or "--hash=sha256:" not in entry:
            raise ValueError(f"no locked package with its hashes: {entry.splitlines()[0]!r}; run 'make lock'")
        at = canonical(name[1])
        found[at] = f"{found.get(at, '')}{entry}\n"  # a package may have a version for each of several Pythons
    return found


def cut(lock: str, names: Iterable[str]) -> str:
    """Return the entries of some packages in a lock, as text.

    Raises:
        ValueError: the lock lacks a package, or an entry is damaged.
    """
    locked = entries(lock)
    if missing := [name for name in names if name not in locked]:
        raise ValueError(f"{LOCK} lacks {', '.join(missing)}; run 'make lock', then 'python deploy/locked.py --write'")
    return "".join(locked[name] for name in names)


def needed(requirements: Iterable[str]) -> list[str]:
    """Return the names, sorted, of all packages that requirements need on any of :data:`PLATFORMS`.

    Raises:
        importlib.metadata.PackageNotFoundError: a package is not installed here, so that its requirements are unknown.
    """
    from importlib.metadata import distribution

    from packaging.requirements import Requirement

    found, waiting = set[str](), {(text, "") for text in requirements}
    seen = set[tuple[str, str]]()
    while waiting:
        seen.add(each := waiting.pop())
        wanted = Requirement(each[0])
        environments = [{**platform, "extra": each[1]} for platform in PLATFORMS]
        if wanted.marker and not any(wanted.marker.evaluate(environment) for environment in environments):
            continue
        found.add(canonical(wanted.name))
        further = distribution(wanted.name).requires or ()
        waiting |= {(text, extra) for text in further for extra in ("", *wanted.extras)} - seen
    return sorted(found)


def of_images(project: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the packages of each image; ``project`` is the table [project] of pyproject.toml."""
    return {image: needed(_requirements(project, extras)) for image, extras in EXTRAS.items()}


def _requirements(project: Mapping[str, Any], extras: Collection[str]) -> list[str]:
    """Return the project's requirements with some of its extras, including the extras that these extras name."""
    found: list[str] = list(project["dependencies"])
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            own = re.match(r"fedping\[(.+)\]\Z", text)
            found += _requirements(project, own[1].split(",")) if own else [text]
    return found


def main(arguments: list[str]) -> int:
    """Print an image's lock, or write the names for all images; return 2 for invalid arguments, 1 after an error."""
    if arguments == ["--write"]:
        import tomllib

        project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        NAMES.write_text(json.dumps(of_images(project), indent=1) + "\n", encoding="utf-8")
        return 0
    if len(arguments) != 1 or arguments[0] not in EXTRAS:
        print(f"usage: python deploy/locked.py {'|'.join(EXTRAS)}|--write", file=sys.stderr)
        return 2
    try:
        names = json.loads(NAMES.read_text(encoding="utf-8"))[arguments[0]]
        print(cut((HERE.parent / LOCK).read_text(encoding="utf-8"), names), end="")
    except (OSError, ValueError) as error:
        print(f"deploy/locked.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
