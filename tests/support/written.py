"""Writes small documents of every kind, to compare between versions of Python.

    python -m tests.support.written write FOLDER    write all documents
    python -m tests.support.written check FOLDER    write them again elsewhere and compare byte by byte; recompute
                                                    every version of the folder's store from its landed pings

`.ci/run` writes with one Python and checks with every other one; the packages are the lock file's, which has a newer
NumPy and SciPy for 3.12 and later than for 3.11.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np

from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml as laboratory_file
from fedping.experiments.laboratory.units import problem_digest
from fedping.experiments.run_folder import ENVIRONMENT
from fedping.experiments.simulate import experiment_from_toml as simulation_file
from fedping.experiments.simulate import simulate
from fedping.model_store.decisions import rollback
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.digest import digest_of
from fedping.protocol.draws import bits, child_keys, root_key, uniforms
from fedping.protocol.enrolment import hash_fraction
from fedping.protocol.json_schema import write_schemas
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.study import study_from_toml
from fedping.protocol.training import OwnTraining
from fedping.server_jobs.round import RoundOptions, engine_named, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.laboratory import small_file
from tests.support.rounds import FIRST_MS, WHEN, Ping, store_with, table_of
from tests.support.small_experiment import contents, experiment_file
from tests.support.versions import small_study

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "experiments"
CLIENTS = tuple(str(UUID(int=number << 64 | 0x4000_8000_0000_0000_0000, version=4)) for number in range(64))


def exact_pings(version: int) -> list[Ping]:
    """Return 32 clients' pings whose sums are exact, so that all processors agree."""
    return [
        Ping(
            document=100 * version + n, client=n, update=((n % 8 - 2) / 4, (n % 5 - 3) / 8), version=version, loss=n / 4
        )
        for n in range(32)
    ]


def write_store(folder: Path) -> ModelStore:
    """Write a store of six versions, including a rollback and a change of settings, and the pings of their rounds."""
    landing = folder / "landing"
    store = store_with(folder / "store", small_study())
    for n in range(5):
        if n == 3:
            rollback(store, "study", "main", 1, created=WHEN, code_version="test")
            continue
        if n == 4:
            _change(store)
        pings = table_of(exact_pings(n))
        write_landed(partition(landing, "study", "main", n), pings, FIRST_MS + n, token=f"{n:012x}")
        run_round(store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test"))
    return store


def _change(store: ModelStore) -> None:
    """Change settings of the study, so that earlier and later versions have different ones."""
    study = store.study("study")
    line = study.lines[0]
    fewer = msgspec.structs.replace(line, pipeline=msgspec.structs.replace(line.pipeline, min_clients=2))
    told = ("lines.main.pipeline.min_clients: 1 -> 2",)
    store.studies.change(msgspec.structs.replace(study, lines=(fewer,)), told, at=WHEN, by="test", after=0)


def digests() -> dict[str, str]:
    """Return identities by name: digests of settings, and draws from seeds.

    They don't depend on the processor.
    """
    found = {}
    for file in ("firefox_2018.toml", "linear.toml", "demo.toml"):
        study = study_from_toml(SHIPPED / file)
        found |= {f"{file}: study": study.digest}
        for line in study.lines:
            found |= {f"{file}: {line.name}": digest_of(line), f"{file}: {line.name}: spec": line.spec.digest}
    for path in (SHIPPED / "breast_cancer.toml", *sorted((SHIPPED / "papers").glob("*.toml"))):
        experiment = laboratory_file(path)
        if not any(isinstance(setup.training, OwnTraining) for setup in experiment.variants.values()):
            found[f"{path.name}: experiment"] = experiment.digest  # the others change with the code that they name
        for name, setup in experiment.variants.items():
            found[f"{path.name}: {name}: problem"] = problem_digest(setup)
    positions = [hash_fraction("firefox-2018", client).hex() for client in CLIENTS]
    keys = child_keys(root_key(2018), np.arange(1000))
    found["enrolment"] = hashlib.sha256("".join(positions).encode()).hexdigest()
    found["keys"] = hashlib.sha256(bits(keys, 7).astype("<u8").tobytes()).hexdigest()
    found["uniforms"] = hashlib.sha256(uniforms(keys, 7).astype("<f8").tobytes()).hexdigest()
    generators = np.random.SeedSequence(2018).spawn(3)
    drawn = [np.random.default_rng(each).integers(0, 2**63, 100).astype("<i8").tobytes() for each in generators]
    found["generators"] = hashlib.sha256(b"".join(drawn)).hexdigest()
    return found


def write(folder: Path) -> None:
    """Write all documents into a new folder."""
    folder.mkdir(parents=True)
    write_schemas(folder / "schema")
    store = write_store(folder)
    versions = {f"version {n}": store.version("study", "main", n).digest for n in store.iterations("study", "main")}
    (folder / "digests.json").write_bytes(msgspec.json.format(msgspec.json.encode(digests() | versions)))
    simulate(*simulation_file(experiment_file(folder / "study")), folder / "simulated", threads=1)
    run_experiment(laboratory_file(small_file(folder / "laboratory")), folder / "laboratory" / "out", jobs=2)


def comparable(folder: Path) -> dict[str, bytes]:
    """Return the written files by path, without durations and the record of the Python and NumPy versions."""
    found = {name: data for name, data in contents(folder).items() if Path(name).name != ENVIRONMENT}
    for name, data in found.items():
        if name.endswith("run.json"):
            found[name] = msgspec.json.encode(msgspec.json.decode(data) | {"seconds": None})
    return found


def check(folder: Path) -> list[str]:
    """Return the differences, as sentences, when this Python writes the documents or recomputes the folder's store."""
    with tempfile.TemporaryDirectory() as temporary:
        own = Path(temporary) / "own"
        write(own)
        theirs, ours = comparable(folder), comparable(own)
    told = [f"{name} is not the same" for name in sorted(theirs | ours) if theirs.get(name) != ours.get(name)]
    store = open_store(folder / "store")
    for name in ("numpy", "spark"):
        with engine_named(name) as engine:
            for n in store.iterations("study", "main"):
                again = recompute(store, folder / "landing", "study", "main", n, engine)
                told += [f"version {n} by {name}: {difference}" for difference in again.differences]
    simulated = open_store(folder / "simulated" / "store")
    for n in simulated.iterations("small", "main"):
        again = recompute(simulated, folder / "simulated" / "landing", "small", "main", n, NumpyEngine())
        told += [f"simulated version {n}: {difference}" for difference in again.differences]
    return told


def main(what: str, where: str) -> int:
    """Write the documents, or check them and print the differences; return the exit code."""
    if what == "write":
        write(Path(where))
        return 0
    for sentence in (told := check(Path(where))):
        print(sentence)
    print(f"Python {sys.version.split()[0]}: {'not ' if told else ''}the same as what lies in {where}")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
