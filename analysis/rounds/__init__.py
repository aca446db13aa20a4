"""The pings of a line's rounds, iteration by iteration, from the versions' lineage and the files that rounds read.

All functions read with pyarrow, one iteration at a time, so that memory does not grow with the length of a study.

- ``made_by_rounds``: the versions of a line that a round made, each with its lineage
- ``RoundTraffic``, ``round_traffic``: the pings of every iteration by arm, and the end of each iteration
- ``Series``, ``series_of``, ``metric_series``, ``smoothed``: a metric of every arm over the iterations
- ``TrainingPings``, ``training_pings``: the updates, losses and clients behind one version
- ``subsample_errors``, ``SubsampleQuality``, ``subsample_quality``: the errors of estimating all pings by subsamples
"""

from fedping.analysis.rounds.history import RoundTraffic, Series, metric_series, round_traffic, series_of
from fedping.analysis.rounds.inputs import TrainingPings, made_by_rounds, training_pings
from fedping.analysis.rounds.subsamples import SubsampleErrors, SubsampleQuality, subsample_errors, subsample_quality
from fedping.protocol.smoothing import smoothed

__all__ = [
    "RoundTraffic",
    "Series",
    "SubsampleErrors",
    "SubsampleQuality",
    "TrainingPings",
    "made_by_rounds",
    "metric_series",
    "round_traffic",
    "series_of",
    "smoothed",
    "subsample_errors",
    "subsample_quality",
    "training_pings",
]
