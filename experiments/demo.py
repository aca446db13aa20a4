"""The whole journey on one machine and on real parts: ingest, clients over HTTP, a Spark round an iteration.

Nothing here is particular to a demonstration but the folder: it starts what an operator starts, and the fleet posts to
it as to any address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedping.analysis.curves import ArmCurve, arm_curves
from fedping.client_sim.fleet.fleet import Fleet, join_study
from fedping.client_sim.fleet.http import HttpTransport
from fedping.client_sim.fleet.settings import FleetSettings
from fedping.experiments.demo_rounds import playground
from fedping.experiments.ingest_process import RunningIngest, ingest_process
from fedping.experiments.secure_demo import Seen, TwoServers, helper_beside, secured, seen_by
from fedping.helper.folder import make_helper
from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import ArmSummary
from fedping.protocol import __version__
from fedping.protocol.clock import utc_now
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Bucket, Place, child
from fedping.protocol.study import Declared, Study, study_from_toml
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.privacy.sampling_key import make_key, read_key
from fedping.server_jobs.round import Engine, engine_named, run_round

STUDY = Path(__file__).with_name("demo.toml")

ROUND_STEPS = {
    "repaired": "Spark round: listing the landed pings",
    "listed": "Spark round: averaging the updates",
    "summed": "Spark round: asking the helper",
    "aggregated": "Spark round: stepping the optimizer",
    "stepped": "Spark round: publishing the next version",
}
"""What a round does after each step that it reports."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What to run, and the folder for all of it.

    ``page`` has ingest serve the demo page, on ``port`` (None: a free one), and makes a study to try on it. ``secure``
    has clients split what they send between two servers (`fedping.experiments.secure_demo`).

    Raises:
        InvalidSettings: fewer than one client or iteration, or a folder that holds something already; or a page, which
            shows what clients send, for clients that split it.
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
        """What the model store and the landed pings lie below."""
        return self.bucket or self.out


@dataclass(frozen=True)
class DemoIteration:
    """One finished iteration: the version that ranked, the pings that were accepted, and how each arm fared."""

    iteration: int
    pings: int
    arms: dict[str, ArmSummary]


@dataclass
class Progress:
    """What is going on at this moment, for whoever watches; only :func:`run_demo` changes it."""

    iteration: int = 0
    stage: str = "creating the study"
    fleet: Fleet | None = None
    done: list[DemoIteration] = field(default_factory=list)

    @property
    def waiting_for(self) -> str:
        """Return what is being waited for; while clients send, with how many pings have been taken so far."""
        fleet = self.fleet
        if self.stage or fleet is None:
            return self.stage
        sent = fleet.counts.accepted - sum(row.pings for row in self.done)
        made = fleet.counts.generated - sum(row.pings for row in self.done)
        return f"clients: {fleet.live.stage}" + (f" ({sent:,} of {made:,} accepted)" if made else "")


@dataclass(frozen=True, kw_only=True)
class DemoOutcome:
    """What came of it, and where everything lies; with two servers, what each saw in the last iteration."""

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


@dataclass(frozen=True, kw_only=True)
class RunningDemo:
    """A demo whose iterations are over, while its ingest and its engine are still there."""

    outcome: DemoOutcome
    ingest: RunningIngest
    store: ModelStore
    engine: Engine


def run_demo(
    settings: DemoSettings, progress: Progress, on_iteration: Callable[[DemoIteration], None] = lambda row: None
) -> DemoOutcome:
    """Run the journey and return its outcome; see :func:`running_demo`."""
    with running_demo(settings, progress, on_iteration) as demo:
        return demo.outcome


@contextmanager
def running_demo(
    settings: DemoSettings, progress: Progress, on_iteration: Callable[[DemoIteration], None] = lambda row: None
) -> Iterator[RunningDemo]:
    """Run the journey, yield it with everything still running, and stop that in order.

    ``progress`` is kept up to date, ``on_iteration`` told of each iteration. However it ends, no process is left, and
    every file is whole.

    Raises:
        FedpingError: ingest, the round or the study's file cannot be used; the sentence says which and why.
    """
    store_path, landing, log = (
        child(settings.place, "store"),
        child(settings.place, "landing"),
        settings.out / "ingest.log",
    )
    store = open_store(store_path, create=True)
    if settings.bucket and (store.studies.names() or open_landing(landing).exists()):
        raise InvalidSettings(f"there is something at {settings.bucket}; give --bucket another folder")
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
            seen = None
            with asyncio.Runner() as runner:
                fleet = _joined(runner, ingest, study, settings)
                progress.fleet = fleet
                try:
                    for number in range(settings.iterations):
                        pings = _sent(runner, fleet, ingest, progress)
                        if servers is not None and number == settings.iterations - 1:
                            seen = seen_by(servers, landing, study, line, number)
                        row = _round(store, landing, engine, study.name, line.name, progress, pings, servers)
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
            yield RunningDemo(outcome=outcome, ingest=ingest, store=store, engine=engine)
            progress.stage = "stopping Spark and ingest"
    except BaseException:
        with suppress(FedpingError, OSError):  # what went wrong before is what there is to tell
            _end(store)
        raise
    _end(store)


def _end(store: ModelStore) -> None:
    """Declare that the studies have ended: no round comes any more, which would else look like a failure."""
    for name in store.studies.names():
        store.studies.declare(name, Declared(state="ended", since=utc_now()))


def _joined(runner: asyncio.Runner, ingest: RunningIngest, study: Study, settings: DemoSettings) -> Fleet:
    fleet = FleetSettings(clients=settings.clients, seed=settings.seed)
    return runner.run(join_study(HttpTransport(ingest.address), study.name, fleet))


def _created(settings: DemoSettings, store: ModelStore, stack: ExitStack) -> tuple[Study, TwoServers | None]:
    """Create the study, and one for the page; where two servers take part, start the helper, which the stack stops."""
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
    """Let everyone fetch, search and send, land it, and return how many pings were accepted."""
    progress.iteration, progress.stage = progress.iteration + 1, ""
    summary = runner.run(fleet.run_iteration())
    progress.stage = "ingest: landing the pings in Parquet"
    ingest.flush()
    return summary.pings.accepted


def _round(
    store: ModelStore,
    landing: Place,
    engine: Engine,
    study: str,
    line: str,
    progress: Progress,
    pings: int,
    servers: TwoServers | None,
) -> DemoIteration:
    """Run a round on what has landed, of so many pings."""

    def on_step(step: str) -> None:
        progress.stage = ROUND_STEPS.get(step, progress.stage)
        if step == "listed" and not progress.done:
            progress.stage = "Spark round: starting Spark (once), then averaging the updates"

    result = run_round(
        store,
        landing,
        study,
        line,
        engine,
        clock=utc_now,
        code_version=__version__,
        on_step=on_step,
        privacy_key=servers.key if servers else None,
        helper=servers.way if servers else None,
    )
    if result.status != "published":
        raise FedpingError(f"the round did not publish: {result.sentence}; run the demo with more --clients")
    return DemoIteration(result.iteration, pings, result.arms)


def _drawn(curves: Mapping[str, ArmCurve], study: Study, path: Path) -> Path:
    from fedping.analysis.figures import LIGHT, draw_loss, save_figure, titled

    title = "Loss by arm: only the treatment arm ranks with the trained model"
    figure = draw_loss(curves, arms=[arm.name for arm in study.arms])
    return save_figure(titled(figure, title, theme=LIGHT), path)
