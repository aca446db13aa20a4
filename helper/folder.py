"""A helper's folder, with its keys and records, and backups of the folder.

helper.key           the secret that the helper's identity is derived from
keys/<offer>.key     the private key of an offer; deleted when the offer is retired
helper.sqlite        lines, offers, answers and the documents in them (`fedping.helper.records`)

Only the owner may read the keys.

A backup lacks later answers. Answering these requests again would release a second sum, with other noise or without one
client, and so reveal clients. So a backup answers nothing until it is restored, and then only from a certain version
on, which its operator gets from the leader's operator.
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
    """An opened folder of a helper; see :func:`open_folder`."""

    path: Path
    secret: bytes = field(repr=False)

    @cached_property
    def key(self) -> Ed25519PrivateKey:
        """The key that the helper signs with."""
        return signing_key(self.secret, PURPOSE)

    @property
    def identity(self) -> Identity:
        """The helper's identity."""
        return identity_of(self.key)

    def records(self) -> Records:
        """Open the records; the caller closes them. Each thread and process must open them separately."""
        return open_records(self.path / "helper.sqlite", self.identity)

    def key_file(self, offer: bytes) -> Path:
        """Return the file of the private key of an offer."""
        return self.path / "keys" / f"{offer.hex()}.key"


def make_helper(path: Path) -> HelperFolder:
    """Create a helper's folder, with a new identity and no lines.

    Raises:
        FedpingError: the folder already belongs to a helper, or can't be written.
    """
    if (path / "helper.key").exists():
        raise FedpingError(f"{path} is already a helper's folder, and keeps its identity. Give another with --folder")
    made = HelperFolder(path, os.urandom(SECRET_BYTES))
    try:
        make_empty(path)
        make_records(path / "helper.sqlite", made.identity)
        write_secret(path / "helper.key", made.secret)  # last, so that a folder with a key is complete
    except OSError as error:
        raise FedpingError(f"can't create a helper in {path}: {error.strerror}; give another with --folder") from error
    return made


def make_empty(path: Path) -> None:
    """Create the folders, readable only by their owner, without records."""
    make_folder(path)
    path.chmod(0o700)
    (path / "keys").mkdir(mode=0o700, exist_ok=True)
    (path / "helper.sqlite").unlink(missing_ok=True)  # left by a process that was killed here


def open_folder(path: Path) -> HelperFolder:
    """Open a helper's folder.

    Raises:
        InvalidSettings: it is not a helper's folder, or users other than its owner may read its key.
    """
    if not (path / "helper.key").exists():
        raise InvalidSettings(f"{path} is not a helper's folder; make one with 'fedping helper init', or give --folder")
    return HelperFolder(path, read_secret(path / "helper.key", SECRET_BYTES))


def read_secret(path: Path, size: int) -> bytes:
    """Return the secret in a file.

    Args:
        path: the file, with hexadecimal digits.
        size: the size of the secret, in bytes.

    Raises:
        InvalidSettings: the file can't be read, has no such secret, or users other than its owner may read it.
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
    """Copy a helper's folder with its keys to a new folder; the helper may answer meanwhile.

    Raises:
        FedpingError: the new folder exists and is not empty, or can't be written.
    """
    _refuse_existing(to)
    try:
        make_empty(to)
        with folder.records() as records:
            _copy_keys(folder, to)
            records.copy_to(to / "helper.sqlite")
        _copy_keys(folder, to)  # again, for keys made in the meantime: a key without its offer does no harm
        write_secret(to / "helper.key", folder.secret)  # last, so that a folder with a key is complete
    except (OSError, sqlite3.Error) as error:
        raise FedpingError(f"cannot write a backup to {to}: {error}; give another folder") from error


def restore(backup: Path, to: Path, first: Mapping[tuple[str, str], int]) -> HelperFolder:
    """Create a helper's folder from a backup, and return it.

    Args:
        backup: the backup, which is not changed.
        to: the folder to create; it must not exist, or must be empty.
        first: the first version that may be answered, by study and line: the version after the leader's newest.

    Raises:
        InvalidSettings: ``first`` lacks a line of the backup, or has a line that is not in the backup.
        FedpingError: ``to`` is not empty, or the backup can't be read.
    """
    _refuse_existing(to)
    copy = open_folder(backup)
    try:
        with open_records(backup / "helper.sqlite", copy.identity, a_copy=True) as records:
            lines = {(each.study, each.line): each for each in records.lines()}
            for study, line in lines.keys() ^ first.keys():
                state = "is in the backup" if (study, line) in lines else "is not in the backup"
                raise InvalidSettings(
                    f"line '{line}' of study '{study}' {state}; give --from {study}/{line}=VERSION once for each line "
                    "of the backup, with the version after the newest published one"
                )
            fences = {lines[each].number: max(first[each], lines[each].first) for each in lines}
            make_empty(to)  # after all checks, because a repeated command refuses an existing folder
            records.copy_to(to / "helper.sqlite")
        adopt(to / "helper.sqlite")
        with open_records(to / "helper.sqlite", copy.identity) as restored, restored.writing():
            for number, version in fences.items():
                restored.begin_at(number, version)
        _copy_keys(copy, to)
        write_secret(to / "helper.key", copy.secret)
    except (OSError, sqlite3.Error) as error:
        raise FedpingError(f"cannot restore {backup} to {to}: {error}") from error
    return open_folder(to)


def _refuse_existing(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise FedpingError(f"{to} exists, and nothing is overwritten; give a new folder")


def _copy_keys(folder: HelperFolder, to: Path) -> None:
    """Copy those keys of offers that the new folder does not have yet."""
    for key in sorted((folder.path / "keys").glob("*.key")):
        if not (to / "keys" / key.name).exists():
            with suppress(FileNotFoundError):  # retired a moment ago
                write_secret(to / "keys" / key.name, bytes.fromhex(key.read_text()))
