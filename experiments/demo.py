"""The demo: a whole study on one machine with real parts: ingest, clients over HTTP, a Spark round per iteration.

Only the folder is special: the demo starts what an operator starts, and its fleet posts to it as to any address. The
demo page has a second study, ``playground``, which starts untrained and gets a round every few seconds.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from msgspec.structs import replace

from fedping.analysis.curves import ArmCurve, arm_curves
from fedping.client_sim.fleet.fleet import Fleet, join_study
from fedping.client_sim.fleet.members import FleetSettings
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning.study_files import study_from_toml
from fedping.experiments.secure_demo import Seen, TwoServers, helper_beside, secured, seen_by
from fedping.experiments.server_process import RunningIngest, ingest_process
from fedping.helper.folder import make_helper
from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import ArmSummary
from fedping.protocol import __version__
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import open_landing
from fedping.protocol.local_optimizers import LocalRProp
from fedping.protocol.location import Bucket, Place, child
from fedping.protocol.notation import utc_now
from fedping.protocol.personalization import FineTune
from fedping.protocol.study import Declared, Study
from fedping.protocol.training import OneGradient
from fedping.protocol.weights import Step
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.privacy.keys import make_key, read_key
from fedping.server_jobs.round import Engine, RoundOptions, RoundResult, engine_named, run_round
from fedping.server_jobs.schedule import Clock, run_schedule

STUDY = Path(__file__).with_name("demo.toml")

ROUND_STEPS = {
    "repaired": "Spark round: listing the landed pings",
    "listed": "Spark round: averaging the updates",
    "summed": "Spark round: asking the helper",
    "aggregated": "Spark round: stepping the optimizer",
    "stepped": "Spark round: publishing the next version",
}
"""The displayed text after each step that a round reports."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """The settings of a demo, and the folder for all its files.

    With ``page``, ingest serves the demo page on ``port`` (None: a free one), and a study to try on it is created. With
    ``secure``, clients split their updates between two servers (`fedping.experiments.secure_demo`).

    Raises:
        InvalidSettings: fewer than one client or iteration; a folder that isn't empty; or ``page`` together with
            ``secure``, because the page shows what clients send in full.
    """

    out: Path
    clients: int = 2000
    iterations: int = 15
    seed: int = 1
    engine: str = "spark"
    study_file: Path = STUDY
    page: bool = False
    port: int | None = None
    secure: bool = False
    bucket: Bucket | None = None

    def __post_init__(self) -> None:
        if min(self.clients, self.iterations) < 1:
            raise InvalidSettings("a demo needs at least one client and one iteration; correct --clients, --iterations")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise InvalidSettings(f"{self.out} exists and is not an empty folder; give another --out")
        if self.page and self.secure:
            raise InvalidSettings("the demo page shows what its clients send in full; leave out --stay or --secure")

    @property
    def place(self) -> Place:
        """The parent folder of the model store and the landed pings."""
        return self.bucket or self.out


@dataclass(frozen=True)
class DemoIteration:
    """One finished iteration: its version's number, the number of accepted pings, and each arm's summary."""

    iteration: int
    pings: int
    arms: dict[str, ArmSummary]


@dataclass
class Progress:
    """The current activity, for display; only :func:`run_demo` changes it."""

    iteration: int = 0
    stage: str = "creating the study"
    fleet: Fleet | None = None
    done: list[DemoIteration] = field(default_factory=list)

    @property
    def waiting_for(self) -> str:
        """Return the name of the current step; while clients send, with the number of pings accepted so far."""
        fleet = self.fleet
        if self.stage or fleet is None:
            return self.stage
        accepted = fleet.counts.accepted - sum(row.pings for row in self.done)
        generated = fleet.counts.generated - sum(row.pings for row in self.done)
        return f"clients: {fleet.live.stage}" + (f" ({accepted:,} of {generated:,} accepted)" if generated else "")


@dataclass(frozen=True, kw_only=True)
class DemoOutcome:
    """A demo's result and the paths of its files; with two servers, also what each saw in the last iteration."""

    study: Study
    line: str
    iterations: tuple[DemoIteration, ...]
    curves: dict[str, ArmCurve]
    figure: Path
    store: Place
    landing: Place
    ingest_log: Path
    seen: Seen | None = None
    helper: Path | None = None


@dataclass(frozen=True)
class DemoServers:
    """The running parts of a demo's server side."""

    ingest: RunningIngest
    store: ModelStore
    landing: Place
    engine: Engine


@dataclass(frozen=True, kw_only=True)
class RunningDemo:
    """A demo after its iterations, with its ingest and its engine still running."""

    outcome: DemoOutcome
    servers: DemoServers


def run_demo(
    settings: DemoSettings, progress: Progress, on_iteration: Callable[[DemoIteration], None] = lambda row: None
) -> DemoOutcome:
    """Run the demo and return its outcome; see :func:`running_demo`."""
    with running_demo(settings, progress, on_iteration) as demo:
        return demo.outcome


@contextmanager
def running_demo(
    settings: DemoSettings, progress: Progress, on_iteration: Callable[[DemoIteration], None] = lambda row: None
) -> Iterator[RunningDemo]:
    """Run the demo, yield it while its servers are still running, and stop them in order.

    ``progress`` is kept up to date, and ``on_iteration`` is called for each iteration. However the demo ends, all
    processes are stopped and all files are complete.

    Raises:
        FedpingError: ingest, the round or the study's file cannot be used; the message says which and why.
    """
    store_path, landing, log = (
        child(settings.place, "store"),
        child(settings.place, "landing"),
        settings.out / "ingest.log",
    )
    store = open_store(store_path, create=True)
    if settings.bucket and (store.studies.names() or open_landing(landing).exists()):
        raise InvalidSettings(f"{settings.bucket} is not empty. Give --bucket another folder")
    settings.out.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            study, servers = _created(settings, store, stack)
            line = study.lines[0]
            progress.stage = "starting ingest"
            options = ["--demo-page"] if settings.page else []
            options += ["--journal", str(settings.out / "journal")] if settings.bucket else []
            ingest = stack.enter_context(ingest_process(store_path, landing, log, *options, port=settings.port))
            engine = stack.enter_context(engine_named(settings.engine))
            running = DemoServers(ingest, store, landing, engine)
            seen = None
            with asyncio.Runner() as runner:
                fleet = _joined(runner, ingest, study, settings)
                progress.fleet = fleet
                try:
                    for number in range(settings.iterations):
                        pings = _sent(runner, fleet, ingest, progress)
                        if servers is not None and number == settings.iterations - 1:
                            seen = seen_by(servers, landing, study, line, number)
                        result = _round(running, study.name, line.name, progress, servers)
                        row = DemoIteration(result.iteration, pings, result.arms)
                        ingest.wait_for(study.name, line.name, number + 1)
                        progress.done.append(row)
                        on_iteration(row)
                finally:
                    runner.run(fleet.close())
            progress.stage = "drawing the loss"
            curves = arm_curves(store, study.name, line.name)
            outcome = DemoOutcome(
                study=study,
                line=line.name,
                iterations=tuple(progress.done),
                curves=curves,
                figure=_drawn(curves, study, settings.out / "loss.png"),
                store=store_path,
                landing=landing,
                ingest_log=log,
                seen=seen,
                helper=servers.helper.path if servers else None,
            )
            yield RunningDemo(outcome=outcome, servers=running)
            progress.stage = "stopping Spark and ingest"
    except BaseException:
        with suppress(FedpingError, OSError):  # the earlier error is the one to report
            _end(store)
        raise
    _end(store)


def _end(store: ModelStore) -> None:
    """Mark the studies as ended. Otherwise, their missing rounds would look like a failure."""
    for name in store.studies.names():
        store.studies.declare(name, Declared(state="ended", since=utc_now()))


def _joined(runner: asyncio.Runner, ingest: RunningIngest, study: Study, settings: DemoSettings) -> Fleet:
    fleet = FleetSettings(clients=settings.clients, seed=settings.seed)
    return runner.run(join_study(HttpTransport(ingest.address), study.name, fleet))


def _created(settings: DemoSettings, store: ModelStore, stack: ExitStack) -> tuple[Study, TwoServers | None]:
    """Create the study, and one for the page; with two servers, start the helper, which ``stack`` stops."""
    study, servers = study_from_toml(settings.study_file, new=True), None
    if settings.secure:
        helper = make_helper(settings.out / "helper")
        study = secured(study, helper.identity, settings.clients, settings.iterations)
    for each in (study, playground(study)) if settings.page else (study,):
        store.create_study(each, first_versions(each, created=utc_now(), code_version=__version__))
    if settings.secure:
        make_key(settings.out / "leader.key")
        key = read_key(settings.out / "leader.key")
        beside = helper_beside(helper, key, store, study, settings.out / "helper.log")
        servers = stack.enter_context(beside)
    return study, servers


def _sent(runner: asyncio.Runner, fleet: Fleet, ingest: RunningIngest, progress: Progress) -> int:
    """Run all clients' fetches, searches and pings, land the pings, and return the number of accepted ones."""
    progress.iteration, progress.stage = progress.iteration + 1, ""
    summary = runner.run(fleet.run_iteration())
    progress.stage = "ingest: landing the pings in Parquet"
    ingest.flush()
    return summary.pings.accepted


def _round(running: DemoServers, study: str, line: str, progress: Progress, servers: TwoServers | None) -> RoundResult:
    """Run a round on the landed pings."""

    def on_step(step: str) -> None:
        progress.stage = ROUND_STEPS.get(step, progress.stage)
        if step == "listed" and not progress.done:
            progress.stage = "Spark round: starting Spark (once), then averaging the updates"

    result = run_round(
        running.store,
        running.landing,
        study,
        line,
        running.engine,
        RoundOptions(
            clock=utc_now,
            code_version=__version__,
            on_step=on_step,
            privacy_key=servers.key if servers else None,
            helper=servers.way if servers else None,
        ),
    )
    if result.status != "published":
        raise FedpingError(f"the round did not publish: {result.sentence}; run the demo with more --clients")
    return result


def _drawn(curves: Mapping[str, ArmCurve], study: Study, path: Path) -> Path:
    from fedping.analysis.figures import LIGHT, draw_loss, save_figure, titled

    title = "Loss by arm: only the treatment arm ranks with the trained model"
    figure = draw_loss(curves, arms=[arm.name for arm in study.arms])
    return save_figure(titled(figure, title, theme=LIGHT), path)


PLAYGROUND = "playground"
MIN_CLIENTS = 10
"""Minimum clients in a round of the demo page's study; the page's simulated people alone suffice."""

PERSONALIZED = "personalized"
"""The arm whose clients have their own model."""

OWN_STEPS = LocalRProp(alpha=1.5, beta=0.5, step=Step(start=10.0, min=1.0, max=60.0), keep=True)
"""The step sizes of these clients' own models. The weights that they change start at 50 or 300."""


def playground(study: Study) -> Study:
    """Return the demo page's study: a copy of ``study`` from the start, with smaller rounds and one more arm.

    The demo's own study has converged when its iterations end, and its rounds wait for hundreds of clients, so one
    person's choices would have no visible effect. The new arm ``personalized`` gets half of ``treatment``'s share. Its
    clients also have their own models, with steps so large that a single choice is visible.
    """
    treatment, *others = study.arms
    half = replace(treatment, share=treatment.share / 2)
    line, *more = study.lines
    cutoffs = tuple(weight.name for weight in line.spec.weights if weight.kind == "cutoff")
    personal = FineTune(rate=1.0, steps=4, frozen=cutoffs, optimizer=OWN_STEPS)
    lines = (replace(line, training=OneGradient(personal=personal)), *more)
    return replace(
        study,
        name=PLAYGROUND,
        arms=(half, replace(half, name=PERSONALIZED, personal=True), *others),
        lines=tuple(replace(line, pipeline=replace(line.pipeline, min_clients=MIN_CLIENTS)) for line in lines),
    )


def page_address(ingest: RunningIngest, study: str, every: int) -> str:
    """Return the address of the demo page for a study, given the seconds between rounds."""
    return f"{ingest.address}/demo/?{urlencode({'study': study, 'every': every})}"


def keep_rounds(running: DemoServers, *, every: int, clock: Clock, tell: Callable[[str], None]) -> None:
    """Run a round of each line of each running study every ``every`` seconds, until the clock stops.

    Failures are reported, and the next round tries again. ``tell`` is called with a line's result as a sentence, unless
    it is the same as before.
    """
    rounds = _Rounds(running, tell)
    run_schedule(rounds.run, every, clock, lambda text: None)


class _Rounds:
    def __init__(self, running: DemoServers, tell: Callable[[str], None]) -> None:
        self._running, self._tell = running, tell
        self._sentences: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        """Land all accepted pings, and run a round of every line."""
        try:
            self._running.ingest.flush()
        except FedpingError as error:
            self._tell_once("", "", str(error))
            return
        store = self._running.store
        for study in store.studies.names():
            if store.studies.declared(study).state != "running":
                continue
            for line in store.study(study).lines:
                self._tell_once(study, line.name, self._round(study, line.name))

    def _round(self, study: str, line: str) -> str:
        """Run one round and return its result as a sentence; empty if there was nothing to do."""
        running = self._running
        try:
            result = run_round(
                running.store,
                running.landing,
                study,
                line,
                running.engine,
                RoundOptions(clock=utc_now, code_version=__version__),
            )
        except FedpingError as error:
            return f"no round of {study}/{line}: {error}"
        except Exception:
            running.engine.close()
            return f"the round of {study}/{line} failed; the next one starts again\n{traceback.format_exc().rstrip()}"
        return "" if result.status == "nothing" else result.sentence

    def _tell_once(self, study: str, line: str, sentence: str) -> None:
        if sentence and self._sentences.get((study, line)) != sentence:
            self._tell(sentence)
        self._sentences[study, line] = sentence
