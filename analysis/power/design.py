"""What a planner fixes beforehand: arms, level, power, and the change to show."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedping.analysis.statistics.looks import LEAST_LEVEL
from fedping.analysis.statistics.power import Distribution, split, tilted, tilted_to_superiority
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
