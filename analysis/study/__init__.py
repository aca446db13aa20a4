"""A study's landed pings, counted on Spark: what an analysis needs of them, in memory that does not grow with them."""

from analysis.study.count import count_study
from analysis.study.metrics import METRICS, Metric, metric_named
from analysis.study.tally import ArmTally, MetricTally, StudyTally
from analysis.study.window import Window

__all__ = ["METRICS", "ArmTally", "Metric", "MetricTally", "StudyTally", "Window", "count_study", "metric_named"]
