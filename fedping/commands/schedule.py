"""`fedping schedule`: rounds on the wall clock, in one warm Spark session."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.commands.round import (
    PrivateOptions,
    PrivateSettings,
    StudyRounds,
    engine_option,
    helper_option,
    keep_option,
    lines_of,
    master_option,
    metrics_file_option,
    privacy_key_option,
    show,
    wait_at_most_option,
    wait_for_option,
    wait_of,
    write_metrics,
)
from fedping.extras import check_extras
from fedping.options import LocalPath, json_option, landing_option, log_format_option, store_option
from fedping.protocol.errors import FedpingError
from fedping.protocol.log import tell
from fedping.server_jobs.shutdown import ApplicationGone, TimedOut

if TYPE_CHECKING:
    from fedping.protocol.location import Place
    from fedping.server_jobs.round import Engine
    from fedping.server_jobs.round.wait_for_clients import Wait
    from fedping.server_jobs.schedule import Planned


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command by their names in Python; see their help."""

    study: str | None
    lines: tuple[str, ...]
    every: str
    offset: str
    now_first: bool
    time_limit: str | None
    plan: Path | None
    wait_for: int | None
    wait_at_most: str | None
    lasting: str | None
    ends_at: str | None
    store_path: Place
    landing: Place
    engine_name: str
    master: str | None
    privacy_key: Path | None
    helpers: tuple[str, ...]
    keep: bool
    metrics_file: Path | None
    as_json: bool

    def __post_init__(self) -> None:
        if (self.study is None) == (self.plan is None):
            raise click.UsageError("give a STUDY, or --plan FILE")
        if self.plan is None:
            return
        if self.helpers:
            raise click.UsageError("the plan sets the helpers' addresses (helpers = [...]); remove --helper")
        context = click.get_current_context()
        for name in ("every", "offset", "time_limit", "wait_for", "wait_at_most"):
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                raise click.UsageError(f"the plan sets the times of rounds; remove --{name.replace('_', '-')}")

    @property
    def studies(self) -> tuple[Planned, ...]:
        """The studies with their times, of the plan or of the command line."""
        from fedping.server_jobs.schedule import Planned, read_plan

        if self.plan is not None:
            return read_plan(self.plan)
        assert self.study is not None
        return (
            Planned(
                name=self.study,
                lines=self.lines,
                every=self.every,
                offset=self.offset,
                time_limit=self.time_limit or "",
                helpers=self.helpers,
            ),
        )

    @property
    def wait(self) -> Wait | None:
        """The wait for clients before each round."""
        from fedping.server_jobs.schedule import parse_every

        return wait_of(self.wait_for, self.wait_at_most, None if self.plan is not None else parse_every(self.every))

    def end(self, now: float) -> float:
        """Return the end of the schedule in Unix seconds; infinity if only a signal ends it."""
        from fedping.server_jobs.schedule import parse_every, parse_until

        lasting = math.inf if self.lasting is None else parse_every(self.lasting, "a time for --for")
        if self.ends_at is None:
            return now + lasting
        if self.lasting is not None:
            raise click.UsageError("use either --for or --until, not both")
        return parse_until(self.ends_at, now)

    def private(self, study: Planned) -> PrivateOptions:
        """Return the options of a study's private lines."""
        key_file = Path(study.privacy_key) if study.privacy_key else self.privacy_key
        return PrivateOptions(key_file=key_file, keep=self.keep, helpers=study.helpers)


@click.command()
@click.argument("study", required=False)
@click.argument("lines", nargs=-1)
@click.option("--every", default="30m", show_default=True, help="Time between rounds: 45s, 30m, 6h, ...")
@click.option(
    "--offset",
    default="0",
    show_default=True,
    help="Delay after each multiple of the interval: with --every 30m, 28m is at 28 and 58 minutes past.",
)
@click.option("--now", "now_first", is_flag=True, help="Run one round immediately, before the first on the clock.")
@click.option(
    "--time-limit",
    help="Time limit for the rounds of all lines together: 90s, 27m, ..., or none.  [default: nine tenths of the "
    "interval, at least 10m]",
)
@click.option(
    "--plan",
    type=LocalPath(dir_okay=False),
    help="TOML file of several studies with their times, instead of STUDY, --every, --offset and --time-limit.",
)
@wait_for_option
@wait_at_most_option
@click.option("--for", "lasting", help="Time until the schedule ends: 45m, 8h, ...  [default: runs until stopped]")
@click.option(
    "--until",
    "ends_at",
    metavar="TIME",
    help=(
        "Time at which the schedule ends: 18:00 or 2026-11-25T08:00 by this machine's clock, 2026-11-25T08:00+01:00, "
        "..."
    ),
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
def schedule(**options: Any) -> None:
    """Run rounds of the LINES (default: all) at every multiple of an interval since midnight UTC, plus an offset.

    While the study is paused, and after its end, the schedule skips rounds and logs why.

    A round that fails or reaches its time limit is reported; the next one starts with a new Spark session. Ctrl-C or
    SIGTERM ends the schedule immediately, even during a round, without losing data; it then exits with 0.

    With --wait-for, --wait-at-most or both, each round first waits for clients, like 'fedping round', for at most nine
    tenths of the interval.

    With --plan, one process runs the rounds of several studies one at a time, longest-waiting first, each with a time
    limit.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.server_jobs.round import engine_named
    from fedping.server_jobs.round.wait_for_clients import check_wait
    from fedping.server_jobs.schedule import Job, WallClock, full_utc, run_jobs
    from fedping.server_jobs.shutdown import ended_by_signals

    given = Options(**options)
    if given.engine_name == "spark":  # an engine starts with its first round, which may be hours away
        check_extras("fedping schedule", {"spark": ("pyspark",)})
    studies, wait, clock = given.studies, given.wait, WallClock()
    on_the_clock = partial(tell, level="info", study=studies[0].name if len(studies) == 1 else "")
    until = given.end(clock.now())
    try:
        with ended_by_signals() as ending, ExitStack() as running:
            store, landing = open_store(given.store_path), open_landing(given.landing)
            planned = [
                StudyRounds(
                    store=store,
                    landing=landing,
                    study=study.name,
                    lines=lines_of(store, study.name, study.lines),
                    as_json=given.as_json,
                )
                for study in studies
            ]
            with ExitStack() as noted:
                for rounds in planned:
                    noted.enter_context(rounds.noting_before_attempts())
                store.check_publishing()
                engine = running.enter_context(engine_named(given.engine_name, given.master))
            prepared = []
            for study, rounds in zip(studies, planned, strict=True):
                with rounds.noting_before_attempts():
                    if wait is not None:
                        check_wait(store.study(study.name), rounds.lines)
                    places = (given.store_path, given.landing)
                    private = given.private(study).settings(store, study.name, apart_from=places)
                prepared.append((study, rounds, private))

            def job(study: Planned, rounds: StudyRounds, private: PrivateSettings) -> Job:
                def run() -> None:
                    try:
                        run_reported(rounds, engine, private, wait, ending.within(study.limit, rounds.subject))
                    finally:
                        write_metrics(store, landing, given.metrics_file)

                return Job(run, study.next_after, study.name if given.plan is not None else "")

            if given.ends_at is not None:
                on_the_clock(f"no round starts from {full_utc(until)} on")
            run_jobs([job(*each) for each in prepared], clock, on_the_clock, now_first=given.now_first, until=until)
    except KeyboardInterrupt:  # from any source: PySpark raises its own while it starts
        tell("stopped", "info")


def run_reported(
    rounds: StudyRounds,
    engine: Engine,
    private: PrivateSettings,
    wait: Wait | None,
    time_limit: AbstractContextManager[object],
) -> None:
    """Run a round of each line within the time limit; report failures and continue. Skip paused and ended studies."""
    study = rounds.study
    with _reported(engine, study):
        with rounds.noting_before_attempts():
            if reason := rounds.resting(private.keep):
                tell(reason, "info", study=study)
                rounds.show_resting()
                return
            rounds.wait_for_clients(wait)
        try:
            with time_limit:
                for line in rounds.lines:
                    with _reported(engine, study, line):
                        show(rounds.run_line(line, engine, private), rounds.as_json)
        except TimedOut as error:
            tell(str(error), study=study)


@contextmanager
def _reported(engine: Engine, study: str, line: str = "") -> Iterator[None]:
    """Report an error of the block, which runs a round of a line or study; close the Spark session after a defect."""
    of = f"{study}/{line}" if line else study
    about: dict[str, Any] = {"study": study} | ({"line": line} if line else {})
    try:
        yield
    except ApplicationGone:
        raise
    except FedpingError as error:
        tell(f"no round of {of}: {error}", **about)
    except Exception:
        sentence = f"the round of {of} failed; the next one starts with a new Spark session"
        tell(sentence, trace=traceback.format_exc().rstrip(), **about)
        engine.close()
