"""`fedping plan`: estimates of upload sizes and of a fleet's costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedping.options import LocalPath, json_option
from fedping.protocol.errors import InvalidSettings
from fedping.terminal import console, status

if TYPE_CHECKING:
    from fedping.client_sim.planning import UploadPlan
    from fedping.protocol.study import Line
    from fedping.server_jobs.fleet_plan import FleetPlan


Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def plan() -> None:
    """Estimate the size of updates under each encoding, and the machines, storage and money for a fleet."""


@plan.command()
@click.argument("file", type=LocalPath(), required=False)
@click.option("--line", "name", help="The line, if the study has several.")
@click.option(
    "--weights", type=click.IntRange(1, 2_000_000), help=("Number of weights of the model, instead of a FILE.")
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the simulated updates.")
@json_option
def upload(file: Path | None, name: str | None, weights: int | None, seed: int, as_json: bool) -> None:
    """Show the size of an update under each encoding, and recommend an encoding.

    FILE is the TOML of a study, or of a line's model spec. If fedping has the model, its simulated clients learn from
    version 0, and their updates are encoded, measured and decoded; otherwise updates are random, with two of five
    weights zero and a heavy tail, like updates of networks.
    """
    import msgspec

    from fedping.client_sim.planning import plan_upload

    line = _line(file, name, weights)
    with status("measuring updates"):
        result = plan_upload(line, seed)
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    _print(result)


def _fleet_option(name: str, default: float, help_text: str) -> Callable[[Command], Command]:
    return click.option(name, type=click.FloatRange(0), default=default, show_default=True, help=help_text)


def _price_option(name: str, unit: str) -> Callable[[Command], Command]:
    return click.option(
        name, type=click.FloatRange(0), help=(f"Price of {unit}, in any currency; without it, this cost is left out.")
    )


@plan.command()
@click.option("--clients", type=click.FloatRange(1), required=True, help="Number of clients.")
@_fleet_option("--pings-a-day", 5.0, "Average number of pings of a client a day.")
@_fleet_option("--fetches-a-day", 5.0, "Number of model fetches of a client a day.")
@_fleet_option("--outcomes-a-day", 0.0, "Average number of later outcomes of a client a day. Rounds don't read them.")
@_fleet_option("--peak", 3.0, "Ratio of the busiest hour to the mean.")
@click.option("--every", default="30m", show_default=True, help="Time between rounds: 30m, 6h, ...")
@click.option("--within", default="5m", show_default=True, help="Maximum time of a round at the peak.")
@_fleet_option("--busy", 0.5, "Maximum busy share of an ingest machine's cores at the peak.")
@click.option(
    "--machine-cores", type=click.IntRange(1), default=8, show_default=True, help="Cores of an ingest machine."
)
@_fleet_option("--keep-days", 30.0, "Number of days that landed pings are kept.")
@_fleet_option("--journal-hours", 4.0, "Hours at the peak that journals can hold while nothing lands.")
@click.option(
    "--model",
    default="firefox-2018",
    show_default=True,
    help="Model with measured costs: firefox-2018 or million.",
)
@click.option(
    "--costs",
    type=LocalPath(dir_okay=False),
    help="File of costs measured on your machine: 'python -m benchmarks.unit_costs --json' in a checkout.",
)
@_price_option("--price-core-hour", "a core for an hour")
@_price_option("--price-gb-month", "a gigabyte on disk for a month")
@_price_option("--price-gb-out", "a gigabyte to clients")
@_price_option("--price-million-requests", "a million requests for models")
@json_option
def fleet(
    every: str,
    within: str,
    model: str,
    costs: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Estimate machines, storage, rounds and cost (at your prices) for a fleet of any size.

    The estimate uses the measured costs of one ping, from the benchmarks' machine unless you give your own. Only items
    with a price have a cost. 'fedping docs planning' derives each number.
    """
    import msgspec

    from fedping.protocol.settings_file import converted
    from fedping.server_jobs.fleet_plan import MEASURED, Fleet, Prices, planned, read_costs
    from fedping.server_jobs.schedule import parse_every

    known = MEASURED if costs is None else read_costs(costs)
    if model not in known:
        raise InvalidSettings(f"--model '{model}' has no measured costs; give one of {', '.join(known)}")
    prices = {name: given.pop(f"price_{name}") for name in Prices.__struct_fields__}
    given |= {"every_s": parse_every(every), "within_s": parse_every(within, "a time for --within")}
    fleet = converted(given, Fleet, "can't plan this fleet: ")
    result = planned(fleet, known[model], converted(prices, Prices, "can't use these prices: "))
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    for name, text in _rows(result):
        click.echo(f"{name:<36} {text}")


def _rows(result: FleetPlan) -> Iterator[tuple[str, str]]:
    """Yield the rows of a plan, each with its name and text."""
    ingest, rounds, stored, fleet = result.ingest, result.rounds, result.stored, result.fleet
    yield "pings a second", f"{ingest.mean_pings_s:,.0f} on average, {ingest.peak_pings_s:,.0f} at the peak"
    yield "from clients", f"{ingest.peak_mbit_s:,.0f} Mbit/s at the peak"
    yield (
        "ingest",
        f"{ingest.machines:,} machines of {fleet.machine_cores} cores, including a spare one; "
        f"{ingest.busy_cores:,.1f} cores are busy at the peak",
    )
    yield (
        "journal of each",
        f"{ingest.journal_gb_a_machine:,.1f} GB, for {fleet.journal_hours:g} hours at the peak while nothing lands",
    )
    yield (
        "pings in Parquet",
        f"{stored.landed_gb_a_day:,.1f} GB a day, {stored.landed_gb:,.0f} GB for {fleet.keep_days:g} days",
    )
    yield "a round at the peak", f"{rounds.pings:,.0f} pings in {rounds.seconds:,.0f} s; cores: {rounds.cores:,}"
    yield "its shards and memory", f"{rounds.shards:,} shards, {rounds.memory_gb:,.1f} GB at a time on all cores"
    yield "its requests", f"about {rounds.reads:,.0f}, if pings are in a bucket"
    yield "all rounds", f"{rounds.a_day:,.0f} a day, {rounds.core_hours_a_day:,.1f} core hours"
    yield (
        "models to clients",
        f"{stored.models_gb_a_day:,.1f} GB a day, {stored.fetches_peak_s:,.0f} requests a second at the peak",
    )
    for name, amount in result.money.items():
        yield f"{name}, a month", f"{amount:,.2f}"
    if result.money:
        yield "total a month", f"{sum(result.money.values()):,.2f} at the given prices"


def _line(file: Path | None, name: str | None, weights: int | None) -> Line:
    from fedping.client_sim.learning.study_files import study_from_toml
    from fedping.protocol.settings_file import converted, read_toml
    from fedping.protocol.spec import ModelSpec
    from fedping.protocol.study import Line

    if (file is None) == (weights is None):
        raise InvalidSettings("give the FILE of a study or of a model spec, or the number of weights with --weights")
    if file is None:
        block = {"name": "w", "shape": [weights], "step": {"start": 0.01, "min": 0.001, "max": 0.1}}
        return Line(name="main", spec=converted({"name": "any", "model": "any", "blocks": [block]}, ModelSpec, ""))
    tables = read_toml(file, "study file")
    if isinstance(study_file := tables.get("study"), str):
        raise InvalidSettings(f"{file} is an experiment; plan its study, {file.parent / study_file}")
    if isinstance(tables.get("model"), dict):
        raise InvalidSettings(
            f"{file} is an experiment of the laboratory; give the number of its model's weights with --weights, or the "
            "FILE of a study or of a model spec"
        )
    if "arms" not in tables and "lines" not in tables:
        return Line(name="main", spec=converted(tables, ModelSpec, f"the model spec {file}: "))
    study = study_from_toml(file)
    if name is None and len(study.lines) > 1:
        raise InvalidSettings(
            f"study '{study.name}' has the lines {', '.join(line.name for line in study.lines)}; choose one with --line"
        )
    if not study.lines:
        raise InvalidSettings(f"study '{study.name}' has no model line, so its clients send no updates")
    return study.lines[0] if name is None else study.line(name)


_HEADINGS = (
    "update,\nbytes",
    "its ping,\nbytes",
    "in a gzip\nbatch",
    "bits\na weight",
    "error",
    "clients\nneeded",
    "bits x\nclients",
    "ping x\nclients",
)


def _print(result: UploadPlan) -> None:
    from rich import box
    from rich.table import Table

    title = f"line {result.line}: {result.m:,} weights"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("upload", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for cost in result.costs:
        row = [f"{cost.update_bytes:,.0f}", f"{cost.posted_bytes:,.0f}", f"{cost.batched_bytes:,.0f}"]
        row.append(f"{cost.bits:.2f}")
        if cost.error is not None and cost.clients is not None and cost.posted_times_clients is not None:
            error = "0" if cost.error < 1e-9 else f"{cost.error:.2g}" if cost.error < 10 else f"{cost.error:,.0f}"
            row += [error, f"{cost.clients:.2f}", f"{cost.bits * cost.clients:.2f}"]
            row.append(f"{cost.posted_times_clients:,.0f}")
        table.add_row(f"{'★' if cost.upload == result.take else ' '} {cost.name}", *row)
    screen = console()
    screen.print(table)
    screen.print(result.reason)
    for upload, reason in result.refused.items():
        screen.print(f"not {upload}, because {reason}", highlight=False)
    kind = (
        "learned by simulated clients at version 0"
        if result.learned
        else ("drawn at random, with zeros and a heavy tail")
    )
    screen.print(
        f"means over {result.pings:,} updates {kind}; error: E|h~ - h|² / E|h|², of one client; clients: factor of "
        "clients that a round needs for an equally exact mean",
        highlight=False,
    )
