"""The plan of an analysis: comparisons, level and correction, fixed before the data are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, TypeAlias

from msgspec import Struct

from fedping.analysis.statistics.looks import LEAST_LEVEL, PLANNED_CLIENTS, Correction
from fedping.analysis.study.metrics import (
    METRICS,
    Means,
    Metric,
    Window,
    measured_by,
    metric_named,
    outcome_metrics,
    ratio_named,
)
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import Study

Pair: TypeAlias = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The tests of an analysis: every metric for every pair of arms.

    Attributes:
        metrics: the metrics to compare, goals and guardrails.
        guardrails: the names of the metrics that must not become worse, but need not become better.
        pairs: the arms to compare; sentences are about the first of each pair.
        alpha: the chance of any false alarm among all the tests.
        correction: the method that divides alpha among the tests.
        interim: whether this is a look before the planned end.
        planned: for an interim look, the number of clients in both arms at which its interval is narrowest.
        window: the pings to analyse.
        means: the ratios to compare, and the settings for comparing means; each ratio is also a test for every pair.
        waiting: number of requested metrics and ratios that can't be compared yet; their tests are counted, so that
            alpha holds over this look and later ones.

    Raises:
        InvalidSettings: there is nothing to compare, or a name occurs twice.
    """

    metrics: tuple[Metric, ...]
    pairs: tuple[Pair, ...]
    guardrails: frozenset[str] = frozenset()
    alpha: float = 0.05
    correction: Correction = "bonferroni"
    interim: bool = False
    planned: int = PLANNED_CLIENTS
    window: Window = field(default_factory=Window)
    means: Means = field(default_factory=Means)
    waiting: int = 0

    def __post_init__(self) -> None:
        if not self.metrics or not self.pairs:
            raise InvalidSettings("there is nothing to compare; name at least one metric and one pair of arms")
        unordered = [frozenset(pair) for pair in self.pairs]
        for pair in self.pairs:
            if unordered.count(frozenset(pair)) > 1:
                raise InvalidSettings(
                    f"the pair {pair[0]}:{pair[1]} is named twice; every test counts in the correction"
                )
            if pair[0] == pair[1]:
                raise InvalidSettings(f"arm '{pair[0]}' cannot be compared with itself")
        if not 0 < self.alpha < 1:
            raise InvalidSettings(f"the level alpha lies between 0 and 1, not at {self.alpha:g}")
        if self.alpha / self.tests < LEAST_LEVEL:
            raise InvalidSettings(
                f"the level of each test is {self.alpha:g} / {self.tests:,}, below {LEAST_LEVEL:g}; raise --alpha"
            )

    @property
    def tests(self) -> int:
        """The number of tests."""
        return (len(self.metrics) + len(self.means.ratios) + self.waiting) * len(self.pairs)

    @property
    def confidence(self) -> float:
        """The confidence of each interval, chosen so that all intervals hold at once with probability 1 - alpha."""
        return 1 - self.alpha / self.tests


def all_pairs(study: Study) -> tuple[Pair, ...]:
    """Return all pairs of a study's arms, in the study's order; raises :class:`InvalidSettings` for a single arm."""
    if len(study.arms) < 2:
        raise InvalidSettings(
            f"study '{study.name}' has one arm, '{study.arms[0].name}', and nothing to compare it with; a verdict "
            "needs two arms"
        )
    return tuple(combinations((arm.name for arm in study.arms), 2))


def control_of(study: Study) -> str:
    """Return the arm that others are compared with: 'control', else the first without a model, else the last."""
    names = [arm.name for arm in study.arms]
    plain = [arm.name for arm in study.arms if not arm.applies]
    return "control" if "control" in names else (plain or names[-1:])[0]


def against(study: Study, control: str) -> tuple[Pair, ...]:
    """Return the pairs of every other arm with ``control``; raises :class:`InvalidSettings` if there is no such arm."""
    named = study.arm(control).name
    return tuple((arm.name, named) for arm in study.arms if arm.name != named)


DEFAULT_METRICS = tuple(metric.name for metric in METRICS[:2])


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question about a study as given, with names that are not yet resolved.

    Attributes:
        metrics: names of the metrics to compare.
        guardrails: the metrics among them that must not become worse.
        pairs: the pairs of arms, each as ``first:second``; None for all pairs.
        alpha: the chance of any false alarm among all tests.
        correction: the method that divides alpha among the tests.
        from_iteration: the first model version whose pings count; None for no bound, as with the other three bounds.
        to_iteration: the last model version whose pings count.
        since: time of receipt from which pings count, in Unix ms.
        until: time of receipt before which pings count, in Unix ms.
        interim: whether this is a look before the planned end.
        planned_clients: the number of clients in two arms at the planned end; None for the default.
        enrolled: the number of clients enrolled in all arms; None if unknown.
        settle: days after a client's first ping before its pings start to count; None to count all.
        ratios: ratios of totals to compare, each as "paid/choices".
        adjust: whether to adjust by clients' values before version 1.
        cap: the share of clients whose values are not capped; None for no cap.
    """

    digest_name: ClassVar[str] = "Asked"

    metrics: tuple[str, ...] = DEFAULT_METRICS
    guardrails: tuple[str, ...] = ()
    pairs: tuple[str, ...] | None = None
    alpha: float = 0.05
    correction: Correction = "bonferroni"
    from_iteration: int | None = None
    to_iteration: int | None = None
    since: int | None = None
    until: int | None = None
    interim: bool = False
    planned_clients: int | None = None
    enrolled: int | None = None
    settle: int | None = None
    ratios: tuple[str, ...] = ()
    adjust: bool = False
    cap: float | None = None

    @property
    def window(self) -> Window:
        """The window of the pings that count; raises :class:`InvalidSettings` if it can't contain any."""
        first = self.from_iteration
        if self.adjust:
            if first is not None and first < 1:
                raise InvalidSettings(
                    f"--adjust takes versions before 1 as the time before, and --from-iteration {first} compares "
                    "them; give 1 or more, or remove it"
                )
            first = first or 1
        return Window(first, self.to_iteration, self.since, self.until, self.settle or 0)


def plan_of(study: Study, asked: Asked) -> Plan:
    """Return the plan for a question.

    Raises:
        InvalidSettings: a name is unknown or occurs twice, or there are no names.
    """
    if asked.planned_clients is not None and not asked.interim:
        raise InvalidSettings("--planned-clients is for interim looks. Add --interim")
    return Plan(
        metrics=_metrics(asked.metrics, study),
        guardrails=_guardrails(asked, study),
        pairs=_pairs(study, asked.pairs),
        alpha=asked.alpha,
        correction=asked.correction,
        interim=asked.interim,
        planned=asked.planned_clients or PLANNED_CLIENTS,
        window=asked.window,
        means=_means(asked, study),
    )


def _means(asked: Asked, study: Study) -> Means:
    if asked.cap is not None and not 0.5 <= asked.cap < 1:
        raise InvalidSettings(
            f"--cap must be the share of clients whose values stay unchanged, from 0.5 to below 1, not {asked.cap:g}"
        )
    if asked.interim and (asked.ratios or asked.adjust or asked.cap is not None):
        raise InvalidSettings(
            "an interim look decides by each client's first value, which no ratio, adjustment or cap may change; leave "
            "out --ratios, --adjust and --cap, or --interim"
        )
    if repeated := [name for name in asked.ratios if asked.ratios.count(name) > 1]:
        raise InvalidSettings(f"the ratio '{repeated[0]}' is named twice; every test counts in the correction")
    return Means(tuple(ratio_named(name, study) for name in asked.ratios), asked.adjust, asked.cap)


def words_of(given: str) -> tuple[str, ...]:
    """Return the comma-separated words of a text."""
    return tuple(word.strip() for word in given.split(",") if word.strip())


def default_metrics(study: Study) -> tuple[str, ...]:
    """Return the names of a study's default metrics."""
    outcomes = (metric.name for metric in outcome_metrics(study))
    return (*measured_by(study.document).default, *(metric.name for metric in study.metrics), *outcomes)


def _metrics(names: tuple[str, ...], study: Study) -> tuple[Metric, ...]:
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidSettings(f"the metric '{repeated[0]}' is named twice; every test counts in the correction")
    return tuple(metric_named(name, study) for name in names)


def _guardrails(asked: Asked, study: Study) -> frozenset[str]:
    if unknown := [name for name in asked.guardrails if name not in asked.metrics]:
        raise InvalidSettings(
            f"the guardrail '{unknown[0]}' is not among the metrics {', '.join(asked.metrics)}; add it there"
        )
    for name in asked.guardrails:
        if metric_named(name, study).better is None:
            raise InvalidSettings(
                f"the metric '{name}' cannot be a guardrail, because neither direction of it is worse. Remove it there"
            )
    return frozenset(asked.guardrails)


def _pairs(study: Study, given: tuple[str, ...] | None) -> tuple[Pair, ...]:
    everything = all_pairs(study)
    if given is None:
        return everything
    pairs = []
    for pair in given:
        first, colon, second = pair.partition(":")
        if not colon:
            raise InvalidSettings(f"'{pair}' is not a pair of arms. Write it as {':'.join(everything[0])}")
        pairs.append((study.arm(first.strip()).name, study.arm(second.strip()).name))
    return tuple(pairs)
