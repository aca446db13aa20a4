"""Program that a count runs at its end to start the next waiting count; it needs no server."""

from __future__ import annotations

import sys
from pathlib import Path

from fedping.dashboard.results.counts import Counts
from fedping.protocol.location import place_of

if __name__ == "__main__":
    folder, store, landing = sys.argv[1:]
    Counts(Path(folder), place_of(store), place_of(landing)).start_waiting()
