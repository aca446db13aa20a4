"""Counts of a study's landed pings for an analysis, by Spark, in memory that does not grow with the pings."""

from fedping.analysis.study.count import count_study
from fedping.analysis.study.metrics import (
    METRICS,
    MODEL_METRICS,
    Means,
    Measured,
    Metric,
    Ratio,
    Window,
    measured_by,
    metric_named,
    metrics_of,
    ratio_named,
)
from fedping.analysis.study.tally import ArmTally, MetricTally, StudyTally

__all__ = [
    "METRICS",
    "MODEL_METRICS",
    "ArmTally",
    "Means",
    "Measured",
    "Metric",
    "MetricTally",
    "Ratio",
    "StudyTally",
    "Window",
    "count_study",
    "measured_by",
    "metric_named",
    "metrics_of",
    "ratio_named",
]
