"""The round: from the landed pings of version n to version n + 1.

`run` has the lists of all stages. The arithmetic is pure and independent of the engine (`ping_filter`, `shard`,
`aggregate`, `step`). The line's `accumulator` aggregates the updates; an `engine` only decides which process computes
which shards. Other packages may import the names below.
"""

from fedping.server_jobs.round.accumulator import (
    ACCUMULATORS,
    Finished,
    Kept,
    Moments,
    OfAll,
    Senders,
    merged,
    moments_of,
)
from fedping.server_jobs.round.aggregations import refuse_senders
from fedping.server_jobs.round.context import RoundOptions, noting
from fedping.server_jobs.round.engine import Engine, NumpyEngine, engine_named
from fedping.server_jobs.round.helper_client import FileHelper, Helper, HttpHelper
from fedping.server_jobs.round.manifest import Window, list_landed
from fedping.server_jobs.round.next_version import Provenance
from fedping.server_jobs.round.ping_filter import votes_of
from fedping.server_jobs.round.private import delete_pings, exact_sums, private_rules
from fedping.server_jobs.round.private_release import PrivateArrayRound, released, sigma_of
from fedping.server_jobs.round.private_sums import Sums
from fedping.server_jobs.round.recompute import Recomputed, recompute
from fedping.server_jobs.round.result import RoundResult, with_lineage
from fedping.server_jobs.round.robust import EQUAL, MOST_POINTS
from fedping.server_jobs.round.run import run_round
from fedping.server_jobs.round.shard import batch_rows
from fedping.server_jobs.round.spark_engine import SparkEngine
from fedping.server_jobs.round.step import ArrayRound, pieces_of
from fedping.server_jobs.round.stopping import best_version, stop_if_over, validation_losses

__all__ = [
    "ACCUMULATORS",
    "EQUAL",
    "MOST_POINTS",
    "ArrayRound",
    "Engine",
    "FileHelper",
    "Finished",
    "Helper",
    "HttpHelper",
    "Kept",
    "Moments",
    "NumpyEngine",
    "OfAll",
    "PrivateArrayRound",
    "Provenance",
    "Recomputed",
    "RoundOptions",
    "RoundResult",
    "Senders",
    "SparkEngine",
    "Sums",
    "Window",
    "batch_rows",
    "best_version",
    "delete_pings",
    "engine_named",
    "exact_sums",
    "list_landed",
    "merged",
    "moments_of",
    "noting",
    "pieces_of",
    "private_rules",
    "recompute",
    "refuse_senders",
    "released",
    "run_round",
    "sigma_of",
    "stop_if_over",
    "validation_losses",
    "votes_of",
    "with_lineage",
]
