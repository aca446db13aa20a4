"""`fedping join`: an institution takes part in a study with a table of its own."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from fedping.options import LocalPath, json_option
from fedping.protocol import log
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.terminal import status

if TYPE_CHECKING:
    from fedping.client_sim.data.table import Table
    from fedping.client_sim.fleet.transport import Outcome, Transport
    from fedping.client_sim.joining.folder import StateFolder, Waiting
    from fedping.client_sim.joining.institution import Institution
    from fedping.client_sim.learning.states import StatesOf

T = TypeVar("T")

LEAST_EVERY = 0.1
LONGEST_WAIT = 900.0
"""Seconds between two looks at most, however often nobody answered, unless --every is longer."""

LOOKS_AT_STUDY = 10
"""After so many looks at the model that brought nothing new, one at the study, which may have ended."""

MOST_BYTES = 2**26
"""Of any answer of the server."""

MOST_SECONDS = 600.0
"""Of any request."""

_TICKET = 128


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often to look for a version, and when to end: after so many rounds, or seconds."""

    rounds: int | None
    seconds: float | None
    every: float
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return float("inf") if self.seconds is None else self.began + self.seconds - time.monotonic()

    def awaited(self, runner: asyncio.Runner, what: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end as :func:`awaited`; raise :class:`_TimeOver` when no time is left."""

        async def in_time() -> T:
            try:
                async with asyncio.timeout(None if self.seconds is None else max(self.left, LEAST_EVERY)) as limit:
                    return await what
            except TimeoutError:
                if limit.expired():
                    raise _TimeOver from None
                raise

        try:
            return awaited(runner, in_time())
        finally:
            what.close()  # where a signal came before it began

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Have the block raise :class:`_TimeOver` when no time is left, also in the middle of a training.

        A timer does that in the main thread, which alone can be interrupted.
        """
        if self.seconds is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def over(number: int, _: object) -> None:
            raise _TimeOver

        before = signal.signal(signal.SIGALRM, over)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(self.left, LEAST_EVERY))
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


class _TimeOver(BaseException):
    """The time of --for is over; no ``except Exception`` of a training stops it."""


@click.command()
@click.argument("url")
@click.argument("study")
@click.option(
    "--data",
    type=LocalPath(),
    required=True,
    help="Your table: a CSV, Parquet or Arrow file, or a folder of Parquet files.",
)
@click.option("--label", metavar="COLUMN", help="The column that the model predicts.  [default: that of --columns]")
@click.option(
    "--columns",
    "columns_file",
    type=LocalPath(dir_okay=False),
    help="File of the columns, units and classes that all institutions agreed on.  [default: columns as they are]",
)
@click.option(
    "--state",
    type=LocalPath(file_okay=False),
    help="Folder that keeps who you are, how far you have come, and what is being sent.  [default: joined-STUDY]",
)
@click.option(
    "--hold-out",
    type=float,
    metavar="SHARE",
    help="Share of the rows, such as 0.2, that nothing is learned from; what versions are worth on them is sent.",
)
@click.option("--rounds", type=click.IntRange(1), help="End after so many versions.  [default: until stopped]")
@click.option("--for", "duration", help="End after so long: 45s, 10m, 6h.  [default: until stopped]")
@click.option("--every", default="60s", show_default=True, help="Time between two looks for a new version.")
@click.option("--yes", is_flag=True, help="Send without asking.")
@click.option("--show", is_flag=True, help="Print what would be sent as JSON, and send nothing.")
@click.option("--agree", is_flag=True, help="Agree to what the study asks for by now, which is not what it was.")
@click.option(
    "--ticket",
    type=LocalPath(dir_okay=False),
    help="File with the ticket for your client id, if the study asks for one.",
)
@click.option(
    "--held-out-ticket",
    type=LocalPath(dir_okay=False),
    help="The same for the client id that tells of the rows of --hold-out.",
)
@json_option
def join(
    url: str,
    study: str,
    data: Path,
    label: str | None,
    columns_file: Path | None,
    state: Path | None,
    hold_out: float | None,
    rounds: int | None,
    duration: str | None,
    every: str,
    yes: bool,
    show: bool,
    agree: bool,
    ticket: Path | None,
    held_out_ticket: Path | None,
    as_json: bool,
) -> int:
    """Take part in STUDY, served by the ingest at URL, with a table of your own.

    Fetches the model, trains it on your rows, shows what it is about to send, asks, and posts it: an update, its loss
    and how many rows it is from. Then it waits for the next version. The rows stay here.

    Safe to stop, to kill and to run again: with the same --state it goes on where it was, and nothing is counted twice.
    Exits with 0 if all was done, or the study has ended; with 75 if --for was over before a ping was taken or --rounds
    were; with 130 or 143 if SIGINT or SIGTERM ended it.
    """
    from fedping.client_sim.fleet.transport import StudyEnded
    from fedping.client_sim.joining.evaluating import keep_share
    from fedping.client_sim.joining.institution import REVEALS
    from fedping.server_jobs.shutdown import EndedBySignal, TimedOut, ended_by_signals

    pace = Pace(
        rounds=rounds,
        seconds=None if duration is None else _seconds("--for", duration),
        every=_seconds("--every", every, LEAST_EVERY),
    )
    if show and yes:
        raise click.UsageError("--show sends nothing, and --yes sends without asking; give one of them")
    if show and agree:
        raise click.UsageError("--show is for looking, and --agree agrees to what was looked at; give one of them")
    if held_out_ticket is not None and hold_out is None:
        raise click.UsageError("--held-out-ticket is for rows of --hold-out; give both, or leave it out")
    try:
        with ended_by_signals(), asyncio.Runner() as runner, ExitStack() as files:
            transport = _transport(url)
            _warn_of_listeners(url)
            files.callback(lambda: runner.run(transport.close()))
            asked = _Asked(state or Path(f"joined-{study}"), data, label, columns_file, hold_out)
            institutions = _joined(runner, pace, transport, files, study, asked, ticket, held_out_ticket)
            if not show:
                keep_share(institutions[-1].folder, hold_out or 0.0)
            log.tell(f"warning: {REVEALS}", "warning")
            for institution in institutions:
                log.tell(_introduction(institution, data), "info", before="")
                _tell_promises(institution)
                _look_at_changes(institution, show, agree)
            _warn_of_one_class(institutions[-1].rows)
            if show:
                for institution in institutions:
                    _show(runner, pace, institution)
                return 0
            return _TakingPart(runner, institutions, pace, _asking(as_json) if not yes else None, as_json).go_on()
    except StudyEnded as over:
        click.echo(f"fedping: {over}", err=True)
        return 0
    except _TimeOver as error:
        raise TimedOut("time is over before there was anything to send; run the same command to go on") from error
    except EndedBySignal as ended:
        click.echo(f"fedping: {ended.sentence}; the same command goes on", err=True)
        return ended.exit_code


def _transport(url: str) -> Transport:
    from fedping.client_sim.fleet.http import HttpSettings, HttpTransport

    settings = HttpSettings(
        connections=2,
        user_agent="fedping-join",
        proxies=True,
        most_bytes=MOST_BYTES,
        whole_timeout=MOST_SECONDS,
        compress="none",
        redirects="secure",
        away="try again later, or correct the address, which the study's operator knows",
    )
    return HttpTransport(url, settings)


def _warn_of_listeners(url: str) -> None:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        click.echo(
            f"fedping: warning: {url} is not encrypted, so that others on the way can read what you send and change "
            "the model; ask the operator for an https address",
            err=True,
        )


def _warn_of_one_class(rows: Table) -> None:
    if rows.target.is_class and len(rows) > 1 and (rows.y == rows.y[0]).all():
        log.tell(
            f"warning: all rows have the same '{rows.target.name}', so that they teach to predict nothing else; look "
            "whether the table is whole",
            "warning",
        )


def _tell_promises(institution: Institution) -> None:
    """Say of a private line what is sent, and for whom its guarantee is."""
    from fedping.client_sim.joining.private import promises

    if institution.member.line.privacy is not None:
        for sentence in promises(institution.member.line):
            log.tell(f"private: {sentence}", "info", before="")


def _look_at_changes(institution: Institution, show: bool, agree: bool) -> None:
    """Go on only if the study asks for what was agreed to; of what is only shown, it is said that it differs."""
    from fedping.client_sim.joining.institution import StudyChanged, changed_in_words

    if not institution.changed:
        return
    told = changed_in_words(institution.study.name, institution.changed)
    if agree:
        institution.agree()
    elif show:
        log.tell(f"warning: {told}", "warning")
    else:
        raise StudyChanged(told)


@dataclass(frozen=True)
class _Asked:
    """Where an institution keeps what it keeps, its table, and how that is read."""

    state: Path
    data: Path
    label: str | None
    columns: Path | None
    hold_out: float | None


def _joined(
    runner: asyncio.Runner,
    pace: Pace,
    transport: Transport,
    files: ExitStack,
    name: str,
    asked: _Asked,
    ticket: Path | None,
    held_out_ticket: Path | None,
) -> tuple[Institution, ...]:
    """Return the client that trains, after the one that tells of the rows that are held out, if any are."""
    from fedping.client_sim.joining.columns import read_columns
    from fedping.client_sim.joining.evaluating import (
        HELD_OUT,
        check_holding_out,
        check_same_share,
        divided,
        evaluates,
        in_arm,
    )
    from fedping.client_sim.joining.examples import read_examples, wanted_by
    from fedping.client_sim.joining.folder import any_seed, open_folder
    from fedping.client_sim.joining.institution import Institution, membership

    agreed = None if asked.columns is None else read_columns(asked.columns)
    words = [None if file is None else _ticket_in(file) for file in (ticket, held_out_ticket)]
    study = pace.awaited(runner, transport.fetch_study(name))
    if asked.hold_out is not None:
        check_holding_out(study, asked.hold_out)
    training = any_seed if asked.hold_out is None else in_arm(study, lambda arm: arm.submits)
    folder = files.enter_context(open_folder(asked.state, training))
    member = membership(study, folder.seed)
    wanted = wanted_by(member.model, f"the model '{member.line.spec.model}' of line '{member.line.name}'")
    rows = read_examples(asked.data, asked.label, agreed, wanted)
    weights = None if agreed is None else agreed.class_weights
    if asked.hold_out is None:
        states = _states_in(folder, files)
        alone = Institution(transport, study, member, folder, rows, states, words[0], class_weights=weights)
        check_same_share(folder, 0.0)
        return (alone,)
    if not member.arm.submits:
        raise InvalidSettings(
            f"the client in {asked.state} is in arm '{member.arm.name}', which trains nothing, so there is nothing to "
            "hold rows out from; give another folder with --state, which makes another client"
        )
    check_same_share(folder, asked.hold_out)
    learned, held = divided(rows, asked.hold_out, folder.seed)
    telling = in_arm(study, lambda arm: evaluates(arm) and arm.line == member.line.name)
    beside = files.enter_context(open_folder(asked.state / HELD_OUT, telling))
    other = membership(study, beside.seed)
    if not (evaluates(other.arm) and other.line.name == member.line.name):
        raise InvalidSettings(f"the folder {beside.path} is of another arm by now; delete it, and it is made anew")
    states, other_states = _states_in(folder, files), _states_in(beside, files)
    return (
        Institution(transport, study, other, beside, held, other_states, words[1], evaluates=True),
        Institution(transport, study, member, folder, learned, states, words[0], class_weights=weights),
    )


def _states_in(folder: StateFolder, files: ExitStack) -> StatesOf:
    """Return where a training keeps state, a file that is made if it keeps any."""
    from fedping.client_sim.learning.algorithm import State
    from fedping.client_sim.learning.states import ClientStates, in_memory, open_states

    def states_of(owner: str, first: State) -> ClientStates:
        if not first:
            return in_memory(owner, first)
        opened, aside = open_states(folder.states)
        if aside is not None:
            click.echo(f"{folder.states} was damaged; it is kept as {aside}, and begins afresh", err=True)
        return files.enter_context(opened).of(owner, first)

    return states_of


def _ticket_in(file: Path) -> str:
    from fedping.protocol.tickets import PATTERN

    try:
        with file.open("rb") as opened:
            found = opened.read(_TICKET + 2).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise InvalidSettings(f"cannot read the ticket {file}: {error.strerror}; check the path") from error
    if not found or len(found) > _TICKET or not re.match(PATTERN, found):
        raise InvalidSettings(f"{file} is no ticket, which is one line of letters, digits and dots; ask the operator")
    return found


def _introduction(institution: Institution, data: Path) -> str:
    member, progress = institution.member, institution.folder.progress
    spec = member.line.spec
    pings = f"{progress.sent:,} ping{'' if progress.sent == 1 else 's'}"
    so_far = f"; {pings} taken so far, up to version {progress.version}" if progress.sent else ""
    sends = "" if member.arm.submits else ", which sends its loss and no update"
    rows = f"{len(institution.rows):,} {'held-out rows' if institution.evaluates else 'rows'} of {data}"
    return (
        f"client {member.client_id} in arm '{member.arm.name}' of study '{institution.study.name}'{sends}: "
        f"{spec.model} of {spec.m:,} weights, {rows}{so_far}"
    )


def _show(runner: asyncio.Runner, pace: Pace, institution: Institution) -> None:
    """Print the ping that is waiting, or would be made now."""
    ping = institution.folder.waiting
    if ping is None:
        why = pace.awaited(runner, institution.look())
        if institution.version < 0:
            raise FedpingError(f"there is no model to train on: {why or 'none was published'}; try again later")
        if not institution.has_new:
            click.echo(f"nothing would be sent: {why or _nothing_of(institution)}", err=True)
            return
        ping = _made(institution, pace)
    click.echo(_summary(ping), err=True)
    click.echo(bytes(ping.body).decode())


def _nothing_of(institution: Institution) -> str:
    """Return why nothing is sent of the version that an institution holds."""
    if institution.gave_all:
        return _gave_all(institution)
    progress = institution.folder.progress
    if institution.version <= progress.version:
        return f"version {institution.version} has had its ping"
    if institution.trains_once and institution.version <= progress.moved:
        return f"version {institution.version} was trained on, its ping was not taken, and there is no second one"
    return f"version {institution.version} is none of those that this institution has drawn"


def _gave_all(institution: Institution) -> str:
    given = institution.folder.progress.contributed
    return f"this institution has contributed {given:,} times, as often as the study promises that it does at most"


def _made(institution: Institution, pace: Pace) -> Waiting:
    with status(f"training on version {institution.version}"), pace.limited():
        return institution.make()


def _summary(ping: Waiting) -> str:
    from fedping.client_sim.joining.institution import describe

    says = describe(ping)
    if says.loss is None or says.examples is None:
        shares = " in two shares" if says.encoding == "shared" else ""
        return f"version {says.version}: a private vector{shares}; {says.bytes:,} bytes as client {says.client_id}"
    if says.encoding is not None:
        update = f"an update encoded as '{says.encoding}'"
    elif says.numbers:
        update = f"an update of {says.numbers:,} numbers, norm {says.norm:.4g}"
    else:
        update = "no update"
    return (
        f"version {says.version}: {update}; loss {says.loss:.4g}; {says.examples:,} examples; {says.bytes:,} bytes as "
        f"client {says.client_id}"
    )


def _asking(as_json: bool) -> Callable[[Waiting], str]:
    """Return what asks a person about a ping: ``y`` to send it, ``a`` all from now on, ``n`` none."""

    def ask(ping: Waiting) -> str:
        click.echo(_summary(ping), err=True)
        while True:
            try:
                said = click.prompt(
                    "send it? [y]es, [a]lways, [s]how it, [N]o", default="n", show_default=False, err=True
                )
            except click.Abort as error:
                if isinstance(error.__context__, KeyboardInterrupt):  # a signal, which says itself how this ends
                    raise error.__context__ from None
                if isinstance(error.__context__, EOFError):
                    raise InvalidSettings(
                        "nobody is there to be asked whether to send; look at it with --show, then give --yes"
                    ) from error
                raise
            said = said.strip().lower()[:1]
            if said == "s":
                click.echo(bytes(ping.body).decode(), err=as_json)
            elif said in ("y", "a", "n"):
                return str(said)

    return ask


class _Over(Exception):
    """Taking part is over, with an exit code."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class _TakingPart:
    """Round after round, until it is enough; of several clients the last one trains."""

    def __init__(
        self,
        runner: asyncio.Runner,
        institutions: tuple[Institution, ...],
        pace: Pace,
        ask: Callable[[Waiting], str] | None,
        as_json: bool,
    ) -> None:
        from fedping.client_sim.fleet.waiting import Backoff

        self._runner, self._institutions, self._pace, self._ask = runner, institutions, pace, ask
        self._as_json, self._done, self._taken, self._failures, self._quiet = as_json, 0, 0, 0, 0
        self._said = ""
        self._backoff = Backoff(first=pace.every, longest=max(pace.every, LONGEST_WAIT))
        self._random = Random(institutions[-1].folder.seed)

    def go_on(self) -> int:
        """Take part until the end; return the exit code."""
        try:
            try:
                while self._pace.rounds is None or self._done < self._pace.rounds:
                    self._step()
            except _TimeOver:
                self._out_of_time()
        except _Over as over:
            return over.code
        return 0

    def _step(self) -> None:
        """Do what is next for each client, and wait until it is time to look again.

        Who trains does so once the others have told of the version that it holds, so that one round is all of it; where
        what they say is refused, that is told after it.
        """
        *others, trains = self._institutions
        refused: _Refused | None = None
        for one in others:
            try:
                if (ping := self._next_of(one)[0]) is not None and not self._post(one, ping):
                    self._wait(f"waiting to post the ping of version {ping.version} again")
                    return
            except _Refused as error:
                refused = error
        ping, why = self._next_of(trains)
        taken = ping is not None and self._post(trains, ping)
        self._done += taken
        if refused is not None:
            raise refused
        if ping is None:
            next_one = f"a version after {max(trains.version, trains.folder.progress.version)}"
            self._explain(why, next_one)
            self._wait(f"waiting for {next_one}")
        elif not taken:
            self._wait(f"waiting to post the ping of version {ping.version} again")
        elif self._done != self._pace.rounds:
            # A server that always has a newer version gets a ping each time we look, and no more.
            self._wait(f"waiting for a version after {ping.version}")

    def _next_of(self, institution: Institution) -> tuple[Waiting | None, str | None]:
        """Return the ping that is to be posted, which is kept; else None, and why no version could be had, if so."""
        if (ping := institution.folder.waiting) is not None:
            return ping, None
        if institution.gave_all:
            click.echo(f"fedping: {_gave_all(institution)}", err=True)
            raise _Over(0)
        why = self._pace.awaited(self._runner, institution.look())
        if not institution.has_new:
            return None, why
        self._explain(why)
        ping = _made(institution, self._pace)
        if not self._agreed(ping):
            click.echo("nothing was sent", err=True)
            raise _Over(0)
        return institution.keep(ping), None

    def _agreed(self, ping: Waiting) -> bool:
        if self._ask is None:
            return True
        said = self._ask(ping)
        if said == "a":
            self._ask = None
        return said != "n"

    def _keep_for_a_while(self, institution: Institution, ping: Waiting) -> None:
        """Wait until a ping of a private line may be sent."""
        rest = institution.seconds_until(ping)
        if not rest:
            return
        doing = f"the moment, drawn by lot, at which the ping of version {ping.version} is sent"
        self._explain(None, doing)
        if rest >= self._pace.left:
            self._rest(self._pace.left, f"waiting for {doing}")
            self._out_of_time()
        self._rest(rest, f"waiting for {doing}")

    def _post(self, institution: Institution, ping: Waiting) -> bool:
        """Post a ping; return whether it was taken, or is to be posted again."""
        from fedping.client_sim.fleet.transport import Delivery

        self._keep_for_a_while(institution, ping)
        with status(f"posting the ping of version {ping.version}"):
            outcome = self._pace.awaited(self._runner, institution.post(ping))
        if outcome.delivery is Delivery.RETRY:
            self._explain(outcome.reason)
            return False
        self._failures = self._quiet = 0
        institution.settle(ping, outcome)
        self._report(ping, outcome)
        if outcome.delivery is Delivery.REJECTED:
            with suppress(_TimeOver):
                self._pace.awaited(self._runner, institution.study_as_it_was())  # it may have ended, which is no fault
            raise _refusal(institution, ping, outcome)
        self._taken += 1
        return True

    def _report(self, ping: Waiting, outcome: Outcome) -> None:
        if not self._as_json:
            click.echo(f"{_summary(ping)}: {outcome.delivery.value}")
            return
        import msgspec

        from fedping.client_sim.joining.institution import REVEALS, describe

        answer = {"outcome": outcome.delivery.value, "reason": outcome.reason, "warning": REVEALS}
        row = {**msgspec.to_builtins(describe(ping)), **answer}
        click.echo(msgspec.json.encode(row).decode())

    def _explain(self, why: str | None, waits_for: str = "") -> None:
        """Say why nothing came, or what is waited for if nothing is wrong, if it is not what was said last."""
        self._failures = self._failures + 1 if why else 0
        says = f"waiting: {why}" if why else f"waiting for {waits_for}" if waits_for else ""
        if says and says != self._said:
            log.tell(says, "warning" if why else "info")
        self._said = says

    def _wait(self, doing: str) -> None:
        """Wait until it is time to look again, if time is left for that."""
        wait = self._backoff.wait(self._failures + 1, self._random.random(), None)
        if wait >= self._pace.left:
            self._rest(self._pace.left, doing)
            self._out_of_time()
        self._rest(wait, doing)
        self._quiet += 1
        if self._quiet % LOOKS_AT_STUDY == 0:
            for institution in self._institutions:
                self._pace.awaited(self._runner, institution.study_as_it_was())

    def _rest(self, seconds: float, doing: str) -> None:
        if seconds > 0:
            with status(doing):
                time.sleep(seconds)

    def _out_of_time(self) -> NoReturn:
        from fedping.server_jobs.shutdown import TimedOut

        if any(institution.folder.waiting is not None for institution in self._institutions):
            raise TimedOut("time is over, and the ping is not taken; run the same command to send it")
        if self._pace.rounds is not None:
            raise TimedOut(
                f"time is over after {self._done} of {self._pace.rounds} rounds; run the same command to go on"
            )
        if not self._taken:
            raise TimedOut("time is over, and no ping was taken; run the same command to go on")
        raise _Over(0)


class _Refused(FedpingError):
    """The server refused what a ping says."""


def _refusal(institution: Institution, ping: Waiting, outcome: Outcome) -> FedpingError:
    from fedping.client_sim.joining.institution import NOT_ALLOWED

    what = outcome.reason.partition("; ")[0]  # the rest advises whoever writes a client
    if outcome.reason.startswith(NOT_ALLOWED):
        member, option = institution.member, "--held-out-ticket" if institution.evaluates else "--ticket"
        return FedpingError(
            f"the server does not take pings of this client: {what}; ask the operator for a ticket for the client id "
            f"{member.client_id}, and give its file with {option}"
        )
    then = (
        "goes on with the next version, as this line has one ping of each"
        if institution.trains_once
        else "trains on that version again"
    )
    return _Refused(
        f"the server refused the ping of version {ping.version}, which does not count: {what}; correct the table (are "
        f"its columns in the units that were agreed on?) or ask the operator, and the same command {then}"
    )


def awaited(runner: asyncio.Runner, what: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; a signal cancels it, and then does what it would have done at once.

    An exception raised by a signal in the middle of a task would be told again, with a traceback, by asyncio.
    """
    held: list[int] = []
    tasks: list[asyncio.Task[Any]] = []

    def cancel(number: int, _: object) -> None:
        held.append(number)
        for task in tasks:
            runner.get_loop().call_soon_threadsafe(task.cancel)

    async def cancellable() -> T:
        tasks.extend(filter(None, [asyncio.current_task()]))
        if held:
            what.close()
            raise asyncio.CancelledError
        return await what

    before = {}
    if threading.current_thread() is threading.main_thread():
        handlers = ((number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM))
        before = {number: handler for number, handler in handlers if callable(handler)}
    for number in before:
        signal.signal(number, cancel)
    try:
        return runner.run(cancellable())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def _seconds(option: str, text: str, least: float = 0.0) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        seconds = float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        seconds = -1.0
    if not least <= seconds < float("inf"):
        at_least = f", at least {least:g}s" if least else ""
        raise InvalidSettings(
            f"{option} {text} is not a time; give seconds, minutes or hours, such as 45s, 10m or 6h{at_least}"
        )
    return seconds
