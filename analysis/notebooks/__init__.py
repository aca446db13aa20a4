"""Notebooks for analysts: executed documents that contain their results.

Each notebook begins with the study that it reads: a small simulated one, or the reader's own.
"""

from fedping.analysis.notebooks.source import EXPERIMENT, Source, example, fedping, look

__all__ = ["EXPERIMENT", "Source", "example", "fedping", "look"]
