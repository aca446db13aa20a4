"""A user's own network as a study: its arrays are the blocks, a fleet trains it over HTTP, rounds add its updates."""

import asyncio
import importlib
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow.dataset as ds
import pytest

from fedping.client_sim.fleet import FleetSettings, join_study
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.joining.examples import wanted_by
from fedping.client_sim.joining.protected import ProtectedRows
from fedping.client_sim.joining.terms import model_of
from fedping.client_sim.learning import learner_for
from fedping.client_sim.learning.batch import Examples, with_keys_of_step
from fedping.client_sim.learning.study_files import study_from_toml
from fedping.model_store.store import open_store
from fedping.protocol import extensions
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import ModelSpec, SingleNumbers, Zeros
from fedping.protocol.study import Study, public_json, public_study
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.ingest_server import running_ingest

pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("equinox")

import fedping
from tests.support import networks  # noqa: F401 - registers them

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUDY = """
name = "digits"
pings = "model-update"
arms = [{ name = "treatment", share = 1.0, line = "main", applies = true, submits = true }]

[[lines]]
name = "main"
upload = [{ link = "levels", bits = 4 }]

[lines.spec]
name = "digits"
model = "of-functions"
settings = { features = 6, classes = 3, width = 4, dropout = 0.25, seed = 3 }

[lines.training]
algorithm = "local"
steps = 3
batch = 2
rate = 0.3

[lines.pipeline]
min_clients = 5
optimizer = { optimizer = "gradient_descent", rate = 1.0 }
"""
WHEN = "2026-01-01T00:00:00.000+00:00"


def study_file(folder: Path, **replaced: str) -> Path:
    text = STUDY
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "study.toml").write_text(text)
    return folder / "study.toml"


def test_a_study_file_leaves_the_blocks_to_the_network(tmp_path: Path) -> None:
    study = fedping.create_study(study_file(tmp_path), tmp_path / "store")
    spec = study.lines[0].spec
    assert {block.name: block.shape for block in spec.blocks} == {
        "head.bias": (3,), "head.kernel": (4, 3), "hidden.bias": (4,), "hidden.kernel": (6, 4),
    }  # fmt: skip
    assert len(str(spec.settings["code"])) == 64
    start = learner_for(spec).start
    np.testing.assert_array_equal(spec.start_array, start)
    stored = open_store(tmp_path / "store").version("digits", "main", 0)
    np.testing.assert_array_equal(stored.model, start)
    again = fedping.create_study(study_file(tmp_path), tmp_path / "store")
    assert again == study
    assert spec.start_array.any()
    public = msgspec.json.decode(public_json(public_study(study)))
    assert msgspec.convert(public["lines"][0]["spec"], ModelSpec).digest == spec.digest, "clients hold versions to it"


def test_layers_that_stay_with_the_client_are_no_part_of_the_study(tmp_path: Path) -> None:
    personal = 'personal = { by = "partly_local", local = ["head"], rate = 0.1 }\nalgorithm = "local"'
    study = study_from_toml(
        study_file(tmp_path, **{'algorithm = "local"': personal, "submits = true": "submits = true, personal = true"})
    )
    assert [block.name for block in study.lines[0].spec.blocks] == ["hidden.bias", "hidden.kernel"]


def test_a_setting_that_does_not_fit_is_told_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidSettings, match=r"study.toml: .*'of-functions': .*no setting 'wide'; did you mean 'width'"
    ):
        study_from_toml(study_file(tmp_path, width="wide"))


def test_a_fleet_trains_it_and_a_round_adds_its_updates(tmp_path: Path) -> None:
    """The network is compiled, which takes some seconds."""
    study, moved = trained(tmp_path, {"numpy": NumpyEngine()})
    landed = ds.dataset(tmp_path / "landing", partitioning="hive").to_table().to_pandas()
    assert len(landed) == 20
    assert landed["update"].map(len).max() < 4 * study.lines[0].spec.m, "a link makes them small"
    assert 1e-3 < np.abs(moved["numpy"]).max() < 10


@pytest.mark.long
@pytest.mark.spark
def test_a_round_on_spark_adds_the_same(spark: "SparkSession", tmp_path: Path) -> None:
    _, moved = trained(tmp_path, {"spark": SparkEngine(lambda: nullcontext(spark)), "numpy": NumpyEngine()})
    np.testing.assert_array_equal(moved["spark"], moved["numpy"])


def trained(folder: Path, engines: dict[str, Any]) -> tuple[Study, dict[str, np.ndarray]]:
    """Return the study, and the change of the weights by each engine's round on the same pings."""
    study = fedping.create_study(study_file(folder), folder / "store")
    with running_ingest(folder / "store", folder / "landing", "--workers", "1") as server:
        with asyncio.Runner() as runner:
            fleet = runner.run(join_study(HttpTransport(server.url), "digits", FleetSettings(clients=20, seed=4)))
            summary = runner.run(fleet.run_iteration())
            runner.run(fleet.close())
        server.flush()
    assert summary.pings.rejected_by_reason == {}
    moved = {}
    for name, engine in engines.items():
        store = open_store(Path(shutil.copytree(folder / "store", folder / name)))
        options = RoundOptions(clock=lambda: WHEN, code_version="test")
        assert run_round(store, folder / "landing", "digits", "main", engine, options).status == "published"
        before, after = (np.array(store.version("digits", "main", number).model) for number in (0, 1))
        moved[name] = after - before
    return study, moved


def test_an_institution_trains_networks_that_it_has_installed(tmp_path: Path) -> None:
    study = study_from_toml(study_file(tmp_path))
    public = public_study(study)
    assert model_of(public, public.lines[0]).features == 6  # type: ignore[attr-defined]
    other = msgspec.structs.replace(
        public.lines[0], spec=msgspec.structs.replace(public.lines[0].spec, model="elsewhere")
    )
    with pytest.raises(InvalidSettings, match=r"model 'elsewhere', and 'fedping join' trains .*cnn.*of-functions"):
        model_of(public, other)


def test_protected_rows_are_those_of_evaluation(tmp_path: Path) -> None:
    """Without noise and with short gradients, their mean equals the gradient, and no row is dropped."""
    model = learner_for(study_from_toml(study_file(tmp_path)).lines[0].spec)
    random = np.random.default_rng(2)
    batch = Examples(0.1 * random.normal(size=(1, 20, 6)), random.integers(0, 3, (1, 20)), np.ones((1, 20)))
    protected = ProtectedRows(model, 1e-9)
    protected.begin(random.bytes, 10)
    losses, gradients = protected.losses_and_gradients(model.start, with_keys_of_step(batch, np.zeros(1, np.uint64), 0))
    np.testing.assert_allclose(gradients, model.gradients(model.start, batch), atol=1e-3)
    np.testing.assert_allclose(losses, model.losses(model.start, batch), atol=1e-2)


@pytest.mark.parametrize(
    ("package", "use", "says"),
    [
        ("jax", lambda: fedping_spec("plain-of-tests", {}), 'needs JAX, .* pip install "fedping.jax."'),
        ("flax.linen", lambda: fedping.flax_network(None, 4), "a module of Flax needs flax, .* pip install flax"),
        (
            "equinox",
            lambda: fedping.equinox_network(dict, 4),
            "a module of Equinox needs equinox, .* pip install equinox",
        ),
    ],
)
def test_a_package_that_is_missing_is_named(package: str, use: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        if name == package:
            raise ImportError(name)
        return importlib.import_module(name)

    monkeypatch.setattr("fedping.client_sim.learning.networks.network.import_module", missing)
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))
    fedping.model("plain-of-tests")(plain_of_tests)
    with pytest.raises(InvalidSettings, match=says):
        use()


def plain_of_tests() -> fedping.Network:
    """Return a network with two weights."""
    return fedping.Network(lambda key: {"a": np.zeros(2)}, lambda weights, x: x @ weights["a"], 2)


def test_an_institution_is_told_which_table_it_needs() -> None:
    for name, classes in (("of-linen", 4), ("of-nnx", 3)):
        spec = fedping_spec(name, {"classes": classes})
        wanted = wanted_by(learner_for(spec), "the model")
        assert (wanted.features, wanted.classes, wanted.predicts) == (64, classes, True)


def fedping_spec(name: str, settings: dict[str, Any]) -> ModelSpec:
    from fedping.client_sim.learning import model_spec

    return model_spec(name, settings)


@pytest.mark.parametrize(
    ("text", "says"), [("AAAAAAA=", "not 2 single"), ("%%%%%%%%", "not 2"), ("AADAfwAAAAA=", "finite")]
)
def test_a_start_that_is_none_is_refused(text: str, says: str) -> None:
    block = {
        "name": "a",
        "shape": [2],
        "step": {"start": 0.1, "min": 0.1, "max": 1},
        "start": {"values": "float32", "base64": text},
    }
    with pytest.raises(InvalidSettings, match=says):
        msgspec.convert({"name": "x", "model": "of-linen", "blocks": [block]}, ModelSpec)
    assert SingleNumbers.of(np.zeros(3)) == Zeros()
    np.testing.assert_array_equal(SingleNumbers.of(np.array([1.5, -2.0])).values("a", 2), [1.5, -2.0])
