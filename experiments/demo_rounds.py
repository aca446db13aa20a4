"""Rounds for the demo page: a study to be taught from its start, and a round every few seconds while people try it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from urllib.parse import urlencode

from msgspec.structs import replace

from fedping.experiments.ingest_process import RunningIngest
from fedping.model_store.store import ModelStore
from fedping.protocol import __version__
from fedping.protocol.clock import utc_now
from fedping.protocol.errors import FedpingError
from fedping.protocol.local_optimizers import LocalRProp
from fedping.protocol.location import Place
from fedping.protocol.personalization import FineTune
from fedping.protocol.study import Study
from fedping.protocol.training import OneGradient
from fedping.protocol.weights import Step
from fedping.server_jobs.round import Engine, run_round
from fedping.server_jobs.schedule import Clock, run_schedule

PLAYGROUND = "playground"
MIN_CLIENTS = 10
"""So few that the people whom the page makes up are enough for a round."""

PERSONALIZED = "personalized"
"""The arm whose clients have a model of their own."""

OWN_STEPS = LocalRProp(alpha=1.5, beta=0.5, step=Step(start=10.0, min=1.0, max=60.0), keep=True)
"""By which that model steps, in units of weights that are 50 or 300 at first."""


def playground(study: Study) -> Study:
    """Return the same study under another name, at its start, with rounds of few clients, and with an arm more.

    The study of the demo itself has learned all that there is to learn when its iterations are over, and its rounds
    wait for hundreds of clients: nothing that one person chooses would show. In the arm ``personalized``, half of those
    of ``treatment``, a client has a model of its own besides, whose steps are so large that a single choice shows.
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
    """Return the address of the demo page for a study with a round every so many seconds."""
    return f"{ingest.address}/demo/?{urlencode({'study': study, 'every': every})}"


def keep_rounds(
    ingest: RunningIngest,
    store: ModelStore,
    landing: Place,
    engine: Engine,
    *,
    every: int,
    clock: Clock,
    tell: Callable[[str], None],
) -> None:
    """Run a round of each line of each running study every so many seconds, until the clock says to stop.

    What fails is told, and the next round tries again. ``tell`` is given a sentence whenever there is another one than
    before.
    """
    rounds = _Rounds(ingest, store, landing, engine, tell)
    run_schedule(rounds.run, every, clock, lambda text: None)


class _Rounds:
    def __init__(
        self, ingest: RunningIngest, store: ModelStore, landing: Place, engine: Engine, tell: Callable[[str], None]
    ) -> None:
        self._ingest, self._store, self._landing, self._engine = ingest, store, landing, engine
        self._tell = tell
        self._told: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        """Land what has been accepted, and run a round of every line."""
        try:
            self._ingest.flush()
        except FedpingError as error:
            self._tell_once("", "", str(error))
            return
        for study in self._store.studies.names():
            if self._store.studies.declared(study).state != "running":
                continue
            for line in self._store.study(study).lines:
                self._tell_once(study, line.name, self._round(study, line.name))

    def _round(self, study: str, line: str) -> str:
        """Run one round and return what came of it, in a sentence; empty if there was nothing to do."""
        try:
            result = run_round(
                self._store, self._landing, study, line, self._engine, clock=utc_now, code_version=__version__
            )
        except FedpingError as error:
            return f"no round of {study}/{line}: {error}"
        except Exception:
            self._engine.close()
            return f"the round of {study}/{line} failed; the next begins anew\n{traceback.format_exc().rstrip()}"
        return "" if result.status == "nothing" else result.sentence

    def _tell_once(self, study: str, line: str, sentence: str) -> None:
        if sentence and self._told.get((study, line)) != sentence:
            self._tell(sentence)
        self._told[study, line] = sentence
