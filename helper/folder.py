"""The folder of a helper: its keys, each a file that nobody but its owner may read, and its records.

helper.key           the secret that the helper's identity follows from
keys/<offer>.key     the private key of an offer; deleted when it is retired
helper.sqlite        lines, offers, answers and the documents in them (`fedping.helper.records`)
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedping.helper.records import Records, adopt, make_records, open_records
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.local_files import make_folder, others_may_use, write_secret
from fedping.protocol.sharing.keys import Identity, identity_of, signing_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


SECRET_BYTES = 32
PURPOSE = "fedping helper v1"


@dataclass(frozen=True)
class HelperFolder:
    """A helper's folder, opened: see :func:`open_folder`."""

    path: Path
    secret: bytes = field(repr=False)

    @cached_property
    def key(self) -> Ed25519PrivateKey:
        """What the helper signs with."""
        return signing_key(self.secret, PURPOSE)

    @property
    def identity(self) -> Identity:
        """Who the helper is."""
        return identity_of(self.key)

    def records(self) -> Records:
        """Open the records; whoever does closes them. Threads and processes open their own."""
        return open_records(self.path / "helper.sqlite", self.identity)

    def key_file(self, offer: bytes) -> Path:
        """Return where the private key of an offer is."""
        return self.path / "keys" / f"{offer.hex()}.key"


def make_helper(path: Path) -> HelperFolder:
    """Make a helper's folder, with a new identity and no lines.

    Raises:
        FedpingError: there is one already, or it cannot be written.
    """
    if (path / "helper.key").exists():
        raise FedpingError(f"{path} is a helper's folder already; it keeps its identity, so give another with --folder")
    made = HelperFolder(path, os.urandom(SECRET_BYTES))
    try:
        make_empty(path)
        make_records(path / "helper.sqlite", made.identity)
        write_secret(path / "helper.key", made.secret)  # last: what has it is whole
    except OSError as error:
        raise FedpingError(f"no helper can be made in {path}: {error.strerror}; give another with --folder") from error
    return made


def make_empty(path: Path) -> None:
    """Make the folders, which nobody but their owner may enter."""
    make_folder(path)
    path.chmod(0o700)
    (path / "keys").mkdir(mode=0o700, exist_ok=True)
    (path / "helper.sqlite").unlink(missing_ok=True)  # of one that was killed while it was made


def open_folder(path: Path) -> HelperFolder:
    """Return a helper's folder.

    Raises:
        InvalidSettings: it is none, or others than its owner may read its key.
    """
    if not (path / "helper.key").exists():
        raise InvalidSettings(f"{path} is no helper's folder; make one with 'fedping helper init', or give --folder")
    return HelperFolder(path, read_secret(path / "helper.key", SECRET_BYTES))


def read_secret(path: Path, size: int) -> bytes:
    """Return a secret of so many bytes.

    Raises:
        InvalidSettings: it cannot be read, is none, or others than its owner may read it.
    """
    try:
        text, mode = path.read_text().strip(), path.stat().st_mode
        secret = bytes.fromhex(text)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise InvalidSettings(f"the key {path} cannot be read: {why}; take it from a backup of the folder") from error
    if others_may_use(mode):
        raise InvalidSettings(f"others than its owner may use the key {path}; correct that with 'chmod 600 {path}'")
    if len(secret) != size:
        raise InvalidSettings(f"the key {path} is damaged; take it from a backup of the folder")
    return secret


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
