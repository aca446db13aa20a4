"""Shared functions of the readers of golden documents."""

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedping.main import main

LATER = "2026-01-02T00:00:00.000+00:00"
"""Fixed time of the rounds that continue a store."""


def digest(data: bytes) -> str:
    """Return the digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


def files(folder: Path, *leaving_out: str) -> dict[str, str]:
    """Return the digests of all files below a folder, by path, except paths that contain one of ``leaving_out``."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = ((path.relative_to(folder).as_posix(), path) for path in found)
    return {name: digest(path.read_bytes()) for name, path in named if not any(part in name for part in leaving_out)}


def command(*words: object) -> tuple[int, str, str]:
    """Run a command of fedping in this process; return its exit code and what it printed on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code or 0, out.getvalue(), err.getvalue()


def answers(*words: object, code: int = 0, without: tuple[str, ...] = ()) -> list[Any]:
    """Return a command's JSON output, one document for each line, without keys that depend on clock or machine."""
    ended, out, err = command(*words, "--json")
    assert ended == code, err
    return [_without(json.loads(line), without) for line in _documents(out)]


def _documents(text: str) -> Iterator[str]:
    lines = text.strip().splitlines()
    if lines and lines[0] in ("{", "["):
        yield text
    else:
        yield from lines


def _without(found: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(found, dict):
        return {key: _without(value, keys) for key, value in found.items() if key not in keys}
    return [_without(each, keys) for each in found] if isinstance(found, list) else found
