"""Writes studies that are paused, ended, resumed, changed, pruned, warm-started, or have the safe defaults."""

from pathlib import Path

from msgspec.structs import replace

from fedping.model_store import open_store
from fedping.protocol.landing import landed_files, open_landing, partition, rewrite
from fedping.protocol.personalization import FineTune
from fedping.protocol.pipeline import Adam, RProp
from fedping.protocol.study import Declared, Study, protected
from fedping.protocol.training import LocalSteps
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.warm_start import warm_from
from tests.golden.writing.common import FIRST_MS, WHEN, grown, ids, land, line, play, stored, study, with_line

STATES = {"paused": ("paused",), "ended": ("ended",), "resumed": ("paused", "running")}


def write(folder: Path) -> None:
    plain = [study(name, [line("main", optimizer=RProp())]) for name in (*STATES, "changed", "older", "pruned", "gone")]
    own = LocalSteps(rate=0.25, steps=2, personal=FineTune(rate=0.5))
    arms = tuple(replace(arm, personal=arm.submits) for arm in plain[0].arms)
    tuned = study("tuned", [line("main", training=own)], arms=arms)
    safe = protected(study("safe", [line("main", optimizer=RProp(), min_clients=5), line("other", m=2)]))
    store = stored(folder, *plain, tuned, safe)
    for each in (*plain, tuned):
        grown(folder, each, rounds=2)
    for number in range(3):  # where the arm follows from the id, pings of other clients count nowhere
        for name in ("main", "other"):
            land(folder / "landing", safe, name, number, at=number, clients=60)
            if number < 2:
                play(folder, "safe", name)
    for name, states in STATES.items():
        for at, state in enumerate(states):
            since = f"2026-01-0{at + 1}T00:00:00.000+00:00"
            store.studies.declare(name, Declared(state=state, since=since, by="an operator", because="it is time"))
    change(folder, next(each for each in plain if each.name == "changed"))
    begin_warm(folder)
    removed = landed_files(partition(folder / "landing", "pruned", "main", 0))
    versions = {"main": (1,)}
    store.studies.note(
        "pruned", "pruned", ("pings of version 0 removed",), at=WHEN, by="an operator", versions=versions
    )
    for file in removed:
        open_landing(folder / "landing").remove(file)
    forget(folder)


def change(folder: Path, of: Study) -> None:
    """Change the settings of a study twice, with a round in between."""
    store = open_store(folder / "store")
    fewer = with_line(of, pipeline=replace(of.lines[0].pipeline, min_clients=3))
    told = ("lines.main.pipeline.min_clients: 2 -> 3",)
    store.studies.change(fewer, told, at=WHEN, by="an operator", because="few are left", after=0)
    play(folder, "changed", "main")
    more = with_line(of, pipeline=replace(of.lines[0].pipeline, min_clients=4))
    store.studies.change(more, ("lines.main.pipeline.min_clients: 3 -> 4",), at=WHEN, by="an operator", after=1)
    land(folder / "landing", of, "main", 3, at=3)


def begin_warm(folder: Path) -> None:
    """Create a study that starts with the weights of another, some of which have other names."""
    store = open_store(folder / "store")
    new = line("main", m=4, optimizer=Adam(rate=0.125))
    spec = new.spec
    renamed = replace(spec, weights=(replace(spec.weights[0], name="first"), *spec.weights[1:]))
    made = study("warm", [replace(new, spec=renamed)])
    warm = warm_from(store, made.lines[0], "older", "main", 2, {"first": "w0"})
    begun = {"main": (warm.weights, warm.origin)}
    store.create_study(made, first_versions(made, created=WHEN, code_version="golden", warm=begun))
    grown(folder, made, rounds=1)


def forget(folder: Path) -> None:
    """Remove the pings of one client from a landed file, as 'landing forget' does."""
    store, landing = open_store(folder / "store"), folder / "landing"
    client = ids("client", "gone", "main", "main-trains", "", k=1)[0].tobytes()
    file = next(each for each in landed_files(partition(landing, "gone", "main", 0)) if f"{FIRST_MS}" in each.name)
    key = file.relative_to(landing).as_posix()
    told = ("pings of one client were removed from 1 landed files",)
    store.studies.note("gone", "forgotten", told, at=WHEN, by="an operator", versions={"main": (1,)}, files=(key,))
    rewrite(file, lambda table: table.filter([each.as_py() != client for each in table["client_id"]]))
