"""Shared files: folders of a checkout, which a wheel installs below share/fedping."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from fedping.protocol.errors import FedpingError

CHECKOUT = Path(__file__).resolve().parents[1]
"""Folder of the checkout, or of an installed wheel's packages."""


def shared_folder(in_checkout: str, installed: str, file: str) -> Path:
    """Return a folder of a checkout or of an installed wheel.

    Args:
        in_checkout: the folder's path within the checkout.
        installed: the folder's path below share/fedping.
        file: a file in it, to identify the folder.

    Raises: FedpingError: this installation lacks the folder.
    """
    if (CHECKOUT / in_checkout / file).is_file():
        return CHECKOUT / in_checkout
    try:
        files = distribution("fedping").files or []
    except PackageNotFoundError:
        files = []
    wanted = ("share", "fedping", *installed.split("/"), file)
    for each in files:
        if each.parts[-len(wanted) :] == wanted:
            folder = Path(str(each.locate())).resolve().parent
            if (folder / file).is_file():
                return folder
    raise FedpingError(
        f"this installation lacks share/fedping/{installed}. Install fedping's wheel into a new environment, with "
        "'python -m venv' and 'pip install'."
    )
