"""Planning of a study's size: the users needed to show an effect (thesis 7.4), the power, or the smallest effect."""

from fedping.analysis.power.answer import answer
from fedping.analysis.power.pilot import (
    Change,
    Design,
    MeanChange,
    Pilot,
    Superiority,
    landed_pilot,
    no_pilot,
    pilot_from_file,
    pilot_from_text,
)
from fedping.analysis.power.report import PowerReport

__all__ = [
    "Change",
    "Design",
    "MeanChange",
    "Pilot",
    "PowerReport",
    "Superiority",
    "answer",
    "landed_pilot",
    "no_pilot",
    "pilot_from_file",
    "pilot_from_text",
]
