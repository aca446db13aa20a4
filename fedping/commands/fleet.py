"""`fedping fleet`: sends the pings of simulated clients, or recorded pings, to an ingest address."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from fedping.options import AnyPlace, LocalPath, json_option, seconds_in, trust_of, trust_options
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import without_secrets
from fedping.protocol.notation import format_count

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from fedping.client_sim.attacks import Attack
    from fedping.client_sim.fleet.examples import ExampleSettings
    from fedping.client_sim.fleet.fleet import Fleet
    from fedping.client_sim.fleet.members import FleetSettings
    from fedping.client_sim.fleet.replay import Replay, ReplaySummary
    from fedping.client_sim.fleet.search_round import PopulationOf
    from fedping.client_sim.fleet.summary import Counts, IterationSummary
    from fedping.client_sim.learning.states import StateFile
    from fedping.client_sim.rehearsal.recovered import Recovered

SHARE = click.FloatRange(0, 1)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Number or duration of iterations, and the seconds from one start to the next."""

    iterations: int | None
    duration: float | None
    every: float

    def has_time(self, began: float) -> bool:
        """Return whether time is left for another iteration; ``began`` is a monotonic time."""
        return self.duration is None or time.monotonic() - began < self.duration

    def repeat(self, runner: asyncio.Runner, run_once: Callable[[float], None]) -> None:
        """Call a function in each iteration, with the monotonic time at which the first iteration began."""
        began, done = time.monotonic(), 0
        while self._continues(done, began):
            run_once(began)
            done += 1
            wait = began + done * self.every - time.monotonic()
            if wait > 0 and self._continues(done, began):
                runner.run(asyncio.sleep(wait))

    def _continues(self, done: int, began: float) -> bool:
        return (self.iterations is None or done < self.iterations) and self.has_time(began)


@click.command()
@click.argument("url")
@click.argument("study")
@click.option("--clients", type=click.IntRange(1), default=1000, show_default=True, help="Simulated clients.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the clients and their actions."
)
@click.option(
    "--run",
    type=click.IntRange(0),
    help="Prefix of the document ids; a reused one produces duplicate pings.  [default: new]",
)
@click.option(
    "--iterations", type=click.IntRange(1), help="Number of iterations.  [default: 1, or those of --duration]"
)
@click.option("--duration", help="Time in which new iterations start: 45s, 10m, 6h.")
@click.option(
    "--every", default="0s", show_default=True, help=("Time from the start of one iteration to the start of the next.")
)
@click.option(
    "--searches",
    type=(click.IntRange(0, 1000), click.IntRange(0, 1000)),
    default=(1, 2),
    show_default=True,
    help="For models that rank pages: minimum and maximum searches of a client in an iteration.",
)
@click.option(
    "--tastes",
    type=click.FloatRange(0, 5),
    default=0.0,
    show_default=True,
    help=(
        "For models that rank pages: spread of clients' preferences, as the standard deviation of the logarithms of "
        "the weights."
    ),
)
@click.option("--profile", help="Search a real Firefox history: a profile folder, places.sqlite, or 'default'.")
@click.option("--at-once", type=click.IntRange(1), default=64, show_default=True, help="Number of requests at a time.")
@click.option("--gzip", "compressed", is_flag=True, help="Compress single pings over 1 kB; pages in browsers never do.")
@click.option("--jitter", default="0s", show_default=True, help="Time over which clients spread fetches and pings.")
@click.option(
    "--gradient",
    type=click.Choice(["finite_differences", "analytic"]),
    default="finite_differences",
    show_default=True,
    help="How clients compute updates of interactions.",
)
@click.option(
    "--ticket-keys",
    type=LocalPath(dir_okay=False),
    help="File of keys, for a study that needs tickets (fedping study ticket-key).  [default: no tickets]",
)
@click.option("--fetch-late", type=SHARE, default=0.0, help="Share of clients that keep an old model in an iteration.")
@click.option("--duplicate", type=SHARE, default=0.0, help="Share of pings sent twice, with the same document id.")
@click.option("--go-silent", type=SHARE, default=0.0, help="Share of clients that fall silent in an iteration.")
@click.option(
    "--silent-for", type=click.IntRange(1), default=3, show_default=True, help="... for this number of iterations."
)
@click.option("--return-stale", type=SHARE, default=0.0, help="Share of returning clients that search before fetching.")
@click.option(
    "--attack",
    type=LocalPath(),
    help="File with an attack by hostile clients, in the format of the laboratory's [attack] table.  [default: none]",
)
@click.option(
    "--examples",
    type=(click.IntRange(0, 1_000_000), click.IntRange(1, 1_000_000)),
    default=(5, 20),
    show_default=True,
    help="For model updates and lists: minimum and maximum examples of a client in an iteration.",
)
@click.option(
    "--data",
    help="For model updates: data set for the examples, by its name in the laboratory.  [default: synthetic]",
)
@click.option(
    "--rehearsal",
    type=LocalPath(dir_okay=False),
    help="For models of features: a file with the items, the users' preferences, and how users scan a list and "
    "choose.  [default: random items]",
)
@click.option(
    "--client-state",
    type=LocalPath(),
    help="File for the state that clients keep between rounds.  [default: kept until the end]",
)
@click.option(
    "--replay",
    type=AnyPlace(),
    help="Post recorded pings of any model again: a Parquet or NDJSON file, a folder of such files, or a landing "
    "folder, which may be in a bucket.",
)
@click.option("--rate", type=float, help="For --replay: pings a second.  [default: as fast as they are accepted]")
@click.option(
    "--same-ids",
    is_flag=True,
    help=("For --replay: keep the document ids; pings that have landed count as duplicates."),
)
@click.option("--to-current-version", is_flag=True, help="For --replay: post pings as of the current version.")
@click.option("--from-study", help="For --replay of a landing folder: the study whose pings to post.  [default: STUDY]")
@trust_options
@json_option
@click.pass_context
def fleet(context: click.Context, /, url: str, study: str, as_json: bool, **options: Any) -> int:
    """Run a fleet of simulated clients against the ingest at URL, in STUDY, or replay recorded pings.

    In an iteration every client fetches the model, searches or learns, and posts its pings. All of fedping's models
    work. For other models, or to load-test a deployment, --replay posts recorded pings again, with new document ids.

    Ctrl-C ends the fleet cleanly: pings that are not accepted by then count as undelivered. Exits with 1 if pings are
    undelivered and none was accepted.
    """
    named = {name for name in options if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    _refuse_idle(named)
    if options["replay"] is not None:
        return _replay(url, study, as_json, _pace(options), options)
    return _simulate(url, study, as_json, named, options)


OF_REPLAY = {"rate", "same_ids", "to_current_version", "from_study"}
OF_BOTH = {"compressed", "replay", "seed", "run", "iterations", "duration", "every", "at_once", "ca", "insecure"}


def _refuse_idle(named: set[str]) -> None:
    """Raise :class:`InvalidSettings` for options without effect: of a replay without one, or of clients with one."""
    idle = named - OF_REPLAY - OF_BOTH if "replay" in named else named & OF_REPLAY
    if idle:
        option = f"--{min(idle).replace('_', '-')}"
        if "replay" in named:
            raise InvalidSettings(f"{option} applies only to simulated clients, and --replay has none; remove it")
        raise InvalidSettings(f"{option} applies only to recorded pings; give --replay with it")


def _refuse_idle_in(joined: Fleet, named: set[str]) -> None:
    """Raise :class:`InvalidSettings` for search options if clients train on examples, and vice versa."""
    ranks, study = joined.ranks_pages, joined.study
    for name, of_browsers in (
        ("searches", True),
        ("tastes", True),
        ("profile", True),
        ("examples", False),
        ("data", False),
        ("rehearsal", False),
    ):
        if name in named and ranks is not of_browsers:
            raise InvalidSettings(
                f"--{name} has no effect: the clients of study '{study.name}' learn from "
                f"{'searches over pages' if ranks else 'examples'}; remove it"
            )
    if "client_state" in named and not joined.keeps_state:
        raise InvalidSettings(
            f"--client-state has no effect: the clients of study '{study.name}' keep no state; remove it"
        )
    if "gradient" in named and study.pings != "frecency-update":
        raise InvalidSettings(
            f"--gradient has no effect: study '{study.name}' uses {study.pings} pings, whose models define their "
            "gradients; remove it"
        )


def _simulate(url: str, study: str, as_json: bool, named: set[str], options: dict[str, Any]) -> int:
    from rich.console import Console

    from fedping.client_sim.http import HttpSettings, HttpTransport
    from fedping.client_sim.learning.states import in_memory, open_states
    from fedping.terminal import AS_IT_IS

    settings, pace = _settings(study, options), _pace(options)
    users = _users(options)
    compress: Any = "all" if options["compressed"] else "batches"
    trust = trust_of(url, options["ca"], options["insecure"])
    transport = HttpTransport(url, HttpSettings(connections=settings.at_once, compress=compress, trust=trust))
    console = Console(stderr=True, **AS_IT_IS)
    report = _json_line if as_json else _text_line
    with asyncio.Runner() as runner, ExitStack() as files:
        from fedping.client_sim.fleet.fleet import join_study

        path = options["client_state"]
        states_of, opened, aside = in_memory, None, None
        if path is not None:
            opened, aside = open_states(path)
            states_of = files.enter_context(opened).of
        joined = runner.run(join_study(transport, study, settings, users, states_of=states_of))
        try:
            _refuse_idle_in(joined, named)
            clients = format_count(joined.settings.clients, "simulated client")
            click.echo(_mixing(url, joined.study.name, clients), err=True)
            _report_damage(joined, path, aside)
            if opened is not None:
                _report_other_settings(joined, path, opened)
        except InvalidSettings:
            runner.run(joined.close())
            raise
        try:
            _run(runner, joined, pace, report, console)
        except asyncio.CancelledError:  # Ctrl-C at the moment when an awaited task had ended
            raise KeyboardInterrupt from None
        finally:
            runner.run(joined.close())
            click.echo(_total(joined), err=as_json)
            if path is None and joined.is_personal:
                click.echo(
                    "the clients' personal models are lost when this fleet ends; with --client-state FILE, the next "
                    "fleet with the same --seed continues from them",
                    err=True,
                )
    return int(bool(joined.undelivered) and not joined.counts.accepted)


def _mixing(url: str, study: str, clients: str) -> str:
    """Return the warning that a study counts a fleet's pings like real ones, with ways to keep them apart."""
    return (
        f"note: {clients} will send to study '{study}' at {without_secrets(url)}, whose rounds and results "
        "count them like real ones. To keep them apart, create the study under another name: change 'name' in its "
        "file, and run 'fedping study create FILE'."
    )


def _report_damage(joined: Fleet, path: Path | None, aside: Path | None) -> None:
    """Report a damaged state file; raise :class:`InvalidSettings` if it counted private contributions."""
    if aside is None:
        return
    if joined.is_private:
        raise InvalidSettings(
            f"{path} is damaged and was renamed to {aside}. It recorded which clients have contributed to private "
            "lines, and these would contribute again; give another --seed for other clients"
        )
    click.echo(f"{path} is damaged and was renamed to {aside}; clients start without state", err=True)


def _report_other_settings(joined: Fleet, path: Path, opened: StateFile) -> None:
    """Report clients whose stored state belongs to another training or model of the same line."""
    from fedping.client_sim.fleet.fleet import owners_of

    for line in joined.study.lines:
        if opened.begins_afresh(owners_of(joined.study.name, line.name, joined.settings.seed)):
            click.echo(
                f"the state in {path} of clients of line '{line.name}' belongs to another training or model spec of "
                f"study '{joined.study.name}'; clients start without state, and the file keeps the old state",
                err=True,
            )


def _run(
    runner: asyncio.Runner, fleet: Fleet, pace: Pace, report: Callable[[IterationSummary], str], console: Console
) -> None:
    def activity() -> str:
        counts = fleet.counts
        return (
            f"iteration {fleet.live.iteration}: {fleet.live.stage}; {counts.accepted:,} of {counts.generated:,} pings "
            f"accepted, {counts.rejected.total():,} rejected, {counts.retries.total():,} retried"
        )

    def run_once(began: float) -> None:
        with _showing(console, activity):
            click.echo(report(runner.run(fleet.run_iteration())))

    pace.repeat(runner, run_once)
    if fleet.undelivered:
        with _showing(console, activity):
            runner.run(fleet.deliver_what_is_left())


def _showing(console: Console, activity: Callable[[], str]) -> AbstractContextManager[Any]:
    """Return a context that shows the present activity on a terminal, and nothing elsewhere."""
    if not console.is_terminal:
        return nullcontext()
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots")

    def view() -> Spinner:
        spinner.update(text=activity())
        return spinner

    return Live(get_renderable=view, console=console, refresh_per_second=8, transient=True)


def _settings(study: str, options: dict[str, Any]) -> FleetSettings:
    from fedping.client_sim.fleet.members import FleetSettings
    from fedping.client_sim.fleet.roster import Behaviour

    behaviour = Behaviour(**{field.name: options[field.name] for field in fields(Behaviour)})
    within = seconds_in("--jitter", options["jitter"])
    return FleetSettings(
        clients=options["clients"],
        seed=options["seed"],
        # Ingest drops documents that have landed: with the same number, a repeated command would land nothing.
        run=secrets.randbits(63) if options["run"] is None else options["run"],
        at_once=options["at_once"],
        fetch_within=within,
        send_within=within,
        gradient=options["gradient"],
        examples=_examples(options),
        behaviour=behaviour,
        attack=None if options["attack"] is None else _attack(options["attack"]),
        ticket_of=None if options["ticket_keys"] is None else _tickets_of(options["ticket_keys"], study),
    )


def _examples(options: dict[str, Any]) -> ExampleSettings:
    from fedping.client_sim.fleet.examples import ExampleSettings
    from fedping.client_sim.rehearsal.settings import read_rehearsal

    path, (least, most) = options["rehearsal"], options["examples"]
    rehearsal = None if path is None else read_rehearsal(path)
    return ExampleSettings(least=least, most=most, data=options["data"], rehearsal=rehearsal)


def _attack(path: Path) -> Attack:
    """Read an attack's file: the settings of [attack], with or without the table's heading."""
    from fedping.client_sim.attacks import Attack
    from fedping.protocol.settings_file import read_settings

    kind: Any = Attack
    attack: Attack = read_settings(path, kind, "attack")
    return attack


TICKET_SECONDS = 365 * 86_400


def _tickets_of(keys: Path, study: str) -> Callable[[UUID], str]:
    """Return the function that makes clients' tickets; raise :class:`FedpingError` if the file has no keys."""
    from fedping.protocol.tickets import read_keys, ticket

    key, *_ = read_keys(keys)
    expires = int(time.time()) + TICKET_SECONDS
    return lambda client_id: ticket(key, study, client_id, expires)


def _pace(options: dict[str, Any]) -> Pace:
    duration = None if options["duration"] is None else seconds_in("--duration", options["duration"])
    iterations = options["iterations"]
    if iterations is None and duration is None:
        iterations = 1
    return Pace(iterations=iterations, duration=duration, every=seconds_in("--every", options["every"]))


def _users(options: dict[str, Any]) -> PopulationOf:
    from fedping.client_sim.fleet.fleet import made_users
    from fedping.client_sim.population.settings import PopulationSettings

    population = PopulationSettings(searches=options["searches"], tastes=options["tastes"])
    if options["profile"] is None:
        return made_users(options["seed"], population)
    from fedping.client_sim.population.places import OwnHistory, find_places, read_history

    history = read_history(find_places(options["profile"]))
    click.echo(f"{len(history):,} pages of the profile will be searched; no address or title leaves it", err=True)
    return lambda model: OwnHistory(history, model, population, options["seed"], lambda: time.time_ns() // 1000)


def _json_line(summary: IterationSummary | ReplaySummary) -> str:
    import msgspec

    return msgspec.json.encode(summary).decode()


def _text_line(summary: IterationSummary) -> str:
    pings = summary.pings
    versions = ", ".join(f"{line} {version}" for line, version in summary.versions.items())
    losses = "  ".join(f"{arm.arm} {arm.loss:.1f}" for arm in summary.arms if arm.loss is not None)
    problems = [(pings.rejected, "rejected"), (pings.undelivered, "undelivered")]
    line = f"iteration {summary.iteration:>3}  version {versions}  {format_count(pings.accepted, 'ping')} accepted"
    line += f", {summary.hostile:,} made by hostile clients" if summary.hostile else ""
    line += "".join(f", {number:,} {outcome}" for number, outcome in problems if number) + f"  loss: {losses}"
    training = [arm for arm in summary.arms if arm.update_bytes]
    if training:
        sizes = ", ".join(f"{arm.arm} {arm.update_bytes / arm.clients:,.0f}" for arm in training)
        line += f"  updates: {sum(arm.update_bytes for arm in training):,} bytes; a client's: {sizes}"
    line += "".join(f"  {_recovered(each)}" for each in summary.recovered.values())
    line += f"  posted: {pings.posted_bytes:,} bytes, fetched: {summary.fetches.fetched_bytes:,}"
    reasons = _reasons(
        {
            "without a model": summary.fetches.unavailable_by_reason,
            "rejected": pings.rejected_by_reason,
            "retried": pings.retried_by_reason,
        }
    )
    reasons += [f"no pings are sent: {reason}" for reason in summary.waits.values()]
    return line + "".join(f"\n    {reason}" for reason in reasons)


def _recovered(found: Recovered) -> str:
    gain = "" if found.gain is None else f"{100 * found.gain:.0f} % of the possible gain, "
    return (
        f"recovered: {gain}MRR {found.mrr:.3f}, NDCG {found.ndcg:.3f}, choices from {100 * found.clicks:.0f} % of lists"
    )


def _reasons(by_outcome: dict[str, dict[str, int]]) -> list[str]:
    """Return the five most frequent reasons of outcomes, with their numbers."""
    reasons = ((n, outcome, reason) for outcome, counts in by_outcome.items() for reason, n in counts.items())
    return [f"{n:,} {outcome}: {reason}" for n, outcome, reason in islice(reasons, 5)]


def _total(fleet: Fleet) -> str:
    return _balance(fleet.counts, fleet.undelivered)


def _balance(counts: Counts, undelivered: int) -> str:
    return (
        f"{format_count(counts.generated, 'ping')}: {counts.accepted:,} accepted, "
        f"{counts.rejected.total():,} rejected, {undelivered:,} undelivered"
    )


def _replay(url: str, study: str, as_json: bool, pace: Pace, options: dict[str, Any]) -> int:
    """Post a recording as often as ``pace`` allows; return 1 if a ping was not accepted, else 0.

    Raises:
        FedpingError: the recording is missing or damaged, or the server doesn't have the study.
    """
    from rich.console import Console

    from fedping.client_sim.fleet.replay import Recording, Replay, ReplaySettings
    from fedping.client_sim.http import HttpSettings, HttpTransport
    from fedping.terminal import AS_IT_IS

    settings = ReplaySettings(
        rate=options["rate"],
        at_once=options["at_once"],
        run=secrets.randbits(63) if options["run"] is None else options["run"],
        same_ids=options["same_ids"],
        to_current_version=options["to_current_version"],
        seed=options["seed"],
    )
    compress: Any = "all" if options["compressed"] else "batches"
    trust = trust_of(url, options["ca"], options["insecure"])
    transport = HttpTransport(url, HttpSettings(connections=settings.at_once, compress=compress, trust=trust))
    console, report = Console(stderr=True, **AS_IT_IS), _json_line if as_json else _replay_line
    with asyncio.Runner() as runner:
        try:
            public = runner.run(transport.fetch_study(study))
            recording = Recording(options["replay"], public, options["from_study"])
            click.echo(_mixing(url, public.name, "replayed clients"), err=True)
            return _run_replay(runner, Replay(transport, public, recording, settings), pace, report, console)
        finally:
            runner.run(transport.close())


def _run_replay(
    runner: asyncio.Runner, replay: Replay, pace: Pace, report: Callable[[ReplaySummary], str], console: Console
) -> int:
    undelivered = 0

    def activity() -> str:
        return _balance(replay.outbox.counts, replay.outbox.undelivered)

    def run_once(began: float) -> None:
        nonlocal undelivered
        try:
            with _showing(console, activity):
                summary = runner.run(replay.run(lambda: pace.has_time(began)))
        except BaseException:
            click.echo(activity(), err=True)
            raise
        click.echo(report(summary))
        undelivered += summary.pings.undelivered

    pace.repeat(runner, run_once)
    return 1 if undelivered else 0


def _replay_line(summary: ReplaySummary) -> str:
    pings, latency = summary.pings, summary.latency_ms
    skipped = sum(summary.skipped_by_reason.values())
    problems = [(pings.rejected, "rejected"), (pings.undelivered, "undelivered"), (skipped, "skipped")]
    line = f"replay {summary.iteration:>3}  run {summary.run}  {format_count(pings.accepted, 'ping')} accepted"
    line += "".join(f", {number:,} {outcome}" for number, outcome in problems if number)
    line += f" in {summary.seconds:.1f} s ({pings.accepted / max(summary.seconds, 1e-9):,.0f} a second)"
    if latency:
        line += (
            f"; half were answered within {latency['half']:g} ms, 99 of 100 within {latency['99_of_100']:g} ms, all "
            f"within {latency['longest']:g} ms"
        )
    reasons = _reasons(
        {
            "rejected": pings.rejected_by_reason,
            "retried": pings.retried_by_reason,
            "skipped": summary.skipped_by_reason,
        }
    )
    return line + "".join(f"\n    {reason}" for reason in reasons)
