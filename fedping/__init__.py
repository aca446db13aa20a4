"""Federated learning over the telemetry that a product already has.

The names for programs, notebooks and extension packages; docs/python.md and docs/extending.md describe them. The import
is fast, because each name is loaded at its first use. Subpackages such as ``fedping.protocol`` are internal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError, InvalidSettings

if TYPE_CHECKING:
    from fedping.client_sim.data import Table, Target, table
    from fedping.client_sim.learning.mini_batches import local_steps
    from fedping.client_sim.learning.models.arrays import array
    from fedping.client_sim.learning.networks.equinox import equinox_network
    from fedping.client_sim.learning.networks.flax import flax_network
    from fedping.client_sim.learning.networks.layers import convolution
    from fedping.client_sim.learning.networks.network import Network
    from fedping.client_sim.learning.stepwise import Stepwise
    from fedping.creating import create_study
    from fedping.experiments.laboratory.comparing import Comparison
    from fedping.extending import (
        aggregation,
        client_algorithm,
        data_set,
        metric,
        model,
        optimizer,
        partition,
        ranking_model,
        sampling,
        upload_link,
    )
    from fedping.extras import MissingPackage
    from fedping.laboratory import Results, Round, compare, open_results, reproduce, run
    from fedping.model_store.store import MissingVersion, StoreError
    from fedping.protocol.draws import child_keys, uniforms
    from fedping.protocol.landed_file import UnreadableFile
    from fedping.protocol.link_ends import ClientEnd, ServerEnd
    from fedping.server_jobs.optimize.transformation import Transformation
    from fedping.server_jobs.round.accumulator import Finished, of_all
    from fedping.stored import Store, StoredVersion, open_store, read_outcomes, read_pings

_HOME = {
    "ClientEnd": "fedping.protocol.link_ends",
    "Comparison": "fedping.experiments.laboratory.comparing",
    "Finished": "fedping.server_jobs.round.accumulator",
    "MissingPackage": "fedping.extras",
    "MissingVersion": "fedping.model_store.store",
    "Network": "fedping.client_sim.learning.networks.network",
    "Results": "fedping.laboratory",
    "Round": "fedping.laboratory",
    "ServerEnd": "fedping.protocol.link_ends",
    "Stepwise": "fedping.client_sim.learning.stepwise",
    "Store": "fedping.stored",
    "StoreError": "fedping.model_store.store",
    "StoredVersion": "fedping.stored",
    "Table": "fedping.client_sim.data",
    "Target": "fedping.client_sim.data",
    "Transformation": "fedping.server_jobs.optimize.transformation",
    "UnreadableFile": "fedping.protocol.landed_file",
    "aggregation": "fedping.extending",
    "array": "fedping.client_sim.learning.models.arrays",
    "child_keys": "fedping.protocol.draws",
    "client_algorithm": "fedping.extending",
    "compare": "fedping.laboratory",
    "convolution": "fedping.client_sim.learning.networks.layers",
    "create_study": "fedping.creating",
    "data_set": "fedping.extending",
    "equinox_network": "fedping.client_sim.learning.networks.equinox",
    "flax_network": "fedping.client_sim.learning.networks.flax",
    "local_steps": "fedping.client_sim.learning.mini_batches",
    "metric": "fedping.extending",
    "model": "fedping.extending",
    "of_all": "fedping.server_jobs.round.accumulator",
    "open_results": "fedping.laboratory",
    "open_store": "fedping.stored",
    "optimizer": "fedping.extending",
    "partition": "fedping.extending",
    "ranking_model": "fedping.extending",
    "read_outcomes": "fedping.stored",
    "read_pings": "fedping.stored",
    "reproduce": "fedping.laboratory",
    "run": "fedping.laboratory",
    "sampling": "fedping.extending",
    "table": "fedping.client_sim.data",
    "uniforms": "fedping.protocol.draws",
    "upload_link": "fedping.extending",
}
"""Module of each name that is loaded at its first use."""

__all__ = [
    "ClientEnd",
    "Comparison",
    "FedpingError",
    "Finished",
    "InvalidSettings",
    "MissingPackage",
    "MissingVersion",
    "Network",
    "Results",
    "Round",
    "ServerEnd",
    "Stepwise",
    "Store",
    "StoreError",
    "StoredVersion",
    "Table",
    "Target",
    "Transformation",
    "UnreadableFile",
    "__version__",
    "aggregation",
    "array",
    "child_keys",
    "client_algorithm",
    "compare",
    "convolution",
    "create_study",
    "data_set",
    "equinox_network",
    "flax_network",
    "local_steps",
    "metric",
    "model",
    "of_all",
    "open_results",
    "open_store",
    "optimizer",
    "partition",
    "ranking_model",
    "read_outcomes",
    "read_pings",
    "reproduce",
    "run",
    "sampling",
    "table",
    "uniforms",
    "upload_link",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedping' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        from fedping.extras import missing_package

        if (missing := missing_package(error, f"fedping.{name}")) is None:
            raise
        raise missing from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
