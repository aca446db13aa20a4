"""`fedping round`: one round of one line, or of all lines of a study."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fedping import __version__
from fedping.options import LocalPath, json_option, landing_option, log_format_option, store_option
from fedping.protocol import log
from fedping.protocol.errors import FedpingError, InvalidSettings, VersionHeld
from fedping.protocol.notation import utc_now, with_minus
from fedping.server_jobs.shutdown import TemporaryFailure
from fedping.terminal import status

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore
    from fedping.protocol.landing import Landing
    from fedping.protocol.location import Place
    from fedping.protocol.study import Study
    from fedping.server_jobs.round import Engine, Helper, RoundResult
    from fedping.server_jobs.round.wait_for_clients import Wait

engine_option = click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["spark", "numpy"]),
    default="spark",
    show_default=True,
    help="What computes the round: Spark, or NumPy in this process. The result is the same to the last bit.",
)
master_option = click.option("--master", help="Spark's master URL; without one, what spark-submit says, or local[*].")

privacy_key_option = click.option(
    "--privacy-key",
    "privacy_key",
    type=LocalPath(dir_okay=False),
    envvar="FEDPING_PRIVACY_KEY",
    show_envvar=True,
    help="File of the key by which private lines with sampling toss their coins, and by which requests to helpers are "
    "signed; 'fedping privacy key' makes one.",
)
keep_option = click.option(
    "--keep",
    is_flag=True,
    help="Keep the pings of private lines after their round, which breaks what their clients are promised.",
)

helper_option = click.option(
    "--helper",
    "helpers",
    multiple=True,
    metavar="[LINE=]URL",
    help="Where the helper is whom a line with a second server asks; where lines have several, each with its LINE=.",
)

metrics_file_option = click.option(
    "--metrics-file",
    type=LocalPath(dir_okay=False),
    envvar="FEDPING_METRICS_FILE",
    show_envvar=True,
    help="File to write the metrics of all rounds of the store to after each, for node_exporter's textfile collector; "
    "its name ends with .prom.",
)

wait_for_option = click.option(
    "--wait-for",
    type=click.IntRange(1),
    metavar="CLIENTS",
    help="Wait until so many clients have sent an update to each line's newest version.  [default with --wait-at-most: "
    "the line's min_clients]",
)
wait_at_most_option = click.option(
    "--wait-at-most",
    metavar="TIME",
    help="Longest time to wait for clients, such as 2h; then the round takes what there is.  [default with --wait-for: "
    "a day]",
)

EXHAUSTED = 5
"""The exit code of a round of a private line that has spent what its guarantee allows."""

DOING = {
    "repaired": "listing the landed pings",
    "listed": "averaging the updates",
    "aggregated": "computing the step",
    "drawn": "computing the step",
    "stepped": "publishing",
    "held": "showing it to the clients of the stage",
    "judged": "publishing",
    "intended": "publishing",
    "summed": "keeping the request to the helper",
    "asked": "waiting for the helper",
    "answered": "adding up with the helper",
}
"""What comes after each step of a round, for people."""


@click.command(name="round")
@click.argument("study")
@click.argument("line", required=False)
@store_option
@landing_option
@engine_option
@master_option
@privacy_key_option
@helper_option
@click.option(
    "--answer",
    type=LocalPath(dir_okay=False),
    help="File that the helper of LINE has answered with, where no --helper can be asked.",
)
@keep_option
@wait_for_option
@wait_at_most_option
@click.option(
    "--time-limit",
    default="30m",
    show_default=True,
    help="Longest time for all of it: 90s, 30m, 6h, ..., or none. A round that reaches it publishes nothing.",
)
@click.option("--release", "decision", flag_value="release", help="Publish the version of LINE that is held back.")
@click.option(
    "--discard", "decision", flag_value="discard", help="Leave behind the version of LINE that is held, and its pings."
)
@metrics_file_option
@json_option
@log_format_option
def round_(
    study: str,
    line: str | None,
    store_path: Place,
    landing: Place,
    engine_name: str,
    master: str | None,
    privacy_key: Path | None,
    helpers: tuple[str, ...],
    answer: Path | None,
    keep: bool,
    wait_for: int | None,
    wait_at_most: str | None,
    time_limit: str,
    decision: str | None,
    metrics_file: Path | None,
    as_json: bool,
) -> int:
    """Turn the landed pings of the newest version of a LINE (default: every line) into the next version.

    Safe to repeat, to kill and to run twice at once: every version is published once, whole. Exits with 0 if there was
    nothing to do, too few clients, or another round was first, or if the study is paused or has ended; with 4 if a
    version is held back until somebody decides; with 5 if a private line has no round left; with 75 if Spark could not
    do it now, or not within the time limit; with 130 or 143 if SIGINT or SIGTERM ended it.

    A round of a private line is released and charged whoever has sent, and nothing can be taken back. One of a line
    with a second server asks this, and exits with 0 if there is no answer yet: the next round asks again.

    With --wait-for, --wait-at-most or both, the round begins when enough clients have sent or time is over, whichever
    is first. The wait is no part of the time limit.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.server_jobs.round import engine_named
    from fedping.server_jobs.schedule import parse_time_limit
    from fedping.server_jobs.shutdown import EndedBySignal, ended_by_signals

    if answer is not None and (line is None or helpers):
        raise click.UsageError("--answer needs the LINE that it is for, and no --helper")
    wait = wait_of(wait_for, wait_at_most)
    pings = open_landing(landing)
    if decision is not None:
        if wait is not None:
            raise click.UsageError(f"--{decision} waits for nobody; leave --wait-for and --wait-at-most out")
        return _decide(open_store(store_path), pings, study, line, decision, as_json)
    limit = parse_time_limit(time_limit)
    try:
        with ended_by_signals() as ending:
            store = open_store(store_path)
            lines = lines_of(store, study, (line,) if line else ())
            if rests := resting(store, pings, study, keep):
                store.check_publishing()
                log.tell(rests, "info", study=study)
                show_resting(store, study, lines, as_json)
                return 0
            with noting_before_attempts(store, pings, study, lines):
                store.check_publishing()
                wait_for_clients(store, pings, study, lines, wait)
            with (
                noting_before_attempts(store, pings, study, lines),
                engine_named(engine_name, master) as engine,
                ending.within(limit, subject(study, lines)),
            ):
                given = private_settings(store, study, store_path, landing, privacy_key, keep, helpers, answer)
                try:
                    return _run_lines(store, pings, study, lines, engine, given, as_json)
                finally:
                    write_metrics(store, pings, metrics_file)
    except EndedBySignal as ended:
        log.tell(ended.sentence, "info", study=study)
        return ended.exit_code


def wait_of(clients: int | None, at_most: str | None, every: int | None = None) -> Wait | None:
    """Return for what to wait before a round; None for nothing.

    Args:
        clients: how many.
        at_most: for how long.
        every: the interval of rounds in seconds, which a wait has to be shorter than.

    Raises:
        InvalidSettings: that is no time, or too long.
    """
    from fedping.server_jobs.round.wait_for_clients import Wait
    from fedping.server_jobs.schedule import DAY, parse_every

    if clients is None and at_most is None:
        return None
    longest = DAY if every is None else every * 9 // 10
    seconds = longest if at_most is None else parse_every(at_most, "a time for --wait-at-most")
    if seconds > longest:
        raise InvalidSettings(
            f"--wait-at-most {at_most} is longer than nine tenths of the interval; rounds would come too late for the "
            "next, so give less"
        )
    return Wait(clients, seconds)


def wait_for_clients(store: ModelStore, landing: Landing, study: str, lines: Sequence[str], wait: Wait | None) -> None:
    """Wait for clients, if that is asked for, and say so on a terminal; in the end, say who is missing."""
    if wait is None:
        return
    from fedping.server_jobs.round.wait_for_clients import ArrivalCounter, Arrivals, check_wait, wait_for_clients

    settings = store.study(study)
    check_wait(settings, lines)
    with status(f"{study}: waiting for clients") as tell:

        def show_change(arrivals: tuple[Arrivals, ...]) -> None:
            tell(f"{study}: waiting: {'; '.join(each.in_words for each in arrivals)}")

        counters = [ArrivalCounter(landing, settings, line, wait.clients) for line in lines]
        arrivals = wait_for_clients(store, counters, wait.seconds, on_change=show_change)
    if missing := [each.in_words for each in arrivals if each.clients < each.wanted]:
        log.tell(f"{study}: waited long enough: {'; '.join(missing)}", "info", study=study)


def _decide(store: ModelStore, landing: Landing, study: str, line: str | None, decision: str, as_json: bool) -> int:
    """Publish or discard the version of a line that is held back."""
    from fedping.model_store.decisions import discard, release
    from fedping.server_jobs.round import RoundResult, noting, with_lineage

    if line is None:
        raise click.UsageError(f"--{decision} needs the LINE whose version is held, as in: fedping round {study} main")
    store.check_publishing()
    with noting(store, landing, study, line):
        if decision == "release":
            made = release(store, study, line, created=utc_now())
        else:
            made = discard(store, study, line, created=utc_now(), code_version=__version__)
    result = RoundResult(
        status="published" if decision == "release" else "discarded",
        study=study,
        line=line,
        iteration=made.iteration - 1,
        min_clients=store.study(study).line(line).pipeline.min_clients,
    )
    if decision == "release" and not as_json:
        said = f"{study}/{line}: published version {made.iteration}, which was held back"
        log.say(said, study=study, line=line, version=made.iteration, outcome="published")
    else:
        show(with_lineage(made, result), as_json)
    return 0


@dataclass(frozen=True, slots=True)
class PrivateSettings:
    """What rounds of private lines are given.

    Attributes:
        key: the privacy key, which is never shown.
        keep: whether pings stay.
        helpers: the way to the helper, by line; that of "" is for all lines that are not there.
    """

    key: bytes | None = field(default=None, repr=False)
    keep: bool = False
    helpers: Mapping[str, Helper] = field(default_factory=dict)

    def helper_of(self, line: str) -> Helper | None:
        """Return the way to the helper of a line; None if its answers come by hand."""
        return self.helpers.get(line, self.helpers.get(""))


def private_settings(
    store: ModelStore,
    study: str,
    store_path: Place,
    landing: Place,
    key: Path | None,
    keep: bool,
    helpers: Sequence[str] = (),
    answer: Path | None = None,
) -> PrivateSettings:
    """Return what the private lines of a study are given; nothing if it has none. Warn of pings that are kept.

    Raises:
        InvalidSettings: the key cannot be used, or a helper is given that is none, or for a line that has none.
    """
    ways = ways_to_helpers(store.study(study), helpers, answer)
    if not store.study(study).is_private:
        return PrivateSettings()
    from fedping.server_jobs.privacy.keys import read_key

    if keep:
        log.tell(
            "warning: with --keep the pings of a private line stay, though its clients are promised that they "
            "are deleted once their round is over; a later round without it deletes them",
            "warning",
            study=study,
        )
    folders = tuple(place for place in (store_path, landing) if isinstance(place, Path))
    return PrivateSettings(None if key is None else read_key(key, apart_from=folders), keep, ways)


def ways_to_helpers(study: Study, helpers: Sequence[str], answer: Path | None) -> dict[str, Helper]:
    """Return the way to the helper by line, as :class:`PrivateSettings` has it.

    Raises:
        InvalidSettings: one is none, or for a line that has no helper.
    """
    if not helpers and answer is None:
        return {}
    from fedping.server_jobs.round import FileHelper, HttpHelper

    lines = [line.name for line in study.lines if line.privacy is not None and line.privacy.shared is not None]
    if not lines:
        raise InvalidSettings(f"no line of study '{study.name}' has a second server; leave --helper and --answer out")
    found: dict[str, Helper] = {} if answer is None else {"": FileHelper(answer)}
    for given in helpers:
        first, _, rest = given.partition("=")
        line, url = ("", given) if "://" in first or not rest else (first, rest)
        if line and line not in lines:
            raise InvalidSettings(
                f"--helper {given} is for line '{line}', and of study '{study.name}' these have a second server: "
                f"{', '.join(lines)}; correct the name"
            )
        if line in found:
            raise InvalidSettings(f"--helper gives two addresses for {f'line {line!r}' if line else 'all lines'}")
        found[line] = HttpHelper(url)
    return found


def _run_lines(
    store: ModelStore,
    landing: Landing,
    study: str,
    lines: list[str],
    engine: Engine,
    given: PrivateSettings,
    as_json: bool,
) -> int:
    """Run the round of each line; return the exit code."""
    failed: dict[str, FedpingError] = {}
    came = set()
    for name in lines:
        try:
            result = run_line(store, landing, study, name, engine, given)
            show(result, as_json)
            came.add(result.status)
        except FedpingError as error:
            if len(lines) == 1:
                raise
            log.tell(f"{study}/{name}: {error}", study=study, line=name)
            failed[name] = error
    if failed:
        # Worth another attempt only if each of them is.
        kind = TemporaryFailure if all(isinstance(e, TemporaryFailure) for e in failed.values()) else FedpingError
        raise kind(
            f"no round of {', '.join(failed)} in study '{study}', for the reason above; the other lines were dealt with"
        )
    return VersionHeld.exit_code if "held" in came else EXHAUSTED if "exhausted" in came else 0


def lines_of(store: ModelStore, study: str, chosen: tuple[str, ...]) -> list[str]:
    """Return the names of the chosen lines, of all if none is chosen; raises if the study has no such line."""
    known = store.study(study)
    if not known.lines:
        raise FedpingError(f"study '{study}' has no model line, so there is nothing to train")
    return [known.line(name).name for name in chosen] or [line.name for line in known.lines]


def resting(store: ModelStore, landing: Landing, study: str, keep: bool) -> str | None:
    """Return why a study has no round at all, if it is declared to be paused or to have ended.

    Of private lines of a study that has ended, no round will delete the pings that have landed since the last: they are
    deleted here, unless they are to be kept.

    Raises:
        StoreError: what is declared of it cannot be read.
    """
    from fedping.server_jobs.health.findings import format_time

    declared = store.studies.declared(study)
    if declared.state == "running":
        return None
    if declared.state == "ended" and store.study(study).is_private and not keep:
        from fedping.server_jobs.round import delete_pings

        for line in store.study(study).lines:
            delete_pings(landing, study, line.name, upto=None)
    is_so = f"is paused since {format_time(declared.since)}" if declared.state == "paused" else "has ended"
    return f"no round, for study '{study}' {is_so}{declared.told}; 'fedping study resume {study}' lets it go on"


def show_resting(store: ModelStore, study: str, lines: list[str], as_json: bool) -> None:
    """Print for machines that a study rests, a line of JSON for each of its lines; people are told otherwise."""
    from fedping.server_jobs.round import RoundResult

    declared = store.studies.declared(study)
    if not as_json or declared.state == "running":
        return
    for line in lines:
        result = RoundResult(
            status=declared.state,
            study=study,
            line=line,
            iteration=store.lines.newest(study, line),
            min_clients=store.study(study).line(line).pipeline.min_clients,
            since=declared.since,
        )
        show(result, as_json)


def subject(study: str, lines: list[str]) -> str:
    """Return what is out of time, where the time is that of all lines together."""
    return f"the round of {study}/{lines[0]}" if len(lines) == 1 else f"the rounds of {study}"


def run_line(
    store: ModelStore, landing: Landing, study: str, line: str, engine: Engine, given: PrivateSettings
) -> RoundResult:
    """Run one round, and show on a terminal what it is doing."""
    from fedping.commands.store import tell_oddities
    from fedping.server_jobs.round import RoundOptions, run_round

    tell_oddities(store, study, line)
    with noting_attempt(store, landing, study, line) as ended_with, _progress(f"{study}/{line}") as on_step:
        result = run_round(
            store,
            landing,
            study,
            line,
            engine,
            RoundOptions(
                clock=utc_now,
                code_version=__version__,
                on_step=on_step,
                privacy_key=given.key,
                keep=given.keep,
                helper=given.helper_of(line),
            ),
        )
        ended_with(result)
    return result


@contextmanager
def noting_attempt(
    store: ModelStore, landing: Landing, study: str, line: str
) -> Iterator[Callable[[RoundResult], None]]:
    """Note beside the pings how the round inside ends."""
    from fedping.server_jobs.round_status import keep_attempt, last_attempt
    from fedping.server_jobs.shutdown import DeadlineReached, Interrupted

    outcome, update_bytes, began = "crashed", 0, time.monotonic()
    why: BaseException | None = None

    def ended_with(result: RoundResult) -> None:
        nonlocal outcome, update_bytes
        outcome, update_bytes = result.status, result.update_bytes

    try:
        yield ended_with
    except DeadlineReached:  # the time limit, which its outcome says
        outcome = "out_of_time"
        raise
    except (Interrupted, KeyboardInterrupt):  # of whom it comes does not matter: PySpark raises one of its own
        outcome = "ended"
        raise
    except Exception as error:
        outcome, why = _outcome(error), error
        raise
    finally:
        before = last_attempt(landing, store.where, study, line)
        seconds = round(time.monotonic() - began, 3)
        now = before.followed_by(outcome, utc_now(), seconds, update_bytes, _reason(why), _part(why, store, landing))
        keep_attempt(landing, store.where, study, line, now)


@contextmanager
def noting_before_attempts(store: ModelStore, landing: Landing, study: str, lines: list[str]) -> Iterator[None]:
    """Note for every line that its round failed if what is inside fails before any line's round has been noted."""
    from fedping.server_jobs.round_status import keep_attempt, last_attempt

    began = time.monotonic()
    before = {line: last_attempt(landing, store.where, study, line) for line in lines}
    try:
        yield
    except Exception as error:
        if all(last_attempt(landing, store.where, study, line) == noted for line, noted in before.items()):
            seconds, why, part = round(time.monotonic() - began, 3), _reason(error), _part(error, store, landing)
            for line, noted in before.items():
                now = noted.followed_by(_outcome(error), utc_now(), seconds, 0, why, part)
                keep_attempt(landing, store.where, study, line, now)
        raise


def _outcome(error: Exception) -> str:
    if isinstance(error, TemporaryFailure):
        return "temporary"
    return "failed" if isinstance(error, FedpingError) else "crashed"


def _reason(error: BaseException | None) -> str:
    """Return why a round failed; of a defect only its kind and the system's words, for its text may quote a ping."""
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or type(error).__name__}{where}"
    return str(error) if isinstance(error, FedpingError) else type(error).__name__ if error is not None else ""


def _part(error: BaseException | None, store: ModelStore, landing: Landing) -> Literal["", "store", "landing"]:
    """Return the part that keeps a round from its result, by the error and those that it was raised from."""
    from fedping.model_store.store import StoreError
    from fedping.protocol.landed_file import UnreadableFile

    while error is not None:
        if isinstance(error, StoreError):
            return "store"
        if isinstance(error, UnreadableFile):
            return "landing"
        if isinstance(error, OSError) and error.filename is not None:
            file = Path(os.fsdecode(error.filename)).absolute()
            if store.is_near and file.is_relative_to(Path(store.where).absolute()):
                return "store"
            if isinstance(landing.place, Path) and file.is_relative_to(landing.place.absolute()):
                return "landing"
        error = error.__cause__
    return ""


def write_metrics(store: ModelStore, landing: Landing, path: Path | None) -> None:
    """Write the metrics of rounds where ``--metrics-file`` says; that it cannot be done is told, and rounds go on."""
    if path is None:
        return
    from fedping.server_jobs.health.round_metrics import write_textfile

    try:
        write_textfile(landing, store, path)
    except FedpingError as error:
        log.tell(f"warning: {error}", "warning")


LONG_LOSS = 1e8
"""From here on a loss has more digits than anybody reads."""


def show(result: RoundResult, as_json: bool) -> None:
    """Print a result: a sentence and a row an arm, or one line of JSON; or log it."""
    if log.is_json():
        _log(result)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(result).decode())
    if as_json or log.is_json():
        return
    click.echo(result.sentence)
    if result.influence is not None:
        from fedping.server_jobs.round.influence import in_words

        click.echo(f"  {in_words(result.influence, result.clients)}")
    if result.update_bytes:
        each = result.update_bytes / result.clients
        click.echo(f"  updates of {result.update_bytes:,} bytes as encoded, {each:,.0f} a client")
    if result.capped:
        click.echo(
            f"  {result.capped:,} of {result.clients:,} clients claim more examples than the study's limit, for which "
            "they count"
        )
    for name, arm in result.arms.items():
        if arm.loss is not None:
            rank = "" if arm.rank_selected is None else f"   selected rank {arm.rank_selected:7.4f}"
            of = "examples" if result.privacy is None else "clients, about"
            firm = f" (winsorised {_figure(arm.winsorised.loss)})" if arm.winsorised is not None else ""
            clip = f"   {arm.clipped:,} losses clipped" if arm.clipped else ""
            click.echo(f"  {name:<24} {arm.examples:>10,} {of}   loss {_figure(arm.loss):>10}{firm}{rank}{clip}")


def _figure(loss: float) -> str:
    """Return a loss as people read it; where clients report sums of squares, it may be of any size."""
    return with_minus(f"{loss:.4f}" if abs(loss) < LONG_LOSS else f"{loss:.4e}")


NEED_SOMEBODY = ("held", "exhausted", "withdrawn", "rolled_back")
"""Outcomes that an operator should look at."""


def _log(result: RoundResult) -> None:
    """Log a round, with the version that is the line's newest after it."""
    newer = {"published": 1, "lost": 1, "discarded": 1, "rolled_back": 1, "withdrawn": 2}.get(result.status, 0)
    if result.status == "stopped":
        newer = 2 if result.counts else 1
    log.tell(
        result.sentence,
        "warning" if result.status in NEED_SOMEBODY else "info",
        study=result.study,
        line=result.line,
        version=result.iteration + newer,
        outcome=result.status,
    )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str], None]]:
    with status(f"{what}: opening the store") as tell:
        yield lambda step: tell(f"{what}: {DOING.get(step, step)}")
