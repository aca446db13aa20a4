"""The versions of a model, each one document of weights, optimizer state and lineage, published by compare-and-swap."""

from fedping.model_store.documents import Unreadable
from fedping.model_store.store import MissingVersion, ModelStore, StoreError, VersionConflict, open_store, store_at
from fedping.model_store.version import Aggregate, ArmSummary, InputFile, Lineage, Version

__all__ = [
    "Aggregate",
    "ArmSummary",
    "InputFile",
    "Lineage",
    "MissingVersion",
    "ModelStore",
    "StoreError",
    "Unreadable",
    "Version",
    "VersionConflict",
    "open_store",
    "store_at",
]
