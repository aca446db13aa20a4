"""Clients' state between rounds: kept in memory or a file, unchanged by a stop, and never in a ping."""

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedping.client_sim.fleet import FleetSettings, join_study
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning import (
    ALGORITHMS,
    ClientStates,
    Kept,
    MemoryStates,
    Model,
    State,
    StateFile,
    in_memory,
    learner_for,
    model_spec,
    updates_of_fleet,
)
from fedping.client_sim.learning.mini_batches import mini_batches
from fedping.client_sim.learning.models.arrays import array
from fedping.client_sim.learning.states import StatesOf, open_states
from fedping.experiments.laboratory.resuming import MappedStates
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment
from fedping.experiments.laboratory.units import units_of
from fedping.protocol.draws import Keys, child_keys, root_key
from fedping.protocol.errors import FedpingError
from fedping.protocol.pipeline import GradientDescent
from fedping.protocol.spec import Block
from fedping.protocol.study import Study
from fedping.protocol.training import LocalSteps, OneGradient, Training
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.client_sim.test_fleet_learning import STUDY, WHEN, created, spec_of, study_of
from tests.support import forked
from tests.support.effort import few_or_all
from tests.support.fleets import PlannedTransport, fleet_study
from tests.support.ingest_server import running_ingest
from tests.support.laboratory import small
from tests.support.virtual_time import in_virtual_time

MARK = 0.123456789
FIRST: State = {"control": np.full(3, MARK), "trainings": np.zeros((), np.int64)}


class Memory:
    """Descent corrected by the client's state: a running mean of its own gradients, and their number."""

    def __init__(self, training: OneGradient) -> None:
        self._training = training

    def init_state(self, model: Model[Any]) -> State:
        return {"control": np.full(len(model.weight_names), MARK), "trainings": np.zeros((), np.int64)}

    def update(self, model: Model[Any], weights: Any, batch: Any, keys: Keys, state: State) -> tuple[Any, State]:
        descent = -model.gradients(weights, batch)
        control = (state["control"] + descent) / 2
        return descent + 0.1 * control, {"control": control, "trainings": state["trainings"] + 1}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, OneGradient, Memory)


def places(tmp_path: Path) -> list[StatesOf]:
    return [in_memory, StateFile(tmp_path / "state.sqlite").of]


def test_a_place_gives_back_what_was_saved_last_and_the_first_state_before(tmp_path: Path) -> None:
    for states_of in places(tmp_path):
        states = states_of("a", FIRST)
        before = states.load(np.array([7, 3]))
        assert (before["control"] == MARK).all()
        assert before["trainings"].tolist() == [0, 0]
        for number, clients in enumerate(([3, 900, 7], [900, 1], [2], list(range(1000, 3000)))):
            value = np.arange(len(clients) * 3.0).reshape(-1, 3) + number
            states.save(np.array(clients), {"control": value, "trainings": np.full(len(clients), number)})
            found = states.load(np.array(clients[::-1]))
            assert np.array_equal(found["control"], value[::-1])
        found = states.load(np.array([5, 7, 900, 2]))
        assert found["trainings"].tolist() == [0, 0, 1, 2]
        assert found["control"].tolist() == [[MARK] * 3, [6, 7, 8], [1, 2, 3], [2, 3, 4]]
        found["control"][:] = 0
        assert states.load(np.array([7]))["control"].tolist() == [[6, 7, 8]], "what is loaded is a copy"


def test_a_file_keeps_owners_apart_and_outlives_the_process_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with StateFile(path) as file:
        for owner, number in (("a", 1.0), ("b", 2.0)):
            file.of(owner, FIRST).save(
                np.array([4]), {"control": np.full((1, 3), number), "trainings": np.ones(1, int)}
            )
    with StateFile(path) as file:
        assert [file.of(owner, FIRST).load(np.array([4]))["control"][0, 0] for owner in "abc"] == [1.0, 2.0, MARK]
        with pytest.raises(FedpingError, match=r"keeps the state of a as control:<f8\[3\]"):
            file.of("a", {"control": np.zeros(4)})
        with pytest.raises(FedpingError, match="is in use by another process"):
            StateFile(path)
    (tmp_path / "other").write_text("nothing of the kind, but long enough to be looked at" * 100)
    with pytest.raises(FedpingError, match=r"cannot keep the state of clients in .*other"):
        StateFile(tmp_path / "other")


DAMAGED = r"state.sqlite is damaged. Delete it, and clients begin again"


@pytest.mark.parametrize("row", ["x'00'", "5", "'abcdefghijklmnopqrstuvwx'", f"x'{'000000000000f87f' * 3}'"])
def test_a_row_that_is_no_state_is_told(tmp_path: Path, row: str) -> None:
    path, first = tmp_path / "state.sqlite", {"control": np.zeros(3)}
    with StateFile(path) as file:
        file.of("a", first).save(np.arange(5), {"control": np.ones((5, 3))})
    for change in (f"state = {row} WHERE client = 2", "client = 6 WHERE client = 2", "owner = 9 WHERE client = 2"):
        (tmp_path / "copy").mkdir(exist_ok=True)
        copy = Path(shutil.copy(path, tmp_path / "copy" / "state.sqlite"))
        with sqlite3.connect(copy) as damaged:
            damaged.execute(f"UPDATE states SET {change}")
        damaged.close()
        with pytest.raises(FedpingError, match=DAMAGED):
            StateFile(copy)


@pytest.mark.thorough
def test_a_bit_that_flips_anywhere_is_told_or_changes_nothing(tmp_path: Path) -> None:
    path, clients = tmp_path / "state.sqlite", np.arange(0, 400, 7)
    saved = {"control": np.arange(len(clients) * 3.0).reshape(-1, 3), "trainings": np.ones(len(clients), int)}
    with StateFile(path) as file:
        file.of("a", FIRST).save(clients, saved)
    whole = path.read_bytes()
    rng, sentences = np.random.default_rng(5), []
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))  # most of the others are between the cells of a page
    for at in {*rng.choice(used, few_or_all(150, 1500)).tolist(), *range(0, 100, 3)}:
        broken = bytearray(whole)
        broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            with StateFile(path) as file:
                found = file.of("a", FIRST).load(clients)
        except FedpingError as error:
            sentences.append(str(error))
        else:
            assert all(np.array_equal(found[name], saved[name]) for name in saved), f"byte {at}"
        for beside in tmp_path.glob("state.sqlite-*"):
            beside.unlink()
    assert len(sentences) > 50
    assert [sentence for sentence in sentences if str(path) not in sentence] == []


def test_a_file_of_before_there_were_checksums_is_read_and_has_them_from_then_on(tmp_path: Path) -> None:
    path, first = tmp_path / "state.sqlite", {"control": np.zeros(3)}
    with sqlite3.connect(path) as old:
        old.execute("CREATE TABLE owners (owner TEXT PRIMARY KEY, layout TEXT NOT NULL)")
        old.execute(
            "CREATE TABLE states (owner INTEGER, client INTEGER, state BLOB NOT NULL, PRIMARY KEY (owner, client)) "
            "WITHOUT ROWID"
        )
        old.execute("INSERT INTO owners VALUES ('a', 'control:<f8[3]')")
        old.execute("INSERT INTO states VALUES (1, 4, ?)", (np.full(3, 2.5).tobytes(),))
    old.close()
    for _ in range(2):
        with StateFile(path) as file:
            assert file.of("a", first).load(np.array([4, 5]))["control"].tolist() == [[2.5] * 3, [0] * 3]
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(FedpingError, match="has format 9, and this fedping reads up to format 1"):
        StateFile(path)


def flipped(path: Path, at: int) -> None:
    broken = bytearray(path.read_bytes())
    broken[at] ^= 1
    path.write_bytes(broken)


def test_a_file_whose_first_bytes_are_damaged_is_kept_aside_and_a_strangers_is_left_where_it_is(tmp_path: Path) -> None:
    path, first = tmp_path / "state.sqlite", {"control": np.zeros(3)}
    with StateFile(path) as file:
        file.of("a", first).save(np.arange(5), {"control": np.ones((5, 3))})
    with sqlite3.connect(path) as whole:
        dump = "\n".join(whole.iterdump())
    whole.close()
    for at in (0, 15, 16):  # the name of the format at both ends, and the size of a page
        flipped(path, at)
        file, aside = open_states(path)
        with file:
            assert aside is not None
            assert (file.of("a", first).load(np.arange(5))["control"] == 0).all()
            file.of("a", first).save(np.arange(5), {"control": np.ones((5, 3))})
    assert len(list(tmp_path.glob("state.sqlite.damaged*"))) == 3

    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as strangers:
        for name in ("owners", "states", "pages"):
            strangers.execute(f"CREATE TABLE {name} (owner TEXT PRIMARY KEY, layout TEXT NOT NULL)")
    strangers.close()
    (tmp_path / "dump.sql").write_text(dump * 20)
    for each, broken in ((other, None), (other, 0), (other, 100), (tmp_path / "dump.sql", None)):
        if broken is not None:
            flipped(each, broken)
        before = each.read_bytes()
        with pytest.raises(FedpingError, match="; give another file"):
            open_states(each)
        assert each.read_bytes() == before
        if broken is not None:
            flipped(each, broken)


def test_a_file_that_has_lost_its_number_keeps_its_rows(tmp_path: Path) -> None:
    path, first = tmp_path / "state.sqlite", {"control": np.zeros(3)}
    with StateFile(path) as file:
        file.of("a", first).save(np.arange(5), {"control": np.ones((5, 3))})
    for change, kept in (("", 1.0), ("UPDATE states SET state = x'00' WHERE client = 2", 0.0)):
        with sqlite3.connect(path) as damaged:
            damaged.execute("PRAGMA user_version = 0")
            damaged.execute(change)
        damaged.close()
        file, aside = open_states(path)
        with file:
            assert (aside is None) == (kept == 1.0), "a row that is damaged too is found when the file is opened"
            assert (file.of("a", first).load(np.arange(5))["control"] == kept).all()


KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from fedping.client_sim.learning import StateFile
states = StateFile(Path(sys.argv[1])).of("a", {"control": np.zeros(3)})
number = 0
while True:
    number += 1
    states.save(np.arange(200), {"control": np.full((200, 3), float(number))})
    print(number, flush=True)
"""


def test_a_kill_leaves_a_whole_save(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with forked.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout if line.endswith("\n")]
    with StateFile(path) as file:
        found = file.of("a", {"control": np.zeros(3)}).load(np.arange(200))["control"]
    assert len(np.unique(found)) == 1, "all clients of a save, or none"
    assert found[0, 0] in (said[-1], said[-1] + 1)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"control": np.zeros((2, 3))}, "has 'trainings' in its first state and not in its state after the round"),
        ({"control": np.zeros((2, 4)), "trainings": np.zeros(2)}, r"left 'control' of shape \(2, 4\)"),
        (
            {"control": np.full((2, 3), np.nan), "trainings": np.zeros(2)},
            "'control' with clients, and it is not finite",
        ),
        (
            {"control": np.zeros((2, 3)), "trainings": np.zeros(2), "more": np.zeros(2)},
            "has 'more' in its state and not in its first state",
        ),
    ],
)
def test_a_state_that_is_none_is_refused_and_the_last_one_kept(
    tmp_path: Path, state: dict[str, Any], sentence: str
) -> None:
    for states_of in places(tmp_path):
        states = states_of("a", FIRST)
        with pytest.raises(FedpingError, match=sentence):
            states.save(np.array([0, 1]), state)
        assert (states.load(np.array([0, 1]))["control"] == MARK).all()
    with pytest.raises(FedpingError, match=r"would keep .* bytes"):
        MemoryStates({"large": np.broadcast_to(0.0, 2**26)})
    with pytest.raises(FedpingError, match="'word' of clients is not an array of numbers"):
        MemoryStates({"word": np.array("a")})


@pytest.mark.usefixtures("memory")
def test_a_client_that_trains_twice_goes_on_from_its_own_first_time_whatever_the_blocks() -> None:
    spec = spec_of("linear-regression")
    model, rng = learner_for(spec), np.random.default_rng(1)
    from fedping.client_sim.fleet.examples import ExampleSettings, examples_for

    data = examples_for(spec, model, ExampleSettings(), 1).of(np.arange(6), 0, spec.start_array)
    clients = np.array([0, 0, 1, 2, 2, 2, 5])
    keys = child_keys(root_key(1), np.arange(len(clients)))
    weights = rng.normal(size=spec.m)
    found = []
    for most, threads in ((1, 1), (10**7, 1), (1, 2)):
        kept = Kept(MemoryStates(Memory(OneGradient()).init_state(model)), clients)
        sent = np.empty((len(clients), spec.m))
        for block in updates_of_fleet(model, OneGradient(), weights, data, clients, keys, most, threads, kept=kept):
            sent[block.at] = block.updates
        assert kept.states.load(np.arange(6))["trainings"].tolist() == [2, 1, 3, 0, 0, 1]
        found.append(sent)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)
    assert np.array_equal(found[2], found[0])
    assert not np.allclose(found[0][0], found[0][1])
    with pytest.raises(FedpingError, match="'gradient' keeps state with its clients, and has no place"):
        next(updates_of_fleet(model, OneGradient(), weights, data, clients, keys))


def final(experiment: Experiment, out: Path) -> Any:
    """Return the final metrics of an experiment's only run."""
    run_experiment(experiment, out, jobs=1)
    (unit,) = units_of(experiment)
    outcome = unit.folder(out).finished()
    assert outcome is not None
    return outcome.final


@pytest.mark.usefixtures("memory")
def test_the_laboratory_keeps_it_from_round_to_round_and_every_run_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = small(rounds=4, evaluation__baselines=[])
    finals = [final(chosen, tmp_path / name) for name in ("once", "again")]
    assert finals[0] == finals[1]
    monkeypatch.setattr(MappedStates, "save", lambda *_: None)
    assert final(chosen, tmp_path / "forgetful") != finals[0]


def _trained(folder: Path, study: Study, iterations: int, stop_after: int | None) -> list[list[float]]:
    """Return all versions of a study trained by a fleet over HTTP, which may be stopped and restarted once."""
    store = created(folder, study)
    path = folder / "state.sqlite"
    with (
        running_ingest(folder / "store", folder / "landing", "--workers", "1") as server,
        asyncio.Runner() as runner,
        engine_named("numpy") as engine,
    ):
        file = StateFile(path)
        fleet = runner.run(join_study(HttpTransport(server.url), STUDY, SETTINGS, states_of=file.of))
        for iteration in range(iterations):
            if iteration == stop_after:
                runner.run(fleet.close())
                file.close()
                file = StateFile(path)
                fleet = runner.run(join_study(HttpTransport(server.url), STUDY, SETTINGS, states_of=file.of))
                assert fleet.next_iteration == iteration
            runner.run(fleet.run_iteration())
            server.flush()
            done = run_round(
                store, folder / "landing", STUDY, "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test")
            )
            assert done.status == "published"
        runner.run(fleet.close())
        file.close()
    return [list(store.version(STUDY, "main", number).model) for number in store.iterations(STUDY, "main")]


SETTINGS = FleetSettings(clients=30, seed=1)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("pings", ["model-update", "frecency-update"])
def test_it_travels_in_no_ping(pings: str) -> None:
    study = study_of(spec_of("linear-regression")) if pings == "model-update" else fleet_study()
    transport, places = PlannedTransport(study), Recording()

    async def go() -> None:
        fleet = await join_study(transport, study.name, FleetSettings(clients=40, seed=1), states_of=places.of)
        await fleet.run_iteration()
        await fleet.run_iteration()

    in_virtual_time(go())
    assert places.saved
    text = b"".join(sent.body for sent in transport.sent)
    kept = {repr(float(np.float32(n))) for n in places.saved} | {repr(n) for n in places.saved}
    assert MARK in places.loaded
    assert not [number for number in kept if len(number) > 8 and number.encode() in text]
    assert repr(MARK).encode() not in text
    fields = {key for sent in transport.sent for key in msgspec.json.decode(sent.body)["payload"]}
    assert not fields & {"control", "trainings", "state"}


class Recording:
    """Storage in memory that records every stored number."""

    def __init__(self) -> None:
        self.saved: set[float] = set()
        self.loaded: set[float] = set()

    def of(self, owner: str, first: State) -> ClientStates:
        places, recording = MemoryStates(first), self

        class Noting:
            def load(self, clients: Any) -> State:
                found = places.load(clients)
                recording.loaded |= set(np.ravel(found.get("control", [])).tolist())
                return found

            def save(self, clients: Any, state: State) -> None:
                recording.saved |= set(np.ravel(state.get("control", [])).tolist())
                places.save(clients, state)

        return Noting()


class Scaffold:
    """SCAFFOLD (Karimireddy et al. 2020) with control variates of option II, as a user would write it."""

    def __init__(self, training: LocalSteps) -> None:
        self.training = training

    def init_state(self, model: Model[Any]) -> State:
        return {"control": np.zeros(len(model.weight_names))}

    def beside(self, model: Model[Any]) -> tuple[Block, ...]:
        return (array("control", (len(model.weight_names),)),)

    def update(self, model: Model[Any], weights: Any, batch: Any, keys: Keys, state: State) -> tuple[Any, State]:
        fetched, control = np.split(weights, 2)
        own, local, steps = state["control"], np.tile(fetched, (len(batch), 1)), 0
        for taken in mini_batches(self.training, keys, batch.weight):
            part = batch if taken is None else batch.only(taken)
            local = local - self.training.rate * (model.gradients(local, part) - own + control)
            steps += 1
        moved = local - fetched
        renewed = own - control - moved / (steps * self.training.rate)
        return np.concatenate([moved, renewed - own], axis=1), {"control": renewed}


SKEWED = {
    "model": {"name": "logistic-regression", "l2": 0.1},
    "partition": {"partition": "shards", "clients": 8, "shards": 1},
    "server": {"optimizer": {"optimizer": "gradient_descent", "rate": 1.0}, "weighting": "examples", "min_clients": 1},
    "evaluation": {"every": 1000, "baselines": []},
}


def test_scaffold_goes_where_gradients_go_and_plain_local_steps_drift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = {"algorithm": "local", "rate": 0.3, "steps": 10}
    drifted = final(small(rounds=60, training=local, **SKEWED), tmp_path / "local")
    right = final(small(rounds=400, training={"algorithm": "gradient"}, **SKEWED), tmp_path / "gradients")
    monkeypatch.setitem(ALGORITHMS, LocalSteps, Scaffold)
    corrected = final(small(rounds=60, training=local, **SKEWED), tmp_path / "scaffold")
    found, wanted, plain = (each["test"]["loss"] for each in (corrected, right, drifted))
    assert found == pytest.approx(wanted, rel=1e-4)
    assert abs(plain - wanted) > 3e-3 * wanted


@pytest.mark.parametrize(
    ("training", "algorithm"), [(OneGradient(), Memory), (LocalSteps(rate=0.1, steps=2), Scaffold)]
)
def test_a_fleet_over_http_goes_on_after_a_stop_as_if_there_had_been_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: Training, algorithm: type[Memory] | type[Scaffold]
) -> None:
    monkeypatch.setitem(ALGORITHMS, type(training), algorithm)
    spec = model_spec("linear-regression", {"features": 4}, training=training)
    study = study_of(spec, training, optimizer=GradientDescent(rate=0.1))
    through = _trained(tmp_path / "through", study, 3, None)
    stopped = _trained(tmp_path / "stopped", study, 3, 2)
    assert stopped == through
    assert len(through) == 4
    assert {len(version) for version in through} == {10 if algorithm is Scaffold else 5}


def test_scaffold_of_an_extension_goes_on_after_a_stop_too(tmp_path: Path) -> None:
    [setup] = small(training={"algorithm": "scaffold", "rate": 0.1, "steps": 2}).variants.values()
    spec = model_spec("linear-regression", {"features": 4}, training=setup.training)
    study = study_of(spec, setup.training, optimizer=GradientDescent())
    through = _trained(tmp_path / "through", study, 3, None)
    assert _trained(tmp_path / "stopped", study, 3, 2) == through
    assert {len(version) for version in through} == {10}
    assert any(through[-1][5:])


def test_a_damaged_file_is_kept_aside_and_clients_begin_afresh(tmp_path: Path) -> None:
    path, first = tmp_path / "state.sqlite", {"control": np.zeros(3)}
    for number in ("", "-2"):
        with StateFile(path) as file:
            file.of("a", first).save(np.arange(5), {"control": np.ones((5, 3))})
        with sqlite3.connect(path) as damaged:
            damaged.execute("UPDATE states SET state = x'00' WHERE client = 2")
        damaged.close()
        before = path.read_bytes()
        opened, aside = open_states(path)
        with opened:
            assert aside == tmp_path / f"state.sqlite.damaged{number}"
            assert aside.read_bytes() == before
            assert not opened.of("a", first).load(np.arange(5))["control"].any()
    opened, aside = open_states(path)
    with opened:
        assert aside is None


def test_a_file_tells_once_of_who_begins_afresh_beside_what_another_has_kept(tmp_path: Path) -> None:
    first, told = {"control": np.zeros(3)}, []
    for owners in (["line a, one"], ["line a, one"], ["line a, two", "line a, none"], ["line a, two", "line ab, one"]):
        with StateFile(tmp_path / "state.sqlite") as file:
            for owner in owners:
                file.of(owner, {} if owner.endswith("none") else first)
            told.append(file.begins_afresh("line a, "))
            file.of(owners[0], first).save(np.arange(5), {"control": np.ones((5, 3))})
    assert told == [False, False, True, False]


def test_a_file_that_is_no_state_file_is_left_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("what I have to do today, which is no database at all\n" * 50)
    with pytest.raises(FedpingError, match=r"cannot keep the state of clients in .*notes\.txt"):
        open_states(path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
