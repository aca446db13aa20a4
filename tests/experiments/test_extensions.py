"""Extensions from outside the checkout: a package with an entry point, one of each kind, in all kinds of runs."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import fedping as product
from fedping.client_sim.models import model_for
from fedping.client_sim.population.synthetic import true_weights
from fedping.client_sim.sampling import sampler_for
from fedping.creating import as_stored
from fedping.dashboard.runs.form.nodes import choices_of, fields_of
from fedping.dashboard.runs.form.schema import laboratory_form, laboratory_nodes
from fedping.dashboard.runs.form.values import filled_form, tables_of
from fedping.dashboard.runs.judging import Judged, Problem, judge
from fedping.experiments.laboratory.models import data_sets
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, experiment_of
from fedping.experiments.laboratory.settings.merging import merged, nested
from fedping.experiments.laboratory.summary import Summary
from fedping.experiments.run_folder import OtherRun
from fedping.model_store.store import open_store
from fedping.protocol import extensions
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import ExtensionFailed, OtherCode
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.settings_file import converted, toml_text
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import BrokenLink, Transformation, first_state, first_versions, step_arrays
from fedping.server_jobs.round import engine_named, recompute
from fedping.server_jobs.spark.session_pool import SessionPool
from fedping.server_jobs.spark.shipping import own_sources
from tests.support.laboratory import small
from tests.support.registry import registry_of_its_own
from tests.support.versions import WHEN, small_study

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests/support/outside/fedping_outside.py"

TABLES: dict[str, Any] = {
    "rounds": 4,
    "model": {"name": "linear-regression"},
    "data": {"name": "plane", "settings": {"rows": 120}},
    "partition": {"partition": "stripes", "clients": 5, "leave_out": 3},
    "training": {"algorithm": "control-variates", "rate": 0.1},
    "upload": [{"link": "doubled", "by": 4}, {"link": "fixed-point", "bits": 24}],
    "sampling": {"sampling": "largest", "clients": 3},
    "server": {"optimizer": {"optimizer": "lion", "rate": 0.3}, "aggregate": {"by": "trimmed", "share": 0.2}},
    "evaluation": {"metrics": ["spread", {"metric": "near", "within": 2}], "metric": "near", "baselines": ["start"]},
}


def experiment(**changes: Any) -> Experiment:
    """Return the experiment with settings changed by dotted keys with '__' for '.'."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return experiment_of(merged(TABLES, nested(dotted)), name="outside", folder=Path())


def run(settings: Experiment, out: Path) -> Summary:
    """Run an experiment in this process."""
    return run_experiment(settings, out, jobs=1)


def install(site: Path, source: str) -> None:
    """Put a module, with the metadata that pip would write, into a folder."""
    about = site / "fedping_outside-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fedping-outside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedping.extensions]\noutside = fedping_outside\n")
    (site / "fedping_outside.py").write_text(source)
    shutil.rmtree(
        site / "__pycache__", ignore_errors=True
    )  # Python doesn't notice a changed source of the same second and size


def forget() -> None:
    """Make this process forget all extensions except fedping's own, which are imported only once.

    The networks of other tests are also kept.
    """
    for key, extension in list(extensions._registered.items()):
        if not extension.make.__module__.startswith(("fedping.", "tests.support.networks")):
            del extensions._registered[key]
    extensions._loaded = False
    sys.modules.pop("fedping_outside", None)
    for cached in (laboratory_form, laboratory_nodes, data_sets):
        cached.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder with the extensions' package installed, for this process and its children."""
    folder = tmp_path / "site"
    install(folder, SOURCE.read_text())
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    forget()
    yield folder
    forget()


def fedping(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "fedping", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def run_of(out: Path) -> Path:
    """Return the folder of the only run."""
    [found] = out.glob("**/federated/seed-1")
    return found


@pytest.mark.usefixtures("site")
def test_one_of_each_kind_comes_to_the_same_in_memory_in_files_and_over_http(tmp_path: Path) -> None:
    weights = {}
    for where in ("memory", "files", "http"):
        summary = run(experiment(where=where), tmp_path / where)
        weights[where] = np.load(run_of(tmp_path / where) / "last.npy")
    assert summary.shown[0] == "near"
    np.testing.assert_array_equal(weights["files"], weights["memory"])
    np.testing.assert_allclose(weights["http"], weights["memory"], rtol=1e-12)
    assert np.abs(weights["memory"]).max() == pytest.approx(4 * 0.3, abs=1e-6)  # four steps of Lion's one size


@pytest.mark.spark
@pytest.mark.usefixtures("site", "warm_commands")
def test_they_come_to_the_same_on_spark(tmp_path: Path) -> None:
    run(experiment(), tmp_path / "memory")
    run(experiment(where="files", engine="spark"), tmp_path / "spark")
    found = [np.load(run_of(tmp_path / where) / "last.npy") for where in ("memory", "spark")]
    np.testing.assert_array_equal(*found)


@pytest.fixture
def at_work(spark: Any) -> Any:
    """Give a Spark session with started Python workers, so that they don't see packages installed later."""
    assert spark.sparkContext.parallelize(range(4), 2).map(abs).sum() == 6
    return spark


@pytest.mark.spark
def test_they_come_to_the_same_on_executors_that_do_not_have_them(at_work: Any, site: Path, tmp_path: Path) -> None:
    run(experiment(), tmp_path / "here")
    run_experiment(experiment(), tmp_path / "there", spark=SessionPool(lambda: nullcontext(at_work)))
    found = [np.load(run_of(tmp_path / where) / "last.npy") for where in ("here", "there")]
    np.testing.assert_array_equal(*found)


def test_metrics_are_what_they_say(site: Path, tmp_path: Path) -> None:
    run(experiment(evaluation__local=True), tmp_path / "out")
    problem = prepare(experiment().variants["federated"], 1, None)
    weights = np.load(run_of(tmp_path / "out") / "last.npy")[:4]  # after them comes the server's control variate
    error = problem.test.x @ weights[:3] + weights[3] - problem.test.y  # type: ignore[attr-defined]
    final = json.loads((run_of(tmp_path / "out") / "run.json").read_text())["final"]
    assert final["test"]["near"] == pytest.approx(np.mean(np.abs(error) < 2))
    assert final["test"]["spread"] == pytest.approx(np.std(error))
    assert {"near", "spread"} <= final["local"].keys()


def test_what_is_written_down_has_the_code_and_all_the_settings(site: Path, tmp_path: Path) -> None:
    before = experiment()
    setup = before.variants["federated"]
    digest = extensions.registered("optimizer", "lion").code  # type: ignore[union-attr]
    said = setup.pipeline.optimizer
    assert (said.name, said.settings, said.code) == ("lion", {"rate": 0.3, "beta": 0.9}, digest)  # type: ignore[union-attr]
    assert [each.settings for each in setup.upload] == [{"by": 4.0, "breaks": ""}, {"bits": 24, "most": 100.0}]  # type: ignore[union-attr]
    assert all(len(each.code) == 64 for each in setup.upload)  # type: ignore[union-attr]
    assert setup.data.settings == {"rows": 120, "noise": 0.1, "seed": 1}
    assert len(setup.data.code) == 64
    install(site, SOURCE.read_text().replace("SMALLEST = 1e-12", "SMALLEST = 1e-11"))  # which only a helper uses
    forget()
    after = experiment()
    assert after.digest != before.digest
    assert after.variants["federated"].data == setup.data
    install(site, SOURCE.read_text() + "\n\n# nothing that matters to anybody\n")
    forget()
    assert experiment().digest == before.digest


def test_what_an_earlier_fedping_recorded_of_the_text_goes_on_as_the_same_code(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(extensions, "source_digest", lambda make, name, **_: extensions.digest_as_written(make, name))
        forget()
        before, out = experiment(where="files"), tmp_path / "out"
        summary = run(before, out)
        study, store = small_study_of(before), open_store(tmp_path / "store", create=True)
        store.create_study(study, first_versions(study, created=WHEN, code_version="1"))
    written = {file: file.stat().st_mtime_ns for file in out.rglob("last.npy")}
    forget()
    now = experiment(where="files")
    assert now.digest != before.digest
    assert run(now, out) == summary
    assert {file: file.stat().st_mtime_ns for file in out.rglob("last.npy")} == written
    with engine_named("numpy") as engine:
        folder = run_of(out)
        assert recompute(open_store(folder / "store"), folder / "landing", "laboratory", "main", 3, engine).identical
    again = small_study_of(now)
    assert again != study
    assert not store.create_study(again, first_versions(again, created=WHEN, code_version="2"))
    stored = store.study(study.name)
    assert as_stored(store, again, again) == stored
    install(site, SOURCE.read_text().replace("SMALLEST = 1e-12", "SMALLEST = 1e-11"))
    forget()
    with pytest.raises(OtherRun, match="other code of an extension"):
        run(experiment(where="files"), out)
    other = small_study_of(experiment())
    with pytest.raises(FedpingError, match="with other settings"):
        store.create_study(other, first_versions(other, created=WHEN, code_version="3"))


def small_study_of(settings: Experiment) -> Study:
    """Return a study with the server's optimizer of an experiment."""
    study = small_study()
    [line] = study.lines
    pipeline = replace(line.pipeline, optimizer=settings.variants["federated"].pipeline.optimizer)
    return replace(study, lines=(replace(line, pipeline=pipeline),))


def test_a_version_is_computed_again_to_the_bit_and_with_other_code_not_at_all(site: Path, tmp_path: Path) -> None:
    run(experiment(where="files"), tmp_path / "out")
    folder = run_of(tmp_path / "out")
    store = open_store(folder / "store")
    with engine_named("numpy") as engine:
        for iteration in range(5):
            assert recompute(store, folder / "landing", "laboratory", "main", iteration, engine).identical
        install(site, SOURCE.read_text().replace("(1 - beta) * step", "(1.0 - beta) * step"))
        forget()
        with pytest.raises(OtherCode, match=r"^version 3 of line 'main'.*'lion'.*other code.*than the recorded one"):
            recompute(store, folder / "landing", "laboratory", "main", 3, engine)
        shutil.rmtree(site)
        forget()
        with pytest.raises(InvalidSettings, match="' is an extension that is not loaded; install the package"):
            recompute(store, folder / "landing", "laboratory", "main", 3, engine)


def test_a_run_does_not_go_on_with_other_code(site: Path, tmp_path: Path) -> None:
    run(experiment(), tmp_path / "out")
    assert run(experiment(), tmp_path / "out")
    install(site, SOURCE.read_text().replace("(1 - beta) * step", "(1.0 - beta) * step"))
    forget()
    with pytest.raises(InvalidSettings, match=r"other code of an extension \('variants.federated.server.optimizer"):
        run(experiment(), tmp_path / "out")
    with pytest.raises(InvalidSettings, match="other settings"):
        run(experiment(rounds=5), tmp_path / "out")


@pytest.mark.parametrize("where", ["memory", "files"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", r"raised TypeError: .* \(fedping_outside.py, line \d+\)"),
        ("shape", r"returned a step of shape \(7,\), not \(8,\)"),
        ("nan", r"returned a step that is nan at position 0"),
        ("state", r"raised ValueError: its state 't' is not finite"),
        ("longer", "returned a state with 2 numbers 't' from update, but init returned 1 numbers 't'"),
        ("other", "returned a state with 1 numbers 'u' from update, but init returned 1 numbers 't'"),
        ("nothing", "returned a NoneType from update; return the step and the next state"),
    ],
)
@pytest.mark.usefixtures("site")
def test_one_that_breaks_is_named_with_the_round_and_nothing_is_published(
    tmp_path: Path, where: str, how: str, said: str
) -> None:
    server = {"optimizer": {"optimizer": "broken", "how": how}}
    where_it_was = "^round 2 failed" if where == "memory" else "^version 2 of line 'main'"
    with pytest.raises(BrokenLink, match=f"{where_it_was}.*: the optimizer 'broken' {said}"):
        run(experiment(where=where, server=server), tmp_path / "out")
    if where == "files":
        assert open_store(run_of(tmp_path / "out") / "store").head("laboratory", "main").iteration == 1


@pytest.mark.usefixtures("site")
def test_a_metric_that_breaks_is_named_with_the_round(tmp_path: Path) -> None:
    broken = {"metrics": [{"metric": "spread", "ddof": -1}], "metric": "spread", "baselines": []}
    with pytest.raises(ExtensionFailed, match=r"^after round 0: .*'spread'.* ValueError: negative"):
        run(experiment(evaluation=broken), tmp_path / "out")


@pytest.mark.parametrize("where", ["memory", "files"])
@pytest.mark.usefixtures("site")
def test_an_upload_link_that_breaks_is_named_with_the_round(tmp_path: Path, where: str) -> None:
    on_clients = experiment(where=where, upload=[{"link": "doubled", "breaks": "transform"}])
    with pytest.raises(ExtensionFailed, match=r"^in round 1: the upload link 'doubled', .* TypeError: .* line "):
        run(on_clients, tmp_path / "clients")
    server = {"aggregate": {"by": "mean"}}
    on_the_server = experiment(where=where, upload=[{"link": "doubled", "breaks": "undo"}], server=server)
    where_it_was = "^round 1 failed" if where == "memory" else "^version 1 of line 'main'"
    said = r"'doubled', an extension, returned from 'undo_sum' float64 of shape \[7\]; return numbers of shape \[8\]"
    with pytest.raises(BrokenLink, match=f"{where_it_was}.*: the upload link {said}"):
        run(on_the_server, tmp_path / "server")


@pytest.mark.usefixtures("site")
def test_a_direction_of_all_updates_may_come_alone(tmp_path: Path) -> None:
    @product.aggregation("mean-of-all")
    def mean_of_all(*, with_state: bool):  # type: ignore[no-untyped-def]
        def finish(kept, line, weights, state, key):  # type: ignore[no-untyped-def]
            direction = kept.votes @ kept.updates / kept.votes.sum()
            return product.Finished(direction, {"rounds": np.ones(1)}) if with_state else direction

        return product.of_all(finish)

    for each in (True, False):
        server = {"aggregate": {"by": "mean-of-all", "with_state": each}}
        run(experiment(server=server, where="files"), tmp_path / str(each))
    found = [np.load(run_of(tmp_path / name) / "last.npy") for name in ("True", "False")]
    np.testing.assert_array_equal(*found)


@pytest.mark.usefixtures("site")
def test_a_metric_does_not_take_the_name_of_one_that_is_measured_anyway() -> None:
    def accuracy(predictions, y):  # type: ignore[no-untyped-def]
        return predictions == y

    with pytest.raises(InvalidSettings, match="the metric 'accuracy' is one of fedping's"):
        product.metric("accuracy")(accuracy)


@pytest.mark.usefixtures("site")
def test_one_that_returns_what_it_may_not_is_told_what_to_return(tmp_path: Path) -> None:
    @product.optimizer("none")
    def none(spec):  # type: ignore[no-untyped-def]
        return None

    @product.optimizer("list")
    def a_list(spec):  # type: ignore[no-untyped-def]
        return product.Transformation(lambda _: [1.0], lambda step, state, weights: (step, state))

    @product.aggregation("none")
    def nothing():  # type: ignore[no-untyped-def]
        return None

    @product.client_algorithm("none")
    class Forgets:
        def init_state(self, model: Any) -> None:
            """Return nothing."""

        def update(self, model, weights, batch, keys, state):  # type: ignore[no-untyped-def]
            return model.gradients(weights, batch), state

    @product.client_algorithm("unkept")
    class Unkept:
        def update(self, model, weights, batch, keys, state):  # type: ignore[no-untyped-def]
            return model.gradients(weights, batch), {"count": np.ones(len(batch))}

    for changes, said in (
        ({"training": {"algorithm": "unkept"}}, "'unkept', .* returned a state, but has no init_state"),
        (
            {"server": {"optimizer": {"optimizer": "none"}}},
            "the optimizer 'none' returned a NoneType; return a fedping.T",
        ),
        (
            {"server": {"optimizer": {"optimizer": "list"}}},
            "the optimizer 'list' has a list as its state; return a dict",
        ),
        ({"server": {"aggregate": {"by": "none"}}}, "the aggregation 'none' returned a NoneType without init and add"),
        (
            {"training": {"algorithm": "none"}},
            "the client algorithm 'none', .* a NoneType as its first state; return a d",
        ),
    ):
        with pytest.raises(FedpingError, match=said):
            run(experiment(**changes), tmp_path / "out")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.mark.usefixtures("site")
def test_a_sampling_that_draws_whom_there_is_not_is_named() -> None:
    sampler = sampler_for(
        experiment(sampling={"sampling": "nobody-knows"}).variants["federated"].sampling, np.ones(5, np.int64), 1
    )
    with pytest.raises(ExtensionFailed, match=r"the sampling 'nobody-knows'.*drew the client 5, and there are 5"):
        sampler.draw(0)


@pytest.mark.usefixtures("site")
def test_a_client_algorithm_is_a_function_or_keeps_state(tmp_path: Path) -> None:
    """Twice the gradient at half the server's rate is the gradient."""
    changes = {"server": {"optimizer": {"optimizer": "gradient_descent", "rate": 0.05}}}
    twice = {"training": {"algorithm": "double-gradient", "times": 2}, **changes}
    run(experiment(**twice), tmp_path / "twice")
    changes["server"]["optimizer"]["rate"] = 0.1  # type: ignore[assignment]
    run(experiment(training={"algorithm": "gradient"}, **changes), tmp_path / "once")
    found = [np.load(run_of(tmp_path / name) / "last.npy") for name in ("twice", "once")]
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.usefixtures("site")
def test_a_client_algorithm_takes_local_steps_as_ours_and_has_weights_of_its_own(tmp_path: Path) -> None:
    server = {"optimizer": {"optimizer": "gradient_descent"}, "aggregate": {"by": "mean"}}
    steps = {"rate": 0.05, "epochs": 2, "batch": 7}
    changes = {"server": server, "upload": [], "sampling": {"sampling": "all"}}
    run(experiment(training={"algorithm": "own-start", **steps}, **changes), tmp_path / "own")
    run(experiment(training={"algorithm": "local", **steps}, **changes), tmp_path / "ours")
    found = [np.load(run_of(tmp_path / name) / "last.npy") for name in ("own", "ours")]
    np.testing.assert_allclose(*found, rtol=1e-6)
    rows = pq.read_table(tmp_path / "own" / "metrics.parquet").to_pylist()
    gains = {row["round"]: row["value"] for row in rows if (row["split"], row["metric"]) == ("gain", "loss")}
    assert gains[0] == 0
    assert gains[4] != 0
    with pytest.raises(InvalidSettings, match=r"'own-start' needs .* Set optimizer = "):
        experiment(training={"algorithm": "own-start", **steps})
    broken = {"algorithm": "own-start", **steps, "breaks": "personal"}
    with pytest.raises(ExtensionFailed, match=r"'own-start', .* shape \[5, 3\]"):
        run(experiment(training=broken, **changes), tmp_path / "broken")


@pytest.mark.usefixtures("site")
def test_a_client_algorithm_that_breaks_is_named_with_the_round(tmp_path: Path) -> None:
    for breaks, said in (
        ("raises", "raised KeyError"),
        ("shape", r"returned updates of float\d+ and shape \[1, 3\]; return numbers of shape \[1, 4\]"),
    ):
        training = {"algorithm": "double-gradient", "breaks": breaks}
        with pytest.raises(ExtensionFailed, match=rf"^in round 1: the client algorithm 'double-gradient', .*, {said}"):
            run(experiment(training=training, sampling__clients=1), tmp_path / breaks)
    training = {"algorithm": "double-gradient", "times": 1e300}
    run(experiment(training=training), tmp_path / "infinite")
    [note] = json.loads((run_of(tmp_path / "infinite") / "run.json").read_text())["notes"]
    assert re.match(
        "stopped in round 1: training on the clients with 'double-gradient' has diverged: "
        r"an update is larger than 1e30 \(clients \d+, \d+, \d+( and \d+ more)?\); lower the rate",
        note,
    )


@pytest.mark.usefixtures("site")
def test_a_class_keeps_its_state() -> None:
    setup = small(server__optimizer={"optimizer": "halving", "rate": 4}).variants["federated"]
    line = prepare(setup, 1, None).line
    weights, state = np.zeros(line.spec.m), first_state(line)
    for expected in (4.0, 6.0, 7.0):
        weights, state = step_arrays(line, weights, state, np.ones(line.spec.m))
        np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("gradient", ["finite_differences", "analytic"])
@pytest.mark.usefixtures("site")
def test_a_ranking_model_learns_what_users_want(tmp_path: Path, gradient: str) -> None:
    changes = {
        "model": {"name": "by-visits", "gradient": gradient, "scale": 5, "margin": 1.0},
        "data": {"users": 60, "judges": 60, "population": {"true_weights": [0.0, 3.0], "noise_variance": 0.0}},
        "server": {"optimizer": {"optimizer": "gradient_descent", "rate": 0.1}},
        "rounds": 8,
    }
    made = experiment_of({**changes, "evaluation": {"baselines": ["start"]}}, name="ranks", folder=Path())
    model = made.variants["federated"].model
    assert model["scale"] == 5.0
    assert len(model["code"]) == 64
    summary = run(made, tmp_path / "out")
    end = np.load(run_of(tmp_path / "out") / "last.npy")
    assert end[1] > 1.0 > end[0]
    assert summary.shown[0] == "top_choice"
    with pytest.raises(InvalidSettings, match=r"\[model\] has no setting 'scal'; did you mean 'scale'"):
        experiment_of({**changes, "model": {"name": "by-visits", "scal": 1}}, name="ranks", folder=Path())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"server__optimizer__rat": 1}, r"\[server.optimizer\] has no setting 'rat'; did you mean 'rate'\?"),
        ({"server__optimizer__rate": -1}, r"'rate' in \[server.optimizer\] is -1: expected a number > 0.0"),
        ({"server__optimizer__rate": "x"}, r"'rate' in \[server.optimizer\] is 'x': expected a number, got a text"),
        (
            {"server": {"optimizer": {"optimizer": "lyon"}}},
            "'lyon'; choose one of rprop, .*, broken, halving, lion, or, .*FEDPING_EXTENSIONS$",
        ),
        ({"server": {"optimizer": {"optimizer": "broken"}}}, r"\[server.optimizer\] needs the setting 'how'; add it"),
        (
            {"server": {"optimizer": {"optimizer": "halving", "rate": float("inf")}}},
            "'rate' of the optimizer 'halving'",
        ),
        ({"upload": [{"link": "fixed-point", "bit": 8}]}, r"\[upload\] of entry 1 has no setting 'bit'.*'bits'\?"),
        ({"upload": [{"link": "fixed-point", "bits": 1}]}, r"'bits' in \[upload\] of entry 1 is 1: expected .* >= 2"),
        ({"partition__clients": 0}, r"'clients' in \[partition\] is 0: expected a whole number >= 1"),
        ({"data__settings": {"row": 1}}, r"\[data.settings\] has no setting 'row'; did you mean 'rows'\?"),
        ({"evaluation__metrics": [{"metric": "near", "in": 1}]}, r"\[evaluation.metrics\] of metric 1 has no setting"),
        ({"evaluation__metrics": ["neer"]}, "'metric' in .* is 'neer'; choose one of near, spread"),
        ({"evaluation__metrics": ["near", "near"]}, "names the metric 'near' twice"),
        ({"data": {"name": "plain"}}, None),
    ],
)
@pytest.mark.usefixtures("site")
def test_what_is_wrong_is_said_as_of_what_is_built_in(
    tmp_path: Path, changes: dict[str, Any], sentence: str | None
) -> None:
    if sentence is None:
        with pytest.raises(InvalidSettings, match=r"no data set 'plain'.*, plane"):
            run(experiment(**changes), tmp_path / "never")
        return
    with pytest.raises(InvalidSettings, match=sentence):
        experiment(**changes)


@pytest.mark.usefixtures("site")
def test_the_form_of_the_dashboard_has_their_settings() -> None:
    choices = {choice.path: choice for choice in choices_of(laboratory_nodes())}
    for path, name, wanted in (
        ("server.optimizer", "lion", {"rate": "0.1", "beta": "0.9"}),
        ("server.aggregate", "trimmed", {"share": "0.1"}),
        ("sampling", "largest", {"clients": None}),
        ("partition", "stripes", {"clients": "4", "leave_out": "0"}),
    ):
        [option] = [each for each in choices[path].options if each.value == name]
        assert {field.key: field.default for field in fields_of(option.children)} == wanted
        assert option.help
        assert "own" not in [each.value for each in choices[path].options]
        if name == "lion":
            assert "steps of the size ``rate``" in option.help
            assert [field.help for field in fields_of(option.children) if field.key == "rate"] == ["More than 0."]
    [model] = [each for each in choices["model"].options if each.value == "by-visits"]
    assert {"scale", "gradient", "margin"} <= {field.key for field in fields_of(model.children)}
    fields = {field.path: field for field in fields_of(laboratory_nodes())}
    assert "plane" in dict(fields["data.name"].options)
    assert "plane (rows = 200, noise = 0.1, seed = 1)" in fields["data.settings"].help
    assert "near (within = 1.0); spread (ddof = 0)" in fields["evaluation.metrics"].help
    assert "fixed-point (bits = 16, most = 100.0)" in fields["upload"].help


@pytest.mark.usefixtures("site")
def test_the_form_says_what_it_was_filled_with_and_is_judged() -> None:
    filled = filled_form(TABLES)
    assert filled.unplaced == []
    text = toml_text(tables_of(filled.values, filled.arms))
    assert isinstance(judge(text), Judged)
    problem = judge(text.replace("rate = 0.3", "rate = -0.3"))
    assert isinstance(problem, Problem)
    assert problem.path == "server.optimizer.rate"


@pytest.mark.long
def test_the_command_finds_it_by_entry_point_and_by_environment(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "outside.toml"
    file.write_text(toml_text(TABLES))
    few = ("--set", "rounds=1", "--json")
    done = fedping(tmp_path, "simulate", str(file), "--jobs", "2", *few)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(site / "fedping_outside-1.0.dist-info")
    refused = fedping(tmp_path, "simulate", str(file), "--out", "other")
    assert refused.returncode == 2
    assert refused.stderr.startswith("fedping: the experiment file")
    assert refused.stderr.count("\n") == 1
    again = fedping(tmp_path, "simulate", str(file), "--out", "again", *few, FEDPING_EXTENSIONS="fedping_outside")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["digest"] == json.loads(done.stdout)["digest"]


def test_one_that_cannot_be_imported_is_told_of_only_where_one_is_needed(site: Path, tmp_path: Path) -> None:
    install(site, "raise OSError('no disk')\n")
    assert fedping(tmp_path, "--help").returncode == 0
    known, unknown = tmp_path / "known.toml", tmp_path / "unknown.toml"
    known.write_text('rounds = 0\n[model]\nname = "logistic-regression"\n[data]\nname = "breast-cancer"\n')
    unknown.write_text(known.read_text() + '[server]\noptimizer = { optimizer = "lion" }\n')
    assert fedping(tmp_path, "simulate", str(known), "--json").returncode == 0
    done = fedping(tmp_path, "simulate", str(unknown))
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(
        "the extension 'fedping_outside' of the package fedping-outside cannot be imported (OSError: no disk)"
    )
    assert "Traceback" not in done.stderr


def test_users_choose_by_the_reference_of_an_own_ranking_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class Visits:
        weight_names = ("visits",)
        start = (0.0,)

        def __init__(self, *, known: list[float] | None = None) -> None:
            self.reference = known

    registry_of_its_own(monkeypatch)
    extensions.register("ranking_model", "visits-alone", Visits)
    assert true_weights(model_for("visits-alone", {"known": [3.0]}), ()).tolist() == [3.0]
    assert true_weights(model_for("visits-alone", {"known": [3.0]}), (4.0,)).tolist() == [4.0]
    with pytest.raises(InvalidSettings, match=r"'visits-alone' .*'reference'"):
        true_weights(model_for("visits-alone", {}), ())
    with pytest.raises(ExtensionFailed, match=r"as its 'reference' .2,. numbers for 1 weight names"):
        model_for("visits-alone", {"known": [3.0, 1.0]})


def test_a_module_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "experiments/demo.toml"
    study = demo.read_text().replace('optimizer = "rprop"', 'optimizer = "elsewhere"')
    (tmp_path / "demo.toml").write_text(study)
    done = fedping(tmp_path, "study", "check", "demo.toml", FEDPING_EXTENSIONS="nowhere")
    assert done.returncode == 2
    assert "the module 'nowhere' (FEDPING_EXTENSIONS) cannot be imported" in done.stderr
    assert done.stderr.rstrip().endswith("PYTHONPATH")


def test_they_travel_to_a_process_that_does_not_have_them(site: Path, tmp_path: Path) -> None:
    server = experiment().variants["federated"].pipeline
    for kind in extensions.KINDS:
        extensions.all_of(kind)
    (tmp_path / "packed").write_bytes(extensions.packed().data)
    (tmp_path / "pipeline.json").write_bytes(msgspec.json.encode(server))
    shutil.rmtree(site)
    script = """
import msgspec, pathlib
from fedping.protocol import extensions
from fedping.protocol.pipeline import Pipeline
extensions.unpack(pathlib.Path("packed").read_bytes())
pipeline = msgspec.json.decode(pathlib.Path("pipeline.json").read_bytes(), type=Pipeline)
from fedping.client_sim.data import load
print(extensions.extension_of(pipeline.optimizer), len(load("plane", {"rows": 7})))
print(sorted(each.name for kind in extensions.KINDS for each in extensions.all_of(kind)))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, names = done.stdout.splitlines()
    assert said == "the optimizer 'lion' 7"
    assert "by-visits" in names
    assert "spread" not in names  # a struct, which is found by its module alone


STRUCT = """
import fedping, msgspec, pathlib
from fedping.protocol import extensions

@fedping.metric("apart")
class Apart(msgspec.Struct, frozen=True):
    ddof: int = 0

def pack():
    packed = extensions.packed()
    pathlib.Path("packed").write_bytes(packed.data)
    print("apart" in packed.modules, extensions.registered("metric", "apart").code)

if __name__ == "__main__":
    pack()
"""

UNPACKED = """
import pathlib, sys
from fedping.protocol import extensions
extensions.unpack(pathlib.Path("packed").read_bytes())
print(extensions.recorded("metric", "apart", sys.argv[1]))
"""


def test_a_struct_never_runs_elsewhere_with_other_code_or_without_its_fields(tmp_path: Path) -> None:
    def python(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
        return (done.stdout + done.stderr).strip()

    (tmp_path / "apart.py").write_text(STRUCT)
    modules, code = python("apart.py").split()
    assert modules == "False"
    assert "the metric 'apart' is an extension that is not loaded; install the package" in python("-c", UNPACKED, code)
    assert python("-c", "import apart; apart.pack()") == f"True {code}"
    assert python("-c", UNPACKED, code) == "the metric 'apart'"
    (tmp_path / "apart.py").write_text(STRUCT.replace("ddof: int", "ddof: float"))
    assert "the metric 'apart' has other code here" in python("-B", "-c", UNPACKED, code)


def steps_of(spec: Any, *, rates: tuple[float, ...] = (0.5, 1.0)) -> Transformation[Any]:
    """Return an optimizer with a setting of several numbers."""
    return Transformation(lambda spec: {}, lambda step, state, weights: (rates[0] * step, state))


def test_a_setting_of_several_numbers_is_the_same_when_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry_of_its_own(monkeypatch)
    extensions.register("optimizer", "steps-of", steps_of)
    pipeline = converted({"optimizer": {"optimizer": "steps-of"}}, Pipeline, "")
    assert msgspec.json.decode(msgspec.json.encode(pipeline), type=Pipeline) == pipeline
    made = small_study()
    study = msgspec.structs.replace(made, lines=(msgspec.structs.replace(made.lines[0], pipeline=pipeline),))
    store = open_store(tmp_path / "store", create=True)
    first = first_versions(study, created=WHEN, code_version="test")
    assert [store.create_study(study, first) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("value", [float("inf"), [1.0, [float("nan")]], {"of": -float("inf")}])
def test_no_setting_of_an_extension_is_infinite_however_it_is_written(value: Any) -> None:
    own = {"optimizer": "own", "name": "steps-of", "code": "", "settings": {"rates": value}}
    with pytest.raises(InvalidSettings, match=r"'rates' of 'steps-of'"):
        converted({"optimizer": own}, Pipeline, "")


def test_a_sentence_that_one_raises_names_it(tmp_path: Path) -> None:
    @product.data_set("empty-drawer")
    def empty_drawer() -> Any:
        raise FedpingError("there is nothing in the drawer")

    try:
        with pytest.raises(ExtensionFailed, match=r"'empty-drawer', .*there is nothing in"):
            prepare(small(data={"name": "empty-drawer"}).variants["federated"], 1, None)
    finally:
        extensions._registered.pop(("data_set", "empty-drawer"))


@pytest.mark.usefixtures("site")
def test_an_extension_that_calls_exit_or_speaks_in_several_lines_is_told_in_one_sentence(tmp_path: Path) -> None:
    @product.optimizer("leaving")
    def leaving(spec: Any) -> Any:
        def update(step: Any, state: Any, weights: Any) -> Any:
            sys.exit(0)

        return product.Transformation(lambda _: {}, update)

    @product.sampling("talkative")
    def talkative(sizes: Any, groups: Any, random: Any) -> Any:
        raise ValueError("one\n  two")

    with pytest.raises(BrokenLink, match=r"the optimizer 'leaving' raised SystemExit: 0 \(test_extensions.py, line"):
        run(experiment(server={"optimizer": {"optimizer": "leaving"}}), tmp_path / "leaving")
    with pytest.raises(ExtensionFailed, match=r"'talkative', an extension, raised ValueError: one two \("):
        run(experiment(sampling={"sampling": "talkative"}), tmp_path / "talkative")


@pytest.mark.usefixtures("site")
def test_payloads_that_ingest_would_refuse_are_refused_in_memory_too(tmp_path: Path) -> None:
    def decode(payloads: Any, m: int) -> Any:
        return np.zeros((len(payloads), m)), np.ones(len(payloads), bool)

    @product.upload_link("too-short")
    def too_short() -> Any:
        client = product.ClientEnd(encode=lambda updates, keys: pa.array([b"abc"] * len(updates), pa.binary()))
        return client, product.ServerEnd(decode=decode, lengths=lambda m: (8, 8))

    @product.upload_link("undone-to-nothing")
    def undone_to_nothing() -> Any:
        client = product.ClientEnd(transform=lambda updates, keys: updates)
        return client, product.ServerEnd(undo=lambda updates: updates * np.nan)

    said = (
        "^in round 1: the upload link 'too-short' makes payloads of 3 to 3 bytes, and its 'lengths' says 8 to 8 for 8"
    )
    with pytest.raises(ExtensionFailed, match=said):
        run(experiment(upload=[{"link": "too-short"}]), tmp_path / "short")
    with pytest.raises(ExtensionFailed, match=r"^in round 1: .* sent through upload = 'undone-to-nothing'; correct"):
        run(experiment(upload=[{"link": "undone-to-nothing"}]), tmp_path / "nothing")


# --- the modules that extensions need in other processes ---


def alone(metric: str) -> dict[str, Any]:
    """Return the tables of an experiment whose only extension is a metric from outside."""
    return {
        "rounds": 1,
        "model": {"name": "linear-regression"},
        "data": {"name": "diabetes"},
        "partition": {"partition": "iid", "clients": 3},
        "evaluation": {"metrics": [metric], "baselines": []},
    }


def experiment_with(metric: str) -> Experiment:
    """Return the experiment with only this metric from outside."""
    return experiment_of(alone(metric), name="alone", folder=Path())


USES_SCALE = """
import fedping, msgspec, numpy as np
import {module}

class Scaled:
    width = 1

    def counts(self, predictions, y, there):
        return np.ones((len(y), 1))

    def metric(self, counts):
        return counts[..., 0] * 0 + {module}.{value}

@fedping.metric("{name}")
class Struct(Scaled, msgspec.Struct, frozen=True):
    of: int = 0
"""

BY_VALUE = """
import fedping, numpy as np
import value_scale

@fedping.metric("by-value")
def scaled(predictions, y):
    return np.full(len(y), value_scale.SCALE)
"""


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Give a function that imports a module from folders at the ends of Python's path; imports are undone later."""
    registry_of_its_own(monkeypatch)

    def imports(module: str, first: tuple[str, ...] = (), last: tuple[str, ...] = ()) -> None:
        found = [[str(tmp_path / each) for each in folders] for folders in (first, last)]
        monkeypatch.setattr(sys, "path", [*found[0], *sys.path, *found[1]])
        importlib.invalidate_caches()
        importlib.import_module(module)

    yield imports
    places = {
        name: [*getattr(each, "__path__", ()), getattr(each, "__file__", "")]
        for name, each in list(sys.modules.items())
    }
    for name in [name for name, where in places.items() if any(str(each).startswith(f"{tmp_path}/") for each in where)]:
        del sys.modules[name]


def written(folder: Path, **modules: str) -> Path:
    """Write modules into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    return folder


def on_spark(metric: str, out: Path, spark: Any) -> float:
    """Return the value of a metric computed on the executors."""
    run_experiment(experiment_with(metric), out, spark=SessionPool(lambda: nullcontext(spark)))
    return measured(metric, out)


def measured(metric: str, out: Path) -> float:
    """Return the value of a metric in the only run."""
    return float(json.loads((run_of(out) / "run.json").read_text())["final"]["test"][metric])


@pytest.mark.spark
def test_executors_import_the_very_files_that_this_process_imports(
    tmp_path: Path, spark: Any, imported: Callable[..., None]
) -> None:
    written(tmp_path / "A", ship_scale="SCALE = 1.0\n")
    written(tmp_path / "B", ship_scale="SCALE = 1000.0\n")
    written(tmp_path / "B", ship_first=USES_SCALE.format(module="ship_scale", value="SCALE", name="scaled"))
    imported("ship_first", first=("A", "B"))
    assert on_spark("scaled", tmp_path / "one", spark) == 1
    (tmp_path / "A" / "ship_scale.py").write_text("SCALE = 2.0\n")
    assert on_spark("scaled", tmp_path / "other", spark) == 2, "the executors that had it have the file as it is now"


@pytest.mark.spark
def test_a_file_named_as_a_standard_module_is_nothing_to_the_executors_of_a_session(
    tmp_path: Path, spark: Any, imported: Callable[..., None]
) -> None:
    uses = USES_SCALE.format(module="statistics", value="mean([1, 2, 3])", name="mean")
    written(tmp_path / "F", statistics="def mean(x):\n    return -1.0\n", ship_fifth=uses)
    imported("ship_fifth", last=("F",))
    assert on_spark("mean", tmp_path / "out", spark) == 2


@pytest.mark.long
@pytest.mark.spark
def test_a_file_named_as_a_standard_module_is_nothing_to_executors_as_it_is_nothing_here(tmp_path: Path) -> None:
    uses = USES_SCALE.format(module="statistics", value="mean([1, 2, 3])", name="mean")
    written(tmp_path, statistics="def mean(x):\n    return -1.0\n", ship_second=uses)
    (tmp_path / "alone.toml").write_text(toml_text(alone("mean")))
    given = ["alone.toml", "--out", "out", "--engine", "spark", "--master", "local[1]", "--set", "seeds=1"]
    done = fedping(tmp_path, "simulate", *given, FEDPING_EXTENSIONS="ship_second")
    assert done.returncode == 0, done.stderr
    assert measured("mean", tmp_path / "out") == 2


@pytest.mark.spark
def test_what_goes_by_value_has_the_modules_that_it_imports(
    tmp_path: Path, spark: Any, imported: Callable[..., None]
) -> None:
    written(
        tmp_path / "D", value_scale="from value_more import SCALE\n", value_more="SCALE = 5.0\n", ship_third=BY_VALUE
    )
    imported("ship_third", last=("D",))
    assert on_spark("by-value", tmp_path / "out", spark) == 5


BREAKS = """
import os
if os.getpid() != {pid}:
    raise RuntimeError("nowhere else")
"""


@pytest.mark.spark
def test_a_module_that_breaks_on_an_executor_is_told_in_a_sentence(
    tmp_path: Path, spark: Any, imported: Callable[..., None]
) -> None:
    breaks = BREAKS.format(pid=os.getpid()) + USES_SCALE.format(module="colorsys", value="ONE_THIRD", name="breaks")
    written(tmp_path / "E", ship_fourth=breaks)
    imported("ship_fourth", last=("E",))
    with pytest.raises(FedpingError) as raised:
        on_spark("breaks", tmp_path / "out", spark)
    assert str(raised.value) == (
        "the metric 'breaks', which was sent to a worker process, cannot be imported (RuntimeError: nowhere else)"
    )


def test_a_module_that_breaks_in_a_worker_of_the_laboratory_is_told_in_a_sentence(
    tmp_path: Path, imported: Callable[..., None]
) -> None:
    breaks = BREAKS.format(pid=os.getpid()) + USES_SCALE.format(module="colorsys", value="ONE_THIRD", name="breaks")
    written(tmp_path / "E", ship_fifth=breaks)
    imported("ship_fifth", last=("E",))
    two = msgspec.structs.replace(experiment_with("breaks"), seeds=(1, 2))
    with pytest.raises(InvalidSettings, match=r"'breaks', .* \(RuntimeError: nowhere else\)"):
        run_experiment(two, tmp_path / "out", jobs=2)


def test_only_what_is_imported_is_sent_and_a_package_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: Callable[..., None]
) -> None:
    home = written(tmp_path / "F", ship_sixth="import lone, spread_out.deep.one, colorsys, numpy, fedping, nowhere\n")
    written(home, nowhere="", lone="def late():\n    import lazy\n", lazy="", local_settings="KEY = 'secret'\n")
    written(home / "spread_out" / "deep", one="from . import two\nimport local\n", two="", three="")
    written(home / "spread_out" / ".hidden", kept="")
    written(home / "spread_out" / "env" / "lib", installed="")
    (home / "spread_out" / "env" / "pyvenv.cfg").write_text("")
    written(home, local="import lone\n")
    (home / "spread_out" / "old.py").mkdir()
    (home / "spread_out" / ".#two.py").symlink_to("me@here.1234")
    (home / "spread_out" / "gone.py").symlink_to("nowhere at all")
    imported("ship_sixth", first=("F",))
    monkeypatch.setitem(sys.modules, "ship_by_hand", ModuleType("ship_by_hand"))  # its __spec__ is None
    sources = own_sources(["ship_sixth", "ship_by_hand", "__main__", "there.is.none"])
    assert sorted(name for name in sources if not name.endswith("/")) == [
        "lazy.py",
        "local.py",
        "lone.py",
        "nowhere.py",
        "ship_sixth.py",
        "spread_out/deep/one.py",
        "spread_out/deep/three.py",
        "spread_out/deep/two.py",
    ]
    (home / "spread_out" / "unreadable.py").symlink_to("/proc/self/mem")
    with pytest.raises(FedpingError, match=r"/unreadable.py: .*Spark's executors"):
        own_sources(["ship_sixth"])
    (home / "spread_out" / "fast.abi3.so").write_bytes(b"")
    assert not any(name.startswith("spread_out") for name in own_sources(["ship_sixth"])), "a zip cannot have it whole"


@pytest.mark.spark
def test_a_package_without_an_init_is_imported_on_executors(
    tmp_path: Path, spark: Any, imported: Callable[..., None]
) -> None:
    uses = USES_SCALE.format(module="more", value="SCALE", name="nameless")
    uses = uses.replace("import more", "from nameless.deep import more")
    written(tmp_path / "G" / "nameless" / "deep", more="SCALE = 7.0\n")
    written(tmp_path / "G" / "nameless", uses=uses)
    imported("nameless.uses", last=("G",))
    assert on_spark("nameless", tmp_path / "out", spark) == 7
