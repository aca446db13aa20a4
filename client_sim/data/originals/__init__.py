"""Data sets in their authors' files, which the user has downloaded into a folder: ``[data] name`` and ``folder``.

To add a data set, write a function of a folder and of settings that returns a :class:`fedping.client_sim.data.Table`,
and add it to ``ORIGINALS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fedping.client_sim.data.originals import cifar, hugging_face, leaf, tff
from fedping.client_sim.data.originals.reading import NoSettings, OfUsers
from fedping.client_sim.data.originals.tff_files import Part
from fedping.client_sim.data.originals.wisconsin import files_of_wisconsin, wisconsin
from fedping.client_sim.data.table import Table
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.settings_file import converted


def femnist(folder: Path, settings: OfUsers) -> Table:
    """Return handwritten characters of 62 classes by 28 x 28 pixels from 0 to 1; the natural key is the writer.

    The files are LEAF's or TensorFlow Federated's.
    """
    parts = tff.femnist_parts(folder)
    return tff.femnist(parts, settings) if parts else leaf.femnist(folder, settings)


def shakespeare(folder: Path, settings: OfUsers) -> Table:
    """Return sequences of 80 characters, each with the next character; the natural key is the speaking role.

    The files are LEAF's, with 80 classes, or TensorFlow Federated's, with 90.
    """
    parts = tff.shakespeare_parts(folder)
    return tff.shakespeare(parts, settings) if parts else leaf.shakespeare(folder, settings)


def cifar_100(folder: Path, settings: OfUsers) -> Table:
    """Return 60,000 pictures of 100 kinds of objects by 32 x 32 pixels of three colours from 0 to 255.

    The natural key is one of 20 superclasses in the authors' files, and the client in TensorFlow Federated's. Only the
    latter have the setting ``users``.

    Raises:
        InvalidSettings: ``users`` is set for the authors' files.
    """
    if parts := tff.cifar_100_parts(folder):
        return tff.cifar_100(parts, settings)
    if settings.users is not None:
        raise InvalidSettings(
            "[data.settings] of 'cifar-100': the authors' files have no users. Remove 'users', or name a folder with "
            "TensorFlow Federated's files"
        )
    return cifar.cifar_100(folder, NoSettings())


def _files(parts: Callable[[Path], list[Part]], others: Callable[[Path], list[Path]]) -> Files:
    """Return the function that lists a data set's files; it prefers TensorFlow Federated's to ``others``."""
    return lambda folder: tff.files_of(parts(folder)) or others(folder)


Files: TypeAlias = Callable[[Path], list[Path]]


@dataclass(frozen=True)
class Original:
    """A data set in its authors' files.

    Attributes:
        read: returns the table of a folder, given settings.
        files: returns the files of a folder that are read.
        settings: the type of the settings, a frozen struct.
        without_folder: returns the table without a folder, given settings; None if a folder is needed.
    """

    read: Callable[[Path, Any], Table]
    files: Files
    settings: type[Any]
    without_folder: Callable[[Any], Table] | None = None


ORIGINALS: Mapping[str, Original] = {
    "breast-cancer-original": Original(wisconsin, files_of_wisconsin, NoSettings),
    "cifar-10": Original(cifar.cifar_10, cifar.files_of_cifar_10, NoSettings),
    "cifar-100": Original(cifar_100, _files(tff.cifar_100_parts, cifar.files_of_cifar_100), OfUsers),
    "femnist": Original(femnist, _files(tff.femnist_parts, leaf.files_of_leaf), OfUsers),
    hugging_face.NAME: Original(
        hugging_face.hugging_face, hugging_face.files_of_saved, hugging_face.OfHub, hugging_face.from_hub
    ),
    "shakespeare": Original(shakespeare, _files(tff.shakespeare_parts, leaf.files_of_leaf), OfUsers),
    "stackoverflow": Original(tff.stackoverflow, tff.files_of_stackoverflow, tff.OfSentences),
}


def is_downloaded(name: str | None) -> bool:
    """Return whether the data set of that name can be read without a folder."""
    original = ORIGINALS.get(name or "")
    return original is not None and original.without_folder is not None


def check_original(name: str | None, settings: Mapping[str, Any]) -> None:
    """Check the name and the settings of a data set.

    Raises:
        InvalidSettings: no data set has this name, or it lacks these settings.
    """
    _settings(name or "", settings)


def load_original(name: str, folder: Path | None, settings: Mapping[str, Any]) -> Table:
    """Return the data set of that name, one of :data:`ORIGINALS`, from its authors' files.

    Args:
        name: name of the data set.
        folder: the folder with the files; None for a data set that is
        downloaded.
        settings: settings of the data set.

    Raises:
        InvalidSettings: no data set has this name, or it lacks these settings.
        FedpingError: the files are missing, damaged or too large.
    """
    own = _settings(name, settings)
    if folder is None:
        if (download := ORIGINALS[name].without_folder) is None:
            raise InvalidSettings(
                f"the data set '{name}' is read from its authors' files. Set 'folder' in [data] to where they are"
            )
        return download(own)
    if not folder.is_dir():
        raise FedpingError(f"[data] folder: {folder} is no folder. Name the folder with the files of '{name}'")
    return ORIGINALS[name].read(folder, own)


def files_of_original(name: str, folder: Path) -> list[Path]:
    """Return the files of a data set in reading order; an empty list if they are missing."""
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
