"""Settings files in TOML: read and converted, or rejected with one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import OddSettings, with_own
from fedping.protocol.validation_messages import validation_message

T = TypeVar("T")


class NotToml(InvalidSettings):
    """A text is not TOML."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the unchecked tables of a file; ``what`` describes it in errors, as in "the study file".

    Raises:
        InvalidSettings: the file does not exist, or is not UTF-8 text or not TOML (:class:`NotToml`).
    """
    try:
        return tables_in(path.read_text(encoding="utf-8"), f"the {what} {path}")
    except OSError as error:
        raise InvalidSettings(f"cannot read the {what} {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"the {what} {path} is not UTF-8 text; save it as UTF-8") from error


def tables_in(text: str, what: str) -> dict[str, Any]:
    """Return the unchecked tables of a text; errors begin with ``what``.

    Raises:
        NotToml: the text is not TOML, is nested too deeply, or has too long a number.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why = str(error)
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError:  # Python reads no number of more than 4,300 digits
        why = "it has a number of thousands of digits"
    raise NotToml(f"{what} is not valid TOML: {why}")


def converted(raw: Any, kind: type[T], where: str) -> T:
    """Return tables converted to ``kind``; errors begin with ``where``.

    Raises:
        InvalidSettings: the tables don't fit.
    """
    try:
        return msgspec.convert(with_own(raw, kind), kind)
    except OddSettings as odd:
        raise InvalidSettings(f"{where}{validation_message(odd.error, raw, odd.kind, odd.place)}") from odd
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{where}{validation_message(error, raw, kind)}") from error
