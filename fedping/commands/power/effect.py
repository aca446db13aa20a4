"""`fedping power effect`: how many users show an effect, which power some have, and the least effect that shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from fedping.options import LocalPath, json_option, landing_option, store_option
from fedping.protocol.errors import InvalidSettings
from fedping.spark_session import ITERATION, TIMES, analysis_session, milliseconds
from fedping.terminal import status

if TYPE_CHECKING:
    from fedping.analysis.power import Change, Design, Pilot
    from fedping.analysis.study import Window
    from fedping.protocol.location import Place
    from fedping.protocol.study import Study

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _pilot_options(command: _Command) -> _Command:
    """Add the options that say where the metric's distribution is from."""
    options = (
        click.option("--arm", help="Arm of the landed pilot whose users are without the change."),
        click.option(
            "--metric",
            default="num_chars_typed",
            show_default=True,
            help="Metric of the pilot; without a pilot, only a name.",
        ),
        click.option(
            "--unit",
            type=click.Choice(["client", "ping"]),
            default="client",
            show_default=True,
            help="What one value belongs to; the verdict of 'fedping analyze' counts clients.",
        ),
        click.option("--from-iteration", type=ITERATION, help="Of the pilot: first model version whose pings count."),
        click.option("--to-iteration", type=ITERATION, help="Of the pilot: last model version whose pings count."),
        click.option("--since", type=TIMES, help="Of the pilot: only pings received from this time on (UTC)."),
        click.option("--until", type=TIMES, help="Of the pilot: only pings received before this time (UTC)."),
        click.option("--master", help="Spark's master URL, to count the pilot; else local[*]."),
        click.option("--values", type=LocalPath(), help="A file: CSV of value,count, or TOML."),
        click.option("--counts", help="The distribution itself, as 0:120,1:60,2:20; counts or shares."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("study", required=False)
@_pilot_options
@click.option("--change", help="The effect: the mean changes by so much, as -0.15, or by percent of it, as -3%.")
@click.option("--superiority", type=float, help="The effect: how often a user with the change has the larger value.")
@click.option(
    "--users",
    type=click.IntRange(1),
    help="Users enrolled in all arms (or pings): computes the power, or the least effect.",
)
@click.option("--table", help="Numbers of enrolled users for the table of power, as 10000,20000,50000.")
@click.option("--power", "wanted", type=float, default=0.8, show_default=True, help="The chance of finding the effect.")
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Chance of any false alarm among all tests.")
@click.option("--tests", type=click.IntRange(1), default=1, show_default=True, help="How many tests share alpha.")
@click.option(
    "--shares", default="50/50", show_default=True, help="Shares of the arms; the first is compared with the second."
)
@click.option(
    "--exposed", type=float, default=1.0, show_default=True, help="Part of the enrolled users that is compared."
)
@click.option("--simulations", type=click.IntRange(100, 1_000_000), default=4000, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the simulation.")
@store_option
@landing_option
@json_option
def effect(store_path: Place, landing: Place, as_json: bool, **options: Any) -> None:
    """Compute how many users SHOW an effect with the Mann-Whitney test, by formula and by simulation.

    With --users instead of an effect: the least effect that this many show. With both: the power. What users do without
    the change comes from the pilot STUDY that has landed, from --values, or from --counts.
    """
    import msgspec

    from fedping.analysis.power import answer

    given = EffectOptions(**options)
    change, table = _change(given.change, given.superiority), _numbers(given.table, ",", "--table")
    if change is None and given.users is None:
        raise InvalidSettings(
            "give the effect to show, with --change or --superiority, or the number of users, with --users"
        )
    with status("reading the pilot") as tell:
        pilot = _pilot(given, store_path, landing, tell)
        report = answer(pilot, given.design, change, given.users, [int(number) for number in table], tell)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
        return
    from fedping.analysis.power.report import print_power
    from fedping.terminal import console

    print_power(report, console())


@dataclass(frozen=True, kw_only=True)
class EffectOptions:
    """The options of the command by their names in Python."""

    study: str | None
    arm: str | None
    metric: str
    unit: Literal["client", "ping"]
    from_iteration: int | None
    to_iteration: int | None
    since: datetime | None
    until: datetime | None
    master: str | None
    values: Path | None
    counts: str | None
    change: str | None
    superiority: float | None
    users: int | None
    table: str | None
    wanted: float
    alpha: float
    tests: int
    shares: str
    exposed: float
    simulations: int
    seed: int

    @property
    def design(self) -> Design:
        """What is fixed in advance."""
        from fedping.analysis.power import Design

        return Design(
            shares=tuple(_numbers(self.shares, "/", "--shares")),
            exposed=self.exposed,
            alpha=self.alpha,
            tests=self.tests,
            power=self.wanted,
            studies=self.simulations,
            seed=self.seed,
        )

    @property
    def window(self) -> Window:
        """The pings of the pilot that count."""
        from fedping.analysis.study import Window

        return Window(self.from_iteration, self.to_iteration, milliseconds(self.since), milliseconds(self.until))


def _pilot(given: EffectOptions, store_path: Place, landing: Place, tell: Callable[[str], None]) -> Pilot:
    from fedping.analysis.power import no_pilot, pilot_from_file, pilot_from_text

    if sum(source is not None for source in (given.study, given.values, given.counts)) > 1:
        raise InvalidSettings("a distribution comes from one place; give a STUDY, or --values, or --counts")
    if given.values is not None:
        return pilot_from_file(given.values, given.metric, given.unit)
    if given.counts is not None:
        return pilot_from_text(given.counts, given.metric, given.unit)
    if given.study is None:
        return no_pilot(given.metric, given.unit)
    from fedping.model_store.store import open_store

    return _landed(open_store(store_path).study(given.study), given, landing, tell)


def _landed(study: Study, given: EffectOptions, landing: Place, tell: Callable[[str], None]) -> Pilot:
    from fedping.analysis.power import landed_pilot
    from fedping.analysis.study import count_study, metric_named
    from fedping.analysis.study.metrics import window_folders

    metric = metric_named(given.metric, study)
    if given.arm is None:
        raise InvalidSettings(
            f"say which arm of study '{study.name}' shows what users do without the change, with --arm; it has "
            f"{', '.join(one.name for one in study.arms)}"
        )
    arm = study.arm(given.arm).name
    window_folders(landing, study, given.window)  # reports missing pings before seconds go into starting Spark
    tell("starting Spark")
    with analysis_session("fedping-power", given.master) as session:
        tell("counting the pilot's pings")
        tally = count_study(session, landing, study, (metric,), given.window)
    return landed_pilot(tally, study.name, arm, metric, given.unit)


def _change(change: str | None, superiority: float | None) -> Change | None:
    from fedping.analysis.power import MeanChange, Superiority

    if change is not None and superiority is not None:
        raise InvalidSettings("an effect is stated in one way; give --change or --superiority, not both")
    if change is not None:
        return MeanChange.parse(change)
    return None if superiority is None else Superiority(superiority)


def _numbers(given: str | None, separator: str, option: str) -> list[float]:
    try:
        numbers = [float(part) for part in (given or "").split(separator) if part.strip()]
    except ValueError as error:
        raise InvalidSettings(
            f"'{given}' is no list of numbers for {option}; see 'fedping power effect --help'"
        ) from error
    if any(not 0 < number < float("inf") for number in numbers):
        raise InvalidSettings(f"every number of {option} is above 0; '{given}' has one that is not")
    return numbers
