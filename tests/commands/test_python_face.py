"""`import fedping`: its guarantees for programs and notebooks, tested from outside, and the examples of its page."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import fedping
from fedping.main import main
from fedping.protocol.landing import open_landing
from tests.support.environments import ROOT
from tests.support.laboratory import SMALL, small_file
from tests.support.rounds import crowd, land, store_with
from tests.support.versions import after, small_study

PAGE = ROOT / "docs" / "python.md"
TABLES = tomllib.loads(SMALL)


def run_python(code: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script from a file, because Python runs the file again in the processes that it starts."""
    (cwd / "script.py").write_text(code)
    made = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "script.py"], cwd=cwd, env=made, capture_output=True, text=True, timeout=280)


def tables(**changes: object) -> dict[str, object]:
    """Return the tables of the small experiment, short, with one variant and without baselines."""
    short = {key: value for key, value in TABLES.items() if key != "variants"}
    return {**short, "rounds": 2, "seeds": 1, "evaluation": {"baselines": []}, **changes}


# --- the module ---


def test_importing_it_loads_nothing_heavy_and_every_name_is_there(tmp_path: Path) -> None:
    code = "import fedping, sys\nprint([name for name in sys.modules if name.partition('.')[0] in %r])"
    heavy = ("numpy", "pyarrow", "msgspec", "click", "pyspark", "scipy", "multiprocessing")
    ran = run_python(code % (heavy,), tmp_path)
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")
    for name in fedping.__all__:
        assert name.startswith("__") or getattr(fedping, name).__doc__, name
        assert name in dir(fedping)
    with pytest.raises(AttributeError, match="no attribute 'runs'"):
        fedping.runs  # noqa: B018


def test_its_errors_are_of_one_kind() -> None:
    for name in ("InvalidSettings", "MissingPackage", "MissingVersion", "StoreError", "UnreadableFile"):
        assert issubclass(getattr(fedping, name), fedping.FedpingError)


def test_the_page_names_all_there_is() -> None:
    said = PAGE.read_text()
    assert not [name for name in fedping.__all__ if not name.startswith("__") and name not in said]


def test_the_examples_of_the_page_run_in_their_order(tmp_path: Path) -> None:
    store_with(tmp_path / "store", small_study())
    land(tmp_path / "landing", crowd(30))
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    ran = run_python(code + "\nprint(table.num_rows, losses, mine.summary.best)", tmp_path)
    assert ran.returncode == 0, ran.stderr
    total = float(sum(range(7)) * 4 + 0 + 1)
    assert ran.stdout.splitlines()[-1] == f"30 {total} federated"
    assert (tmp_path / "first" / "report.html").exists()


# --- running ---


def test_a_file_with_overrides_tells_its_rounds_and_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    file = small_file(tmp_path)
    seen: list[fedping.Round] = []
    overrides = {"rounds": 3, "seeds": 1, "evaluation.baselines": [], "sampling": {"sampling": "all"}}

    def interrupt(now: fedping.Round) -> None:
        seen.append(now)
        if now.variant != "gradient":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fedping.run(file, overrides=overrides, folder=tmp_path / "out", on_round=interrupt)
    assert [now.number for now in seen] == [0, 1, 2, 3, 0]
    assert seen[0].metrics["test"]["accuracy"] < seen[3].metrics["test"]["accuracy"]
    assert seen[1].metrics["train"]["clients"] == 8
    assert "train" not in seen[0].metrics
    later: list[fedping.Round] = []
    results = fedping.run(file, overrides=overrides, folder=tmp_path / "out", on_round=later.append)
    assert {now.variant for now in later} == {"local, three"}
    assert [now.metrics["train"]["clients"] for now in later[1:]] == [8, 8, 8], "the override lies above the variant"
    assert list(results.summary.variants) == ["gradient", "local, three"]
    with pytest.raises(fedping.InvalidSettings, match=r"another experiment.*'folder'.*replace=True"):
        fedping.run(file, folder=tmp_path / "out")
    with pytest.raises(fedping.InvalidSettings, match="resume=True"):
        fedping.run(file, overrides=overrides, folder=tmp_path / "out", resume=False)


def test_a_store_that_is_not_there_is_told_by_the_name_of_the_parameter(tmp_path: Path) -> None:
    with pytest.raises(fedping.StoreError, match=r"with 'path', or make a new one"):
        fedping.open_store(tmp_path / "none")


def test_there_are_no_results_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(fedping.FedpingError, match="has no finished experiment; run"):
        fedping.open_results(small_file(tmp_path))


def test_results_read_again_are_the_same_and_have_weights_and_tables(tmp_path: Path) -> None:
    results = fedping.run(tables(seeds=2, evaluation={"baselines": ["start"]}), folder=tmp_path / "out")
    again = fedping.open_results(tmp_path / "out")
    assert again == results
    assert again.weights().shape == (31,)
    assert not np.array_equal(again.weights(seed=1), again.weights(seed=2))
    assert not again.weights("start").any()
    assert again.to_pandas().equals(again.metrics().to_pandas())
    apart = fedping.compare((again, "start"), again)
    assert next(each.better for each in apart.differences if each.metric == "auc") == "b"
    with pytest.raises(fedping.InvalidSettings, match="no run of 'other'"):
        again.weights("other")
    with pytest.raises(fedping.FedpingError, match="no finished experiment"):
        fedping.open_results(tmp_path)


def test_what_is_none_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(fedping.InvalidSettings, match="study; run it with `fedping simulate"):
        fedping.run(ROOT / "experiments" / "firefox_study.toml", folder=tmp_path / "out")
    with pytest.raises(fedping.InvalidSettings, match="jobs is 0"):
        fedping.run(tables(), folder=tmp_path / "out", jobs=0)
    model = {"name": "own", "function": lambda weights, x, y: 0.0, "weights": 1}
    with pytest.raises(fedping.InvalidSettings, match="can't be found by its name"):
        fedping.run(tables(model=model), folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


UNGUARDED = """
import fedping
print("begun")
seen = []
tables = {tables!r}
results = fedping.run(tables, folder="out", jobs=2, on_round=seen.append)
print(sorted((now.seed, now.number) for now in seen))
def fail(now):
    raise RuntimeError("enough")
try:
    fedping.run(tables, folder="other", jobs=2, on_round=fail)
except RuntimeError as error:
    print(error)
"""


def test_a_script_without_a_guard_runs_in_processes_and_is_not_begun_again_in_each(tmp_path: Path) -> None:
    ran = run_python(UNGUARDED.format(tables=tables(seeds=2)), tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["begun", str([(s, n) for s in (1, 2) for n in range(3)]), "enough"]


CELLS = (
    """
import fedping
def predict(weights, x):
    return x @ weights
def loss(weights, x, y):
    return ((predict(weights, x) - y) ** 2).mean()
model = {"name": "own", "function": loss, "predict": predict, "weights": 30, "gradient": "finite_differences"}
tables = {tables!r} | {"model": model}
first = fedping.run(tables, folder="out", jobs=2)
""",
    """
def loss(weights, x, y):
    return abs(predict(weights, x) - y).mean()
model["function"] = loss
try:
    fedping.run(tables, folder="out")
except fedping.InvalidSettings as error:
    print(error)
second = fedping.run(tables, folder="second")
print((first.weights() != second.weights()).any())
""",
)


def test_a_notebook_runs_a_loss_of_a_cell_and_a_changed_one_does_not_go_on(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    said = tables(evaluation={"task": "regression", "baselines": []}, seeds=2)
    cells = [nbformat.v4.new_code_cell(cell.replace("{tables!r}", repr(said))) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute(
        env=environment
    )
    told = "".join(output["text"] for output in notebook.cells[1].outputs)
    assert "made with another code of __main__:loss" in told
    assert told.endswith("True\n")


# --- reading ---


def test_versions_have_their_weights_and_lineage(tmp_path: Path) -> None:
    made = store_with(tmp_path / "store", small_study())
    made.publish(after(made.head("study", "main")))
    store = fedping.open_store(tmp_path / "store")
    assert (store.studies(), store.lines("study"), store.iterations("study", "main")) == (["study"], ["main"], [0, 1])
    first, second = store.versions("study", "main")
    assert (second.parent, first.parent, second.lineage["origin"]) == (0, None, "round")
    np.testing.assert_array_equal(second.weights, first.weights + 0.5)
    assert store.version("study", "main").digest == second.digest
    with pytest.raises(ValueError, match="read-only"):
        first.weights[0] = 1
    with pytest.raises(fedping.MissingVersion, match="no version 7"):
        store.version("study", "main", 7)
    with pytest.raises(fedping.StoreError, match="no study 'other'"):
        store.lines("other")
    with pytest.raises(fedping.FedpingError):
        fedping.open_store(tmp_path / "nothing")


def test_versions_of_blocks_have_the_names_of_their_weights(tmp_path: Path) -> None:
    fedping.run(tables(where="files", rounds=1), folder=tmp_path / "out")
    (store,) = (tmp_path / "out").glob("runs/*/seed-1/store")
    newest = fedping.open_store(store).version("laboratory", "main")
    assert (newest.iteration, len(newest.names)) == (1, len(newest.weights))
    assert dict(zip(newest.names, newest.model, strict=True))["coefficients[29]"] == newest.model[29]


def test_pings_come_in_bounded_batches_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    for iteration in (0, 10, 9):
        land(tmp_path, crowd(30, version=iteration), iteration=iteration)
    batches = list(fedping.read_pings(tmp_path, "study", rows=8))
    assert max(batch.num_rows for batch in batches) == 8
    table = pa.Table.from_batches(batches)
    assert table["model_version"].to_pylist() == [0] * 30 + [9] * 30 + [10] * 30
    few = pa.Table.from_batches(fedping.read_pings(tmp_path, "study", line="main", iteration=9, columns=["loss"]))
    assert (few.num_rows, few.column_names) == (30, ["loss"])
    with pytest.raises(fedping.FedpingError, match="no pings of study 'other'"):
        fedping.read_pings(tmp_path, "other")
    with pytest.raises(fedping.FedpingError, match="no column 'lost'"):
        list(fedping.read_pings(tmp_path, "study", columns=["lost"]))
    file, *_ = open_landing(tmp_path).all_files()
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 3] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(fedping.UnreadableFile, match=file.name):
        list(fedping.read_pings(tmp_path, "study"))


def test_an_experiment_is_reproduced_and_its_tables_written_from_python(tmp_path: Path) -> None:
    experiment = {
        "rounds": 2,
        "seeds": 2,
        "model": {"name": "logistic-regression"},
        "data": {"name": "breast-cancer"},
        "partition": {"partition": "iid", "clients": 3},
        "variants": [{"name": "a"}, {"name": "b", "server": {"weighting": "client"}}],
    }
    results = fedping.run(experiment, folder=tmp_path / "out")
    assert results.write_artifact(tmp_path / "artifact") == []
    found = fedping.reproduce(tmp_path / "artifact", jobs=1)
    assert (found.apart, found.same) == ((), found.figures)
    with pytest.raises(fedping.InvalidSettings, match="jobs is 0"):
        fedping.reproduce(tmp_path / "artifact", jobs=0)
    with pytest.raises(fedping.FedpingError, match="Name a folder of"):
        fedping.reproduce(tmp_path / "out")
    main(["export", str(tmp_path / "out"), "--latex", str(tmp_path / "table.tex")])
    assert results.to_latex() == (tmp_path / "table.tex").read_text()
    a, b = f"{tmp_path / 'out'}:a", f"{tmp_path / 'out'}:b"
    main(["compare", a, b, "--latex", str(tmp_path / "compared.tex")])
    assert fedping.compare((results, "a"), (results, "b")).to_latex() == (tmp_path / "compared.tex").read_text()
