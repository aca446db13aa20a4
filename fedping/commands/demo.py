"""`fedping demo`: all parts at work on this machine, from simulated clients to the next model version."""

from __future__ import annotations

import shutil
import sys
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.extras import check_extras
from fedping.options import AnyPlace, LocalPath
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.notation import utc_now, with_minus
from fedping.protocol.study import Declared

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from fedping.experiments.demo import DemoIteration, DemoOutcome, DemoSettings, Progress, RunningDemo
    from fedping.experiments.secure_demo import Seen
    from fedping.protocol.location import Place
    from fedping.protocol.sharing.shares import Elements


@click.command()
@click.option("--clients", type=click.IntRange(1), default=2000, show_default=True, help="Simulated browsers.")
@click.option("--iterations", type=click.IntRange(1), default=15, show_default=True, help="Rounds.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of all random draws.")
@click.option(
    "--out",
    type=LocalPath(),
    help="An empty or new folder for all output.  [default: demo-out/<date and time>]",
)
@click.option(
    "--bucket",
    type=AnyPlace(),
    help="Keep the model store and the landed pings in an object store: s3://, gs:// or az://BUCKET/FOLDER.",
)
@click.option("--engine", type=click.Choice(["spark", "numpy"]), default="spark", show_default=True)
@click.option("--secure", is_flag=True, help="Split updates between two servers; neither can read them.")
@click.option("--stay", is_flag=True, help="Afterwards serve a demo page and keep running rounds, until Ctrl-C.")
@click.option("--every", default="20s", show_default=True, help="With --stay: time between rounds.")
@click.option("--port", type=click.IntRange(1, 65535), help="With --stay: the page's port.  [default: a free one]")
def demo(out: Path | None, bucket: Place | None, stay: bool, every: str, **options: Any) -> None:
    """Run everything on this machine: ingest, a fleet of clients over HTTP, and a Spark round per iteration.

    Ctrl-C ends it at any moment and leaves no process behind.
    """
    from rich.console import Console

    _check_extras(options["engine"], options["secure"], bucket)
    from fedping.experiments.demo import DemoSettings
    from fedping.server_jobs.schedule import parse_every
    from fedping.terminal import AS_IT_IS

    if isinstance(bucket, Path):
        raise InvalidSettings(
            f"--bucket expects an address such as s3://BUCKET/FOLDER, not {bucket}; for a folder use --out"
        )
    interval = parse_every(every)
    folder = out or Path("demo-out") / f"{datetime.now():%Y%m%d-%H%M%S}"
    settings = DemoSettings(out=folder, page=stay, bucket=bucket, **options)
    console = Console(**AS_IT_IS)
    kept = f", store and pings to {bucket}" if bucket else ""
    plan = f"{settings.clients:,} clients, {settings.iterations} iterations; all output is in {folder}{kept}"
    console.print(plan, highlight=False, soft_wrap=True)
    with ExitStack() as stack:
        running = _watched(settings, console, stack)
        _print_outcome(running.outcome, console, stay)
        if stay:
            _stay(running, interval, console)
            stack.close()
            console.print("Stopped; everything that was accepted is in Parquet.", highlight=False)


def _check_extras(engine: str, secure: bool, bucket: Place | None) -> None:
    """Raise :class:`MissingPackage` for packages that the demo will need, before it starts or writes anything."""
    needed = {"analysis": ["matplotlib", "scipy"]}
    if engine == "spark":
        needed["analysis"] += ["pyspark", "pandas"]
    if secure:
        needed["privacy"] = ["cryptography", "Crypto", "dp_accounting", "opendp"]
    if bucket is not None:
        needed["objects"] = ["obstore"]
    check_extras("fedping demo", needed)
    if engine == "spark":
        from fedping.server_jobs.spark.installation import find_java

        find_java()


def _watched(settings: DemoSettings, console: Console, stack: ExitStack) -> RunningDemo:
    """Run the demo with a live table on a terminal, or a line for each iteration elsewhere."""
    from fedping.experiments.demo import Progress, running_demo

    progress = Progress()
    if not console.is_terminal:
        return _run(running_demo(settings, progress, lambda row: _print(console, _line(row))), settings, stack)
    from rich.live import Live

    view = _View(settings, progress)
    with Live(get_renderable=view, console=console, refresh_per_second=8, transient=False):
        return _run(running_demo(settings, progress), settings, stack)


def _run(demo: AbstractContextManager[RunningDemo], settings: DemoSettings, stack: ExitStack) -> RunningDemo:
    """Run the demo's iterations, then stop its processes; with the demo page, they stop when the stack closes."""
    if settings.page:
        return stack.enter_context(demo)
    with demo as running:
        return running


def _stay(running: RunningDemo, every: int, console: Console) -> None:
    """Run rounds for the demo page until Ctrl-C."""
    from fedping.experiments.demo import PLAYGROUND, keep_rounds, page_address
    from fedping.server_jobs.schedule import WallClock
    from fedping.terminal import stopped_by_signals

    trained = running.outcome.study.name
    # Only visitors of the page send pings to this study, so an hour without visitors would look like a failure.
    paused = Declared(state="paused", since=utc_now(), because="the demo has trained it")
    running.servers.store.studies.declare(trained, paused)
    ingest = running.servers.ingest
    _print(console, f"\nThe demo page, with a round every {every} s until Ctrl-C:")
    _print(console, f"{'a model to teach from its start':<34} {page_address(ingest, PLAYGROUND, every)}")
    _print(console, f"{'the one that was trained (paused)':<34} {page_address(ingest, trained, every)}\n")
    clock = WallClock()
    with stopped_by_signals(clock):
        keep_rounds(running.servers, every=every, clock=clock, tell=lambda sentence: _print(console, sentence))


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


class _View:
    """The live view: the finished iterations, and the present activity."""

    def __init__(self, settings: DemoSettings, progress: Progress) -> None:
        from rich.spinner import Spinner

        self._settings, self._progress = settings, progress
        self._spinner = Spinner("dots")

    def __call__(self) -> RenderableType:
        from rich.console import Group

        progress, total = self._progress, self._settings.iterations
        parts: list[RenderableType] = [_iterations_table(progress.done)] if progress.done else []
        if len(progress.done) < total:
            self._spinner.update(text=f"iteration {max(1, progress.iteration)} of {total}: {progress.waiting_for}")
        else:
            self._spinner.update(text=progress.waiting_for)
        return Group(*parts, self._spinner)


def _iterations_table(rows: list[DemoIteration]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="mean loss of a search, by arm", title_justify="left")
    table.add_column("version", justify="right")
    table.add_column("pings", justify="right")
    for name in rows[0].arms:
        table.add_column(name, justify="right")
    for row in rows:
        losses = [_number(arm.loss, 1) for arm in row.arms.values()]
        table.add_row(str(row.iteration), f"{row.pings:,}", *losses)
    return table


def _line(row: DemoIteration) -> str:
    losses = "  ".join(f"{name} {_number(arm.loss, 1)}" for name, arm in row.arms.items())
    return f"version {row.iteration:>3}: {row.pings:,} pings; loss by arm: {losses}"


def _print_outcome(outcome: DemoOutcome, console: Console, stays: bool) -> None:
    from rich import box
    from rich.table import Table

    first, last = outcome.iterations[0], outcome.iterations[-1]
    table = Table(box=box.SIMPLE_HEAD, title=f"iteration {first.iteration} and {last.iteration}", title_justify="left")
    table.add_column("arm", no_wrap=True)
    ranks = any(arm.rank_selected is not None for row in (first, last) for arm in row.arms.values())
    for heading in ("loss: first", "last", "change", *(("selected rank: first", "last") if ranks else ())):
        table.add_column(heading, justify="right")
    for name, before in first.arms.items():
        after = last.arms[name]
        change = with_minus(f"{after.loss / before.loss - 1:+.0%}") if before.loss and after.loss is not None else ""
        ends = (_number(before.rank_selected, 2), _number(after.rank_selected, 2))
        table.add_row(name, _number(before.loss, 1), _number(after.loss, 1), change, *(ends if ranks else ()))
    console.print(table)
    if outcome.seen is not None:
        _print_noise(outcome, console)
        _print_seen(outcome.seen, console)
    trained = " and ".join(arm.name for arm in outcome.study.arms if arm.applies)
    console.print(f"Only {trained} ranks with the trained model; the others rank with version 0.\n", highlight=False)
    line, store = f"{outcome.study.name} {outcome.line}", f"--store {outcome.store}"
    command = "fedping" if shutil.which("fedping") else sys.argv[0]
    where = {
        "chart of the loss by arm": outcome.figure,
        ("pings, kept until their round" if outcome.helper else "pings, in Parquet"): outcome.landing,
        "versions with state and lineage": outcome.store,
        "what ingest said": outcome.ingest_log,
        "see the versions": f"{command} store history {line} {store}",
        "what was learned": f"{command} store diff {line} 0 {store}",
        "everything on one page": f"{command} dashboard {store} --landing {outcome.landing}",
    }
    if outcome.helper is not None:
        where |= {
            "keys and records of the helper": outcome.helper,
            "answers of the helper": f"{command} helper status --folder {outcome.helper}",
            "guarantee for the clients": f"{command} privacy card {outcome.study.name} {store}",
        }
    if not stays:
        where["try it in a browser"] = f"{command} demo --stay"
    for name, path in where.items():
        console.print(f"{name:<36} {path}", highlight=False, soft_wrap=True)


def _print_noise(outcome: DemoOutcome, console: Console) -> None:
    """Print why the losses differ from those of the demo with one server."""
    privacy = outcome.study.line(outcome.line).privacy
    assert privacy is not None
    assert privacy.central is not None
    console.print(
        "These losses differ from a demo without --secure: clients send one ping a version, a loss above "
        f"{privacy.loss[1]:g} counts as {privacy.loss[1]:g}, and each server adds noise to its sums. The noise "
        f"bounds what {privacy.central.rounds:,} rounds reveal about a client (epsilon = "
        f"{privacy.central.epsilon:g}, which is for a demo: choose a smaller one for people). With fewer --clients, "
        "the noise is more visible.\n",
        highlight=False,
    )


def _print_seen(seen: Seen, console: Console) -> None:
    """Print what each of the two servers received from one client, with a test for noise."""
    shown = 12
    votes = "  ".join(with_minus(f"{vote:+d}") if vote else "0" for vote in seen.votes[:shown].tolist())
    console.print(f"what each server received from one client, ping {seen.document}", highlight=False)
    for name, text in (
        ("the leader, in the ping", _first(seen.leader)),
        ("the helper, from a sealed seed", _first(seen.helper)),
        ("the sum of both: votes", f"{votes} …"),
        ("is it noise? (χ² of all bytes)", f"p = {seen.leader_p:.2g} (leader), {seen.helper_p:.2g} (helper)"),
    ):
        console.print(f"  {name:<32} {text}", highlight=False, soft_wrap=True)
    console.print(
        "Each share alone is noise. p is the probability that random bytes are at least as uneven as the shares of "
        f"the {seen.clients:,} clients whose arm trains. For noise, all p from 0 to 1 are equally likely; only a p "
        "near 0, say below 0.001, would show a pattern. Here one computer has both folders; real servers don't have "
        "each other's.\n",
        highlight=False,
    )


def _first(numbers: Elements) -> str:
    return "  ".join(str(number) for number in numbers[:2].tolist()) + "  …"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
