"""Two arms compared from value counts: tests, effect sizes with intervals, corrections, interim looks, power.

Everything here is a pure function of :class:`ValueCounts`, so its cost and memory are linear in the number of distinct
values, and the number of pings or clients behind the counts does not matter.
"""

from analysis.statistics.correction import CORRECTIONS, Correction, bonferroni, holm
from analysis.statistics.counts import ValueCounts
from analysis.statistics.estimate import Estimate
from analysis.statistics.mann_whitney import MannWhitney, mann_whitney
from analysis.statistics.means import ClientSums, clustered_difference, mean_difference
from analysis.statistics.sample_ratio import SampleRatio, sample_ratio
from analysis.statistics.sequence import confidence_sequence
from analysis.statistics.shift import hodges_lehmann
from analysis.statistics.superiority import superiority

__all__ = [
    "CORRECTIONS",
    "ClientSums",
    "Correction",
    "Estimate",
    "MannWhitney",
    "SampleRatio",
    "ValueCounts",
    "bonferroni",
    "clustered_difference",
    "confidence_sequence",
    "hodges_lehmann",
    "holm",
    "mann_whitney",
    "mean_difference",
    "sample_ratio",
    "superiority",
]
