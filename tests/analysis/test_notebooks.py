"""Every notebook runs from a fresh kernel, shows what is committed in it, and reads a study that is not the example."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from analysis.notebooks import fedping
from analysis.notebooks.run import executed, notebooks
from protocol.errors import FedpingError
from tests.support.small_experiment import experiment_file

NAMES = ["1_read_a_study", "2_mann_whitney", "3_update_quality", "4_power"]

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def read(name: str) -> NotebookNode:
    (path,) = (path for path in notebooks() if path.stem == name)
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the kernels start; the example lies there once it has been made."""
    return tmp_path_factory.mktemp("notebooks")


def test_there_are_no_others() -> None:
    assert [path.stem for path in notebooks()] == NAMES


@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_again_what_is_committed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")  # a person's own setting, which must not take the figures away
    committed = read(name)
    made = executed(committed, folder)
    for cell, again in zip(code_cells(committed), code_cells(made), strict=True):
        assert kinds(again) == kinds(cell), cell["source"]
        assert "stderr" not in kinds(again), cell["source"]
        for shown, shown_again in zip(texts(cell), texts(again), strict=True):
            assert_same(shown, shown_again)
    assert any("image/png" in kinds(cell) for cell in code_cells(made))


@pytest.mark.spark
@pytest.mark.parametrize("name", ["1_read_a_study", "3_update_quality"])
def test_a_notebook_reads_another_study(name: str, tmp_path: Path, other_study: Path) -> None:
    notebook = read(name)
    (parameters,) = (cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", ()))
    parameters["source"] = (
        "from pathlib import Path\nfrom analysis.notebooks import Source\n"
        f"source = Source(Path({str(other_study / 'store')!r}), Path({str(other_study / 'landing')!r}), 'small')\n"
        "SIZE, DRAWS, SEED = 40, 5, 1"
    )
    made = executed(notebook, tmp_path)
    assert not (tmp_path / "example-study").exists()
    said = " ".join(text for cell in code_cells(made) for text in texts(cell))
    assert "plain" in said or name != "1_read_a_study"


@pytest.fixture(scope="module")
def other_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small study with other arms, of which one follows no line."""
    from experiments.simulate import experiment_from_toml, simulate

    folder = tmp_path_factory.mktemp("other")
    simulate(*experiment_from_toml(experiment_file(folder, clients=1500)), folder / "out")
    return folder / "out"


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: NotebookNode) -> list[str]:
    """Return what a cell shows: the names of streams and the types of data, in order."""
    return [kind for out in cell["outputs"] for kind in sorted(out["data"] if "data" in out else [out["name"]])]


def texts(cell: NotebookNode) -> list[str]:
    found = []
    for output in cell["outputs"]:
        data = output["data"] if "data" in output else {"text/plain": output["text"]}
        found.append(data.get("text/markdown") or data.get("text/plain") or "")
    return found


def assert_same(committed: str, made: str) -> None:
    """Compare words exactly, and numbers to 5 %: another processor may round, and so simulate, a little differently."""
    assert NUMBER.sub("#", made).split() == NUMBER.sub("#", committed).split()
    numbers, again = ([float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (committed, made))
    assert again == pytest.approx(numbers, rel=0.05, abs=0.01)


def test_a_command_that_fails_says_why_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel does
    with pytest.raises(FedpingError) as caught:
        fedping("simulate", tmp_path / "no such file.toml", "--seed 3")
    assert "cannot read the experiment file" in str(caught.value)
    assert "no such file.toml" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_the_comparison_sees_a_changed_word_and_a_changed_number() -> None:
    assert_same("U = 1,200.5 of p 5.8e-05 [-0.20, +0.1]", "U  = 1,200.4 of p 5.9e-05\n[-0.20, +0.1]")
    for other in ("U = 7 of 28", "V = 7 of 25", "U = 7"):
        with pytest.raises(AssertionError):
            assert_same("U = 7 of 25", other)
