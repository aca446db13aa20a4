"""The identity of a folder's results: they never count as results of other code, data or versions."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.experiments.laboratory import run as experiment_run
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, experiment_of
from fedping.experiments.laboratory.summary import Summary
from fedping.experiments.run_folder import OtherRun
from fedping.protocol.source_digest import digest_of_value, own_modules

CODE = """
from my_scale import SCALES

def loss(weights, x, y):
    return ((x @ weights * SCALES["all"] - y) ** 2).mean()

def predict(weights, x):
    return x @ weights
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of modules and data."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(tmp_path, "my_loss.py", CODE.replace("from my_scale import SCALES", 'SCALES = {"all": 1.0}'))
    rows = np.random.default_rng(1).normal(size=(60, 3))
    lines = ["a,b,y", *(",".join(map(str, row)) for row in rows)]
    write(tmp_path, "rows.csv", "\n".join(lines))
    yield tmp_path
    sys.modules.pop("my_loss", None)


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    sys.modules.pop(name.removesuffix(".py"), None)
    importlib.invalidate_caches()


OWN = {
    "name": "own",
    "function": "my_loss:loss",
    "predict": "my_loss:predict",
    "weights": 2,
    "gradient": "finite_differences",
}


def experiment(folder: Path, **changes: Any) -> Experiment:
    tables: dict[str, Any] = {
        "rounds": 2,
        "model": OWN,
        "data": {"file": "rows.csv", "target": "y"},
        "partition": {"partition": "iid", "clients": 3},
        "evaluation": {"baselines": ["start"]},
    }
    return experiment_of({**tables, **changes}, name="mine", folder=folder)


def run(folder: Path, replace: bool = False, **changes: Any) -> Summary:
    return run_experiment(experiment(folder, **changes), folder / "out", jobs=1, replace=replace)


def times(folder: Path) -> dict[str, int]:
    return {
        str(file.parent.relative_to(folder / "out")): file.stat().st_mtime_ns
        for file in (folder / "out").rglob("run.json")
    }


def test_after_an_edit_of_the_loss_the_old_table_does_not_come_back(folder: Path) -> None:
    before = run(folder)
    assert run(folder) == before
    write(folder, "my_loss.py", (folder / "my_loss.py").read_text().replace('"all": 1.0', '"all": 0.5'))
    with pytest.raises(OtherRun, match=r"another code of my_loss:loss .*--out.*--replace"):
        run(folder)
    after = run(folder, replace=True)
    assert after.variants != before.variants
    assert run(folder) == after


@pytest.mark.parametrize("line", ["from my_scale import scaled", "import my_scale; scaled = my_scale.scaled"])
def test_after_an_edit_of_an_imported_module_the_old_table_does_not_come_back(folder: Path, line: str) -> None:
    """Covers modules that a model's module imports, directly and indirectly, also within a function."""
    write(folder, "my_depth.py", "DEPTH = [1.0]\n")
    write(folder, "my_scale.py", "def scaled(x):\n    from my_depth import DEPTH\n\n    return DEPTH[0] * x\n")
    code = CODE.replace("from my_scale import SCALES", line).replace('weights * SCALES["all"]', "scaled(weights)")
    write(folder, "my_loss.py", code)
    before = run(folder)
    assert run(folder) == before
    write(folder, "my_depth.py", "DEPTH = [0.5]\n")
    sys.modules.pop("my_scale", None)
    sys.modules.pop("my_loss", None)
    with pytest.raises(OtherRun, match=r"made with another module my_depth .*add --replace"):
        run(folder)
    after = run(folder, replace=True)
    assert after.variants != before.variants
    assert run(folder) == after
    for name in ("my_scale", "my_depth"):
        sys.modules.pop(name, None)


def test_after_an_edit_beside_a_wrapped_loss_the_old_table_does_not_come_back(folder: Path) -> None:
    """An object other than a function, such as a compiled or partially applied one, has no source of its own."""
    write(folder, "my_loss.py", "from functools import partial\n" + CODE.replace("from my_scale import SCALES", SCALED))
    before = run(folder)
    write(folder, "my_loss.py", (folder / "my_loss.py").read_text().replace("1.0", "0.5"))
    with pytest.raises(OtherRun, match="module my_loss"):
        run(folder)
    assert run(folder, replace=True).variants != before.variants


SCALED = """
def scale(by, x):
    return 1.0 * by * x

class Scales:
    def __getitem__(self, name):
        return partial(scale, 1.0)(1.0)

SCALES = Scales()
"""


def test_a_folder_that_knew_of_no_modules_is_continued(folder: Path) -> None:
    before = run(folder)
    noted = json.loads((folder / "out" / "code.json").read_text())
    assert noted["digests"].pop("module my_loss")
    (folder / "out" / "code.json").write_text(json.dumps(noted))
    assert run(folder) == before
    assert "module my_loss" in json.loads((folder / "out" / "code.json").read_text())["digests"]


def test_modules_of_packages_are_found_however_they_are_imported(folder: Path) -> None:
    """Covers relative imports, parents and namespace packages; not modules of Python, installed packages or fedping."""
    package = folder / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("import os, numpy\nfrom . import two\nfrom fedping.protocol import digest\n")
    (package / "two.py").write_text("from my_space.three import THREE\nimport gone_astray\n")
    (folder / "my_space").mkdir()
    (folder / "my_space" / "three.py").write_text("THREE = 3\n")
    importlib.invalidate_caches()
    assert own_modules("my_package.one").keys() == {
        "my_package",
        "my_package.one",
        "my_package.two",
        "my_space.three",
    }
    assert not own_modules("numpy")
    assert not own_modules("json.decoder")
    assert not own_modules("fedping.protocol.source_digest")
    for name in [each for each in sys.modules if each.startswith(("my_package", "my_space"))]:
        sys.modules.pop(name)


def test_modules_are_found_without_running_the_packages_that_hold_them(folder: Path) -> None:
    """A package imported within a function runs only when the function does."""
    inner = folder / "my_lazy" / "inner"
    inner.mkdir(parents=True)
    (folder / "my_lazy" / "__init__.py").write_text("raise SystemError('it runs')\n")
    (inner / "part.py").write_text("PART = 1\n")
    (folder / "my_bare" / "inner").mkdir(parents=True)
    (folder / "my_bare" / "inner" / "part.py").write_text("PART = 2\n")
    imports = "from my_lazy.inner.part import PART; import my_bare.inner.part; from my_lazy import gone"
    write(folder, "my_loss.py", f"def loss():\n    {imports}\n")
    before = set(sys.modules)
    assert own_modules("my_loss").keys() == {"my_loss", "my_lazy", "my_lazy.inner.part", "my_bare.inner.part"}
    assert not {name for name in set(sys.modules) - before if name.startswith("my_")}


def test_the_modules_of_a_model_are_read_once_however_many_runs_use_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(module: str) -> dict[str, str]:
        read.append(module)
        return own_modules(module)

    monkeypatch.setattr(experiment_run, "own_modules", counted)
    variants = [{"name": name} for name in ("one", "two", "three")]
    run(folder, variants=variants, seeds=2)
    assert read == ["my_loss"]
    write(folder, "my_loss.py", (folder / "my_loss.py").read_text().replace('"all": 1.0', '"all": 0.5'))
    read.clear()
    run(folder, replace=True, variants=variants, seeds=2)
    assert read == ["my_loss"]


def test_after_an_edit_of_the_data_the_old_table_does_not_come_back(folder: Path) -> None:
    before = run(folder)
    write(folder, "rows.csv", (folder / "rows.csv").read_text() + "\n1,2,3")
    with pytest.raises(OtherRun, match=r"made with another file .*rows.csv \(it was"):
        run(folder)
    assert run(folder, replace=True).variants != before.variants


def test_a_folder_of_parquet_files_is_known_by_what_is_in_them(tmp_path: Path) -> None:
    def digest() -> str:
        made = experiment_of(
            {"rounds": 1, "model": {"name": "linear-regression"}, "data": {"file": "rows", "target": "y"}},
            name="mine",
            folder=tmp_path,
        )
        return experiment_run.code_identity(made)[f"file {tmp_path / 'rows'}"]

    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.parquet").write_bytes(b"one")
    before = digest()
    assert digest() == before
    (tmp_path / "rows" / "b.parquet").write_bytes(b"two")
    assert digest() != before


def test_results_of_another_version_of_fedping_are_not_taken_for_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder)
    monkeypatch.setattr(experiment_run, "__version__", "99.0")
    with pytest.raises(OtherRun, match=r"made with another version of fedping \(it was .* and is 99.0\)"):
        run(folder)


def test_a_folder_whose_note_is_damaged_within_a_text_is_refused_and_may_be_replaced(folder: Path) -> None:
    before = run(folder)
    note = folder / "out" / "experiment.json"
    note.write_bytes(note.read_bytes().replace(b'"mine"', b'"mi\xffe"', 1))
    with pytest.raises(OtherRun, match="add --replace"):
        run(folder)
    assert run(folder, replace=True) == before


def test_what_is_not_touched_by_a_change_stays_and_the_rest_is_run_anew(folder: Path) -> None:
    two = [{"name": "one"}, {"name": "two", "training": {"algorithm": "local", "epochs": 1, "rate": 0.1}}]
    run(folder, variants=two)
    before = times(folder)
    changed = [two[0], {**two[1], "training": {"algorithm": "local", "epochs": 1, "rate": 0.2}}]
    with pytest.raises(OtherRun, match=r"other settings \('variants.two.training.rate' was 0.1 and is 0.2\)"):
        run(folder, variants=changed)
    assert times(folder) == before
    run(folder, replace=True, variants=[*changed, {"name": "three"}])
    after = times(folder)
    assert {name for name in after if before.get(name) != after[name]} == {"runs/two/seed-1", "runs/three/seed-1"}
    run(folder, replace=True, variants=two[:1])
    assert times(folder).keys() == {"runs/one/seed-1", "baselines/start/seed-1"}


LIMIT = [1.0, {"b": 2, "a": (3, None)}, {"x", "y"}]
TABLE = np.arange(3.0)


def helper(x: float) -> float:
    return x


HELPERS = {"mine": helper}


def uses() -> Any:
    return LIMIT, TABLE, HELPERS


def test_the_digest_of_code_has_the_constants_that_it_uses_however_they_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def digest(**changes: Any) -> str:
        with monkeypatch.context() as patch:
            for name, value in changes.items():
                patch.setattr(sys.modules[__name__], name, value)
            return digest_of_value(uses)

    before = digest()
    assert digest(LIMIT=[1.0, {"a": (3, None), "b": 2}, {"y", "x"}]) == before, "order that says nothing"
    assert digest(LIMIT=[1.0, {"b": 2, "a": (4, None)}, {"x", "y"}]) != before
    assert digest(LIMIT=[1.0, {"b": 2, "a": [3, None]}, {"x", "y"}]) != before
    assert digest(TABLE=np.array([0.0, 1.0, 3.0])) != before
    assert digest(HELPERS={"mine": uses}) != before


def test_the_digest_of_code_has_what_it_encloses() -> None:
    def made(rate: float, table: list[float]) -> Any:
        def inner(x: float) -> float:
            return x * rate + table[0]

        return inner

    assert digest_of_value(made(1.0, [2.0])) == digest_of_value(made(1.0, [2.0]))
    assert digest_of_value(made(1.0, [2.0])) != digest_of_value(made(1.5, [2.0]))
    assert digest_of_value(made(1.0, [2.0])) != digest_of_value(made(1.0, [3.0]))


def test_what_an_earlier_fedping_noted_of_the_text_of_a_loss_is_the_same_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(experiment_run, "digest_of_value", partial(digest_of_value, as_written=True))
        earlier.setattr(experiment_run, "own_modules", lambda _: {})
        before = run(folder)
    began = times(folder)
    assert run(folder) == before
    write(folder, "my_loss.py", (folder / "my_loss.py").read_text().replace("def loss", "# a comment\n\n\ndef loss"))
    assert run(folder) == before
    assert times(folder) == began
    write(folder, "my_loss.py", (folder / "my_loss.py").read_text().replace('"all": 1.0', '"all": 0.5'))
    with pytest.raises(OtherRun, match="another code of my_loss:loss"):
        run(folder)
