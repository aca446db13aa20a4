"""`fedping round`: one round of a line or of all lines of a study; and code shared with `fedping schedule`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    help="Compute the round with Spark, or with NumPy in this process. The result is the same to the last bit.",
)
master_option = click.option("--master", help="Spark's master URL; without one, what spark-submit says, or local[*].")

privacy_key_option = click.option(
    "--privacy-key",
    "privacy_key",
    type=LocalPath(dir_okay=False),
    envvar="FEDPING_PRIVACY_KEY",
    show_envvar=True,
    help="File of the key that samples the clients of private lines and signs requests to helpers; 'fedping privacy "
    "key' creates it.",
)
keep_option = click.option(
    "--keep",
    is_flag=True,
    help="Keep the pings of private lines after their round. This breaks the guarantee to their clients.",
)

helper_option = click.option(
    "--helper",
    "helpers",
    multiple=True,
    metavar="[LINE=]URL",
    help="Address of the helper of two-server lines; repeat it with LINE= if lines have different helpers.",
)

metrics_file_option = click.option(
    "--metrics-file",
    type=LocalPath(dir_okay=False),
    envvar="FEDPING_METRICS_FILE",
    show_envvar=True,
    help="After each round, write the round metrics of the store to this .prom file, for node_exporter's textfile "
    "collector.",
)

wait_for_option = click.option(
    "--wait-for",
    type=click.IntRange(1),
    metavar="CLIENTS",
    help="Wait until this many clients have sent an update to the newest version of each line.  [default with "
    "--wait-at-most: the line's min_clients]",
)
wait_at_most_option = click.option(
    "--wait-at-most",
    metavar="TIME",
    help="Longest time to wait for clients, such as 2h; then the round starts with the pings that have landed.  "
    "[default with --wait-for: a day]",
)

EXHAUSTED = 5
"""The exit code of a round of a private line whose budget is spent."""

DOING = {
    "repaired": "listing the landed pings",
    "listed": "averaging the updates",
    "aggregated": "computing the step",
    "drawn": "computing the step",
    "stepped": "publishing",
    "held": "publishing it to the clients of the stage",
    "judged": "publishing",
    "intended": "publishing",
    "summed": "storing the request to the helper",
    "asked": "waiting for the helper",
    "answered": "adding up with the helper",
}
"""The activity after each step of a round, in words."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command by their names in Python; see their help."""

    store_path: Place
    landing: Place
    engine_name: str
    master: str | None
    privacy_key: Path | None
    helpers: tuple[str, ...]
    answer: Path | None
    keep: bool
    wait_for: int | None
    wait_at_most: str | None
    time_limit: str
    decision: Literal["release", "discard"] | None
    metrics_file: Path | None
    as_json: bool

    @property
    def private(self) -> PrivateOptions:
        """The options of private lines."""
        return PrivateOptions(key_file=self.privacy_key, keep=self.keep, helpers=self.helpers, answer=self.answer)


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
    help="File with the helper's answer for LINE, instead of --helper.",
)
@keep_option
@wait_for_option
@wait_at_most_option
@click.option(
    "--time-limit",
    default="30m",
    show_default=True,
    help=(
        "Time limit for all lines together: 90s, 30m, 6h, ..., or none. A round that reaches it publishes no version."
    ),
)
@click.option("--release", "decision", flag_value="release", help="Publish the held version of LINE.")
@click.option("--discard", "decision", flag_value="discard", help="Discard the held version of LINE, and its pings.")
@metrics_file_option
@json_option
@log_format_option
def round_(study: str, line: str | None, **options: Any) -> int:
    """Compute the next version of a LINE (default: every line) from the landed pings of the newest version.

    Safe to repeat, to kill and to run twice at once: every version is published once and completely. Exits with 0 if a
    version was published, and also if there were too few clients or no new pings, another round was faster, or the
    study is paused or has ended; with 4 if a version is held until an operator decides; with 5 if a private line has no
    round left; with 75 if Spark is unavailable or the time limit was reached; with 130 or 143 if SIGINT or SIGTERM
    ended it.

    A round of a private line is always released and charged, whatever clients have sent, and can't be undone. A round
    of a two-server line asks the helper, and exits with 0 if there is no answer yet: the next round asks again.

    With --wait-for, --wait-at-most or both, the round starts when enough clients have sent or the wait is over. The
    wait does not count towards the time limit.
    """
    from fedping.model_store.store import open_store
    from fedping.protocol.landing import open_landing
    from fedping.server_jobs.round import engine_named
    from fedping.server_jobs.schedule import parse_time_limit
    from fedping.server_jobs.shutdown import EndedBySignal, ended_by_signals

    given = Options(**options)
    if given.answer is not None and (line is None or given.helpers):
        raise click.UsageError(
            "--answer needs the argument LINE, and excludes --helper; name the line and remove --helper"
        )
    wait = wait_of(given.wait_for, given.wait_at_most)
    if given.decision is not None:
        if line is None:
            raise click.UsageError(
                f"--{given.decision} needs the argument LINE, the line with the held version, as in: fedping round "
                f"{study} main"
            )
        if wait is not None:
            raise click.UsageError(f"--{given.decision} can't wait for clients; remove --wait-for and --wait-at-most")
        _decide(open_store(given.store_path), study, line, given)
        return 0
    limit = parse_time_limit(given.time_limit)
    try:
        with ended_by_signals() as ending:
            store, landing = open_store(given.store_path), open_landing(given.landing)
            rounds = StudyRounds(
                store=store,
                landing=landing,
                study=study,
                lines=lines_of(store, study, (line,) if line else ()),
                as_json=given.as_json,
            )
            if reason := rounds.resting(given.keep):
                store.check_publishing()
                log.tell(reason, "info", study=study)
                rounds.show_resting()
                return 0
            with rounds.noting_before_attempts():
                store.check_publishing()
                rounds.wait_for_clients(wait)
            with (
                rounds.noting_before_attempts(),
                engine_named(given.engine_name, given.master) as engine,
                ending.within(limit, rounds.subject),
            ):
                private = given.private.settings(store, study, apart_from=(given.store_path, given.landing))
                try:
                    return rounds.run(engine, private)
                finally:
                    write_metrics(store, landing, given.metrics_file)
    except EndedBySignal as ended:
        log.tell(ended.sentence, "info", study=study)
        return ended.exit_code


def wait_of(clients: int | None, at_most: str | None, every: int | None = None) -> Wait | None:
    """Return the wait for clients before a round; None if no option asks for one.

    Args:
        clients: the number of clients to wait for.
        at_most: the longest time to wait.
        every: the interval of rounds in seconds; the wait is at most nine tenths of it.

    Raises:
        InvalidSettings: ``at_most`` is not a time, or is too long.
    """
    from fedping.server_jobs.round.wait_for_clients import Wait
    from fedping.server_jobs.schedule import DAY, parse_every

    if clients is None and at_most is None:
        return None
    longest = DAY if every is None else every * 9 // 10
    seconds = longest if at_most is None else parse_every(at_most, "a time for --wait-at-most")
    if seconds > longest:
        raise InvalidSettings(
            f"--wait-at-most {at_most} is longer than nine tenths of the interval, so it would delay the next round; "
            "give a shorter time"
        )
    return Wait(clients, seconds)


def _decide(store: ModelStore, study: str, line: str, given: Options) -> None:
    """Publish or discard a line's held version."""
    from fedping.model_store.decisions import discard, release
    from fedping.server_jobs.round import RoundResult, noting, with_lineage

    store.check_publishing()
    with noting(store, given.landing, study, line):
        if given.decision == "release":
            version = release(store, study, line, created=utc_now())
        else:
            version = discard(store, study, line, created=utc_now(), code_version=__version__)
    result = RoundResult(
        status="published" if given.decision == "release" else "discarded",
        study=study,
        line=line,
        iteration=version.iteration - 1,
        min_clients=store.study(study).line(line).pipeline.min_clients,
    )
    if given.decision == "release" and not given.as_json:
        sentence = f"{study}/{line}: published the held version {version.iteration}"
        log.say(sentence, study=study, line=line, version=version.iteration, outcome="published")
    else:
        show(with_lineage(version, result), given.as_json)


@dataclass(frozen=True, slots=True)
class PrivateSettings:
    """The inputs of rounds of private lines.

    Attributes:
        key: the privacy key, which is never shown.
        keep: whether pings stay after their round.
        helpers: the connection to the helper by line; "" is for all other lines.
    """

    key: bytes | None = field(default=None, repr=False)
    keep: bool = False
    helpers: Mapping[str, Helper] = field(default_factory=dict)

    def helper_of(self, line: str) -> Helper | None:
        """Return the connection to a line's helper; None if an operator brings its answers as files."""
        return self.helpers.get(line, self.helpers.get(""))


@dataclass(frozen=True, kw_only=True)
class PrivateOptions:
    """The options of private lines: --privacy-key, --keep, --helper and --answer."""

    key_file: Path | None
    keep: bool
    helpers: Sequence[str] = ()
    answer: Path | None = None

    def settings(self, store: ModelStore, study: str, apart_from: tuple[Place, ...]) -> PrivateSettings:
        """Return the settings of a study's private lines, and warn of pings that are kept; empty without such lines.

        Args:
            store: the model store.
            study: the name of the study.
            apart_from: the locations that must not contain the key.

        Raises:
            InvalidSettings: the key can't be used, a helper's address is wrong, or no line of the study has a helper.
        """
        the_study = store.study(study)
        helpers = self._helpers(the_study)
        if not the_study.is_private:
            return PrivateSettings()
        from fedping.server_jobs.privacy.keys import read_key

        if self.keep:
            log.tell(
                "warning: --keep keeps the pings of private lines, whose clients were promised deletion after the "
                "round; the next round without --keep deletes them",
                "warning",
                study=study,
            )
        folders = tuple(place for place in apart_from if isinstance(place, Path))
        key = None if self.key_file is None else read_key(self.key_file, apart_from=folders)
        return PrivateSettings(key, self.keep, helpers)

    def _helpers(self, study: Study) -> dict[str, Helper]:
        """Return the connections to helpers by line, as :class:`PrivateSettings` has them."""
        if not self.helpers and self.answer is None:
            return {}
        from fedping.server_jobs.round import FileHelper, HttpHelper

        lines = [line.name for line in study.lines if line.privacy is not None and line.privacy.shared is not None]
        if not lines:
            raise InvalidSettings(f"study '{study.name}' has no two-server line; remove --helper and --answer")
        helpers: dict[str, Helper] = {} if self.answer is None else {"": FileHelper(self.answer)}
        for option in self.helpers:
            first, _, rest = option.partition("=")
            line, url = ("", option) if "://" in first or not rest else (first, rest)
            if line and line not in lines:
                raise InvalidSettings(
                    f"--helper {option} names line '{line}', but the two-server lines of study '{study.name}' are "
                    f"{', '.join(lines)}; correct the name"
                )
            if line in helpers:
                raise InvalidSettings(f"--helper gives two addresses for {f'line {line!r}' if line else 'all lines'}")
            helpers[line] = HttpHelper(url)
        return helpers


def lines_of(store: ModelStore, study: str, chosen: tuple[str, ...]) -> list[str]:
    """Return the names of the chosen lines of a study, of all if none is chosen.

    Raises:
        FedpingError: the study has no line, or no line of a chosen name.
    """
    the_study = store.study(study)
    if not the_study.lines:
        raise FedpingError(f"study '{study}' has no model line, so it needs no rounds")
    return [the_study.line(name).name for name in chosen] or [line.name for line in the_study.lines]


@dataclass(frozen=True, kw_only=True)
class StudyRounds:
    """Rounds of some lines of a study.

    Attributes:
        store: the model store.
        landing: the landing folder.
        study: the name of the study.
        lines: the names of the lines.
        as_json: whether results are printed as JSON.
    """

    store: ModelStore
    landing: Landing
    study: str
    lines: Sequence[str]
    as_json: bool = False

    @property
    def subject(self) -> str:
        """The rounds in words, for the time limit that they share."""
        return f"the round of {self.study}/{self.lines[0]}" if len(self.lines) == 1 else f"the rounds of {self.study}"

    def run(self, engine: Engine, private: PrivateSettings) -> int:
        """Run a round of each line; return the exit code."""
        errors: dict[str, FedpingError] = {}
        statuses = set()
        for line in self.lines:
            try:
                result = self.run_line(line, engine, private)
                show(result, self.as_json)
                statuses.add(result.status)
            except FedpingError as error:
                if len(self.lines) == 1:
                    raise
                log.tell(f"{self.study}/{line}: {error}", study=self.study, line=line)
                errors[line] = error
        if errors:
            # Another attempt makes sense only if it does for every line.
            kind = TemporaryFailure if all(isinstance(e, TemporaryFailure) for e in errors.values()) else FedpingError
            raise kind(
                f"no round of {', '.join(errors)} in study '{self.study}', for the reason above; the other lines are "
                "done"
            )
        return VersionHeld.exit_code if "held" in statuses else EXHAUSTED if "exhausted" in statuses else 0

    def run_line(self, line: str, engine: Engine, private: PrivateSettings) -> RoundResult:
        """Run a round of one line, and show its steps on a terminal."""
        from fedping.commands.store import tell_oddities
        from fedping.server_jobs.round import RoundOptions, run_round

        store, landing, study = self.store, self.landing, self.study
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
                    privacy_key=private.key,
                    keep=private.keep,
                    helper=private.helper_of(line),
                ),
            )
            ended_with(result)
        return result

    def resting(self, keep: bool) -> str | None:
        """Return the reason why a paused or ended study has no rounds; None for a running study.

        No further round deletes the last pings of a private study that has ended. They are deleted here, unless
        ``keep`` is set.

        Raises:
            StoreError: the study's declaration can't be read.
        """
        from fedping.server_jobs.health.findings import format_time

        store, study = self.store, self.study
        declared = store.studies.declared(study)
        if declared.state == "running":
            return None
        if declared.state == "ended" and store.study(study).is_private and not keep:
            from fedping.server_jobs.round import delete_pings

            for line in store.study(study).lines:
                delete_pings(self.landing, study, line.name, upto=None)
        state = f"is paused since {format_time(declared.since)}" if declared.state == "paused" else "has ended"
        return (
            f"no round, because study '{study}' {state}{declared.told}; run 'fedping study resume {study}' to continue"
        )

    def show_resting(self) -> None:
        """Print a JSON line for each model line of a paused or ended study; the log has the text."""
        from fedping.server_jobs.round import RoundResult

        declared = self.store.studies.declared(self.study)
        if not self.as_json or declared.state == "running":
            return
        for line in self.lines:
            result = RoundResult(
                status=declared.state,
                study=self.study,
                line=line,
                iteration=self.store.lines.newest(self.study, line),
                min_clients=self.store.study(self.study).line(line).pipeline.min_clients,
                since=declared.since,
            )
            show(result, self.as_json)

    def wait_for_clients(self, wait: Wait | None) -> None:
        """Wait for clients, if ``wait`` is set; show the wait on a terminal, and log which lines lack clients."""
        if wait is None:
            return
        from fedping.server_jobs.round.wait_for_clients import ArrivalCounter, Arrivals, check_wait, wait_for_clients

        study, settings = self.study, self.store.study(self.study)
        check_wait(settings, self.lines)
        with status(f"{study}: waiting for clients") as set_status:

            def show_change(arrivals: tuple[Arrivals, ...]) -> None:
                set_status(f"{study}: waiting: {'; '.join(each.in_words for each in arrivals)}")

            counters = [ArrivalCounter(self.landing, settings, line, wait.clients) for line in self.lines]
            arrivals = wait_for_clients(self.store, counters, wait.seconds, on_change=show_change)
        if missing := [each.in_words for each in arrivals if each.clients < each.wanted]:
            log.tell(f"{study}: stopped waiting: {'; '.join(missing)}", "info", study=study)

    @contextmanager
    def noting_before_attempts(self) -> Iterator[None]:
        """Record a failed round of every line if the block fails before recording any."""
        from fedping.server_jobs.round_status import keep_attempt, last_attempt

        store, landing, study = self.store, self.landing, self.study
        began = time.monotonic()
        before = {line: last_attempt(landing, store.where, study, line) for line in self.lines}
        try:
            yield
        except Exception as error:
            if all(last_attempt(landing, store.where, study, line) == noted for line, noted in before.items()):
                seconds, why, part = round(time.monotonic() - began, 3), _reason(error), _part(error, store, landing)
                for line, noted in before.items():
                    now = noted.followed_by(_outcome(error), utc_now(), seconds, 0, why, part)
                    keep_attempt(landing, store.where, study, line, now)
            raise


@contextmanager
def noting_attempt(
    store: ModelStore, landing: Landing, study: str, line: str
) -> Iterator[Callable[[RoundResult], None]]:
    """Record, next to the pings, the outcome of the round run in the block; yield a function to pass its result."""
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
    except (
        Interrupted,
        KeyboardInterrupt,
    ):  # from any source: PySpark raises its own KeyboardInterrupt while it starts
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


def _outcome(error: Exception) -> str:
    if isinstance(error, TemporaryFailure):
        return "temporary"
    return "failed" if isinstance(error, FedpingError) else "crashed"


def _reason(error: BaseException | None) -> str:
    """Return the reason why a round failed; for a defect, only type and system error: its text may quote a ping."""
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or type(error).__name__}{where}"
    return str(error) if isinstance(error, FedpingError) else type(error).__name__ if error is not None else ""


def _part(error: BaseException | None, store: ModelStore, landing: Landing) -> Literal["", "store", "landing"]:
    """Return the storage in which a round failed, from the error and its causes."""
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
    """Write the metrics of rounds to the file of ``--metrics-file``; a failure is logged, and rounds go on."""
    if path is None:
        return
    from fedping.server_jobs.health.round_metrics import write_textfile

    try:
        write_textfile(landing, store, path)
    except FedpingError as error:
        log.tell(f"warning: {error}", "warning")


LONG_LOSS = 1e8
"""The smallest loss that is printed with an exponent."""


def show(result: RoundResult, as_json: bool) -> None:
    """Print a result as a sentence and a row for each arm, or as a line of JSON; or log it."""
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
            f"  {result.capped:,} of {result.clients:,} clients claim more examples than the study's limit, and "
            "count as that many"
        )
    if result.noise_if_protected is not None:
        from fedping.server_jobs.row_noise import IF_PROTECTED

        click.echo(f"  noise on each number of the mean update: about {result.noise_if_protected:.2g}, {IF_PROTECTED}")
    for name, arm in result.arms.items():
        if arm.loss is not None:
            rank = "" if arm.rank_selected is None else f"   selected rank {arm.rank_selected:7.4f}"
            private = result.privacy
            of = "examples" if private is None else "rows, with noise" if private.of_rows else "clients, about"
            firm = f" (winsorised {_figure(arm.winsorised.loss)})" if arm.winsorised is not None else ""
            clip = f"   {arm.clipped:,} losses clipped" if arm.clipped else ""
            click.echo(f"  {name:<24} {arm.examples:>10,} {of}   loss {_figure(arm.loss):>10}{firm}{rank}{clip}")


def _figure(loss: float) -> str:
    """Return a loss as text; it can be very large if clients report sums of squares."""
    return with_minus(f"{loss:.4f}" if abs(loss) < LONG_LOSS else f"{loss:.4e}")


NEEDS_OPERATOR = ("held", "exhausted", "withdrawn", "rolled_back")
"""Outcomes that an operator should read about."""


def _log(result: RoundResult) -> None:
    """Log a round, with the line's newest version after it."""
    newer = {"published": 1, "lost": 1, "discarded": 1, "rolled_back": 1, "withdrawn": 2}.get(result.status, 0)
    if result.status == "stopped":
        newer = 2 if result.counts else 1
    log.tell(
        result.sentence,
        "warning" if result.status in NEEDS_OPERATOR else "info",
        study=result.study,
        line=result.line,
        version=result.iteration + newer,
        outcome=result.status,
    )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str], None]]:
    with status(f"{what}: opening the store") as tell:
        yield lambda step: tell(f"{what}: {DOING.get(step, step)}")
