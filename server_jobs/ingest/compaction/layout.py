"""Into how many row groups pings land: as many as their study has shards, as far as its store tells.

Pings land whether or not the store can be read: a round takes files of any layout, and only its speed depends on it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import SHARDS
from fedping.protocol.location import Place

LOOK_EVERY = 30.0
"""Seconds between two looks at the store."""


class Layouts:
    """The shards of each study; those of a study that is not known yet are :data:`SHARDS`.

    A store in a bucket is read beside the compaction, which does not wait for it.
    """

    def __init__(self, store: Place) -> None:
        self._store = store
        self._known: dict[str, tuple[int, int]] = {}  # by study the entry of its history, and its shards
        self._looked = -LOOK_EVERY
        self._looking = threading.Lock()

    def shards(self, study: str) -> int:
        """Return into how many shards the clients of a study are divided."""
        if time.monotonic() - self._looked >= LOOK_EVERY and self._looking.acquire(blocking=False):
            self._looked = time.monotonic()
            if isinstance(self._store, Path):
                self._look()
            else:
                threading.Thread(target=self._look, name="layouts", daemon=True).start()
        return self._known.get(study, (0, SHARDS))[1]

    def _look(self) -> None:
        """Read what has changed; what cannot be read stays as it is known."""
        try:
            store = open_store(self._store)
            for name in store.studies.names():
                try:
                    if self._known.get(name, (-1, SHARDS))[0] != store.studies.settings_entry(name):
                        entry, study = store.studies.settings(name)
                        self._known[name] = entry, study.shards
                except (FedpingError, OSError):
                    continue
        except (FedpingError, OSError):
            return
        finally:
            self._looking.release()
