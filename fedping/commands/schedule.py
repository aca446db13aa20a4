"""`fedping schedule`: rounds on the wall clock, in one warm Spark session."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedping.commands.round import engine_option, lines_of, master_option, run_line, show
from fedping.options import json_option, landing_option, store_option
from fedping.stopping import stopped_by_signals
from protocol.errors import FedpingError

if TYPE_CHECKING:
    from model_store.store import ModelStore
    from server_jobs.round import Engine


@click.command()
@click.argument("study")
@click.argument("lines", nargs=-1)
@click.option("--every", default="30m", show_default=True, help="Time between rounds: 45s, 30m, 6h, ...")
@click.option("--now", "now_first", is_flag=True, help="Run a round at once, before the first on the clock.")
@store_option
@landing_option
@engine_option
@master_option
@json_option
def schedule(
    study: str,
    lines: tuple[str, ...],
    every: str,
    now_first: bool,
    store_path: Path,
    landing: Path,
    engine_name: str,
    master: str | None,
    as_json: bool,
) -> None:
    """Run a round of the LINES (all without any) at every multiple of an interval since midnight UTC.

    A round that fails is reported and the schedule goes on. Ctrl-C or SIGTERM ends it after the round that is under
    way; a second Ctrl-C at once, which loses nothing either.
    """
    from model_store.blobs import check_publishing
    from model_store.store import open_store
    from server_jobs.round import engine_named
    from server_jobs.schedule import WallClock, parse_every, run_schedule

    interval = parse_every(every)
    store = open_store(store_path)
    check_publishing(store_path)
    names = lines_of(store, study, lines)
    clock = WallClock()
    with engine_named(engine_name, master) as engine, stopped_by_signals(clock):
        run_schedule(
            lambda: _run_all(store, landing, study, names, engine, as_json), interval, clock, _tell, now_first=now_first
        )
    _tell("stopped")


def _run_all(store: ModelStore, landing: Path, study: str, lines: list[str], engine: Engine, as_json: bool) -> None:
    """Run a round of each line; report what fails and go on, in a new Spark session if Spark may be why."""
    for line in lines:
        try:
            show(run_line(store, landing, study, line, engine), as_json)
        except FedpingError as error:
            _tell(f"no round of {study}/{line}: {error}")
        except Exception:
            _tell(f"the round of {study}/{line} failed; the next one begins with a new Spark session\n" + _trace())
            engine.close()


def _trace() -> str:
    return traceback.format_exc().rstrip()


def _tell(text: str) -> None:
    click.echo(f"fedping: {text}", err=True)
