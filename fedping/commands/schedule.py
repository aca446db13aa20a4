"""`fedping schedule`: rounds on the wall clock, in one warm Spark session."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.commands.round import (
    PrivateSettings,
    engine_option,
    helper_option,
    keep_option,
    lines_of,
    master_option,
    metrics_file_option,
    noting_before_attempts,
    privacy_key_option,
    private_settings,
    resting,
    run_line,
    show,
    show_resting,
    subject,
    wait_at_most_option,
    wait_for_clients,
    wait_for_option,
    wait_of,
    write_metrics,
)
from fedping.options import LocalPath, json_option, landing_option, log_format_option, store_option
from fedping.protocol.errors import FedpingError
from fedping.protocol.log import tell
from fedping.server_jobs.shutdown import ApplicationGone, TimedOut

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore
    from fedping.protocol.landing import Landing
    from fedping.protocol.location import Place
    from fedping.server_jobs.round import Engine
    from fedping.server_jobs.round.wait_for_clients import Wait
    from fedping.server_jobs.shutdown import Ending


@click.command()
@click.argument("study", required=False)
@click.argument("lines", nargs=-1)
@click.option("--every", default="30m", show_default=True, help="Time between rounds: 45s, 30m, 6h, ...")
@click.option(
    "--offset",
    default="0",
    show_default=True,
    help="How long after each multiple of the interval: with --every 30m, 28m is at 28 and 58 minutes past.",
)
@click.option("--now", "now_first", is_flag=True, help="Run one round immediately, before the first on the clock.")
@click.option(
    "--time-limit",
    help="Longest time for the rounds of all lines together: 90s, 27m, ..., or none.  [default: nine tenths of the "
    "interval, but no less than 10m]",
)
@click.option(
    "--plan",
    type=LocalPath(dir_okay=False),
    help="TOML file of several studies, each with times of its own, instead of STUDY, --every, --offset, --time-limit.",
)
@wait_for_option
@wait_at_most_option
@click.option("--for", "lasting", help="How long to go on: 45m, 8h, ...; without it, until a signal.")
@click.option(
    "--until",
    "ends_at",
    metavar="TIME",
    help="When to end instead: 18:00 or 2026-11-25T08:00 by this machine's clock, 2026-11-25T08:00+01:00, ...",
)
@store_option
@landing_option
@engine_option
@master_option
@privacy_key_option
@helper_option
@keep_option
@metrics_file_option
@json_option
@log_format_option
def schedule(
    study: str | None,
    lines: tuple[str, ...],
    every: str,
    offset: str,
    now_first: bool,
    time_limit: str | None,
    plan: Path | None,
    wait_for: int | None,
    wait_at_most: str | None,
    lasting: str | None,
    ends_at: str | None,
    store_path: Place,
    landing: Place,
    engine_name: str,
    master: str | None,
    privacy_key: Path | None,
    helpers: tuple[str, ...],
    keep: bool,
    metrics_file: Path | None,
    as_json: bool,
) -> None:
    """Run rounds of the LINES (default: all) at every multiple of an interval since midnight UTC, plus an offset.

    While the study is paused, or once it has ended, no round runs, and the schedule says so each time.

    A round that fails, or reaches its time limit, is reported; the next one begins with a new Spark session. Ctrl-C or
    SIGTERM ends the schedule at once, even in the middle of a round, which loses nothing; it then exits with 0.

    With --wait-for, --wait-at-most or both, each round waits for clients first, as 'fedping round' does, for at most
    nine tenths of the interval.

    With --plan, one process runs the rounds of several studies, one after the other: that which has waited longest is
    next, and each has a time limit.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.server_jobs.round import engine_named
    from fedping.server_jobs.round.wait_for_clients import check_wait
    from fedping.server_jobs.schedule import (
        Job,
        Planned,
        WallClock,
        full_utc,
        parse_every,
        parse_until,
        read_plan,
        run_jobs,
    )
    from fedping.server_jobs.shutdown import ended_by_signals

    if (study is None) == (plan is None):
        raise click.UsageError("give a STUDY, or --plan FILE")
    if plan is not None and helpers:
        raise click.UsageError("--plan says itself where helpers are, by helpers = [...]; leave --helper out")
    if plan is not None:
        context = click.get_current_context()
        for name in ("every", "offset", "time_limit", "wait_for", "wait_at_most"):
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                raise click.UsageError(f"--plan says itself when rounds are; leave --{name.replace('_', '-')} out")
        planned = read_plan(plan)
    else:
        assert study is not None
        planned = (
            Planned(name=study, lines=lines, every=every, offset=offset, time_limit=time_limit or "", helpers=helpers),
        )
    wait = wait_of(wait_for, wait_at_most, None if plan is not None else parse_every(every))
    clock = WallClock()
    on_the_clock = partial(tell, level="info", study=planned[0].name if len(planned) == 1 else "")
    until = math.inf if lasting is None else clock.now() + parse_every(lasting, "a time for --for")
    if ends_at is not None:
        if lasting is not None:
            raise click.UsageError("--for and --until both say when to end; leave one of them out")
        until = parse_until(ends_at, clock.now())
    try:
        with ended_by_signals() as ending, ExitStack() as running:
            store, pings = open_store(store_path), open_landing(landing)
            chosen = [(one, lines_of(store, one.name, one.lines)) for one in planned]
            with ExitStack() as noted:
                for one, names in chosen:
                    noted.enter_context(noting_before_attempts(store, pings, one.name, names))
                store.check_publishing()
                engine = running.enter_context(engine_named(engine_name, master))
            prepared = []
            for one, names in chosen:
                with noting_before_attempts(store, pings, one.name, names):
                    if wait is not None:
                        check_wait(store.study(one.name), names)
                    key = Path(one.privacy_key) if one.privacy_key else privacy_key
                    given = private_settings(store, one.name, store_path, landing, key, keep, one.helpers)
                prepared.append((one, names, given))

            def job(one: Planned, names: list[str], given: PrivateSettings) -> Job:
                def run() -> None:
                    try:
                        _run_all(store, pings, one.name, names, engine, given, as_json, ending, one.limit, wait)
                    finally:
                        write_metrics(store, pings, metrics_file)

                return Job(run, one.next_after, one.name if plan is not None else "")

            if ends_at is not None:
                on_the_clock(f"no round begins from {full_utc(until)} on")
            run_jobs([job(*each) for each in prepared], clock, on_the_clock, now_first=now_first, until=until)
    except KeyboardInterrupt:  # of whom it comes does not matter: PySpark raises one of its own while it starts
        tell("stopped", "info")


def _run_all(
    store: ModelStore,
    landing: Landing,
    study: str,
    lines: list[str],
    engine: Engine,
    given: PrivateSettings,
    as_json: bool,
    ending: Ending,
    limit: int | None,
    wait: Wait | None = None,
) -> None:
    """Run a round of each line within the time limit; report what fails and go on. None while the study rests."""
    with _reported(engine, study):
        with noting_before_attempts(store, landing, study, lines):
            if rests := resting(store, landing, study, given.keep):
                tell(rests, "info", study=study)
                show_resting(store, study, lines, as_json)
                return
            wait_for_clients(store, landing, study, lines, wait)
        try:
            with ending.within(limit, subject(study, lines)):
                for line in lines:
                    with _reported(engine, study, line):
                        show(run_line(store, landing, study, line, engine, given), as_json)
        except TimedOut as error:
            tell(str(error), study=study)


@contextmanager
def _reported(engine: Engine, study: str, line: str = "") -> Iterator[None]:
    """Report why what is inside made no round of a line, or of a study; in a new Spark session if Spark may be why."""
    of = f"{study}/{line}" if line else study
    about: dict[str, Any] = {"study": study} | ({"line": line} if line else {})
    try:
        yield
    except ApplicationGone:
        raise
    except FedpingError as error:
        tell(f"no round of {of}: {error}", **about)
    except Exception:
        said = f"the round of {of} failed; the next one begins with a new Spark session"
        tell(said, trace=traceback.format_exc().rstrip(), **about)
        engine.close()
