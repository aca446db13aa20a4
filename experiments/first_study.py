"""Writes the folder of a user's first study from a template (`fedping study init`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from fedping.protocol.errors import FedpingError, InvalidSettings

TEMPLATES = {
    "shop": "products in the order that visitors want, with baskets and payments as outcomes",
    "feed": "articles, each with its reading time",
    "autocomplete": "a form field that completes itself, with the characters typed as the outcome",
    "prediction": "a chance that is predicted in the browser, such as that a visitor will finish a form",
}
"""Maps each template to the subject of its study."""

FOLDER = Path(__file__).with_name("templates")
COMMON = FOLDER / "common"
BROWSER = Path(__file__).parents[1] / "browser"
MODULES = "fedping"
"""Name of the folder with the client's JavaScript modules, inside a study's folder."""

WORDS = ("about", "rehearse")
"""The parts of the README that differ between templates, each in its own file."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_IMPORTED = re.compile(r'^\s*(?:import|export)\b[^;]*?from "(\.[^"]+)"|^import "(\.[^"]+)"', re.MULTILINE)
_ENTRY = re.compile(rf'from "\./{MODULES}/(\w+\.js)"')


def write_first_study(name: str, template: str, folder: Path) -> tuple[str, ...]:
    """Write a study's folder from a template and return the sorted names of its files.

    Args:
        name: the study's name.
        template: a key of :data:`TEMPLATES`.
        folder: the folder, which must not exist yet.

    Raises:
        InvalidSettings: a study can't have this name, or the folder exists.
        FedpingError: the folder cannot be written.
    """
    check_name(name)
    if folder.exists():
        raise InvalidSettings(f"{folder} exists; give another name or --folder, or remove it")
    files = files_of(template, name)
    modules = modules_of(files)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        for path, data in {**files, **modules}.items():
            target = unfinished / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        unfinished.rename(folder)
    except OSError as error:
        raise FedpingError(f"cannot write {folder}: {error.strerror}; correct the path") from error
    return tuple(sorted(files))


def check_name(name: str) -> None:
    """Raise :class:`InvalidSettings` unless a name is valid for a study, its folder and its title."""
    if not _NAME.fullmatch(name):
        raise InvalidSettings(
            f"'{name[:80]}' cannot name a study: use lower-case letters, digits, '-' and '_', a letter first, "
            "and at most 63 characters"
        )


def files_of(template: str, name: str) -> dict[str, bytes]:
    """Return the files of a study's folder except the client's modules, by path."""
    if template not in TEMPLATES:
        raise InvalidSettings(f"unknown template '{template[:80]}'. Choose {', '.join(TEMPLATES)}")
    try:
        found = [path for part in (COMMON, FOLDER / template) for path in sorted(part.iterdir())]
        texts = {path.name: path.read_text("utf-8") for path in found}
    except OSError as error:
        raise FedpingError(f"the template '{template}' is not installed ({FOLDER}); install fedping again") from error
    own = {word: texts.pop(f"{word}.md").strip() for word in WORDS}
    own |= {"more": " --rehearsal fleet.toml" if "fleet.toml" in texts else "", "study": name}
    return {path: _filled(text, own).encode() for path, text in texts.items()}


def _filled(text: str, own: Mapping[str, str]) -> str:
    """Return a text with its placeholders replaced by a template's own words."""
    for word, value in own.items():
        text = text.replace(f"{{{{{word}}}}}", value)
    return text


def modules_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the client's modules that a study's scripts import, directly or indirectly, by path."""
    scripts = (data.decode() for path, data in files.items() if path.endswith(".js"))
    waiting = sorted({PurePosixPath(entry) for text in scripts for entry in _ENTRY.findall(text)})
    found: dict[PurePosixPath, bytes] = {}
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = (BROWSER / path).read_bytes()
        waiting += (_beside(path, one or other) for one, other in _IMPORTED.findall(found[path].decode()))
    return {f"{MODULES}/{path}": found[path] for path in sorted(found)}


def _beside(path: PurePosixPath, imported: str) -> PurePosixPath:
    """Return the path of ``imported``, as named in an import of the module at ``path``."""
    parts: list[str] = list(path.parent.parts)
    for step in PurePosixPath(imported).parts:
        if step == "..":
            parts.pop()
        elif step != ".":
            parts.append(step)
    return PurePosixPath(*parts)
