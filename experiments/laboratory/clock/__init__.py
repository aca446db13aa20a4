"""Simulated time: clients' durations, their availability, and the order of their answers.

durations.py  seconds of a client's work     availability.py  when clients are available     clock.py  the events
"""

from __future__ import annotations

from fedping.experiments.laboratory.clock.clock import Answers, Clock
from fedping.experiments.laboratory.clock.durations import clock_of

__all__ = ["Answers", "Clock", "clock_of"]
