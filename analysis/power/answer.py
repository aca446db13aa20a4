"""Answers to three questions, by formula and simulation: the number of users, the power, or the smallest effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedping.analysis.power.pilot import Change, Design, Pilot
from fedping.analysis.power.report import (
    EffectFigures,
    Least,
    PowerReport,
    PowerRow,
    SimulatedFigure,
    Sizes,
    least_headline,
    notes_about,
    power_headline,
    settings_of_report,
    size_headline,
)
from fedping.analysis.statistics.power import (
    Distribution,
    Effect,
    SimulatedPower,
    effect_between,
    least_effect,
    noether_size,
    power_of,
    sample_size,
    simulated_power,
    simulated_size,
)
from fedping.protocol.errors import InvalidSettings

STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Numbers of users in the table of power, as multiples of the formula's number."""

FEWEST_COMPARED = 4

Watch = Callable[[str], None]


def answer(
    pilot: Pilot,
    design: Design,
    change: Change | None,
    users: int | None,
    table: Sequence[int] = (),
    watch: Watch = lambda _: None,
) -> PowerReport:
    """Return the missing value: the number of ``users``, the power, or without a ``change`` the smallest effect.

    Args:
        pilot: facts about the metric without the change.
        design: arms, level and power.
        change: the change to show; None to find the smallest one.
        users: number of enrolled users in all arms; None to find it.
        table: further numbers of enrolled users to compute the power for.
        watch: called with a description of each step of the computation.

    Raises:
        InvalidSettings: neither a change nor users are given, or either is impossible.
    """
    planner = _Planner(pilot, design, watch)
    if change is not None:
        return planner.about(effect_between(change.of(pilot.distribution), pilot.distribution), users, table)
    if users is None:
        raise InvalidSettings(
            "give the effect to show with --change or --superiority, or the number of users with --users"
        )
    if table:
        raise InvalidSettings("a table of power needs an effect; give --change or --superiority with --table")
    return planner.least(users)


class _Planner:
    """A pilot, a design, and the random draws that all simulations of one answer share."""

    def __init__(self, pilot: Pilot, design: Design, watch: Watch) -> None:
        self._pilot, self._design, self._watch = pilot, design, watch
        self._rng = np.random.default_rng(design.seed)

    def about(self, effect: Effect, users: int | None, table: Sequence[int]) -> PowerReport:
        """Return the number of users needed to show an effect, or the power of a number of users."""
        sizes = self._sizes(effect)
        asked = sizes.formula if users is None else self._design.compared_of(users)
        numbers = {asked} | {self._design.compared_of(enrolled) for enrolled in table}
        if users is None and not table:
            numbers = {max(FEWEST_COMPARED, round(step * asked)) for step in STEPS}
        rows = tuple(self._row(effect, n, users if n == asked else None) for n in sorted(numbers))
        figures = self._figures(effect)
        words = size_headline if users is None else power_headline
        row = next(row for row in rows if row.changed + row.unchanged == asked)
        return self._report(
            asked,
            question="size" if users is None else "power",
            headline=words(self._pilot, self._design, figures, sizes, row),
            enrolled=row.enrolled,
            effect=figures,
            sizes=sizes,
            rows=rows,
            least=(),
        )

    def least(self, users: int) -> PowerReport:
        """Return the smallest effect in either direction that a number of users shows."""
        compared = self._design.compared_of(users)
        effects = (self._least(compared, "less"), self._least(compared, "more"))
        return self._report(
            compared,
            question="effect",
            headline=least_headline(self._pilot, self._design, users, effects),
            enrolled=users,
            effect=None,
            sizes=None,
            rows=(),
            least=effects,
        )

    def _report(self, compared: int, **more: Any) -> PowerReport:
        self._watch("simulating studies without an effect")
        changed, unchanged = self._design.arms(compared)
        same = effect_between(self._pilot.distribution, self._pilot.distribution)
        false_alarms = self._simulated(same, compared)
        fields: dict[str, Any] = {
            **settings_of_report(self._pilot, self._design),
            **more,
            "changed": changed,
            "unchanged": unchanged,
        }
        notes = notes_about(self._pilot, self._design, min(changed, unchanged), fields["sizes"], false_alarms)
        return PowerReport(**fields, false_alarms=false_alarms, notes=notes)

    def _sizes(self, effect: Effect) -> Sizes:
        self._watch("searching for the number of users by simulation")
        level, share, power = self._design.level, self._design.share, self._design.power
        try:
            exact = max(FEWEST_COMPARED, sample_size(effect, power, level, share))
            self._design.enrolled(exact)  # raises before studies with so many users are drawn
            size = simulated_size(
                effect, self._rng, guess=exact, power=power, alpha=level, share=share, studies=self._design.studies
            )
        except ValueError as error:
            raise InvalidSettings(f"{error}; give a larger --change, or a --superiority further from 0.5") from error
        return Sizes(
            formula=exact,
            noether=noether_size(effect.superiority, power, level, share),
            simulated=size.n,
            low=size.low,
            high=size.high,
            agree=size.low <= exact <= size.high,
        )

    def _row(self, effect: Effect, compared: int, enrolled: int | None) -> PowerRow:
        changed, unchanged = self._design.arms(compared)
        return PowerRow(
            enrolled=self._design.enrolled(compared) if enrolled is None else enrolled,
            changed=changed,
            unchanged=unchanged,
            formula=power_of(effect, changed, unchanged, self._design.level),
            simulated=self._simulated(effect, compared),
        )

    def _least(self, compared: int, direction: Any) -> Least:
        self._watch("searching for the smallest effect that shows")
        changed, unchanged = self._design.arms(compared)
        effect = least_effect(
            self._pilot.distribution, changed, unchanged, direction, power=self._design.power, alpha=self._design.level
        )
        if effect is None:
            return Least(direction=direction, effect=None, simulated=None)
        return Least(direction=direction, effect=self._figures(effect), simulated=self._simulated(effect, compared))

    def _simulated(self, effect: Effect, compared: int) -> SimulatedFigure:
        self._watch(f"simulating {self._design.studies:,} studies of {compared:,}")
        n_a, n_b = self._design.arms(compared)
        drawn = simulated_power(effect, n_a, n_b, self._rng, alpha=self._design.level, studies=self._design.studies)
        return _figure(drawn)

    def _figures(self, effect: Effect) -> EffectFigures:
        return figures_of(effect, self._pilot.distribution, self._pilot.has_scale)


def figures_of(effect: Effect, plain: Distribution, has_scale: bool) -> EffectFigures:
    """Return the figures that describe an effect."""
    mean, changed = plain.mean, effect.a.mean
    return EffectFigures(
        superiority=effect.superiority,
        mean=mean if has_scale else None,
        changed_mean=changed if has_scale else None,
        difference=changed - mean if has_scale else None,
        percent=100 * (changed - mean) / mean if has_scale and mean else None,
    )


def _figure(drawn: SimulatedPower) -> SimulatedFigure:
    low, high = drawn.interval
    return SimulatedFigure(value=drawn.power, low=low, high=high)
