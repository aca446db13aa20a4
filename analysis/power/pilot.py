"""The fixed inputs of a plan: the pilot and the design (arms, level, power and the change to show)."""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedping.analysis.statistics.looks import LEAST_LEVEL
from fedping.analysis.statistics.power import Distribution, split, tilted, tilted_to_superiority
from fedping.analysis.study.metrics import Metric
from fedping.analysis.study.tally import StudyTally
from fedping.protocol.errors import FedpingError, InvalidSettings

Unit = Literal["client", "ping"]

MOST_VALUES = 256
"""Number of distinct values in a simulation, to which means over clients' pings are reduced (see `coarsened`)."""

_MOST = 1e150
"""Maximum of a stated value or count, so that a product of two cannot overflow."""

_EVEN = 256
"""Number of values in the stand-in for a distribution without ties; with so many values, ties have no effect."""


@dataclass(frozen=True, eq=False)
class Pilot:
    """Facts about a metric that are known before the study.

    Attributes:
        distribution: the distribution of users without the change.
        metric: the metric's name.
        source: origin of the values, in words.
        unit: the owner of one value, a client or a ping.
        observed: number of observed values; None if the distribution was only stated.
        alike: for pings of a landed pilot, the design effect: the variance of a mean over pings, divided by the
            variance over as many independent pings.
        has_scale: whether the values have a meaning; if no values were given, only their order counts.
    """

    distribution: Distribution
    metric: str
    source: str
    unit: Unit = "client"
    observed: int | None = None
    alike: float | None = None
    has_scale: bool = True


def landed_pilot(tally: StudyTally, study: str, arm: str, metric: Metric, unit: Unit) -> Pilot:
    """Return the pilot of a metric from an arm of a counted study.

    Raises:
        FedpingError: the arm does not have two different values.
    """
    found = tally.arms[arm].metrics[metric.name]
    counts = found.clients if unit == "client" else found.pings
    if len(counts.values) < 2:
        raise FedpingError(
            f"arm '{arm}' of study '{study}' has {counts.n:,} values of {metric.name} by {unit}, all equal, so a "
            "change can't be planned. Name another --arm or --metric, or widen the window"
        )
    plain = counts.variance / counts.n
    return Pilot(
        Distribution.of(counts).coarsened(MOST_VALUES),
        metric.name,
        f"arm '{arm}' of study '{study}', by {unit}",
        unit,
        counts.n,
        found.sums.squared_error / plain if unit == "ping" else None,
    )


def pilot_from_file(path: Path, metric: str, unit: Unit) -> Pilot:
    """Read a distribution: a CSV of value,count, with or without a heading, or TOML with ``values`` and ``counts``.

    Raises:
        InvalidSettings: the file does not exist or has another format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"cannot read the distribution file {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"the distribution file {path} is not UTF-8 text; save it as UTF-8") from error
    rows = _toml_rows(text, path) if path.suffix == ".toml" else _csv_rows(text)
    return _stated(rows, f"the file {path}", metric, unit)


def pilot_from_text(text: str, metric: str, unit: Unit) -> Pilot:
    """Read a distribution from "0:120,1:60,2:20"; raises :class:`InvalidSettings`."""
    rows = [part.split(":") for part in text.split(",") if part.strip()]
    return _stated(rows, "--counts", metric, unit)


def no_pilot(metric: str, unit: Unit) -> Pilot:
    """Return the pilot of the cautious case, in which all values are different and only their order counts."""
    even = Distribution(np.arange(float(_EVEN)), np.full(_EVEN, 1 / _EVEN))
    return Pilot(even, metric, "no distribution", unit, has_scale=False)


def _csv_rows(text: str) -> list[list[str]]:
    rows = [row for row in csv.reader(text.splitlines()) if row and not row[0].lstrip().startswith("#")]
    return rows[1:] if rows and [cell.strip().lower() for cell in rows[0]] == ["value", "count"] else rows


def _toml_rows(text: str, path: Path) -> list[list[Any]]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"the distribution file {path} is not valid TOML: {error}") from error
    values, counts = table.get("values"), table.get("counts")
    if not isinstance(values, list) or not isinstance(counts, list) or len(values) != len(counts):
        raise InvalidSettings(
            f"the distribution file {path} has to give values = [...] and counts = [...] of the same length"
        )
    return [list(pair) for pair in zip(values, counts, strict=True)]


def _stated(rows: Iterable[list[Any]], source: str, metric: str, unit: Unit) -> Pilot:
    frequencies: dict[float, float] = {}
    for row in rows:
        value, count = _number_pair(row, source)
        frequencies[value] = frequencies.get(value, 0.0) + count
    values = sorted(value for value, count in frequencies.items() if count > 0)
    if len(values) < 2:
        raise InvalidSettings(f"{source} needs at least two different values to plan a change")
    weights = np.array([frequencies[value] for value in values])
    distribution = Distribution(np.array(values), weights / weights.sum())
    return Pilot(distribution.coarsened(MOST_VALUES), metric, source, unit)


def _number_pair(row: list[Any], source: str) -> tuple[float, float]:
    try:
        value, count = (float(cell) for cell in row)
    except (TypeError, ValueError) as error:
        text = ",".join(map(str, row))
        raise InvalidSettings(f"'{text}' in {source} is not a value with its count, such as 3,120 or 3:120") from error
    if not (abs(value) <= _MOST and 0 <= count <= _MOST):
        raise InvalidSettings(
            f"the value {value:g} with the count {count:g} in {source} cannot be: values lie within {_MOST:g} of 0, "
            "and counts from 0 on up to it"
        )
    return value, count


MOST_USERS = 10**12
"""Maximum number of users in a plan: a hundred times the world's population, with exact counts in simulations."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """A planned study; "users" means pings if each ping is a value.

    Attributes:
        shares: the arms' shares of the enrolled users, in any unit. The first arm has the change and is compared with
            the second; users of other arms are enrolled too.
        exposed: the share of the enrolled users that sends the compared values.
        alpha: the chance of any false alarm among all tests.
        tests: the number of tests, for Bonferroni's correction.
        power: the probability of finding the effect.
        studies: number of studies to simulate for each number of users.
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
        """The share of the enrolled users that is compared: exposed, and in one of the two arms."""
        return self.exposed * (self.shares[0] + self.shares[1]) / sum(self.shares)

    def arms(self, compared: int) -> tuple[int, int]:
        """Return the numbers of compared users in the first arm and in the second."""
        first = split(compared, self.share)
        return first, compared - first

    def enrolled(self, compared: int) -> int:
        """Return the number of users to enrol in all arms for a number of compared users.

        Raises:
            InvalidSettings: the number is larger than `MOST_USERS`.
        """
        enrolled = compared / self.compared * (1 - 1e-12) if self.compared else math.inf
        if enrolled > MOST_USERS:
            raise InvalidSettings(
                f"comparing {compared:,} users takes more than {MOST_USERS:,} enrolled; raise --exposed, or give "
                "--shares that are nearer to each other"
            )
        return math.ceil(enrolled)

    def compared_of(self, enrolled: int) -> int:
        """Return the number of compared users for a number of enrolled users.

        Raises:
            InvalidSettings: more than `MOST_USERS` are enrolled, or fewer than four are compared.
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
                f"'{text}' is not a change of a mean. Write an amount as -0.15, or percent of it as -3%"
            ) from error

    def of(self, distribution: Distribution) -> Distribution:
        """Return the closest distribution with the changed mean; raises :class:`InvalidSettings`."""
        mean = distribution.mean
        wanted = mean * (1 + self.amount / 100) if self.percent else mean + self.amount
        if wanted == mean:
            raise InvalidSettings("no number of users shows a change of 0. Give another --change")
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
                "a probability of superiority of 0.5 is no difference, which no number of users shows. Give a "
                "--superiority below or above 0.5"
            )
        try:
            return tilted_to_superiority(distribution, self.value)
        except ValueError as error:
            raise InvalidSettings(f"{error}; give a --superiority nearer to 0.5") from error


Change = MeanChange | Superiority
