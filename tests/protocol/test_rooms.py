"""The privacy boundary is visible in the imports, and the heavy libraries stay out of the command's start."""

import ast
import subprocess
import sys
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


def rooms_imported_by(source: str) -> set[str]:
    """Return the rooms of `fedping.<room>`; what is of the package itself counts as the room `fedping`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    ours = [name.split(".") for name in found if name.partition(".")[0] == "fedping"]
    return {name[1] if name[1:] and name[1] in MAY_IMPORT else "fedping" for name in ours}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    if room == "server_jobs":
        allowed |= {"fedping"}  # spark-submit's entry point is the command itself, and ships the package
    sources = list((ROOT / room).rglob("*.py"))  # of fedping without the rooms that it links to
    assert sources
    wrong = {str(p.relative_to(ROOT)): bad for p in sources if (bad := rooms_imported_by(p.read_text()) - allowed)}
    assert not wrong


def test_the_boundary_test_sees_an_import_inside_a_function() -> None:
    assert rooms_imported_by("def f():\n    from fedping.server_jobs.round import run_round\n") == {"server_jobs"}
    assert rooms_imported_by("import fedping.protocol.ping, fedping.main") == {"protocol", "fedping"}
    assert rooms_imported_by("from fedping import experiments, main") == {"experiments", "fedping"}


def imported_files(path: Path) -> set[Path]:
    """Return the files of ours that a file imports, also within functions and for types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    files = {ROOT / (name.removeprefix("fedping.").replace(".", "/") + ".py") for name in found if "." in name}
    return {file for file in files if file.exists()} - {path}


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "experiments/laboratory/settings").glob("*.py")), *sorted((ROOT / "protocol").glob("*.py"))],
)
def test_settings_and_rules_are_in_no_circle_of_imports(path: Path) -> None:
    if path.stem in ("storage", "object_storage"):
        pytest.skip("of storage, not of settings")
    reached, ahead = set[Path](), {path}
    while ahead:
        ahead = {each for file in ahead for each in imported_files(file)} - reached
        reached |= ahead
    assert path not in reached


OF_THE_HELPER = ("privacy", "listening", "forking_server", "ingest.processes.bonds")
"""What the other operator's server has of this room: how noise is drawn and counted, and how a server runs."""


def test_the_helper_has_of_the_leader_only_noise_and_how_a_server_runs() -> None:
    allowed = tuple(f"fedping.server_jobs.{each}" for each in OF_THE_HELPER)
    found = set()
    for path in (ROOT / "helper").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    theirs = {name for name in found if name.startswith("fedping.server_jobs")}
    assert theirs
    assert not [name for name in theirs if not name.startswith(tuple(f"{each}." for each in allowed))]


def test_experiments_use_of_the_round_what_it_says_is_for_others() -> None:
    """What they do must follow from the round as it is, not from a part of it that they put together otherwise."""
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


@pytest.mark.parametrize("heavy", ["numpy", "pyarrow", "pyspark", "matplotlib", "flask", "pandas", "scipy"])
def test_the_commands_start_imports_nothing_heavy(heavy: str) -> None:
    code = f"import fedping.main, sys; fedping.main.main(['--help']); sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0
