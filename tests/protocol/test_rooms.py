"""Imports respect the privacy boundary between packages, and heavy libraries stay out of the command's start."""

import ast
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT = {
    "protocol": set(),
    "model_store": {"protocol"},
    "server_jobs": {"protocol", "model_store"},
    "client_sim": {"protocol"},
    "helper": {"protocol", "server_jobs"},
    "analysis": {"protocol", "model_store"},
    "experiments": {"protocol", "model_store", "server_jobs", "client_sim", "analysis", "helper"},
    "dashboard": {"protocol", "model_store", "server_jobs", "analysis", "experiments"},
    "fedping": {
        "protocol",
        "model_store",
        "server_jobs",
        "client_sim",
        "analysis",
        "experiments",
        "dashboard",
        "helper",
    },
}


@cache
def imported_by(source: str) -> set[str]:
    """Return the dotted names that a source imports, also inside functions and for types alone."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_imported_by(source: str) -> set[str]:
    """Return the packages imported as `fedping.<package>`; a name of fedping itself counts as `fedping`."""
    ours = [name.split(".") for name in imported_by(source) if name.partition(".")[0] == "fedping"]
    return {name[1] if name[1:] and name[1] in MAY_IMPORT else "fedping" for name in ours}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    if room == "server_jobs":
        allowed |= {"fedping"}  # spark-submit's entry point is the command itself, and ships the package
    sources = list((ROOT / room).rglob("*.py"))  # fedping without the packages that it links to
    assert sources
    wrong = {str(p.relative_to(ROOT)): bad for p in sources if (bad := rooms_imported_by(p.read_text()) - allowed)}
    assert not wrong


def test_the_boundary_test_sees_an_import_inside_a_function() -> None:
    assert rooms_imported_by("def f():\n    from fedping.server_jobs.round import run_round\n") == {"server_jobs"}
    assert rooms_imported_by("import fedping.protocol.ping, fedping.main") == {"protocol", "fedping"}
    assert rooms_imported_by("from fedping import experiments, main") == {"experiments", "fedping"}


OF_THE_HELPER = ("privacy", "listener", "forking_server", "processes")
"""Modules of `server_jobs` that the helper may import: noise and its accounting, and the running of servers."""


def test_the_helper_has_of_the_leader_only_noise_and_how_a_server_runs() -> None:
    allowed = tuple(f"fedping.server_jobs.{each}" for each in OF_THE_HELPER)
    found = set().union(*(imported_by(path.read_text()) for path in (ROOT / "helper").rglob("*.py")))
    theirs = {name for name in found if name.startswith("fedping.server_jobs")}
    assert theirs
    assert not [name for name in theirs if not name.startswith(tuple(f"{each}." for each in allowed))]


def test_experiments_use_of_the_round_what_it_says_is_for_others() -> None:
    """Their results must come from the round itself, not from its parts combined differently."""
    import fedping.server_jobs.round

    wrong = []
    for path in (ROOT / "experiments").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if module == "fedping.server_jobs.round":
                wrong += [(path.name, name) for name in names if name not in fedping.server_jobs.round.__all__]
            wrong += [(path.name, each) for each in (module, *names) if each.startswith("fedping.server_jobs.round.")]
            wrong += [(path.name, "round") for name in names if (module, name) == ("fedping.server_jobs", "round")]
    assert not wrong


FOLDERS = (*MAY_IMPORT, "benchmarks", "tests")


def circles(imports: Mapping[str, Collection[str]]) -> set[frozenset[str]]:
    """Return the sets of two or more files that import each other in circles.

    Args:
        imports: the files that each file imports.

    Source: Warshall 1962, applied to files that import each other.
    """
    reached = {file: set(others) for file, others in imports.items()}
    for middle in imports:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    own = {file for file, others in reached.items() if file in others}
    return {frozenset(other for other in own & reached[file] if file in reached[other]) for file in own}


@cache
def imports_of_files() -> dict[str, set[str]]:
    """Return fedping's files that each file of the tree imports."""
    files: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            files[f"fedping.{name}" if folder in MAY_IMPORT and folder != "fedping" else name] = path
    return {
        path.relative_to(ROOT).as_posix(): {
            files[target].relative_to(ROOT).as_posix()
            for name in imported_by(path.read_text())
            if (target := name if name in files else name.rpartition(".")[0]) in files and files[target] != path
        }
        for path in files.values()
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    """Includes imports inside functions and for types; a package's `__init__` counts only if named."""
    assert circles(imports_of_files()) == set()


def test_the_test_of_circles_finds_one() -> None:
    imports = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": [], "e": ["a", "f"], "f": ["e"]}
    assert circles(imports) == {frozenset("bc"), frozenset("ef")}
    assert "fedping/main.py" in imports_of_files()["fedping/__main__.py"]


@pytest.mark.parametrize("heavy", ["numpy", "pyarrow", "pyspark", "matplotlib", "flask", "pandas", "scipy"])
def test_the_commands_start_imports_nothing_heavy(heavy: str) -> None:
    code = f"import fedping.main, sys; fedping.main.main(['--help']); sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0
