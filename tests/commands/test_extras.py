"""Without extras most commands work, and each command that needs an extra names it in one sentence."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedping.extras import EXTRAS, OF_COMMANDS
from fedping.main import SUBCOMMANDS
from fedping.model_store.store import open_store
from fedping.protocol.landing import open_landing
from tests.support.environments import ROOT, built_wheel, closure, environment, install_wheel, megabytes
from tests.support.ingest_server import free_port, running_ingest
from tests.support.laboratory import small_file
from tests.support.rounds import crowd, land, store_with
from tests.support.small_experiment import experiment_file
from tests.support.versions import small_study

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()


def requirements(*extras: str) -> list[str]:
    """Return the packages that pip would install with fedping and some extras."""
    return [*PROJECT["dependencies"], *(each for extra in extras for each in _of_extra(extra))]


def _of_extra(extra: str) -> Iterator[str]:
    for text in PROJECT["optional-dependencies"][extra]:
        others = re.fullmatch(r"fedping\[(.*)\]", text)
        if others is None:
            yield text
            continue
        for other in others[1].split(","):
            yield from _of_extra(other)


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the Python of an environment with fedping and no extra, by links to this checkout and installed packages."""
    return linked(tmp_path_factory.mktemp("slim"), requirements())


def linked(folder: Path, wanted: list[str]) -> Path:
    python, site = environment(folder / "venv", wanted)
    (site / "fedping").symlink_to(ROOT / "fedping")
    return python


def run(python: Path, *command: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    made = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "JAVA_HOME")}
    words = [str(python), "-m", "fedping", *map(str, command)]
    return subprocess.run(words, cwd=cwd, env=made, capture_output=True, text=True, timeout=280)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Give a folder with a store, pings of version 0, and experiments of a study and of the laboratory."""
    store_with(tmp_path / "store", small_study())
    land(tmp_path / "landing", crowd(30))
    experiment_file(tmp_path)
    small_file(tmp_path)
    return tmp_path


Ran = Callable[[list[tuple[str, ...]]], "list[subprocess.CompletedProcess[str]]"]


ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
from fedping.main import main

for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([words, code, out.getvalue(), err.getvalue()]), flush=True)
"""


def check_without_extras(here: Path, ran: Ran) -> None:
    """Check that rounds, store, studies and all help work, and that other commands name their extra in one sentence."""
    help_of = [("--help",), *((name, "--help") for name in SUBCOMMANDS)]
    for each in ran([*help_of, ("study", "create", "study.toml")]):
        assert (each.returncode, each.stderr) == (0, ""), each.args
    first, second = ran([("round", "study", "--engine", "numpy"), ("store", "recompute", "study", "main", "1")])
    assert first.returncode == 0
    assert "bit-identical" in second.stdout
    land(here / "landing", crowd(30, version=1), iteration=1)
    wanting = {
        ("round", "study"): "spark",
        ("schedule", "study"): "spark",
        ("analyze", "study"): "analysis",
        ("simulate", "small.toml"): "laboratory",
        ("simulate", "experiment.toml"): "laboratory",
        ("demo", "--clients", "10"): "analysis",
        ("dashboard", "--port", str(free_port())): "dashboard",
        ("ingest", "--port", str(free_port()), "--dashboard", str(free_port())): "dashboard",
    }
    for (words, extra), each in zip(wanting.items(), ran(list(wanting)), strict=True):
        assert each.returncode == 1, (words, each.stderr)
        assert f'pip install "fedping[{extra}]"' in each.stderr, (words, each.stderr)
        assert len(each.stderr.splitlines()) == 1, (words, each.stderr)
    assert open_store(here / "store").iterations("study", "main") == [0, 1]


def test_without_extras_the_rest_works_and_each_command_tells_its_own(slim: Path, here: Path) -> None:
    """The commands of each step run in one process."""

    def ran(commands: list[tuple[str, ...]]) -> "list[subprocess.CompletedProcess[str]]":
        made = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "JAVA_HOME")}
        program = [str(slim), "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)]
        done = subprocess.run(program, cwd=here, env=made, capture_output=True, text=True, timeout=280)
        assert (done.returncode, done.stderr) == (0, "")
        return [subprocess.CompletedProcess(*json.loads(line)) for line in done.stdout.splitlines()]

    check_without_extras(here, ran)


@pytest.mark.long
def test_the_same_with_a_process_for_each(slim: Path, here: Path) -> None:
    check_without_extras(here, lambda commands: [run(slim, *words, cwd=here) for words in commands])


@pytest.fixture(scope="module")
def from_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the Python of an environment with fedping's wheel and its required packages."""
    folder = tmp_path_factory.mktemp("wheel")
    python, _ = environment(folder / "venv", requirements())
    install_wheel(python, built_wheel(folder))
    return python


@pytest.mark.long
def test_the_same_from_a_wheel(from_wheel: Path, here: Path) -> None:
    check_without_extras(here, lambda commands: [run(from_wheel, *words, cwd=here) for words in commands])


TYPED = """
import fedping
results = fedping.run("experiment.toml", overrides={"rounds": 1}, on_round=lambda now: print(now.metrics["test"]))
name: str | None = results.summary.best
total: float = float(fedping.open_store("store").version("study", "main").weights.sum())
wrong: int = results.folder
"""


@pytest.mark.long
def test_mypy_knows_the_types_of_what_the_wheel_installs(from_wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(from_wheel), "typed.py"]
    made = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, cwd=tmp_path, env=made, capture_output=True, text=True)
    errors = [line for line in ran.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, ran.stdout + ran.stderr
    assert errors[0].startswith("typed.py:6: error: Incompatible types in assignment"), errors


@pytest.mark.long
def test_a_host_without_extras_takes_pings(slim: Path, here: Path) -> None:
    assert run(slim, "study", "create", "study.toml", cwd=here).returncode == 0
    with running_ingest(here / "store", here / "landed", "--workers", "2", cwd=here, python=str(slim)) as server:
        sent = run(slim, "fleet", server.url, "small", "--clients", "20", "--searches", "2", "2", cwd=here)
        assert sent.returncode == 0, sent.stderr
        server.flush()
    assert len(open_landing(here / "landed").all_files())


PAGES = """
from pathlib import Path
from fedping.dashboard.application import create_application
from fedping.dashboard.settings import DashboardSettings

here = Path()
places = {name: here / name for name in ("store", "landing", "journal", "runs")}
client = create_application(DashboardSettings(**places)).test_client()
paths = ("/live/study/main/", "/runs/", "/runs/new")
print([client.get(path, headers={"Host": "localhost:8081"}).status_code for path in paths])
"""


def test_the_dashboard_needs_its_extra_alone(here: Path) -> None:
    python = linked(here, requirements("dashboard"))
    ran = subprocess.run([python, "-c", PAGES], cwd=here, capture_output=True, text=True, env={})
    assert (ran.returncode, ran.stdout) == (0, "[200, 200, 200]\n"), ran.stderr


def test_without_any_dependency_help_says_how_to_get_them(tmp_path: Path) -> None:
    python = linked(tmp_path, [])
    for words in (["--help"], ["round", "study"]):
        ran = run(python, *words, cwd=tmp_path)
        assert ran.returncode == 1
        assert "the package click" in ran.stderr
        assert "make install" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1
    script = ROOT / "spark-submit.sh"
    made = {"PATH": os.environ["PATH"], "FEDPING_PYTHON": str(python)}
    ran = subprocess.run([script, "--", "round", "x"], cwd=tmp_path, env=made, capture_output=True, text=True)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1), ran.stderr


def test_every_extra_that_a_message_names_exists_and_brings_the_package() -> None:
    known = PROJECT["optional-dependencies"]
    assert {*EXTRAS.values(), *OF_COMMANDS.values()} <= set(known)
    assert set(OF_COMMANDS) <= set(SUBCOMMANDS)
    names = {
        "sklearn": "scikit-learn",
        "flask_wtf": "flask-wtf",
        "dp_accounting": "dp-accounting",
        "Crypto": "pycryptodome",
        "PIL": "pillow",
    }
    for package, extra in EXTRAS.items():
        assert names.get(package, package) in closure(_of_extra(extra)), package
    said = set(re.findall(r"fedping\[(\w+)\]", " ".join(_texts())))
    assert {"laboratory"} <= said <= set(known)


def _texts() -> Iterator[str]:
    for file in (ROOT / "fedping").glob("*/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.long
def test_the_sizes_that_the_readme_tells_are_right_within_a_fifth() -> None:
    told = dict(re.findall(r"^\| (?:`fedping\[)?(\w+)(?:\]`)? \|.*\| ([\d,]+) MB \|$", README, re.MULTILINE))
    assert set(told) == {"nothing", *PROJECT["optional-dependencies"]}
    for extra, size in told.items():
        measured = megabytes(closure(requirements(*([] if extra == "nothing" else [extra]))).values())
        assert measured == pytest.approx(float(size.replace(",", "")), rel=0.2), extra
