"""Program that a run starts at its end to start the next waiting run; it needs no server."""

from __future__ import annotations

import sys
from pathlib import Path

from fedping.dashboard.runs.registry import RunBook

if __name__ == "__main__":
    folder, at_most, patience = sys.argv[1:]
    RunBook(Path(folder), int(at_most), float(patience)).start_waiting()
