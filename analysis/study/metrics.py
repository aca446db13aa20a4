"""The subject of an analysis: the metrics of a study, and the pings that it covers.

All metrics are over the pings with an example (`fedping.protocol.ping`). An interaction has an example if it ended with
a selection: without a selection there is no rank, the loss is 0 by definition, and the typed text found nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from fedping.protocol.errors import FedpingError, InvalidSettings, did_you_mean
from fedping.protocol.landing import OLDER, Landing, open_landing, partition
from fedping.protocol.location import Place
from fedping.protocol.metrics import StudyMetric
from fedping.protocol.outcomes import CategoryOutcome, FlagOutcome, Outcome, outcome_range
from fedping.protocol.ping import FRECENCY_UPDATE, LIST_UPDATE, MODEL_UPDATE, DocumentType
from fedping.protocol.study import Study

Direction = Literal["less", "more"]


@dataclass(frozen=True)
class Metric:
    """A number in a landed ping, used to compare arms.

    Attributes:
        name: the metric's name, and the column in Parquet.
        title: the metric's name in a table.
        less: phrase for smaller values, to complete "users of treatment ... than users of control".
        more: such a phrase for larger values.
        better: the direction that is better for users, ``less`` or ``more``; None if neither is.
        column: the column in Parquet, if it differs from the name.
        at_most: if given, the value is 1 where the column is at most this, else 0.
        equals: if given, the value is 1 where the column is this, else 0.
        bounds: the least and the greatest possible value, fixed before any ping; None if there are none, or if they lie
            far from the measured values (`NEAR`).
        wide: bounds of an outcome that lie far from the measured values; an interim look uses them in addition to an
            interval for many clients.
        later: hours within which a later outcome counts; None for values in pings themselves. A client's value is then
            its total in the hours from its first ping on, 0 without any outcome.
        any: whether a client's value is 1 if any of its later outcomes is true, instead of their total.
        digits: the number of significant digits kept. It bounds the number of distinct values (to 9 · 10^(d-1)
            per decade), and so the memory for their counts, while integers below 10^d stay exact.
    """

    name: str
    title: str
    less: str
    more: str
    better: Direction | None = "less"
    digits: int = 6
    column: str = ""
    at_most: float | None = None
    equals: str | int | None = None
    bounds: tuple[float, float] | None = None
    wide: tuple[float, float] | None = None
    later: int | None = None
    any: bool = False

    @property
    def of(self) -> str:
        """The column that the metric is computed from."""
        return self.column or self.name

    @property
    def is_share(self) -> bool:
        """Whether each value is 0 or 1, so that the mean is a share."""
        return self.bounds == (0.0, 1.0)


METRICS = (
    Metric("num_chars_typed", "characters typed", "typed fewer characters", "typed more characters"),
    Metric("rank_selected", "selected rank", "selected nearer to the top", "selected further from the top"),
    # With a continuous metric every ping could have a different value; its fifth digit is noise.
    Metric("loss", "loss", "had a lower loss", "had a higher loss", digits=4),
)
"""Metrics of interactions with a ranked list."""

LIST_METRICS = (
    Metric("place", "chosen place", "chose nearer to the top", "chose further from the top"),
    METRICS[2],
)
"""Metrics of choices from lists of any product, to which a study's outcomes at the choice are added."""

MODEL_METRICS = (
    METRICS[2],
    Metric("examples", "examples", "had fewer examples", "had more examples", better=None),
)
"""Metrics of clients' learning with any model."""


@dataclass(frozen=True)
class Measured:
    """The metrics of a type of ping, and words about its pings.

    Attributes:
        metrics: metrics available for comparing arms.
        default: the names of the metrics used by default.
        used: the name of the counted pings, as the heading of a column; with "_" the name in documents.
        those: the name of the counted pings in a sentence.
        none: the end of the sentence "none of the 12 pings of arm 'a' ..." for an arm without counted pings.
        one: the thing that a ping describes.
        averaged: the things over which the loss of an iteration is averaged.
        record: the purpose of the numbers by ping.
    """

    metrics: tuple[Metric, ...]
    default: tuple[str, ...]
    used: str
    those: str
    none: str
    one: str
    averaged: str
    record: str

    @property
    def key(self) -> str:
        """The name of the counted pings in documents and tables for machines."""
        return self.used.replace(" ", "_")


MEASURED: Mapping[str, Measured] = {
    FRECENCY_UPDATE.name: Measured(
        metrics=METRICS,
        default=tuple(metric.name for metric in METRICS[:2]),
        used="selections",
        those="interactions that ended with a selection",
        none="ended with a selection",
        one="interaction",
        averaged="selections",
        record="for comparison with the study of 2018",
    ),
    MODEL_UPDATE.name: Measured(
        metrics=MODEL_METRICS,
        default=tuple(metric.name for metric in MODEL_METRICS),
        used="with examples",
        those="pings with an example",
        none="had an example",
        one="ping",
        averaged="examples",
        record="for the record",
    ),
    LIST_UPDATE.name: Measured(
        metrics=LIST_METRICS,
        default=(LIST_METRICS[0].name,),
        used="choices",
        those="lists with a choice",
        none="ended with a choice",
        one="list",
        averaged="choices",
        record="for the record",
    ),
}
"""The measures of each type of ping, by the type's name."""


def measured_by(document: DocumentType) -> Measured:
    """Return the measures of a type of ping.

    Raises:
        FedpingError: pings of this type have nothing that may be counted one by one.
    """
    if document.name not in MEASURED:
        raise FedpingError(
            f"{document.name} pings have nothing to be counted ping by ping; their metrics are in the versions, "
            "as sums with noise"
        )
    return MEASURED[document.name]


NEAR = 100
"""The greatest distance between bounds that count as a metric's known bounds.

Wider bounds, such as the 0 to 1,000 of a new study's ranks, only serve to reject false claims. An interval that allows
for every value within them needs many times as many clients (for ranks near 3, about ninety times).
"""


DIGITS = 4
"""Significant digits kept of an outcome at the choice."""


def rounded(value: float, digits: int) -> float:
    """Return a number, rounded as by `fedping.analysis.study.columns.on_grid` on Spark."""
    if value == round(value) and abs(value) < 10.0**digits:
        return value
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    return round(value * scale) / scale


def metrics_of(study: Study) -> tuple[Metric, ...]:
    """Return all metrics of a study: those of its type of ping, its declared ones, and its outcomes."""
    metrics = (*measured_by(study.document).metrics, *map(_declared, study.metrics))
    bounded = tuple(replace(metric, bounds=_bounds(metric, study)) for metric in metrics)
    return (*bounded, *outcome_metrics(study), *_of_categories(study))


def outcome_metrics(study: Study) -> Iterator[Metric]:
    """Yield a metric of each outcome that is a number, unless a declared metric has its name.

    A choice without the outcome counts as 0, or as the bound nearest to 0. A client without a later outcome counts as
    0.
    """
    declared = {metric.name for metric in study.metrics}
    for outcome in study.outcomes:
        if outcome.name in declared or isinstance(outcome, CategoryOutcome):
            continue
        low, high = outcome_range(outcome)
        # values are rounded after the client has bounded them, so they may lie beyond the bounds
        ends = min(low, rounded(low, DIGITS)), max(high, rounded(high, DIGITS))
        title = outcome.name.replace("_", " ")
        metric = Metric(
            name=outcome.name,
            title=title,
            less=_had("less", title, isinstance(outcome, FlagOutcome)),
            more=_had("more", title, isinstance(outcome, FlagOutcome)),
            better=outcome.better,
            digits=DIGITS,
            bounds=ends if high - low <= NEAR else None,
            wide=ends if high - low > NEAR else None,
        )
        yield metric if outcome.hours is None else _later(metric, outcome, isinstance(outcome, FlagOutcome))


def _of_categories(study: Study) -> Iterator[Metric]:
    """Yield a metric for the share of each value of each categorical outcome; they are compared only on request."""
    for outcome in study.outcomes:
        if isinstance(outcome, CategoryOutcome):
            for value in outcome.values:
                title = f"{outcome.name.replace('_', ' ')} = {value}"
                metric = Metric(
                    name=f"{outcome.name}={value}",
                    title=title,
                    less=_had("less", title, True),
                    more=_had("more", title, True),
                    better=None,
                    column=outcome.name,
                    equals=value,
                    bounds=(0.0, 1.0),
                )
                yield metric if outcome.hours is None else _later(metric, outcome, True)


def _later(metric: Metric, outcome: Outcome, any: bool) -> Metric:
    """Return the metric of a later outcome; totals have no bounds, as a client may have any number of outcomes."""
    hours = outcome.hours
    title = f"{metric.title} within {outcome.within}"
    return replace(
        metric,
        title=title,
        less=metric.less.replace(metric.title, title),
        more=metric.more.replace(metric.title, title),
        later=hours,
        any=any,
        digits=6,
        bounds=(0.0, 1.0) if any else None,
        wide=None,
    )


@dataclass(frozen=True)
class Ratio:
    """A ratio of totals over clients, such as the amount paid for each choice.

    Attributes:
        name: the requested name, such as "paid/choices".
        top: the metric whose total is the numerator.
        by: the metric whose total is the denominator; None for the number of counted pings.
        below: the name of the denominator.
    """

    name: str
    top: Metric
    by: Metric | None
    below: str

    @property
    def title(self) -> str:
        """The ratio's name in a table."""
        return f"{self.top.title} per {self.by.title if self.by else self.below}"


def ratio_named(name: str, study: Study) -> Ratio:
    """Return a ratio of a study, written "paid/choices".

    Raises:
        InvalidSettings: a side has no such metric, or the sides are counted over different times.
    """
    above, slash, below = (word.strip() for word in name.partition("/"))
    counted = measured_by(study.document).key
    if not (slash and above and below):
        raise InvalidSettings(f"'{name}' is not a ratio. Write a metric, a slash, and a metric or '{counted}'")
    top = metric_named(above, study)
    by = None if below == counted else metric_named(below, study)
    times = [None if metric is None else metric.later for metric in (top, by)]
    if times[0] != times[1]:
        spans = ["the whole window" if each is None else f"a client's first {each} hours" for each in times]
        raise InvalidSettings(
            f"the ratio '{name}' divides a count over {spans[0]} by a count over {spans[1]}. Name two metrics of the "
            "same time span"
        )
    return Ratio(f"{above}/{below}", top, by, below)


@dataclass(frozen=True)
class Means:
    """Settings for comparing means in addition to ranks (`fedping.analysis.statistics.lift`).

    Attributes:
        ratios: ratios of totals to compare.
        adjust: whether to adjust by clients' values before version 1.
        cap: the share of clients, over all arms, whose values are not capped; None for no cap.
    """

    ratios: tuple[Ratio, ...] = ()
    adjust: bool = False
    cap: float | None = None


def _bounds(metric: Metric, study: Study) -> tuple[float, float] | None:
    """Return the known bounds of a metric: of a share, or of a count that the study limits."""
    if metric.at_most is not None or metric.equals is not None:
        return 0.0, 1.0
    if (limits := study.limits) is None:
        return None
    # A loss has limits too, but no unit by which they would count as near.
    most = {"rank_selected": limits.rank, "examples": limits.examples}.get(metric.of)
    return None if most is None or not 0 < most <= NEAR else (0.0, float(most))


def _had(which: Direction, title: str, is_share: bool) -> str:
    """Return the phrase of a study's own metric for less or more, which completes "users of a ... than users of b"."""
    if is_share:
        return f"had “{title}” {which} often"
    return f"had {'lower' if which == 'less' else 'higher'} values of “{title}”"


def _declared(metric: StudyMetric) -> Metric:
    whole = metric.at_most is not None or metric.equals is not None
    return Metric(
        name=metric.name,
        title=metric.words,
        less=_had("less", metric.words, whole),
        more=_had("more", metric.words, whole),
        better=metric.better,
        digits=4,
        column=metric.of,
        at_most=metric.at_most,
        equals=metric.equals,
    )


def metric_named(name: str, study: Study) -> Metric:
    """Return a metric of a study; raises :class:`InvalidSettings` that lists the existing ones."""
    metrics = metrics_of(study)
    for metric in metrics:
        if metric.name == name:
            return metric
    there = ", ".join(metric.name for metric in metrics)
    if any(metric.name == name for one in MEASURED.values() for metric in one.metrics):
        raise InvalidSettings(f"{study.pings} pings have no metric '{name}'; they have {there}")
    near = did_you_mean(name, [metric.name for metric in metrics]) or "."
    raise InvalidSettings(f"unknown metric '{name}'{near} Metrics: {there}")


MOST_DAYS = 3_650
"""Maximum number of days cut from the start of a client's time in the study; studies are shorter."""


@dataclass(frozen=True)
class Window:
    """The pings of versions ``first`` to ``last`` that were received from ``since`` on and before ``until``.

    Times are milliseconds since 1970. All four are optional; for a frozen version, ``first`` and ``last`` are both its
    number. ``settle`` is the number of first days of each client that are left out, counted from the receipt of its
    first ping.

    Raises:
        InvalidSettings: the window ends before it begins, or the days are negative.
    """

    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None
    settle: int = 0

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise InvalidSettings(f"the window ends with iteration {self.last}, before it begins with {self.first}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidSettings("the window ends before it begins; see --since and --until")
        if not 0 <= self.settle <= MOST_DAYS:
            raise InvalidSettings(f"--settle is a number of days from 0 to {MOST_DAYS:,}, not {self.settle:,}")

    def holds(self, iteration: int) -> bool:
        """Return whether the pings of a version belong to the window."""
        return (self.first is None or self.first <= iteration) and (self.last is None or iteration <= self.last)

    def reaches(self, folder: int) -> bool:
        """Return whether an iteration's folder may have pings of the window; the folder of old versions always may."""
        return self.last is None or self.last >= 0 if folder == OLDER else self.holds(folder)

    def divides(self, folder: int) -> bool:
        """Return whether a folder may have pings outside the window too, so that each ping must be checked."""
        return folder == OLDER and (self.first is not None or self.last is not None)

    @property
    def words(self) -> str:
        """The window in words; "everything that landed" without bounds."""
        parts = []
        if self.first is not None or self.last is not None:
            parts.append(_span(f"from iteration {self.first}", f"to iteration {self.last}", self.first, self.last))
        if self.since is not None or self.until is not None:
            parts.append(_span(f"since {_time(self.since)}", f"until {_time(self.until)}", self.since, self.until))
        if self.settle:
            parts.append(f"from day {self.settle + 1:,} of each client in the study on")
        return ", ".join(parts) or "everything that landed"


class NothingLanded(FedpingError):
    """No pings of a study, or of a window, have landed."""


def window_folders(landing: Place, study: Study, window: Window) -> dict[Place, list[Place]]:
    """Return the non-empty folders with the window's pings, each with its files.

    Raises:
        NothingLanded: the study has no landed pings in the window.
        FedpingError: there is no landing folder.
        InvalidSettings: the window gives iterations, but an arm follows no line, so that its pings have none.
    """
    lineless = [arm.name for arm in study.arms if arm.line is None]
    if lineless and (window.first is not None or window.last is not None):
        raise InvalidSettings(
            f"arm '{lineless[0]}' follows no model line, so its pings belong to no iteration; give the window as a "
            "time, with --since and --until"
        )
    pings = open_landing(landing)
    pings.check()
    landed = list(_landed(pings, study, window))
    if not landed:
        raise NothingLanded(
            f"study '{study.name}' has landed nothing in {landing}; its pings land some seconds after them"
        )
    chosen = {folder: files for folder, files, reached in landed if reached}
    if not chosen:
        raise NothingLanded(f"study '{study.name}' has landed pings in {landing}, but none {window.words}")
    return chosen


def _landed(landing: Landing, study: Study, window: Window) -> Iterator[tuple[Place, list[Place], bool]]:
    """Yield a study's non-empty folders, each with its files and whether a window reaches it."""
    for line in [*(line.name for line in study.lines), None]:
        for iteration, files in landing.files_by_iteration(study.name, line).items():
            folder = partition(landing.place, study.name, line, iteration)
            yield folder, files, line is None or window.reaches(iteration)


def _span(start: str, end: str, first: int | None, last: int | None) -> str:
    return " ".join([start] * (first is not None) + [end] * (last is not None))


def _time(milliseconds: int | None) -> str:
    return "" if milliseconds is None else f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M} UTC"
