"""The verdict of a study: every planned comparison, tested, corrected and put into a sentence."""

from fedping.analysis.verdict.comparison import ClientLevel, Comparison, Finding, PingLevel, compare
from fedping.analysis.verdict.plan import (
    Asked,
    Plan,
    against,
    all_pairs,
    control_of,
    default_metrics,
    plan_of,
    words_of,
)
from fedping.analysis.verdict.verdict import Verdict, as_document, effect_of, reach_verdict

__all__ = [
    "Asked",
    "ClientLevel",
    "Comparison",
    "Finding",
    "PingLevel",
    "Plan",
    "Verdict",
    "against",
    "all_pairs",
    "as_document",
    "compare",
    "control_of",
    "default_metrics",
    "effect_of",
    "plan_of",
    "reach_verdict",
    "words_of",
]
