"""Data sets in the files of their authors, which a user has downloaded into a folder: ``[data] name`` and ``folder``.

To add one: a function of a folder and of its settings that returns a :class:`fedping.client_sim.data.Table`, and a line
in ``ORIGINALS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedping.client_sim.data.originals.cifar import cifar_10, cifar_100, files_of_cifar_10, files_of_cifar_100
from fedping.client_sim.data.originals.leaf import femnist, files_of_leaf, shakespeare
from fedping.client_sim.data.originals.reading import NoSettings, OfUsers
from fedping.client_sim.data.originals.wisconsin import files_of_wisconsin, wisconsin
from fedping.client_sim.data.table import Table
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.settings_file import converted


@dataclass(frozen=True)
class Original:
    """A data set in its authors' files.

    Attributes:
        read: returns the table of a folder, given settings.
        files: returns the files of a folder that are read.
        settings: the type of the settings, a frozen struct.
    """

    read: Callable[[Path, Any], Table]
    files: Callable[[Path], list[Path]]
    settings: type[Any]


ORIGINALS: Mapping[str, Original] = {
    "cifar-10": Original(cifar_10, files_of_cifar_10, NoSettings),
    "cifar-100": Original(cifar_100, files_of_cifar_100, NoSettings),
    "femnist": Original(femnist, files_of_leaf, OfUsers),
    "shakespeare": Original(shakespeare, files_of_leaf, OfUsers),
    "breast-cancer-original": Original(wisconsin, files_of_wisconsin, NoSettings),
}


def check_original(name: str | None, settings: Mapping[str, Any]) -> None:
    """Raise unless there is such a data set with such settings.

    Raises:
        InvalidSettings: there is not.
    """
    _settings(name or "", settings)


def load_original(name: str, folder: Path, settings: Mapping[str, Any]) -> Table:
    """Return the data set of that name, one of :data:`ORIGINALS`, from its authors' files.

    Args:
        name: of the data set.
        folder: the folder with the files.
        settings: of the data set.

    Raises:
        InvalidSettings: there is no such data set, or it does not have these settings.
        FedpingError: the files are missing, damaged or too large.
    """
    own = _settings(name, settings)
    if not folder.is_dir():
        raise FedpingError(f"[data] folder: {folder} is no folder. Name the folder with the files of '{name}'")
    return ORIGINALS[name].read(folder, own)


def files_of_original(name: str, folder: Path) -> list[Path]:
    """Return the files that a data set is read from, in their order; none if they are missing."""
    try:
        return ORIGINALS[name].files(folder) if name in ORIGINALS else []
    except FedpingError:  # the reader reports it
        return []


def _settings(name: str, settings: Mapping[str, Any]) -> Any:
    if name not in ORIGINALS:
        raise InvalidSettings(
            f"[data] folder: no data set '{name}' is read from a folder. Choose {', '.join(ORIGINALS)}, or set 'file' "
            "for a table of your own"
        )
    return converted(dict(settings), ORIGINALS[name].settings, f"[data.settings] of '{name}': ")
