"""A round whose weights no client could read publishes nothing and says why; later rounds recover."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedping.client_sim.learning import Diverged
from fedping.experiments.laboratory.rounds.study import LINE, study_of
from fedping.experiments.laboratory.rounds.updates import Updates
from fedping.main import main
from fedping.model_store import open_store
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.model import ModelDocument, UnfitModel, validate_spec
from fedping.protocol.pipeline import Adagrad, Adam, GradientDescent, Momentum, Optimizer, Pipeline, RProp, Yogi
from fedping.protocol.spec import NonNegative, OrderedCutoffs
from fedping.protocol.study import Line, Study
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.laboratory_rounds import file_rounds, memory_rounds
from tests.support.rounds import FIRST_MS, WHEN, Ping, crowd, land, store_with
from tests.support.versions import small_study

ENGINE = NumpyEngine()
HUGE = [Ping(i, i, (1e30, 1e30)) for i in range(12)]


def study_with(optimizer: Optimizer, constraints: tuple[object, ...] = (NonNegative(),)) -> Study:
    study = small_study()
    line = study.lines[0]
    spec = msgspec.structs.replace(line.spec, constraints=constraints)
    line = msgspec.structs.replace(line, spec=spec, pipeline=Pipeline(min_clients=1, optimizer=optimizer))
    return msgspec.structs.replace(study, lines=(line,))


def test_twelve_pings_of_1e30_publish_nothing_and_the_command_goes_on_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, landing = store_with(tmp_path / "store", study_with(GradientDescent(rate=10.0))), tmp_path / "landing"
    bad = land(landing, HUGE)
    command = [
        "round",
        "study",
        "main",
        "--engine",
        "numpy",
        "--store",
        str(tmp_path / "store"),
        "--landing",
        str(landing),
    ]
    before = sorted(path for path in (tmp_path / "store").rglob("*"))
    for _ in range(2):
        assert main(command) == 3
        said = capsys.readouterr().err
        assert "line 'main' of study 'study' was not published: " in said
        assert "weight 'w0' would be 1e+31, and weights lie between -1e30 and 1e30" in said
        assert str(bad.parent) in said
        assert "'fedping store continue study main --from 1'" in said
        assert len(said.splitlines()) == 1
        assert sorted(path for path in (tmp_path / "store").rglob("*")) == before
    bad.rename(tmp_path / "aside.parquet")
    land(landing, crowd(5, first_document=100))
    assert main(command) == 0
    assert store.head("study", "main").iteration == 1


def test_the_line_goes_on_when_all_pings_of_the_version_are_left_behind(tmp_path: Path) -> None:
    store, landing = store_with(tmp_path / "store", study_with(GradientDescent(rate=10.0))), tmp_path / "landing"
    land(landing, HUGE)
    where = ["--store", str(tmp_path / "store"), "--landing", str(landing)]
    assert main(["round", "study", "main", "--engine", "numpy", *where]) == 3
    assert main(["store", "continue", "study", "main", "--from", "1", *where]) == 0
    assert store.head("study", "main").model == store.version("study", "main", 0).model
    land(landing, crowd(5, first_document=100, version=1), iteration=1, at_ms=FIRST_MS + 1)
    assert main(["round", "study", "main", "--engine", "numpy", *where]) == 0
    assert store.head("study", "main").lineage.aggregate.pings == 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "constraints", [(), (NonNegative(),), (NonNegative("shift"),), (OrderedCutoffs(("w0", "w1")),)]
)
@pytest.mark.parametrize(
    "optimizer",
    [
        GradientDescent(rate=1e30),
        GradientDescent(),
        Momentum(rate=1e30),
        Adam(rate=1e30),
        Yogi(rate=1e30),
        Adagrad(rate=1e30),
        RProp(),
    ],
    ids=lambda optimizer: f"{type(optimizer).__name__}-{getattr(optimizer, 'rate', 0)}",
)
@pytest.mark.parametrize("value", [1e30, -1e30, 3.4e38])
def test_whatever_the_pings_what_is_published_can_be_read(
    tmp_path: Path, optimizer: Optimizer, constraints: tuple[object, ...], value: float
) -> None:
    study, landing = study_with(optimizer, constraints), tmp_path / "landing"
    store = store_with(tmp_path / "store", study)
    for n in range(3):
        land(
            landing, [Ping(9 * n + i, i, (value, -value), version=n) for i in range(3)], iteration=n, at_ms=FIRST_MS + n
        )
        try:
            run_round(store, landing, "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="t"))
        except UnfitModel:
            break
    looked = open_store(tmp_path / "store")
    for number in looked.iterations("study", "main"):
        document = msgspec.json.decode(looked.public.document("study", "main", number), type=ModelDocument)
        assert validate_spec(document.model, study.lines[0].spec) is None
        assert len(document.model) == 2
        assert looked.version("study", "main", number).digest
    assert looked.head("study", "main").iteration == looked.iterations("study", "main")[-1]
    assert landed_files(partition(landing, "study", "main", 0))


def test_what_breaks_the_spec_is_told_by_name() -> None:
    spec = study_with(RProp(), (NonNegative(), OrderedCutoffs(("w0", "w1"), gap=3.0))).lines[0].spec
    assert validate_spec((1.0, 4.0), spec) is None
    assert "'w1' would be 4.5, which is not a whole number" in (validate_spec((1.0, 4.5), spec) or "")
    assert "'w0' would be -1, below zero" in (validate_spec((-1.0, 4.0), spec) or "")
    assert "'w1' would be 3, less than 3 above 'w0'" in (validate_spec((1.0, 3.0), spec) or "")
    assert "'w0' would be 0.5, below 1" in (validate_spec((0.5, 4.0), spec) or "")


def test_the_laboratory_ends_a_run_there_in_memory_and_in_files_alike(tmp_path: Path) -> None:
    line = study_with(GradientDescent(rate=10.0)).lines[0]
    study = study_of(Line(name=LINE, spec=line.spec, pipeline=line.pipeline))
    ids = np.random.default_rng(1).integers(0, 256, (12, 16), dtype=np.uint8)
    clients = np.arange(12)
    ones = np.ones(12, dtype=np.int64)
    block = Updates(clients, 0 * ones, ones, np.full((12, 2), 1e30, np.float32), np.ones(12), ones)
    told = []
    for rounds in (memory_rounds(study.lines[0], ids), file_rounds(tmp_path, study, ENGINE, ids)):
        before = rounds.weights.copy()
        with pytest.raises(Diverged, match=r"weight 'w0' would be 1e\+31") as error:
            rounds.run([block])
        assert (rounds.weights == before).all()
        told.append(str(error.value))
    assert told[0] == told[1]
