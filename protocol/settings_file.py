"""Settings files in TOML: read, and turned into what they describe, or a sentence that says what is wrong with them."""

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
    """Return a file's tables, not yet judged; ``what`` it is stands in the errors, as in "the study file".

    Raises:
        InvalidSettings: the file is not there, is no UTF-8 text or not TOML (:class:`NotToml`).
    """
    try:
        return tables_in(path.read_text(encoding="utf-8"), f"the {what} {path}")
    except OSError as error:
        raise InvalidSettings(f"cannot read the {what} {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"the {what} {path} is not UTF-8 text; save it as UTF-8") from error


def tables_in(text: str, what: str) -> dict[str, Any]:
    """Return the tables of a text, not yet judged; ``what`` it is begins the sentence of the error.

    Raises:
        NotToml: it is not TOML, or such as nobody writes.
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
    """Return what tables describe; ``where`` they stand begins the sentence of the error.

    Raises:
        InvalidSettings: they do not describe it.
    """
    try:
        return msgspec.convert(with_own(raw, kind), kind)
    except OddSettings as odd:
        raise InvalidSettings(f"{where}{validation_message(odd.error, raw, odd.kind, odd.place)}") from odd
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{where}{validation_message(error, raw, kind)}") from error
