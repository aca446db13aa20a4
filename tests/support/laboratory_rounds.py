"""The laboratory's rounds of one line, without the rest of a run."""

from pathlib import Path

import numpy as np

from fedping.experiments.laboratory.rounds import ServerRounds
from fedping.experiments.laboratory.rounds.landed import FileChannel, new_line
from fedping.experiments.laboratory.rounds.memory import MemoryChannel
from fedping.protocol.landing import SHARDS
from fedping.protocol.study import Line, Study
from fedping.server_jobs.round import Engine


def memory_rounds(
    line: Line, ids: np.ndarray, seed: int = 0, shards: int = SHARDS, most_examples: int | None = None
) -> ServerRounds:
    """Return rounds in memory."""
    return ServerRounds(MemoryChannel(line, ids, seed, shards, most_examples))


def file_rounds(folder: Path, study: Study, engine: Engine, ids: np.ndarray, shards: int = SHARDS) -> ServerRounds:
    """Return rounds over files, with a new store and landing folder below a folder."""
    return ServerRounds(FileChannel(new_line(study, folder, engine), ids, shards))
