"""Simulated time: how long clients take, when they are available, and in which order their answers arrive.

durations.py  seconds of a client's work     availability.py  when clients are there     clock.py  the events
"""

from __future__ import annotations

from fedping.experiments.laboratory.clock.clock import Answers, Clock
from fedping.experiments.laboratory.clock.durations import clock_of

__all__ = ["Answers", "Clock", "clock_of"]
