"""The figures of a report in order: their titles, captions and drawing functions.

A plate is drawn only on request, in the requested theme. If its data are missing, a gap replaces it and states why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fedping.analysis import figures as draw
from fedping.analysis.figures.drawings import difference_of, superiority_of
from fedping.analysis.rounds import Series, SubsampleQuality, series_of
from fedping.analysis.rounds.history import LineHistory, Missing
from fedping.analysis.statistics import Estimate
from fedping.analysis.study.metrics import Measured
from fedping.analysis.verdict import Comparison, Verdict
from fedping.analysis.verdict.words import interval_text, means_words
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plate:
    """A figure of a report.

    Attributes:
        key: its unique file name, without a suffix.
        title: the heading.
        caption: an explanation of the figure.
        said: the numbers in words, for readers who can't see the figure.
        draw: the drawing function; takes ``theme``.
    """

    key: str
    title: str
    caption: str
    said: str
    draw: Callable[..., Figure]


@dataclass(frozen=True)
class Gap:
    """One or several figures that cannot be drawn because their data are missing; ``reason`` is a sentence."""

    key: str
    title: str
    reason: str


OVER_TIME = "over-time"
"""Prefix of the keys of effects over time."""


def plates(verdict: Verdict, histories: Sequence[LineHistory]) -> list[Plate | Gap]:
    """Return the figures of a report: effects, then every line over its rounds, then the pings over time.

    Args:
        verdict: the study's verdict.
        histories: the study's lines.
    """
    arms = [arm.name for arm in verdict.study.arms]
    items: list[Plate | Gap] = [*_effects(verdict), *_over_time(verdict)]
    for history in histories:
        items += _OfLine(history, arms, verdict.measured, several=len(histories) > 1).plates()
    return [*items, _hours(verdict, arms)]


def _effects(verdict: Verdict) -> Iterator[Plate]:
    comparisons, level = verdict.comparisons, 100 * verdict.plan.confidence
    deciding = f"{100 * comparisons[0].deciding.confidence:.4g} %"
    decides = (
        f"These {deciding} intervals decide: a dot is filled if its interval leaves out the line of no difference, and "
        "hollow if not."
    )
    beside = f"Intervals of {level:.4g} % each, which decide nothing here."
    interim = verdict.plan.interim
    differences = Plate(
        "differences",
        "How large are the differences?",
        "The first arm minus the second, in units of the metric and in percent of the second, "
        f"{means_words(verdict.tally.tails)} over clients"
        f"{'; of their first values' if interim else ''}. {decides if interim else beside}",
        _intervals_said(comparisons, difference_of, 3),
        partial(draw.draw_differences, comparisons),
    )
    superiority = Plate(
        "superiority",
        "How often does one arm have the larger value?",
        "How often a random client of the first arm has the larger value than one of the second; 0.5 means no "
        f"difference. {beside if interim else decides}",
        _intervals_said(comparisons, superiority_of, 4),
        partial(draw.draw_superiority, comparisons),
    )
    yield from (differences, superiority) if interim else (superiority, differences)


def _over_time(verdict: Verdict) -> Iterator[Plate]:
    hours = "hour" if verdict.tally.hours == 1 else f"{verdict.tally.hours} hours"
    for metric in verdict.plan.metrics:
        effects = [one for one in verdict.parts if one.segment is None and one.metric == metric and one.effects]
        if not any(len(one.effects) > 1 for one in effects):
            continue
        yield Plate(
            f"{OVER_TIME}-{metric.name}",
            f"The effect on {metric.title} over time",
            f"The difference of the {means_words(verdict.tally.tails)}, over the clients of each {hours} (UTC), first "
            "arm minus second, with a 95 % interval each. They decide nothing; they show whether an effect begins "
            "late, grows or fades.",
            "; ".join(
                f"{one.pair[0]} against {one.pair[1]}: from {with_minus(f'{one.effects[0].difference.value:+.3f}')} to "
                f"{with_minus(f'{one.effects[-1].difference.value:+.3f}')}"
                for one in effects
            ),
            partial(draw.draw_effects_over_time, effects),
        )


def _hours(verdict: Verdict, arms: Sequence[str]) -> Plate:
    by_hour = {name: arm.by_hour for name, arm in verdict.tally.arms.items()}
    return Plate(
        "pings-over-time",
        "Pings over time",
        "The pings that the verdict is from, by the time of receipt, UTC, each document once.",
        "; ".join(f"{name}: {arm.pings:,} pings" for name, arm in verdict.tally.arms.items()),
        partial(draw.draw_hours, by_hour, arms=arms),
    )


class _OfLine:
    """The figures over the rounds of one line."""

    def __init__(self, history: LineHistory, arms: Sequence[str], measured: Measured, several: bool) -> None:
        self._history = history
        self._measured = measured
        self._arms = arms
        self._suffix = f"-{history.line}" if several else ""
        self._several = several

    def plates(self) -> Iterator[Plate | Gap]:
        """Yield the figures, or a single gap if the line has no rounds yet."""
        if not self._history.traffic.iterations:
            reason = f"Line '{self._history.line}' has no rounds yet, so there is nothing over the iterations to draw."
            yield self._gap("rounds", "The iterations", reason)
            return
        yield from self._loss()
        yield from self._users()
        yield self._traffic()
        yield from self._subsamples()

    def _loss(self) -> Iterator[Plate | Gap]:
        curves = self._history.curves
        if not curves:
            reason = f"No {self._measured.one} of line '{self._history.line}' {self._measured.none} yet."
            yield self._gap("loss", "Loss over the iterations", reason)
            return
        caption = _series_said(series_of(curves, "loss"))
        yield self._plate(
            "loss",
            "Loss over the iterations",
            f"The mean over each iteration's {self._measured.averaged}, measured before its pings train the next "
            "version.",
            caption,
            partial(draw.draw_loss, curves, arms=self._arms),
        )
        yield self._plate(
            "loss-smoothed",
            "Loss over the iterations, smoothed",
            "Each point is the mean of the last five iterations.",
            caption,
            partial(draw.draw_smooth_loss, curves, arms=self._arms),
        )

    def _users(self) -> Iterator[Plate | Gap]:
        """Yield the figures of typed characters and selected ranks; nothing if pings have no ranks."""
        if not any(metric.name == "rank_selected" for metric in self._measured.metrics):
            return
        typed, ranks = self._history.typed, series_of(self._history.curves, "rank_selected")
        title = "Characters typed over the iterations, smoothed"
        note = "Each point is the mean of the last five iterations; an iteration has few users, so this is noisy."
        if isinstance(typed, Missing):
            yield self._gap("characters-typed", title, typed.reason)
        else:
            figure = partial(draw.draw_typed, typed, arms=self._arms)
            yield self._plate("characters-typed", title, note, _series_said(typed), figure)
        title = "Selected rank over the iterations, smoothed"
        if not ranks:
            yield self._gap("selected-rank", title, "The pings of this line have no rank.")
        else:
            figure = partial(draw.draw_rank, self._history.curves, arms=self._arms)
            yield self._plate("selected-rank", title, f"0 is the top. {note}", _series_said(ranks), figure)

    def _traffic(self) -> Plate:
        traffic = self._history.traffic
        most, least = max(traffic.total), min(traffic.total)
        swing = f", {most / least:.1f} times as many as the quietest" if least else ""
        caption = f"The busiest iteration has {most:,} pings{swing}, which has {least:,}."
        return self._plate(
            "pings-by-iteration",
            "Pings by iteration",
            f"{caption} Dotted lines are midnight, UTC.",
            caption,
            partial(draw.draw_round_traffic, traffic, arms=self._arms),
        )

    def _subsamples(self) -> Iterator[Plate | Gap]:
        quality = self._history.quality
        if isinstance(quality, Missing):
            yield self._gap("subsamples", "How well would fewer pings do?", quality.reason)
            return
        note = _subsample_note(quality)
        for key, what, figure, errors in (
            ("updates", "the update", draw.draw_update_quality, quality.update),
            ("signs", "the signs of the update", draw.draw_sign_quality, quality.signs),
            ("loss", "the loss", draw.draw_loss_quality, quality.loss),
        ):
            means = errors.mean(axis=1)
            yield self._plate(
                f"subsamples-{key}",
                f"How well do {quality.size:,} pings estimate {what}?",
                note,
                f"Mean error from {means[0]:.3g} in the first iteration drawn to {means[-1]:.3g} in the last.",
                partial(figure, quality),
            )

    def _plate(self, key: str, title: str, caption: str, said: str, figure: Callable[..., Figure]) -> Plate:
        return Plate(key + self._suffix, self._titled(title), caption, said, figure)

    def _gap(self, key: str, title: str, reason: str) -> Gap:
        return Gap(key + self._suffix, self._titled(title), reason)

    def _titled(self, title: str) -> str:
        """Return a title, with the line's name if there are several lines; a question mark stays at the end."""
        text = title.removesuffix("?")
        return f"{text}, line {self._history.line}{title[len(text) :]}" if self._several else title


def _subsample_note(quality: SubsampleQuality) -> str:
    draws = quality.update.shape[1]
    note = (
        f"{draws} subsamples of {quality.size:,} of an iteration's pings, each compared with all of them: the mean "
        "error, and one standard deviation on either side. Where a subsample is a large share of the pings, this "
        "alone keeps it close to them; those dots are hollow."
    )
    if not quality.skipped:
        return note
    few = f"{len(quality.skipped)} iterations have" if len(quality.skipped) > 1 else "One iteration has"
    return f"{note} {few} too few pings to draw from."


def _intervals_said(comparisons: Sequence[Comparison], estimate: Callable[[Comparison], Estimate], digits: int) -> str:
    return "; ".join(
        f"{one.metric.title}, {one.pair[0]} against {one.pair[1]}: {interval_text(estimate(one), digits)}"
        for one in comparisons
    )


def _series_said(series: Mapping[str, Series]) -> str:
    return "; ".join(f"{name}: from {one.values[0]:.3g} to {one.values[-1]:.3g}" for name, one in series.items())
