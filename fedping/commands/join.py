"""`fedping join`: an institution takes part in a study with its own table."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from fedping.options import LocalPath, WithSubcommands, json_option, seconds_in, trust_of, trust_options
from fedping.protocol import log
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.notation import format_count
from fedping.terminal import status

if TYPE_CHECKING:
    from fedping.client_sim.data.table import Table
    from fedping.client_sim.joining.deciding import Deciding
    from fedping.client_sim.joining.folder import StateFolder, Waiting
    from fedping.client_sim.joining.institution import Institution
    from fedping.client_sim.learning.states import StatesOf
    from fedping.client_sim.transport import Outcome, Transport
    from fedping.protocol.trust import Trust

T = TypeVar("T")

LEAST_EVERY = 0.1
LONGEST_WAIT = 900.0
"""Maximum seconds between two fetches, after any number of failures, unless --every is longer."""

FETCHES_A_STUDY = 10
"""Number of waits after which the study is fetched again, because it may have ended."""

MOST_BYTES = 2**26
"""Maximum size of an answer of the server."""

MOST_SECONDS = 600.0
"""Maximum time of a request."""

_TICKET = 128


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Time between two fetches, and the end as a number of rounds or seconds.

    Attributes:
        training: maximum seconds of a training.
    """

    rounds: int | None
    seconds: float | None
    every: float
    training: float
    began: float = field(default_factory=time.monotonic)

    @property
    def time_left(self) -> float:
        """The remaining seconds."""
        return float("inf") if self.seconds is None else self.began + self.seconds - time.monotonic()

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Make a training raise :class:`_TimeOver` when no time is left, or :class:`_TooSlow` if it takes too long.

        A timer raises the exception in the main thread, the only one that can be interrupted.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        left = self.time_left

        def time_over(number: int, _: object) -> None:
            raise _TimeOver if left <= self.training else _TooSlow

        before = signal.signal(signal.SIGALRM, time_over)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(min(left, self.training), LEAST_EVERY))
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


class _TimeOver(BaseException):
    """Raised when the time of --for is over; not caught by ``except Exception`` in a training."""


class _TooSlow(BaseException):
    """Raised when a training takes longer than --training-time; not caught by ``except Exception`` in it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command; see their help."""

    data: Path
    label: str | None
    columns: Path | None
    state: Path | None
    hold_out: float | None
    rounds: int | None
    duration: str | None
    every: str
    training_time: str
    yes: bool
    show: bool
    agree: bool
    ticket: Path | None
    held_out_ticket: Path | None
    as_json: bool
    epsilon: float | None
    delta: float | None
    versions: int | None
    a_day: int | None
    person: str | None
    ledger: Path | None
    accept_reconstruction: bool
    colluding: int | None
    ca: Path | None
    insecure: bool

    def __post_init__(self) -> None:
        protects = (self.epsilon, self.delta, self.person, self.ledger)
        if self.accept_reconstruction and any(option is not None for option in protects):
            raise click.UsageError(
                "--accept-reconstruction sends without protection, but --epsilon, --delta, --person and --ledger set "
                "the protection; remove one or the other"
            )
        for name in ("yes", "agree"):
            if self.show and getattr(self, name):
                raise click.UsageError(f"use either --show or --{name}, not both")
        if self.held_out_ticket is not None and self.hold_out is None:
            raise click.UsageError("--held-out-ticket needs --hold-out; add that, or remove the option")

    def state_of(self, study: str) -> Path:
        """Return the folder of the client's state."""
        return self.state or Path(f"joined-{study}")

    @property
    def pace(self) -> Pace:
        """The interval of fetches and the time of the end, counted from this call."""
        return Pace(
            rounds=self.rounds,
            seconds=None if self.duration is None else seconds_in("--for", self.duration),
            every=seconds_in("--every", self.every, LEAST_EVERY),
            training=seconds_in("--training-time", self.training_time, LEAST_EVERY),
        )


@dataclass(frozen=True)
class TimedRunner:
    """Runs requests in the time that is left."""

    runner: asyncio.Runner
    pace: Pace

    def run(self, request: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine as :func:`run_interruptible` does; raise :class:`_TimeOver` when no time is left."""
        pace = self.pace

        async def in_time() -> T:
            try:
                seconds = None if pace.seconds is None else max(pace.time_left, LEAST_EVERY)
                async with asyncio.timeout(seconds) as limit:
                    return await request
            except TimeoutError:
                if limit.expired():
                    raise _TimeOver from None
                raise

        try:
            return run_interruptible(self.runner, in_time())
        finally:
            request.close()  # if a signal came before the request began


@click.command(
    cls=WithSubcommands, subcommands={"ledger": ("join_ledger", "ledger"), "status": ("join_status", "status")}
)
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
    "columns",
    type=LocalPath(dir_okay=False),
    help="File of the columns, units and classes that all institutions agreed on.  [default: columns as they are]",
)
@click.option(
    "--state",
    type=LocalPath(file_okay=False),
    help="Folder with your client id, your progress, and the ping that is being sent.  [default: joined-STUDY]",
)
@click.option(
    "--hold-out",
    type=float,
    metavar="SHARE",
    help="Share of the rows, such as 0.2, to hold out from training; the loss of versions on these rows is sent.",
)
@click.option("--rounds", type=click.IntRange(1), help="End after this many versions.  [default: until stopped]")
@click.option("--for", "duration", help="End after this time: 45s, 10m, 6h.  [default: until stopped]")
@click.option("--every", default="60s", show_default=True, help="Time between two checks for a new version.")
@click.option(
    "--training-time", default="1h", show_default=True, help="Maximum time of a training; a longer one is stopped."
)
@click.option("--yes", is_flag=True, help="Send without asking.")
@click.option("--show", is_flag=True, help="Print the ping as JSON without sending it.")
@click.option("--agree", is_flag=True, help="Accept the study's changed terms.")
@click.option(
    "--ticket",
    type=LocalPath(dir_okay=False),
    help="File with the ticket for your client id, if the study asks for one.",
)
@click.option(
    "--held-out-ticket",
    type=LocalPath(dir_okay=False),
    help="File with the ticket for the client id that reports on the rows of --hold-out.",
)
@click.option(
    "--epsilon",
    type=click.FloatRange(0.01, 100),
    help=(
        "Privacy budget (epsilon) of each row, over all studies together; less is safer.  [default: 3, or the ledger's]"
    ),
)
@click.option(
    "--delta",
    type=click.FloatRange(1e-12, 0.5, max_open=True),
    help="Probability (delta) that the protection fails.  [default: n^-1.1 for n rows]",
)
@click.option(
    "--versions",
    type=click.IntRange(1),
    help="Maximum number of versions to answer; the budget is spread over them.  [default: 50 if protected]",
)
@click.option("--a-day", type=click.IntRange(1), help="Maximum number of pings in 24 hours.  [default: no limit]")
@click.option(
    "--person", metavar="COLUMN", help="Protect persons instead of rows; COLUMN identifies the person of each row."
)
@click.option(
    "--ledger",
    type=LocalPath(dir_okay=False),
    help="The table's ledger, if the table was renamed.  [default: DATA.ledger]",
)
@click.option(
    "--colluding",
    type=click.IntRange(0),
    metavar="NUMBER",
    help=(
        "In sums of institutions: number of other institutions that may collude with the operator.  [default: the "
        "study's number]"
    ),
)
@click.option(
    "--accept-reconstruction",
    is_flag=True,
    help="Send updates without protection; rows of your table can be reconstructed from them.",
)
@trust_options
@json_option
def join(url: str, study: str, **options: Any) -> int:
    """Take part in STUDY, served by the ingest at URL, with your own table.

    The command fetches the model, trains it on your rows, shows the ping (an update, its loss and the number of rows),
    asks for your consent, and posts it. Then it waits for the next version. The rows never leave this machine.

    Noise protects each row, and the table's ledger records its budget: 'fedping join ledger' shows it. 'fedping join
    status' lists the answers with the digests of the weights, for institutions to compare.

    Safe to stop, kill and run again: with the same --state it continues, and no ping counts twice. Exits with 0 if it
    is done or the study has ended; with 75 if the time limit --for was reached before a ping was accepted, or before
    --rounds; with 130 or 143 if SIGINT or SIGTERM ended it.
    """
    from fedping.client_sim.joining.holding_out import keep_share
    from fedping.client_sim.joining.ledger import BudgetEnded
    from fedping.client_sim.joining.terms import REVEALS
    from fedping.client_sim.transport import StudyEnded
    from fedping.server_jobs.shutdown import EndedBySignal, TimedOut, ended_by_signals

    chosen = Options(**options)
    pace = chosen.pace
    try:
        with ended_by_signals(), asyncio.Runner() as runner, ExitStack() as files:
            transport = _transport(url, trust_of(url, chosen.ca, chosen.insecure))
            _warn_of_listeners(url)
            files.callback(lambda: runner.run(transport.close()))
            timed = TimedRunner(runner, pace)
            institutions, decided = _institutions(transport, timed, files, study, chosen)
            if not chosen.show:
                keep_share(institutions[-1].folder, chosen.hold_out or 0.0)
            if decided.consent.protected:
                log.tell(f"protected: {decided.sentences[-1]}", "info")
            else:
                log.tell(f"warning: {REVEALS}", "warning")
                for sentence in decided.sentences:
                    log.tell(f"warning: {sentence}", "warning")
            for institution in institutions:
                log.tell(_introduction(institution, chosen.data), "info", before="")
                _tell_promises(institution)
                _check_terms(institution, chosen)
            _warn_of_one_class(institutions[-1].table.rows)
            if chosen.show:
                for institution in institutions:
                    _show(timed, institution)
                return 0
            ask = _make_prompt(chosen.as_json) if not chosen.yes else None
            return Session(timed, institutions, ask, decided if chosen.as_json else None).resume()
    except (StudyEnded, BudgetEnded) as over:
        click.echo(f"fedping: {over}", err=True)
        return 0
    except _TimeOver as error:
        raise TimedOut(
            "the time limit was reached before there was anything to send; run the same command to continue"
        ) from error
    except EndedBySignal as ended:
        click.echo(f"fedping: {ended.sentence}; run the same command to continue", err=True)
        return ended.exit_code


def _transport(url: str, trust: Trust) -> Transport:
    from fedping.client_sim.http import HttpSettings, HttpTransport

    settings = HttpSettings(
        connections=2,
        user_agent="fedping-join",
        proxies=True,
        most_bytes=MOST_BYTES,
        whole_timeout=MOST_SECONDS,
        compress="none",
        redirects="secure",
        away="try again later, or ask the study's operator for the correct address",
        trust=trust,
    )
    return HttpTransport(url, settings)


def _warn_of_listeners(url: str) -> None:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        click.echo(
            f"fedping: warning: {url} is not encrypted, so others on the network can read what you send and change "
            "the model; ask the operator for an https address",
            err=True,
        )


def _warn_of_one_class(rows: Table) -> None:
    if rows.target.is_class and len(rows) > 1 and (rows.y == rows.y[0]).all():
        log.tell(
            f"warning: all rows have the same '{rows.target.name}', so a model can't learn to predict it; check that "
            "the table is complete",
            "warning",
        )


def _warn_of_unprotected(institution: Institution) -> None:
    """Warn about a ping that was computed before the rows were protected."""
    if (ping := institution.unprotected) is not None:
        log.tell(
            f"warning: the ping of version {ping.version} in {institution.folder.path} was computed without "
            "protection, so it is not sent; if an earlier run posted it, the server may have read it",
            "warning",
        )


def _tell_promises(institution: Institution) -> None:
    """Log the contents of a private line's pings, and what the guarantee covers."""
    from fedping.client_sim.joining.terms import promises

    if institution.member.line.privacy is not None:
        for sentence in promises(institution.member.line):
            log.tell(f"private: {sentence}", "info", before="")


def _check_terms(institution: Institution, options: Options) -> None:
    """Raise :class:`StudyChanged` unless the study's terms are accepted; with --show, only warn."""
    from fedping.client_sim.joining.terms import StudyChanged, describe_changes

    if not institution.changes:
        return
    sentence = describe_changes(institution.study.name, institution.changes)
    if options.agree:
        institution.agree()
    elif options.show:
        log.tell(f"warning: {sentence}", "warning")
    else:
        raise StudyChanged(sentence)


def _institutions(
    transport: Transport, timed: TimedRunner, files: ExitStack, name: str, options: Options
) -> tuple[tuple[Institution, ...], Deciding]:
    """Return the clients (evaluation on held-out rows first, if any, then training) and the consent.

    With --show, the consent is still empty.
    """
    from fedping.client_sim.joining.columns import read_columns
    from fedping.client_sim.joining.deciding import Chosen, decide
    from fedping.client_sim.joining.examples import OwnTable, read_examples, wanted_by
    from fedping.client_sim.joining.folder import any_seed, open_folder
    from fedping.client_sim.joining.holding_out import (
        HELD_OUT,
        check_holding_out,
        check_same_share,
        divided,
        evaluates,
        in_arm,
    )
    from fedping.client_sim.joining.institution import Institution
    from fedping.client_sim.joining.same_table import check_same_table
    from fedping.client_sim.joining.terms import membership

    agreed = None if options.columns is None else read_columns(options.columns)
    tickets = [None if file is None else _read_ticket(file) for file in (options.ticket, options.held_out_ticket)]
    study, share, state = timed.run(transport.fetch_study(name)), options.hold_out, options.state_of(name)
    if share is not None:
        check_holding_out(study, share)
    new_seed = any_seed if share is None else in_arm(study, lambda arm: arm.submits)
    folder = files.enter_context(open_folder(state, new_seed))
    member = membership(study, folder.seed)
    needed = wanted_by(member.model, f"the model '{member.line.spec.model}' of line '{member.line.name}'")
    rows = read_examples(options.data, options.label, agreed, needed)
    known = check_same_table(folder, options.data, rows)
    weights = None if agreed is None else agreed.class_weights
    chosen = Chosen(
        data=options.data,
        epsilon=options.epsilon,
        delta=options.delta,
        versions=options.versions,
        person=options.person,
        ledger=options.ledger,
        accepts=options.accept_reconstruction,
        shows=options.show,
        held_out=share,
        a_day=options.a_day,
        columns=agreed,
        colluding=options.colluding,
    )

    def begun(decided: Deciding, *institutions: Institution) -> tuple[tuple[Institution, ...], Deciding]:
        for institution in institutions:
            _warn_of_unprotected(institution)
        if not options.show:
            for institution in institutions:  # first, because after a kill here the ping would be sent
                institution.discard()
            decided.keep(folder)
            folder.keep_table(known)
        return institutions, decided

    if share is None:
        check_same_share(folder, 0.0)
        states, decided = _states_in(folder, files), decide(member, folder, rows, chosen)
        table = OwnTable(decided.without_persons(rows), weights)
        own = decided.of_client(rows)
        return begun(decided, Institution(transport, member, folder, table, states, tickets[0], own))
    if not member.arm.submits:
        raise InvalidSettings(
            f"the client in {state} is in arm '{member.arm.name}', which does not train, so it can't hold rows out; "
            "give another folder with --state, which creates another client"
        )
    check_same_share(folder, share)
    decided = decide(member, folder, rows, chosen)
    learned, held_out = divided(decided.with_persons(rows), share, folder.seed)
    evaluating = in_arm(study, lambda arm: evaluates(arm) and arm.line == member.line.name)
    inner = files.enter_context(open_folder(state / HELD_OUT, evaluating))
    evaluator = membership(study, inner.seed)
    if not (evaluates(evaluator.arm) and evaluator.line.name == member.line.name):
        raise InvalidSettings(
            f"the client in {inner.path} is now in another arm; delete the folder, and it is created again"
        )
    states, inner_states = _states_in(folder, files), _states_in(inner, files)
    tested, trained = decided.of_client(held_out, "evaluation"), decided.of_client(learned)
    held_out, learned = decided.without_persons(held_out), decided.without_persons(learned)
    return begun(
        decided,
        Institution(transport, evaluator, inner, OwnTable(held_out, held_out=True), inner_states, tickets[1], tested),
        Institution(transport, member, folder, OwnTable(learned, weights), states, tickets[0], trained),
    )


def _states_in(folder: StateFolder, files: ExitStack) -> StatesOf:
    """Return a function that gives a training's stored states; their file is opened at the first use."""
    from fedping.client_sim.learning.algorithm import State
    from fedping.client_sim.learning.states import ClientStates, StateFile, in_memory, open_states

    @cache
    def opened() -> StateFile:
        file, damaged = open_states(folder.states)
        if damaged is not None:
            click.echo(f"{folder.states} is damaged and was renamed to {damaged}; a new file was started", err=True)
        return files.enter_context(file)

    def states_of(owner: str, first: State) -> ClientStates:
        return opened().of(owner, first) if first else in_memory(owner, first)

    return states_of


def _read_ticket(file: Path) -> str:
    from fedping.protocol.tickets import PATTERN

    try:
        with file.open("rb") as opened:
            ticket = opened.read(_TICKET + 2).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise InvalidSettings(f"cannot read the ticket {file}: {error.strerror}; check the path") from error
    if not ticket or len(ticket) > _TICKET or not re.match(PATTERN, ticket):
        raise InvalidSettings(
            f"{file} is not a ticket, which is one line of letters, digits and dots; ask the operator for it"
        )
    return ticket


def _introduction(institution: Institution, data: Path) -> str:
    member, progress, table = institution.member, institution.folder.progress, institution.table
    spec = member.line.spec
    pings = format_count(progress.sent, "ping")
    so_far = f"; {pings} taken so far, up to version {progress.version}" if progress.sent else ""
    sends = "" if member.arm.submits else ", which sends only its loss"
    rows = f"{len(table.rows):,} {'held-out rows' if table.held_out else 'rows'} of {data}"
    return (
        f"client {member.client_id} in arm '{member.arm.name}' of study '{institution.study.name}'{sends}: "
        f"{spec.model} of {spec.m:,} weights, {rows}{so_far}"
    )


def _show(timed: TimedRunner, institution: Institution) -> None:
    """Print the pending ping, or the one that would be posted now."""
    ping = institution.waiting
    if ping is None:
        problem = timed.run(institution.fetch())
        if institution.version < 0:
            raise FedpingError(f"no model to train: {problem or 'none was published'}; try again later")
        if not institution.has_new:
            click.echo(f"no ping would be sent: {problem or _nothing_to_send(institution)}", err=True)
            return
        ping = _train(institution, timed.pace, charge=False)
    click.echo(_summary(ping), err=True)
    click.echo(bytes(ping.body).decode())


def _nothing_to_send(institution: Institution) -> str:
    """Return the reason why an institution sends no ping for its version."""
    if institution.contributed_all:
        return _contributed_all(institution)
    if institution.rests:
        return _rest()
    progress = institution.folder.progress
    if institution.version <= progress.version:
        return f"the ping of version {institution.version} was accepted"
    if institution.trains_once and institution.version <= progress.moved:
        return f"the ping of version {institution.version} was rejected, and this line accepts no second one"
    return f"this institution was not selected for version {institution.version}"


def _rest() -> str:
    return "the limit of --a-day is reached for the last 24 hours"


def _contributed_all(institution: Institution) -> str:
    times = institution.folder.progress.contributed
    if institution.consented_all:
        and_budget = "" if institution.protection is None else ", and a larger --epsilon if the budget is spent"
        return (
            f"this institution has answered {format_count(times, 'version')}, the maximum that you consented to; to "
            f"continue, give a larger --versions{and_budget}"
        )
    return f"this institution has contributed {times:,} times, the maximum that the study guarantees"


def _train(institution: Institution, pace: Pace, *, charge: bool = True) -> Waiting:
    try:
        with status(f"training on version {institution.version}"), pace.limited():
            return institution.train(charge=charge)
    except _TooSlow:
        raise FedpingError(
            f"the training on version {institution.version} took longer than {pace.training:g} s and was stopped, so "
            "no ping was sent; give a longer --training-time or use fewer rows"
        ) from None


def _summary(ping: Waiting) -> str:
    from fedping.client_sim.joining.institution import describe

    content = describe(ping)
    if content.loss is None or content.examples is None:
        shares = " in two shares" if content.encoding == "shared" else ""
        sender = f"{content.bytes:,} bytes as client {content.client_id}"
        return f"version {content.version}: a private vector{shares}; {sender}"
    if content.encoding is not None:
        update = f"an update encoded as '{content.encoding}'"
    elif content.numbers:
        update = f"an update of {content.numbers:,} numbers, norm {content.norm:.4g}"
    else:
        update = "no update"
    return (
        f"version {content.version}: {update}; loss {content.loss:.4g}; {content.examples:,} examples; "
        f"{content.bytes:,} bytes as client {content.client_id}"
    )


def _make_prompt(as_json: bool) -> Callable[[Waiting], str]:
    """Return the prompt about a ping: ``y`` sends it, ``a`` this and all later ones, ``n`` none."""

    def ask(ping: Waiting) -> str:
        click.echo(_summary(ping), err=True)
        while True:
            click.echo("send it? [y]es, [a]lways, [s]how it, [N]o: ", nl=False, err=True)
            # not `input`, which can lose the exception of a signal while it flushes
            line = sys.stdin.readline() if sys.stdin else ""
            if not line:
                raise InvalidSettings(
                    "--yes is missing, and without a terminal fedping can't ask; check the ping with --show, then "
                    "give --yes"
                )
            answer = line.strip().lower()[:1] or "n"
            if answer == "s":
                click.echo(bytes(ping.body).decode(), err=as_json)
            elif answer in ("y", "a", "n"):
                return str(answer)

    return ask


class _Finished(Exception):
    """The end of the participation, with an exit code."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class Session:
    """Runs the clients' next actions, turn after turn, until the end; the last client trains.

    Args:
        timed: runs the clients' requests.
        institutions: the clients.
        ask: asks a person whether to send a ping; None sends without asking.
        told: the consent, for reports in JSON; None for reports as text.
    """

    def __init__(
        self,
        timed: TimedRunner,
        institutions: tuple[Institution, ...],
        ask: Callable[[Waiting], str] | None,
        told: Deciding | None,
    ) -> None:
        from fedping.client_sim.client import Backoff

        self._timed, self._pace, self._institutions = timed, timed.pace, institutions
        self._ask, self._told = ask, told
        self._rounds, self._accepted, self._failures, self._waits = 0, 0, 0, 0
        self._last_explanation = ""
        every = self._pace.every
        self._backoff = Backoff(first=every, longest=max(every, LONGEST_WAIT))
        self._random = Random(institutions[-1].folder.seed)

    def resume(self) -> int:
        """Take part until the end; return the exit code."""
        try:
            try:
                while self._pace.rounds is None or self._rounds < self._pace.rounds:
                    self._take_turn()
            except _TimeOver:
                self._end_in_time()
        except _Finished as end:
            return end.code
        return 0

    def _take_turn(self) -> None:
        """Run the next action of each client, and wait for the next turn.

        The client that trains comes after the others have evaluated the version that it holds, so that all of them are
        part of one round. A rejected evaluation is reported after the training.
        """
        *others, trainer = self._institutions
        rejection: _Rejected | None = None
        for one in others:
            try:
                if (ping := self._next_ping(one)[0]) is not None and not self._post(one, ping):
                    self._wait(f"waiting to post the ping of version {ping.version} again")
                    return
            except _Rejected as error:
                rejection = error
        ping, problem = self._next_ping(trainer)
        accepted = ping is not None and self._post(trainer, ping)
        self._rounds += accepted
        if rejection is not None:
            raise rejection
        if ping is None:
            next_version = f"a version after {max(trainer.version, trainer.folder.progress.version)}"
            self._explain(problem, next_version)
            self._wait(f"waiting for {next_version}")
        elif not accepted:
            self._wait(f"waiting to post the ping of version {ping.version} again")
        elif self._rounds != self._pace.rounds:
            # A server that always has a newer version gets at most one ping per turn.
            self._wait(f"waiting for a version after {ping.version}")

    def _next_ping(self, institution: Institution) -> tuple[Waiting | None, str | None]:
        """Take a client's actions up to its next post, and return the ping to be posted.

        Without one, return None and the reason why no version was available, if so.
        """
        from fedping.client_sim.client import Action
        from fedping.client_sim.joining.ledger import AlreadyAnswered

        problem: str | None = None
        institution.begin_turn()
        while True:
            match institution.next_action():
                case Action.POST:
                    return institution.waiting, None
                case Action.FETCH:
                    problem = self._timed.run(institution.fetch())
                case Action.TRAIN:
                    self._explain(problem)
                    try:
                        ping = _train(institution, self._pace)
                    except AlreadyAnswered as error:
                        log.tell(f"warning: {error}", "warning")
                        institution.skip()
                        continue
                    if not self._is_agreed(ping):
                        click.echo("nothing was sent", err=True)
                        raise _Finished(0)
                    institution.keep(ping)
                case Action.LEAVE:
                    click.echo(f"fedping: {_contributed_all(institution)}", err=True)
                    raise _Finished(0)
                case Action.WAIT:
                    return None, _rest() if institution.rests else problem

    def _is_agreed(self, ping: Waiting) -> bool:
        if self._ask is None:
            return True
        answer = self._ask(ping)
        if answer == "a":
            self._ask = None
        return answer != "n"

    def _delay(self, institution: Institution, ping: Waiting) -> None:
        """Wait until a private line's ping may be sent."""
        seconds = institution.seconds_until(ping)
        if not seconds:
            return
        moment = f"the random time at which the ping of version {ping.version} is sent"
        self._explain(None, moment)
        self._sleep(seconds, f"waiting for {moment}")

    def _post(self, institution: Institution, ping: Waiting) -> bool:
        """Post a ping and return whether it was accepted; if not, it will be posted again later."""
        from fedping.client_sim.client import SetAside

        self._delay(institution, ping)
        with status(f"posting the ping of version {ping.version}"):
            state = self._timed.run(institution.post(ping))
        if isinstance(state, SetAside):
            self._explain(f"{state.reason}{', and the server asked for more time' if state.closed_for else ''}")
            return False
        self._failures = self._waits = 0
        institution.settle(ping, state.outcome)
        self._report(ping, state.outcome)
        if not state.accepted:
            with suppress(_TimeOver):
                self._timed.run(institution.fetch_unchanged_study())  # it may have ended, which is not an error
            raise _rejection(institution, ping, state.outcome)
        self._accepted += 1
        return True

    def _report(self, ping: Waiting, outcome: Outcome) -> None:
        if self._told is None:
            click.echo(f"{_summary(ping)}: {outcome.delivery.value}")
            return
        import msgspec

        from fedping.client_sim.joining.institution import describe
        from fedping.client_sim.joining.terms import REVEALS

        answer = {"outcome": outcome.delivery.value, "reason": outcome.reason}
        warning = {} if self._told.consent.protected else {"warning": REVEALS}
        row = {**msgspec.to_builtins(describe(ping)), **answer, **warning, "consent": self._told.facts}
        click.echo(msgspec.json.encode(row).decode())

    def _explain(self, problem: str | None, awaited: str = "") -> None:
        """Log a problem, or else the reason for waiting, unless it was logged last."""
        self._failures = self._failures + 1 if problem else 0
        explanation = f"waiting: {problem}" if problem else f"waiting for {awaited}" if awaited else ""
        if explanation and explanation != self._last_explanation:
            log.tell(explanation, "warning" if problem else "info")
        self._last_explanation = explanation

    def _wait(self, activity: str) -> None:
        """Wait for the next turn; after every few waits, fetch the study, which may have ended."""
        self._sleep(self._backoff.wait(self._failures + 1, self._random.random(), None), activity)
        self._waits += 1
        if self._waits % FETCHES_A_STUDY == 0:
            for institution in self._institutions:
                self._timed.run(institution.fetch_unchanged_study())

    def _sleep(self, seconds: float, activity: str) -> None:
        """Sleep, and end if no time is left after it."""
        left = self._pace.time_left
        if (duration := min(seconds, left)) > 0:
            with status(activity):
                time.sleep(duration)
        if seconds >= left:
            self._end_in_time()

    def _end_in_time(self) -> NoReturn:
        from fedping.server_jobs.shutdown import TimedOut

        if any(institution.waiting is not None for institution in self._institutions):
            raise TimedOut("the time limit was reached before the ping was accepted; run the same command to send it")
        if self._pace.rounds is not None:
            raise TimedOut(
                f"the time limit was reached after {self._rounds} of {self._pace.rounds} rounds; run the same "
                "command to continue"
            )
        if not self._accepted:
            raise TimedOut("the time limit was reached before a ping was accepted; run the same command to continue")
        raise _Finished(0)


class _Rejected(FedpingError):
    """The server rejected the content of a ping."""


def _rejection(institution: Institution, ping: Waiting, outcome: Outcome) -> FedpingError:
    from fedping.client_sim.joining.institution import NOT_ALLOWED

    reason = outcome.reason.partition("; ")[0]  # the rest is for authors of clients
    if outcome.reason.startswith(NOT_ALLOWED):
        member, option = institution.member, "--held-out-ticket" if institution.table.held_out else "--ticket"
        return FedpingError(
            f"the server rejects pings of this client: {reason}; ask the operator for a ticket for the client id "
            f"{member.client_id}, and give its file with {option}"
        )
    then = (
        "continues with the next version, because this line accepts one ping per version"
        if institution.trains_once
        else "trains on that version again"
    )
    return _Rejected(
        f"the server rejected the ping of version {ping.version}: {reason}; correct the table (are its columns in the "
        f"agreed units?) or ask the operator, and the same command {then}"
    )


def run_interruptible(runner: asyncio.Runner, request: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; a signal first cancels it, then takes effect.

    Otherwise asyncio would report an exception that a signal raises inside a task twice, with a traceback.
    """
    signals: list[int] = []
    tasks: list[asyncio.Task[Any]] = []

    def cancel(number: int, _: object) -> None:
        signals.append(number)
        for task in tasks:
            runner.get_loop().call_soon_threadsafe(task.cancel)

    async def cancellable() -> T:
        tasks.extend(filter(None, [asyncio.current_task()]))
        if signals:
            request.close()
            raise asyncio.CancelledError
        return await request

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
        if signals:
            signal.raise_signal(signals[0])
