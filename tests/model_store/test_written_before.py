"""Data of earlier code stay readable, can be continued, and give the same bits when recomputed.

Each folder is as fedping wrote it at the time. Never rewrite one.

`written_by_1`, before versions could be `continued`: a study of interactions with a rollback, and one of model updates
with blocks of weights, Adam, and late pings.

`written_by_2`, before documents had formats: a line for every optimizer and every aggregation, with each constraint,
one with late pings, one with a rollback that was then continued at a higher number; a laboratory run that was stopped
after its first repetition; and a simulated study that was killed in a round.
"""

import json
import shutil
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml as laboratory_file
from fedping.experiments.simulate import experiment_from_toml as simulation_file
from fedping.experiments.simulate import simulate
from fedping.model_store import ModelStore, open_store
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.rounds import FIRST_MS, WHEN, crowd, land
from tests.support.small_experiment import contents

HERE = Path(__file__).parent
DIGESTS: dict[str, dict[str, str]] = {
    kept: json.loads((HERE / kept / "digests.json").read_text()) for kept in ("written_by_1", "written_by_2")
}
VERSIONS = [(kept, place) for kept, places in DIGESTS.items() for place in places if "/" in place]
ENGINE = NumpyEngine()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / "written_by_1", tmp_path / "kept"))


@pytest.fixture
def store(folder: Path) -> ModelStore:
    return open_store(folder / "store")


def test_an_older_store_is_listed(store: ModelStore) -> None:
    assert store.studies.names() == ["models", "study"]
    assert [store.iterations(name, "main") for name in ("models", "study")] == [list(range(5)), list(range(6))]
    for name in store.studies.names():
        assert (
            store.head(name, "main").iteration
            == store.lines.newest(name, "main")
            == store.lines.newest_from(name, "main", -1)
        )
        assert (store.lines.trouble(name, "main"), store.lines.notes(name, "main")) == (None, [])


@pytest.mark.parametrize(("kept", "place"), VERSIONS)
def test_an_older_version_has_its_digest_and_is_computed_again_to_the_bit(kept: str, place: str) -> None:
    study, line, number = place.split("/")
    store = open_store(HERE / kept / "store")
    assert store.version(study, line, int(number)).digest == DIGESTS[kept][place]
    public = HERE / kept / "store" / study / line / "public" / f"{number}.json"
    assert store.public.document(study, line, int(number)) == public.read_bytes()
    again = recompute(store, HERE / kept / "landing", study, line, int(number), ENGINE)
    assert (again.identical, again.differences) == (True, ())


def test_an_older_store_goes_on(store: ModelStore, folder: Path) -> None:
    land(folder / "landing", crowd(6, seed=9, version=5), iteration=5, at_ms=FIRST_MS + 90)
    result = run_round(
        store, folder / "landing", "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="new")
    )
    assert result.status == "published"
    assert store.head("study", "main").parent_digest == DIGESTS["written_by_1"]["study/main/5"]
    assert recompute(store, folder / "landing", "study", "main", 6, ENGINE).identical


def test_an_older_laboratory_run_goes_on_and_keeps_what_is_finished(tmp_path: Path) -> None:
    kept = Path(shutil.copytree(HERE / "written_by_2" / "laboratory", tmp_path / "kept"))
    experiment = laboratory_file(kept / "small.toml")
    assert experiment.digest == DIGESTS["written_by_2"]["laboratory"]
    finished = {name: data for name, data in contents(kept / "out").items() if "seed-1" in name}
    assert len(finished) == 24
    summary = run_experiment(experiment, kept / "out", jobs=1)
    now = contents(kept / "out")
    # Their AUC was computed from bins, and decided which round was best and when a baseline ended. So they were run
    # again together with the others, with the same final weights except last bits, which depend on the linear
    # algebra.
    weights = [name for name in finished if name.startswith("runs/") and name.endswith("last.npy")]
    assert len(weights) == 3
    for name in weights:
        np.testing.assert_allclose(np.load(BytesIO(now[name])), np.load(BytesIO(finished[name])), rtol=1e-9)
    then = msgspec.json.decode((kept / "expected_summary.json").read_bytes())
    assert (summary.name, summary.digest, set(summary.variants)) == (
        then["name"],
        then["digest"],
        set(then["variants"]),
    )
    assert {row.runs for row in (*summary.variants.values(), *summary.baselines.values())} == {2}


def test_an_older_simulation_goes_on(tmp_path: Path) -> None:
    kept = Path(shutil.copytree(HERE / "written_by_2" / "simulation", tmp_path / "kept"))
    before = contents(kept / "out" / "store")
    simulate(*simulation_file(kept / "experiment.toml"), kept / "out", threads=1)
    store = open_store(kept / "out" / "store")
    assert store.iterations("small", "main") == [0, 1, 2, 3]
    now = contents(kept / "out" / "store")
    assert all(now[name] == data for name, data in before.items() if not name.endswith("latest.json"))
    for number in store.iterations("small", "main"):
        assert recompute(store, kept / "out" / "landing", "small", "main", number, ENGINE).identical
