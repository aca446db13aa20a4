"""The answer of a plan for people and machines: sentences, terminal output, and the output of --json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedping.analysis.power.pilot import Design, Pilot
from fedping.protocol.notation import with_minus

FEW = 20
"""Number of users in an arm below which the test's normal approximation is rough."""


def size_headline(pilot: Pilot, design: Design, effect: EffectFigures, sizes: Sizes, row: PowerRow) -> str:
    """Return a sentence with the number of users."""
    more = "" if design.compared == 1 else f", which takes {row.enrolled:,} enrolled in all arms"
    return (
        f"{sizes.formula:,} {_noun(pilot)}, {row.changed:,} with the change and {row.unchanged:,} without, show "
        f"{change_words(pilot, effect)} with a power of {percent(design.power)} at the {level_words(design)}"
        f"{more}; by simulation it takes {sizes.simulated:,} ({sizes.low:,} to {sizes.high:,})."
    )


def power_headline(pilot: Pilot, design: Design, effect: EffectFigures, sizes: Sizes, row: PowerRow) -> str:
    """Return a sentence with the power."""
    simulated = row.simulated
    return (
        f"With {_among(pilot, design, row.enrolled, row.changed)} with the change and "
        f"{row.unchanged:,} without, the power to show {change_words(pilot, effect)} at the {level_words(design)} is "
        f"{percent(row.formula)}; by simulation {percent(simulated.value)} ({percent(simulated.low)} to "
        f"{percent(simulated.high)})."
    )


def least_headline(pilot: Pilot, design: Design, users: int, found: Sequence[Least]) -> str:
    """Return a sentence with the smallest effect."""
    shown = [change_words(pilot, one.effect) for one in found if one.effect]
    changed, unchanged = design.arms(design.compared_of(users))
    among = f"{_among(pilot, design, users, changed)} with the change and {unchanged:,} without"
    how = f"with a power of {percent(design.power)} at the {level_words(design)}"
    if not shown:
        return f"No change that these values allow shows {how} with {among}."
    return f"The least that shows {how}, with {among}, is {' or '.join(shown)}."


def notes_about(
    pilot: Pilot, design: Design, smaller: int, sizes: Sizes | None, false_alarms: SimulatedFigure
) -> tuple[str, ...]:
    """Return sentences that a reader needs to interpret the numbers."""
    notes = [_source(pilot)]
    if design.tests > 1:
        notes.append(f"Bonferroni: {design.tests} tests share alpha {design.alpha:g}, {design.level:.3g} each.")
    if sizes is not None:
        notes.append(_agreement(sizes))
    notes.append(
        f"Without any change, {percent(false_alarms.value, 2)} of the simulated studies reject "
        f"({percent(false_alarms.low, 2)} to {percent(false_alarms.high, 2)}); the level is {percent(design.level, 2)}."
    )
    if smaller < FEW:
        notes.append(
            f"With fewer than {FEW} {_noun(pilot)} in an arm the test's normal approximation is rough; trust the "
            "simulation."
        )
    return (*notes, *_cautions(pilot))


def change_words(pilot: Pilot, effect: EffectFigures) -> str:
    """Return a change in words."""
    likely = f"probability of superiority of {effect.superiority:.4f}"
    if effect.mean is None or effect.changed_mean is None:
        return f"a {likely}"
    relative = "" if effect.percent is None else with_minus(f"{effect.percent:+.3g} %, ")
    means = with_minus(f"{effect.changed_mean:.4g} instead of {effect.mean:.4g}")
    return f"a mean {pilot.metric} of {means} ({relative}{likely})"


def level_words(design: Design) -> str:
    """Return the level in words, with its correction for several tests if there is one."""
    return f"level {design.alpha:g}" + (f" / {design.tests}" if design.tests > 1 else "")


def percent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.{digits}f} %"


def _source(pilot: Pilot) -> str:
    if not pilot.has_scale:
        return (
            "No distribution was given, so all values are assumed to be different. This is the cautious case: ties "
            "make a given probability of superiority easier to show."
        )
    observed = "" if pilot.observed is None else f" ({pilot.observed:,} values)"
    return f"Distribution without the change: {pilot.source}{observed}, mean {pilot.distribution.mean:.4g}."


def _agreement(sizes: Sizes) -> str:
    tied = f"Noether's formula, which knows no ties, asks for {sizes.noether:,}."
    if sizes.agree:
        return f"Formula and simulation agree: {sizes.formula:,} lies in the simulation's 95 % interval. {tied}"
    return (
        f"The formula's {sizes.formula:,} is outside the simulation's 95 % interval, as it is one time in twenty. If "
        f"it is so with another --seed too, trust the simulation. {tied}"
    )


def _cautions(pilot: Pilot) -> list[str]:
    if pilot.unit == "client":
        return [
            "One client, one value, as in the verdict: a mean over its interactions, which varies less the longer a "
            "study lasts, so plan for one about as long as the pilot."
        ]
    alike = (
        ""
        if pilot.alike is None
        else (
            f" In this pilot the mean of n pings varies like the mean of n / {pilot.alike:.2f} independent ones: take "
            f"{pilot.alike:.2f} times the number."
        )
    )
    return [f"Pings were taken as independent, but a client's pings are not. The verdict counts clients.{alike}"]


def _among(pilot: Pilot, design: Design, enrolled: int, changed: int) -> str:
    noun = _noun(pilot)
    return f"{changed:,} {noun}" if design.compared == 1 else f"{enrolled:,} {noun} in all arms, {changed:,} of them"


def _noun(pilot: Pilot) -> str:
    return "users" if pilot.unit == "client" else "pings"


class EffectFigures(Struct, frozen=True, kw_only=True):
    """The figures of a change. Means and their differences are null if the values have no scale."""

    superiority: float
    mean: float | None
    changed_mean: float | None
    difference: float | None
    percent: float | None


class SimulatedFigure(Struct, frozen=True, kw_only=True):
    """A share of simulated studies with its 95 % interval (Wilson)."""

    value: float
    low: float
    high: float


class Sizes(Struct, frozen=True, kw_only=True):
    """Numbers of users to compare, in both arms together, by each method; by simulation with a 95 % interval.

    ``noether`` ignores ties. ``agree`` is whether the formula's number is in the interval.
    """

    formula: int
    noether: int
    simulated: int
    low: int
    high: int
    agree: bool


class PowerRow(Struct, frozen=True, kw_only=True):
    """The power with a number of enrolled users, of whom ``changed`` and ``unchanged`` are compared."""

    enrolled: int
    changed: int
    unchanged: int
    formula: float
    simulated: SimulatedFigure


class Least(Struct, frozen=True, kw_only=True):
    """The smallest change in one direction that is shown; its fields are null if no possible change is shown."""

    direction: Literal["less", "more"]
    effect: EffectFigures | None
    simulated: SimulatedFigure | None


class PowerReport(Struct, frozen=True, kw_only=True):
    """The answer to one question: the number of users (``size``), the ``power``, or the smallest ``effect``.

    ``false_alarms`` is the share of simulated tests that reject although there is no change, at that number of users.
    """

    question: Literal["size", "power", "effect"]
    headline: str
    metric: str
    unit: Literal["client", "ping"]
    source: str
    observed: int | None
    mean: float | None
    shares: tuple[float, ...]
    exposed: float
    alpha: float
    tests: int
    level: float
    power: float
    studies: int
    seed: int
    enrolled: int
    changed: int
    unchanged: int
    effect: EffectFigures | None
    sizes: Sizes | None
    rows: tuple[PowerRow, ...]
    least: tuple[Least, ...]
    false_alarms: SimulatedFigure
    notes: tuple[str, ...]


def settings_of_report(pilot: Pilot, design: Design) -> dict[str, object]:
    """Return the fields of a report that repeat the inputs."""
    return {
        "metric": pilot.metric,
        "unit": pilot.unit,
        "source": pilot.source,
        "observed": pilot.observed,
        "mean": pilot.distribution.mean if pilot.has_scale else None,
        "shares": design.shares,
        "exposed": design.exposed,
        "alpha": design.alpha,
        "tests": design.tests,
        "level": design.level,
        "power": design.power,
        "studies": design.studies,
        "seed": design.seed,
    }


def print_power(report: PowerReport, console: Console) -> None:
    """Print an answer."""
    console.print(Text(report.headline, style="bold"))
    console.print()
    if report.rows:
        console.print(_power_table(report))
    if report.least:
        console.print(_least_table(report))
    console.print()
    for note in report.notes:
        console.print(Text(f"- {note}", style="dim"))


def _power_table(report: PowerReport) -> Table:
    table = _table("Power by the number of " + ("users" if report.unit == "client" else "pings"))
    for head in ("enrolled", "with the change", "without", "formula", "simulation", "95 % interval"):
        table.add_column(head, justify="right")
    for row in report.rows:
        table.add_row(*_cells(row), style="bold" if row.changed == report.changed else "")
    return table


def _cells(row: PowerRow) -> tuple[str, ...]:
    counts = (f"{number:,}" for number in (row.enrolled, row.changed, row.unchanged))
    return (*counts, percent(row.formula), percent(row.simulated.value), _interval(row.simulated))


def _least_table(report: PowerReport) -> Table:
    table = _table(f"Least effect with a power of {percent(report.power)} by formula, and its power by simulation")
    for head in ("direction", "mean", "change", "percent", "superiority", "simulation", "95 % interval"):
        table.add_column(head, justify="left" if head == "direction" else "right")
    for one in report.least:
        table.add_row(*_least_cells(one))
    return table


def _least_cells(one: Least) -> tuple[str, ...]:
    effect, simulated = one.effect, one.simulated
    if effect is None or simulated is None:
        return one.direction, "none shows"
    moved = [(effect.changed_mean, ".4g"), (effect.difference, "+.4g"), (effect.percent, "+.3g")]
    means = ("" if value is None else with_minus(f"{value:{form}}") for value, form in moved)
    return one.direction, *means, f"{effect.superiority:.4f}", percent(simulated.value), _interval(simulated)


def _interval(found: SimulatedFigure) -> str:
    return f"{percent(found.low)} to {percent(found.high)}"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
