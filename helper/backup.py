"""Backups of a helper's folder, and what becomes of them.

A copy does not know what was answered after it was made. Answering that again would give a sum a second time, with
other noise or with one client less, and so give clients away. So a copy answers nothing until it is restored, and then
from a version on that its operator has asked the leader for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedping.helper.folder import HelperFolder, make_empty, open_folder
from fedping.helper.records import adopt, open_records
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.local_files import write_secret


def back_up(folder: HelperFolder, to: Path) -> None:
    """Copy a helper's folder, keys included, to a new one, also while it answers.

    Raises:
        FedpingError: there is something, or it cannot be written.
    """
    _refuse_existing(to)
    try:
        make_empty(to)
        with folder.records() as records:
            _copy_keys(folder, to)
            records.copy_to(to / "helper.sqlite")
        _copy_keys(folder, to)  # those that have come meanwhile: a key without its offer does no harm
        write_secret(to / "helper.key", folder.secret)  # last: what has it is whole
    except (OSError, sqlite3.Error) as error:
        raise FedpingError(f"no backup can be written to {to}: {error}; give another folder") from error


def restore(backup: Path, to: Path, first: Mapping[tuple[str, str], int]) -> HelperFolder:
    """Make a helper's folder of a copy of one, and return it.

    Args:
        backup: the copy; it stays as it is.
        to: where there is nothing yet.
        first: by study and line from which version on it answers: one after the newest that the leader has.

    Raises:
        InvalidSettings: a line is missing in ``first``, or one is there that the copy does not have.
        FedpingError: there is something already, or the copy cannot be read.
    """
    _refuse_existing(to)
    copy = open_folder(backup)
    try:
        with open_records(backup / "helper.sqlite", copy.identity, a_copy=True) as records:
            lines = {(each.study, each.line): each for each in records.lines()}
            for study, line in lines.keys() ^ first.keys():
                there = "is in the backup" if (study, line) in lines else "is not in the backup"
                raise InvalidSettings(
                    f"line '{line}' of study '{study}' {there}; give, once for each line that is, the version from "
                    f"which on it is answered: --from {study}/{line}=VERSION, one after the newest that is published"
                )
            with_fences = {lines[each].number: max(first[each], lines[each].first) for each in lines}
            make_empty(to)  # not before all is clear: a folder that is there is refused when the command is repeated
            records.copy_to(to / "helper.sqlite")
        adopt(to / "helper.sqlite")
        with open_records(to / "helper.sqlite", copy.identity) as restored, restored.writing():
            for number, version in with_fences.items():
                restored.begin_at(number, version)
        _copy_keys(copy, to)
        write_secret(to / "helper.key", copy.secret)
    except (OSError, sqlite3.Error) as error:
        raise FedpingError(f"{backup} cannot be restored to {to}: {error}") from error
    return open_folder(to)


def _refuse_existing(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise FedpingError(f"{to} is there already, and nothing is overwritten; give a new folder")


def _copy_keys(folder: HelperFolder, to: Path) -> None:
    """Copy the keys of offers that are not there yet."""
    for key in sorted((folder.path / "keys").glob("*.key")):
        if not (to / "keys" / key.name).exists():
            with suppress(FileNotFoundError):  # retired a moment ago
                write_secret(to / "keys" / key.name, bytes.fromhex(key.read_text()))
