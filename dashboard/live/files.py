"""The versions of one line as files, read through the store, or checked without being read."""

from __future__ import annotations

from dataclasses import dataclass

from fedping.model_store import ModelStore, Version, open_store, store_at
from fedping.protocol.location import Place
from fedping.protocol.storage import Stamp


@dataclass(frozen=True)
class LineFiles:
    """A line of a study in a store."""

    place: Place
    study: str
    line: str

    def store(self) -> ModelStore:
        """Return the store; raises :class:`StoreError` if there is none."""
        return open_store(self.place)

    def version(self, number: int) -> Version:
        """Return a version; raises :class:`StoreError` if there is none or it cannot be read."""
        return store_at(self.place).version(self.study, self.line, number)  # not opened, which lists a bucket

    def sight(self, number: int) -> Stamp | None:
        """Return what a version's file looks like from outside."""
        return store_at(self.place).versions.stamp(self.study, self.line, number)
