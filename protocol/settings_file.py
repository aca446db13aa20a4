"""Settings files in TOML: read, and turned into what they describe, or a sentence that says what is wrong with them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from protocol.errors import InvalidSettings
from protocol.telling import told

T = TypeVar("T")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return a file's tables, not yet judged; ``what`` it is stands in the errors, as in "the study file".

    Raises:
        InvalidSettings: the file is not there, is no UTF-8 text or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"cannot read the {what} {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"the {what} {path} is not UTF-8 text; save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits, or of as many brackets
        raise InvalidSettings(f"the {what} {path} is not valid TOML: {error}") from error


def converted(raw: Any, kind: type[T], where: str) -> T:
    """Return what tables describe; ``where`` they stand begins the sentence of the error.

    Raises:
        InvalidSettings: they do not describe it.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{where}{told(error, raw, kind)}") from error
