"""Two arms compared from value counts: tests, effect sizes with intervals, corrections, interim looks, power.

All functions take :class:`ValueCounts`. Time and memory are linear in the number of distinct values, and do not depend
on the number of pings or clients behind the counts.
"""

from fedping.analysis.statistics.fragility import mean_fragility, rank_fragility
from fedping.analysis.statistics.lift import (
    LEAST_CLIENTS,
    LEAST_OTHERS,
    Adjustment,
    ClientTotals,
    Level,
    Lift,
    adjusted,
    cap_of,
    capped,
    level_of_mean,
    level_of_ratio,
    lift,
)
from fedping.analysis.statistics.looks import (
    CORRECTIONS,
    FEWEST_CLIENTS,
    FEWEST_OTHERS,
    Correction,
    bonferroni,
    bounded_sequence,
    confidence_sequence,
    decides,
    deciding_level,
    fewest_clients,
    fewest_others,
    holm,
)
from fedping.analysis.statistics.means import (
    ClientSums,
    SampleRatio,
    clustered_difference,
    mean_difference,
    sample_ratio,
    welch_difference,
)
from fedping.analysis.statistics.ranks import (
    Estimate,
    MannWhitney,
    ValueCounts,
    hodges_lehmann,
    mann_whitney,
    rank_interval,
    superiority,
)

__all__ = [
    "CORRECTIONS",
    "FEWEST_CLIENTS",
    "FEWEST_OTHERS",
    "LEAST_CLIENTS",
    "LEAST_OTHERS",
    "Adjustment",
    "ClientSums",
    "ClientTotals",
    "Correction",
    "Estimate",
    "Level",
    "Lift",
    "MannWhitney",
    "SampleRatio",
    "ValueCounts",
    "adjusted",
    "bonferroni",
    "bounded_sequence",
    "cap_of",
    "capped",
    "clustered_difference",
    "confidence_sequence",
    "decides",
    "deciding_level",
    "fewest_clients",
    "fewest_others",
    "hodges_lehmann",
    "holm",
    "level_of_mean",
    "level_of_ratio",
    "lift",
    "mann_whitney",
    "mean_difference",
    "mean_fragility",
    "rank_fragility",
    "rank_interval",
    "sample_ratio",
    "superiority",
    "welch_difference",
]
