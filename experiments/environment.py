"""What the last bits of results depend on besides settings, code and seed: the kind of processor and the libraries.

Libraries of matrix products choose a kernel by the processor, and kernels add in different orders. So the same seed
gives the same bits only on processors for which they choose the same one. This is recorded, and no part of what
identifies a run: results that differ in their last bits are those of the same experiment.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from msgspec import Struct

from fedping.client_sim.learning.blas import kernels
from fedping.experiments.run_folder import read_whole, write_document

ENVIRONMENT = "environment.json"


class Environment(Struct, frozen=True, kw_only=True):
    """Where a run, or a part of it, was computed.

    Attributes:
        machine: the kind of processor, such as "x86_64".
        python: the version of Python.
        numpy: the version of NumPy.
        blas: NumPy's libraries of matrix products with versions and kernels, such as "openblas 0.3.31 SkylakeX"; empty
            without the package ``threadpoolctl``, which reads them.
    """

    machine: str
    python: str
    numpy: str
    blas: tuple[str, ...]


class Environments(Struct, frozen=True):
    """Those of a run in the order in which they computed it: several if it was killed and continued elsewhere."""

    environments: tuple[Environment, ...] = ()


def environment_here() -> Environment:
    """Return the environment of this process."""
    return Environment(
        machine=platform.machine(), python=platform.python_version(), numpy=np.__version__, blas=kernels()
    )


def write_environment(folder: Path, earlier: Iterable[Environment] = ()) -> None:
    """Write into a run's folder that this process has computed it, after the ``earlier`` environments."""
    together = tuple(dict.fromkeys((*earlier, environment_here())))
    if environments_in(folder) != together:
        write_document(folder / ENVIRONMENT, Environments(together))


def environments_in(folder: Path) -> tuple[Environment, ...]:
    """Return the environments recorded in a run's folder; none if an earlier fedping ran it.

    Raises:
        DamagedRun: the file holds something else.
    """
    return (read_whole(folder / ENVIRONMENT, Environments) or Environments()).environments
