"""Everything that the docs tell a reader to type works: imports, commands, units, the DAG, the wheel."""

import ast
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fedping.main import cli, main
from fedping.server_jobs.health.checks import FINDINGS
from fedping.server_jobs.ingest.answers import REASONS
from fedping.server_jobs.ingest.heartbeat import CHECKS
from fedping.server_jobs.round.run import RoundResult
from tests.support.environments import installed_wheel
from tests.support.ingest_app import ingest_app

ROOT = Path(__file__).parents[2]
OF_THE_TOP = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")]
PAGES = sorted([*OF_THE_TOP, *(ROOT / "docs").rglob("*.md")])
OPERATORS = (ROOT / "docs" / "operators.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("airflow", "wandb")
"""Packages in the docs that aren't installed for tests: a scheduler, and an experiment tracker."""


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """Yield the location and text of all pages' blocks in some languages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            if found[1] in languages:
                line = text[: found.start()].count("\n") + 1
                yield f"{page.relative_to(ROOT)}:{line}", found[2]


def own_modules() -> set[str]:
    """Return the modules that readers write from the pages' blocks, which begin with `# file: name.py`."""
    return {name for _, text in blocks("python") for name in re.findall(r"^# file: (\w+)\.py$", text, re.MULTILINE)}


def imports(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the modules that a block imports, with the imported names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            yield from ((node.module, alias.name) for alias in node.names)


PYTHON = dict(blocks("python"))


@pytest.mark.parametrize("where", PYTHON)
def test_what_a_python_block_imports_is_there(where: str) -> None:
    theirs = own_modules()
    for module, name in imports(PYTHON[where]):
        if module.partition(".")[0] in {*theirs, *ELSEWHERE}:
            continue
        found = importlib.import_module(module)
        assert name is None or hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), (module, name)


def test_there_are_python_blocks_with_imports_of_ours() -> None:
    modules = {module for text in PYTHON.values() for module, _ in imports(text)}
    for room in ("fedping.analysis", "fedping.client_sim", "fedping.model_store", "fedping.protocol", "airflow"):
        assert any(f"{module}.".startswith(f"{room}.") for module in modules), room


# --- commands ---


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of all `fedping` commands of a block, including those that `spark-submit.sh` runs."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        for part in re.split(r"\s(?:>>?|2>&1|\||&&|;)\s?", f"{line} "):
            try:
                words = shlex.split(part.removeprefix("$ "), comments=True)
            except ValueError:
                continue
            for at, word in enumerate(words):
                if word.endswith("spark-submit.sh") and "--" in words[at:]:
                    yield words[at + words[at:].index("--") + 1 :]
                elif word == "fedping" or word.endswith("/fedping"):
                    yield words[at + 1 :]
                else:
                    continue
                break


def refusal(words: list[str]) -> str:
    """Return the error in a command's words, an unknown subcommand or option; empty without an error."""
    command: click.Command = cli
    words = [word for word in words if word not in ("...", "…")]
    while isinstance(command, click.Group):
        context = click.Context(command)
        if not words or words[0].startswith("-"):
            break
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]!r}"
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h", "--version"}
    unknown = [word for word in words if re.match(r"--\w", word) and word.partition("=")[0] not in known]
    return f"no option {unknown[0]} of {command.name}" if unknown else ""


SHELL = dict(blocks("sh", "console", "bash", "cron", "ini"))


@pytest.mark.parametrize("where", [where for where, text in SHELL.items() if list(commands(text))])
def test_commands_and_options_of_the_docs_exist(where: str) -> None:
    for words in commands(SHELL[where]):
        assert not refusal(words), f"fedping {shlex.join(words)}"


def test_what_does_not_exist_would_be_noticed() -> None:
    assert refusal(["rounds", "x"])
    assert refusal(["round", "x", "--time-limits", "3m"])
    assert not refusal(["store", "rollback", "x", "main", "--to", "41"])
    assert [*commands("5 * * * *  A=b /opt/fedping/spark-submit.sh --master x -- round x >> /var/log/x 2>&1\n")] == [
        ["round", "x"]
    ]


# --- units and the DAG ---


def dag() -> str:
    return next(text for _, text in blocks("python") if "airflow" in text)


def airflow_modules(monkeypatch: pytest.MonkeyPatch, made: list[dict[str, object]]) -> None:
    """If Airflow is missing, replace it by classes that accept the same arguments."""

    class Stub:
        def __init__(self, *_: object, **keywords: object) -> None:
            made.append(keywords)

        def __enter__(self) -> "Stub":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    for name in ("airflow", "airflow.sdk", "airflow.providers.standard.operators.bash"):
        module = types.ModuleType(name)
        module.DAG = module.BashOperator = Stub  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)


def test_the_dag_runs_a_command_that_exists_and_leaves_a_round_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The imports are Airflow 3's; its release 3.3.2 parsed this DAG."""
    made: list[dict[str, object]] = []
    airflow_modules(monkeypatch, made)
    exec(compile(dag(), "operators.md", "exec"), {})
    (whole, task) = made
    assert whole["max_active_runs"] == 1
    (words,) = commands(str(task["bash_command"]))
    assert not refusal(words)
    assert str(task["bash_command"]).endswith(" "), "else Airflow takes what ends in .sh for a template"


@pytest.mark.skipif(importlib.util.find_spec("airflow") is None, reason="Airflow is not installed")
def test_airflow_itself_takes_the_dag() -> None:
    made: dict[str, object] = {}
    exec(compile(dag(), "operators.md", "exec"), made)
    assert made["dag"].task_ids == ["round"]  # type: ignore[attr-defined]


def units() -> dict[str, str]:
    """Return the systemd units of the operators' page by their file names."""
    found = {}
    for block in BLOCK.finditer(OPERATORS):
        if block[1] == "ini" and "[Unit]" in block[2]:
            kind = "timer" if "[Timer]" in block[2] else "service"
            command = re.search(r"-- (\w+)|bin/fedping (\w+)", block[2])
            name = (command[1] or command[2]) if command else "round"
            found[f"fedping-{name}.{kind}"] = block[2]
    return found


def test_the_units_of_the_docs_are_five() -> None:
    services = {f"fedping-{name}.service" for name in ("ingest", "schedule", "round", "study")}
    assert set(units()) == {*services, "fedping-round.timer"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name, text in units().items():
        # It must find the program, so a program that every machine has replaces it.
        (tmp_path / name).write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/sh", text, flags=re.MULTILINE))
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in units())]
    ran = subprocess.run(command, capture_output=True, text=True)
    ours = [line for line in ran.stderr.splitlines() if "fedping" in line and "not an absolute" not in line]
    assert (ran.returncode, ours) == (0, [])


def test_the_line_for_cron_has_five_fields_and_one_command() -> None:
    (text,) = (text for _, text in blocks("cron"))
    (line,) = text.splitlines()
    minutes, hours, *days = line.split()[:5]
    assert (minutes, hours, days) == ("28,58", "*", ["*"] * 3)
    assert "%" not in line, "which cron takes for the end of the line"
    assert [words[:2] for words in commands(line)] == [["round", "firefox"]]


# --- version numbers ---


def test_the_version_names_the_commit_that_the_operator_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedping import __version__

    monkeypatch.delenv("FEDPING_COMMIT", raising=False)
    told = ingest_app(tmp_path / "without").client.get("/__version__").get_json()
    assert told == {"source": "fedping", "version": __version__, "commit": ""}
    monkeypatch.setenv("FEDPING_COMMIT", "0123abc")
    assert ingest_app(tmp_path / "with").client.get("/__version__").get_json()["commit"] == "0123abc"


# --- installed from a wheel ---


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a virtual environment with fedping's wheel and this environment's other packages, without downloads."""
    return installed_wheel(tmp_path_factory.mktemp("wheel"))


def run_installed(python: Path, *command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.long
def test_the_wheel_writes_the_same_files_for_operators(installed: Path, tmp_path: Path) -> None:
    options = ["--environment", "/opt/fedping/.venv", "--docs", "https://docs.example"]
    ran = run_installed(
        installed, str(installed.parent / "fedping"), "deploy", "files", "there", *options, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert main(["deploy", "files", str(tmp_path / "here"), *options]) == 0
    there, here = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "there", tmp_path / "here")
    )
    assert there == here
    ran = run_installed(installed, str(installed.parent / "fedping"), "deploy", "files", "own", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    unit = (tmp_path / "own" / "systemd" / "fedping-ingest.service").read_text()
    assert f"ExecStart={installed.parent}/fedping ingest" in unit, "by itself, it names the environment that it is in"


@pytest.mark.long
def test_the_wheel_gives_the_command_and_every_import_of_the_docs(installed: Path, tmp_path: Path) -> None:
    program = str(installed.parent / "fedping")
    ran = run_installed(installed, program, "--help", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Usage: fedping" in ran.stdout
    ran = run_installed(installed, program, "round", "--help", cwd=tmp_path)
    assert "--time-limit" in ran.stdout
    theirs = {*own_modules(), *ELSEWHERE}
    lines = {
        f"from {module} import {name}" if name else f"import {module}"
        for text in PYTHON.values()
        for module, name in imports(text)
        if module.partition(".")[0] not in theirs
    }
    code = "\n".join([*sorted(lines), "import fedping.protocol; print(fedping.protocol.__file__)"])
    ran = run_installed(installed, str(installed), "-c", code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert str(installed.parents[1]) in ran.stdout


@pytest.mark.long
@pytest.mark.parametrize("extra", ["spark", "analysis", "laboratory", "notebooks", "all"])
def test_an_extra_of_what_is_installed_is_taken_without_a_release(installed: Path, tmp_path: Path, extra: str) -> None:
    """Messages suggest `pip install "fedping[…]"`: pip finds fedping installed, and installs only the rest."""
    command = [sys.executable, "-m", "pip", "--python", str(installed), "install", "--no-index", f"fedping[{extra}]"]
    ran = run_installed(installed, *command, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "Requirement already satisfied: fedping" in ran.stdout


def test_the_docs_promise_no_release() -> None:
    """No page begins with `pip install fedping[…]`, because no index has a package of that name."""
    for where, text in blocks("sh", "console"):
        for line in text.splitlines():
            assert not re.match(r"\$? ?pip install \"?fedping(\[\w+\])?\"?(\s*$|\s+#)", line), f"{where}: {line}"


# --- links ---


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings on a code forge."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in shown}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("https:", "http:", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


# --- words ---


def test_operators_read_the_words_that_a_waiting_round_prints() -> None:
    said = RoundResult(status="waiting", study="s", line="l", iteration=57, clients=3, min_clients=100).sentence
    assert f"| `{said.removeprefix('s/l: ')}`, again and again |" in OPERATORS
    general = said.removeprefix("s/l: ").replace("57", "n").replace("100", "m").replace("3", "k")
    assert f"| {general} |" in OPERATORS


def test_every_finding_is_in_the_guide() -> None:
    table = OPERATORS.partition("### Is the study well?")[2].partition("In `/metrics`")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(FINDINGS)


def test_every_check_of_the_heartbeat_and_every_named_refusal_is_in_the_guide() -> None:
    table = OPERATORS.partition("### The heartbeat")[2].partition("## 3.")[0]
    assert re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))) == list(CHECKS)
    assert set(re.findall(r"^\| rejected: `(\w+)`", OPERATORS, re.MULTILINE)) <= REASONS.keys()
    assert "rejected: `update_length`" in OPERATORS
