"""The three questions of a planner: number of users, power, or smallest effect; answered by formula and simulation.

A design is what is fixed in advance: arms, level, power, and the change to show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedping.analysis.power.pilot import Pilot
from fedping.analysis.power.report import (
    EffectFigures,
    Least,
    PowerReport,
    PowerRow,
    SimulatedFigure,
    Sizes,
    given,
    least_headline,
    notes_about,
    power_headline,
    size_headline,
)
from fedping.analysis.statistics.looks import LEAST_LEVEL
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
    split,
    tilted,
    tilted_to_superiority,
)
from fedping.protocol.errors import InvalidSettings

MOST_USERS = 10**12
"""The most users of a plan: a hundred times all people, and few enough that simulations count them exactly."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """A planned study; "users" means pings if a ping is one value.

    Attributes:
        shares: how the enrolled are divided among the arms, in any unit. The first arm has the change and is compared
            with the second; users of other arms are enrolled too.
        exposed: the share of the enrolled that sends what is compared.
        alpha: the chance of any false alarm among all tests.
        tests: the number of tests, for Bonferroni's correction.
        power: the probability of finding the effect.
        studies: how many studies to simulate for every number.
        seed: the seed of the simulation.

    Raises:
        InvalidSettings: a value is impossible for any study.
    """

    shares: tuple[float, ...] = (1.0, 1.0)
    exposed: float = 1.0
    alpha: float = 0.05
    tests: int = 1
    power: float = 0.8
    studies: int = 4000
    seed: int = 1

    def __post_init__(self) -> None:
        if len(self.shares) < 2 or min(self.shares) <= 0:
            raise InvalidSettings(
                "a comparison needs the shares of at least two arms, each above 0; write --shares 60/20/20"
            )
        if not 0 < self.exposed <= 1:
            raise InvalidSettings(f"the exposed part of the enrolled lies between 0 and 1, not at {self.exposed:g}")
        if not 0 < self.alpha < 1:
            raise InvalidSettings(f"the level alpha lies between 0 and 1, not at {self.alpha:g}")
        if self.level < LEAST_LEVEL:
            raise InvalidSettings(
                f"the level of each test is {self.alpha:g} / {self.tests:,}, below {LEAST_LEVEL:g}; raise --alpha, or "
                "lower --tests"
            )
        if not self.level < self.power < 1:
            raise InvalidSettings(
                f"the power lies between the level {self.level:.3g} and 1, not at {self.power:g}; 0.8 or 0.9 is usual"
            )

    @property
    def level(self) -> float:
        """The level of each test, after correction."""
        return self.alpha / self.tests

    @property
    def share(self) -> float:
        """The first arm's share of the compared users."""
        return self.shares[0] / (self.shares[0] + self.shares[1])

    @property
    def compared(self) -> float:
        """The share of the enrolled that is compared: exposed, and in one of the two arms."""
        return self.exposed * (self.shares[0] + self.shares[1]) / sum(self.shares)

    def arms(self, compared: int) -> tuple[int, int]:
        """Return how many of the compared users are in the first arm and in the second."""
        first = split(compared, self.share)
        return first, compared - first

    def enrolled(self, compared: int) -> int:
        """Return how many users must be enrolled in all arms to compare so many.

        Raises:
            InvalidSettings: more than `MOST_USERS`.
        """
        enrolled = compared / self.compared * (1 - 1e-12) if self.compared else math.inf
        if enrolled > MOST_USERS:
            raise InvalidSettings(
                f"comparing {compared:,} users takes more than {MOST_USERS:,} enrolled; raise --exposed, or give "
                "--shares that are nearer to each other"
            )
        return math.ceil(enrolled)

    def compared_of(self, enrolled: int) -> int:
        """Return how many users are compared if so many are enrolled.

        Raises:
            InvalidSettings: fewer than four, or more than `MOST_USERS` are enrolled.
        """
        if enrolled > MOST_USERS:
            raise InvalidSettings(
                f"--users and --table are numbers of users up to {MOST_USERS:,}, not {enrolled:.3g}; lower them"
            )
        compared = int(enrolled * self.compared * (1 + 1e-12))
        if compared < 4:
            raise InvalidSettings(
                f"{enrolled:,} enrolled leave {compared} that are compared, too few for any test; raise --users"
            )
        return compared


@dataclass(frozen=True)
class MeanChange:
    """A change of the mean by ``amount``, or by a percentage of its old value."""

    amount: float
    percent: bool = False

    @classmethod
    def parse(cls, text: str) -> MeanChange:
        """Read "-0.15" or "-3%"; raises :class:`InvalidSettings`."""
        try:
            return cls(float(text.strip().removesuffix("%")), text.strip().endswith("%"))
        except ValueError as error:
            raise InvalidSettings(
                f"'{text}' is no change of a mean; write an amount as -0.15, or percent of it as -3%"
            ) from error

    def of(self, distribution: Distribution) -> Distribution:
        """Return the closest distribution with the changed mean; raises :class:`InvalidSettings`."""
        mean = distribution.mean
        wanted = mean * (1 + self.amount / 100) if self.percent else mean + self.amount
        if wanted == mean:
            raise InvalidSettings("a change of 0 is no effect, and no number of users shows it; give another --change")
        try:
            return tilted(distribution, wanted)
        except ValueError as error:
            low, high = distribution.values[0], distribution.values[-1]
            raise InvalidSettings(
                f"with this change the mean {mean:.4g} would become {wanted:.4g}, but it has to stay between the "
                f"smallest value {low:.4g} and the largest {high:.4g}; give a smaller --change"
            ) from error


@dataclass(frozen=True)
class Superiority:
    """The probability that a random user with the change has the larger value, counting ties half."""

    value: float

    def of(self, distribution: Distribution) -> Distribution:
        """Return the closest distribution with this probability; raises :class:`InvalidSettings`."""
        if self.value == 0.5:
            raise InvalidSettings(
                "a probability of superiority of 0.5 is no effect, and no number of users shows it; give another"
            )
        try:
            return tilted_to_superiority(distribution, self.value)
        except ValueError as error:
            raise InvalidSettings(f"{error}; give a --superiority nearer to 0.5") from error


Change = MeanChange | Superiority


STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""The rows of the table of power, as multiples of the number by the formula."""

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
    """Answer for what is not given: how many ``users``, else the power, or without a ``change`` the smallest effect.

    Args:
        pilot: the metric without the change.
        design: arms, level and power.
        change: the change to show.
        users: how many are enrolled in all arms.
        table: further numbers of enrolled users to compute the power for.
        watch: is told what is being computed.

    Raises:
        InvalidSettings: neither a change nor users are given, or either is impossible.
    """
    planner = _Planner(pilot, design, watch)
    if change is not None:
        return planner.about(effect_between(change.of(pilot.distribution), pilot.distribution), users, table)
    if users is None:
        raise InvalidSettings(
            "say which effect is to be shown, with --change or --superiority, or how many users there are, with --users"
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
        """Answer how many users show an effect, or what power a number of users has."""
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
        """Answer what smallest effect a number of users shows, in either direction."""
        compared = self._design.compared_of(users)
        found = (self._least(compared, "less"), self._least(compared, "more"))
        return self._report(
            compared,
            question="effect",
            headline=least_headline(self._pilot, self._design, users, found),
            enrolled=users,
            effect=None,
            sizes=None,
            rows=(),
            least=found,
        )

    def _report(self, compared: int, **more: Any) -> PowerReport:
        self._watch("simulating studies without an effect")
        changed, unchanged = self._design.arms(compared)
        same = effect_between(self._pilot.distribution, self._pilot.distribution)
        false_alarms = self._simulated(same, compared)
        fields: dict[str, Any] = {
            **given(self._pilot, self._design),
            **more,
            "changed": changed,
            "unchanged": unchanged,
        }
        notes = notes_about(self._pilot, self._design, min(changed, unchanged), fields["sizes"], false_alarms)
        return PowerReport(**fields, false_alarms=false_alarms, notes=notes)

    def _sizes(self, effect: Effect) -> Sizes:
        self._watch("looking for the number of users by simulation")
        level, share, power = self._design.level, self._design.share, self._design.power
        try:
            exact = max(FEWEST_COMPARED, sample_size(effect, power, level, share))
            self._design.enrolled(exact)  # before studies of so many users are drawn
            found = simulated_size(
                effect, self._rng, guess=exact, power=power, alpha=level, share=share, studies=self._design.studies
            )
        except ValueError as error:
            raise InvalidSettings(f"{error}; give a larger --change, or a --superiority further from 0.5") from error
        return Sizes(
            formula=exact,
            noether=noether_size(effect.superiority, power, level, share),
            simulated=found.n,
            low=found.low,
            high=found.high,
            agree=found.low <= exact <= found.high,
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
        self._watch("looking for the least effect that shows")
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
    """Return an effect in numbers."""
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
