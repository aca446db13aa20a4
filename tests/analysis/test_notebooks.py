"""Every notebook runs from a fresh kernel, reproduces its committed output, and reads studies other than the example.

Reproducing the committed notebook takes a simulation of ten seconds and all drawings, so only long tests compare it.
They also run every notebook on a study made in a second, and compare the output that doesn't depend on the study;
`make test` runs the first notebook's cells in its own process.
"""

import re
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure
from nbformat import NotebookNode
from traitlets.config import Config

from fedping.analysis.notebooks import fedping, source
from fedping.analysis.notebooks.__main__ import executed, notebooks
from fedping.experiments.simulate import experiment_from_toml, simulate
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError
from tests.support.effort import in_full
from tests.support.small_experiment import contents, experiment_file

NAMES = ["1_read_a_study", "2_mann_whitney", "3_update_quality", "4_power"]

NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-−+]?\d+)?")


def read(name: str) -> NotebookNode:
    (path,) = (path for path in notebooks() if path.stem == name)
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the kernels' working folder, which contains the example study once it is made."""
    return tmp_path_factory.mktemp("notebooks")


def test_there_are_no_others() -> None:
    assert [path.stem for path in notebooks()] == NAMES


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_again_what_is_committed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")  # a user's own setting, which must not suppress the figures
    committed = read(name)
    made = executed(committed, folder)
    for cell, again in zip(code_cells(committed), code_cells(made), strict=True):
        assert_shows_the_same(cell, again)
    assert any("image/png" in kinds(cell) for cell in code_cells(made))


SMALLER = {
    "4_power": [
        ("STUDIES = np.random.default_rng(1), 1_000", "STUDIES = np.random.default_rng(1), 100"),
        (
            "2,8,32,128 --seeds 2 --iterations 8 --validation-searches 3000",
            "2,4 --seeds 2 --iterations 2 --validation-searches 200",
        ),
    ]
}
"""Replacements in a notebook's code: its simulation, and a smaller one for the test."""

CELLS_WITHOUT_A_STUDY = {"2_mann_whitney": 14}
"""Number of a notebook's cells with the same output for every study, after the one that names it."""


@pytest.mark.spark
def test_the_cells_of_the_first_notebook_read_another_study(
    other_study: Path, tmp_path: Path, warm_commands: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells run in the tests' shared session, and show as many tables and figures as committed."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = about(other_study, read(NAMES[0]))
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    for committed, cell in zip(code_cells(read(NAMES[0])), code_cells(notebook), strict=True):
        with capture_output(display=False) as said:
            ran = shell.run_cell(cell["source"])
        assert ran.success, cell["source"]
        assert said.stderr == ""
        tables = {kind for kind in kinds(committed) if kind in ("text/html", "text/markdown")}
        assert tables <= set(shell.display_formatter.format(ran.result)[0])
        assert isinstance(ran.result, Figure) == ("image/png" in kinds(committed))
        assert bool(said.stdout.partition("Out[")[0].strip()) >= ("stdout" in kinds(committed))


def test_a_fresh_kernel_keeps_what_is_printed_and_drawn(tmp_path: Path) -> None:
    drawn = "from fedping.analysis.notebooks import look\nlook()\nimport matplotlib.pyplot as plt\n"
    drawn += "print('said')\nfigure = plt.figure()\nfigure.add_subplot()\nplt.close()\nfigure"
    cell = nbformat.v4.new_code_cell(drawn)
    (made,) = code_cells(executed(nbformat.v4.new_notebook(cells=[cell]), tmp_path))
    assert kinds(made) == ["stdout", "image/png"]
    assert made["outputs"][0]["text"] == "said\n"


def about(study: Path, notebook: NotebookNode) -> NotebookNode:
    """Have a notebook read a study other than the example."""
    (parameters,) = (cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", ()))
    parameters["source"] = (
        "from pathlib import Path\nfrom fedping.analysis.notebooks import Source\n"
        f"source = Source(Path({str(study / 'store')!r}), Path({str(study / 'landing')!r}), 'small')\n"
        f"experiment = Path({str(study.parent / 'experiment.toml')!r})\n"
        "SIZE, DRAWS, SEED = 40, 5, 1"
    )
    return notebook


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_reads_another_study(name: str, other_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook writes nothing to stderr, and every cell shows as many tables and figures as committed."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    committed, notebook = read(name), about(other_study, read(name))
    for old, new in SMALLER.get(name, ()):
        (cell,) = (cell for cell in code_cells(notebook) if old in cell["source"])
        cell["source"] = cell["source"].replace(old, new)
    made = executed(notebook, other_study.parent)
    assert not (other_study.parent / "example-study").exists()
    for number, (cell, again) in enumerate(zip(code_cells(committed), code_cells(made), strict=True)):
        assert_shows_the_same(cell, again, texts_too=number <= CELLS_WITHOUT_A_STUDY.get(name, 0))
    said = " ".join(text for cell in code_cells(made) for text in texts(cell))
    assert "plain" in said or name != "1_read_a_study"


def test_the_example_is_simulated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test uses smaller settings than the example's; these must still be readable."""
    assert experiment_from_toml(source.EXPERIMENT)[1].name == "demo"
    monkeypatch.setattr(source, "EXPERIMENT", experiment_file(tmp_path, clients=300, iterations=1, ticks=1))
    made = source.example(tmp_path / "example")
    before = contents(tmp_path / "example")
    assert (made.store, made.landing) == (tmp_path / "example" / "store", tmp_path / "example" / "landing")
    assert open_store(made.store).head("small", "main").iteration == 1
    monkeypatch.setattr(source, "EXPERIMENT", tmp_path / "none.toml")
    assert source.example(tmp_path / "example") == made
    assert contents(tmp_path / "example") == before


@pytest.fixture(scope="module")
def other_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a small study with other arms, one without a line."""
    folder = tmp_path_factory.mktemp("other")
    simulate(*experiment_from_toml(experiment_file(folder, clients=1500 if in_full() else 700)), folder / "out")
    return folder / "out"


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: NotebookNode) -> list[str]:
    """Return a cell's output: the names of streams and the types of data, in order."""
    return [kind for out in cell["outputs"] for kind in sorted(out["data"] if "data" in out else [out["name"]])]


def assert_shows_the_same(committed: NotebookNode, made: NotebookNode, texts_too: bool = True) -> None:
    """Compare the outputs of two executions of a cell: tables and figures by number and kind, and texts on request."""
    assert kinds(made) == kinds(committed), committed["source"]
    assert "stderr" not in kinds(made), committed["source"]
    if texts_too:
        for shown, shown_again in zip(texts(committed), texts(made), strict=True):
            assert_same(shown, shown_again)


def texts(cell: NotebookNode) -> list[str]:
    found = []
    for output in cell["outputs"]:
        data = output["data"] if "data" in output else {"text/plain": output["text"]}
        found.append(data.get("text/markdown") or data.get("text/plain") or "")
    return found


def assert_same(committed: str, made: str) -> None:
    """Compare words exactly, and numbers to 5 %: another processor may round, and so simulate, a little differently."""
    assert NUMBER.sub("#", made).split() == NUMBER.sub("#", committed).split()
    read = str.maketrans({",": "", "−": "-"})
    numbers, again = ([float(number.translate(read)) for number in NUMBER.findall(text)] for text in (committed, made))
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
    assert_same("p 5.8e−5 [−0.20, +0.1]", "p 5.9e−5 [−0.20, +0.1]")
    for other in ("U = 7 of 28", "V = 7 of 25", "U = 7"):
        with pytest.raises(AssertionError):
            assert_same("U = 7 of 25", other)
