"""spark-submit.sh: its command line, its arguments for Spark, and a real round through it, here and on a cluster."""

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.model_store.store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.server_jobs.spark import submit
from fedping.server_jobs.spark.installation import current_archive, find_java, spark_home
from fedping.server_jobs.spark.settings import (
    SparkSettings,
    is_local,
    option_pairs,
    plan,
    properties_of,
    split_command,
    value_of,
)
from fedping.server_jobs.spark.shipping import PACKAGES, code_archive
from tests.server_jobs.standalone import QUICK_EXECUTORS, Cluster
from tests.support.processes import left_over, marked, new_mark, wait_until
from tests.support.rounds import crowd, land, store_with
from tests.support.traps import traps
from tests.support.versions import small_study

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "spark-submit.sh"

VALUE = st.text("abc=/:-* '\"$,", min_size=1, max_size=8).filter(lambda text: text != "--")
OPTION = st.one_of(
    st.tuples(st.sampled_from(["--master", "--conf", "--name", "-c", "--deploy-mode"]), VALUE),
    st.tuples(st.sampled_from(["--verbose", "-v", "--supervise"])),
    st.builds(lambda name, value: (f"{name}={value}",), st.sampled_from(["--master", "--conf"]), VALUE),
)
COMMAND = st.lists(st.one_of(VALUE, st.just("--")), max_size=4)


@given(options=st.lists(OPTION, max_size=6), command=COMMAND)
def test_all_before_the_two_dashes_is_for_spark(options: list[tuple[str, ...]], command: list[str]) -> None:
    words = [word for option in options for word in option]
    assert split_command([*words, "--", *command]) == (words, command)
    assert split_command([*words, "round", *command]) == (words, ["round", *command])
    assert len(list(option_pairs(words))) == len(options)


@given(options=st.lists(OPTION, max_size=6), value=VALUE)
def test_of_two_masters_the_last_is_meant_and_the_flag_before_the_setting(
    options: list[tuple[str, ...]], value: str
) -> None:
    words = [word for option in options for word in option]
    for last in (["--master", value], [f"--master={value}"]):
        assert value_of([*words, *last], "--master", "spark.master", {}) == value
        assert value_of([*words, *last, "--conf", "spark.master=x"], "--master", "spark.master", {}) == value
    assert value_of(["--conf", f"spark.master={value}"], "--master", "spark.master", {"spark.master": "p"}) == value
    assert value_of([], "--master", "spark.master", {"spark.master": "p"}) == "p"


def test_an_option_without_its_value_is_refused() -> None:
    for words in (["--master"], ["--master", "--", "round"]):
        with pytest.raises(InvalidSettings, match="--master lacks its value"):
            split_command(words)


def test_the_properties_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.master no\n\n  spark.master   spark://host:7077  \nspark.a=b c\nspark.d : e\n! spark.f g\nspark.h\n"
    )
    found = properties_of([], {"SPARK_CONF_DIR": str(tmp_path)}, Path("/nowhere"))
    assert found.items() >= {"spark.master": "spark://host:7077", "spark.a": "b c", "spark.d": "e"}.items()
    assert "spark.f" not in found
    named = tmp_path / "named"
    named.write_text("spark.master yarn\n")
    assert properties_of(["--properties-file", str(named)], {}, Path("/nowhere")) == {"spark.master": "yarn"}
    assert properties_of([], {}, Path("/nowhere")) == {}


@pytest.mark.parametrize(
    ("options", "setting", "default", "environment", "expected"),
    [
        (["--master", "yarn"], "local[3]", "spark://d:1", "spark://e:1", "yarn"),
        (["--conf", "spark.master=yarn"], "local[3]", "spark://d:1", "spark://e:1", "yarn"),
        ([], "local[3]", "spark://d:1", "spark://e:1", "local[3]"),
        ([], None, "spark://d:1", "spark://e:1", "spark://d:1"),
        ([], None, None, "spark://e:1", "spark://e:1"),
        ([], None, None, None, "local[*]"),
    ],
)
def test_who_names_the_master(
    options: list[str],
    setting: str | None,
    default: str | None,
    environment: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("MASTER", raising=False)
    if environment:
        monkeypatch.setenv("MASTER", environment)
    if default:
        (tmp_path / "spark-defaults.conf").write_text(f"spark.master {default}\n")
    start = plan(SparkSettings(master=setting), options, Path("/spark"), None)
    assert start.master == expected
    assert start.arguments[len(start.arguments) - len(options) :] == options
    assert value_of(start.arguments, "--master", "spark.master", {}) == expected
    assert ("spark.sql.shuffle.partitions=2" in start.arguments) == is_local(expected)


def test_the_operators_own_log_settings_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    ours = plan(SparkSettings(), [], Path("/spark"), None).arguments
    assert any("log4j2.configurationFile=file:" in word and "a%20cache" in word for word in ours)
    (tmp_path / "log4j2.properties").touch()
    assert not any("log4j2" in word for word in plan(SparkSettings(), [], Path("/spark"), None).arguments)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "the fedping command"),
        (["--master", "local[2]", "--"], "the fedping command"),
        (["--master"], "--master lacks its value"),
        (["--deploy-mode", "clutser", "--", "round"], "unknown deploy mode 'clutser'"),
        (["--deploy-mode", "cluster", "--", "round"], "needs a cluster"),
        (["--master", "spark://host:1", "--deploy-mode=cluster", "--", "round"], "set FEDPING_SPARK_STAGING"),
        (["--conf", "spark.master=spark://h:1", "-c", "spark.submit.deployMode=cluster", "round"], "SPARK_STAGING"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_told_in_a_sentence(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    monkeypatch.delenv("FEDPING_SPARK_STAGING", raising=False)
    assert submit.main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("spark-submit.sh: ")
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_help_shows_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: spark-submit.sh [SPARK-SUBMIT OPTION]... -- COMMAND")
    assert max(map(len, said.splitlines())) <= 120


def test_cluster_mode_hands_code_and_entry_point_to_spark_submit(tmp_path: Path) -> None:
    given = ["--master", "yarn", "--deploy-mode", "cluster", "--py-files", "a.zip"]
    ran, words = run_with_a_spark_that_notes(tmp_path, [*given, "--", "round", "--store", "s 1", "x"])
    assert ran.returncode == 7, ran.stderr  # Spark's own exit code
    options, rest = split_command(words)
    assert rest[0].endswith("server_jobs/spark/entry.py")
    assert rest[1:] == ["round", "--store", "s 1", "x"]
    assert value_of(options, "--master", "", {}) == "yarn"
    assert value_of(options, "--deploy-mode", "", {}) == "cluster"
    code, theirs = str(value_of(options, "--py-files", "", {})).split(",")
    assert theirs == "a.zip"
    assert zipfile.is_zipfile(code)


def test_a_command_on_the_cluster_gets_its_variables(tmp_path: Path) -> None:
    given = {"FEDPING_STORE": "s3://b/store", "FEDPING_LOG_FORMAT": "json", "FEDPING_WEBHOOK": "https://a.secret"}
    _, words = run_with_a_spark_that_notes(tmp_path, ["--master", "yarn", "--deploy-mode", "cluster", "round"], given)
    _, rest = split_command(words)
    assert rest[1:] == ["FEDPING_STORE=s3://b/store", "FEDPING_LOG_FORMAT=json", "round"]
    entry = [sys.executable, rest[0], "FEDPING_STORE=nowhere", "store", "history", "x", "y"]
    ran = subprocess.run(entry, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "there is no model store at nowhere" in ran.stderr


def test_on_kubernetes_the_code_is_the_images_unless_it_can_be_uploaded(tmp_path: Path) -> None:
    argv = ["--master", "k8s://h:1", "--deploy-mode", "cluster"]
    _, words = run_with_a_spark_that_notes(tmp_path / "a", [*argv, "round", "x"])
    options, rest = split_command(words)
    assert rest == [submit.IN_IMAGE, "round", "x"]
    assert value_of(options, "--py-files", "", {}) is None
    uploads = ["--conf", "spark.kubernetes.file.upload.path=s3a://b/uploads"]
    _, words = run_with_a_spark_that_notes(tmp_path / "b", [*argv, *uploads, "round", "x"])
    options, rest = split_command(words)
    assert rest[0].endswith("server_jobs/spark/entry.py")
    assert zipfile.is_zipfile(str(value_of(options, "--py-files", "", {})))


def test_options_of_the_environment_come_before_those_of_the_command_line(tmp_path: Path) -> None:
    defaults = {"FEDPING_SPARK_OPTIONS": "--master yarn --deploy-mode cluster --queue 'the queue'"}
    _, words = run_with_a_spark_that_notes(tmp_path, ["--master", "k8s://h:1", "--", "round", "x"], defaults)
    options, _ = split_command(words)
    assert value_of(options, "--master", "", {}) == "k8s://h:1"
    assert value_of(options, "--queue", "", {}) == "the queue"


def test_options_of_the_environment_that_are_no_words_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDPING_SPARK_OPTIONS", "--master 'yarn")
    assert submit.main(["--", "round", "x"]) == 2
    assert "can't parse the environment variable FEDPING_SPARK_OPTIONS" in capsys.readouterr().err


def run_with_a_spark_that_notes(
    folder: Path, argv: list[str], environment: dict[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script with a SPARK_HOME whose spark-submit records its arguments and exits with 7."""
    program = folder / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nfor word do printf '%s\\0' \"$word\"; done >'{folder}/words'\nexit 7\n")
    program.chmod(0o755)
    ran = run_script(argv, cwd=folder, SPARK_HOME=str(folder / "spark"), **(environment or {}))
    return ran, (folder / "words").read_text().split("\0")[:-1]


def run_script(
    argv: list[str], cwd: Path, script: Path = SCRIPT, **environment: str
) -> subprocess.CompletedProcess[str]:
    made = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MASTER", "JAVA_HOME")}
    made |= {"FEDPING_PYTHON": sys.executable, **archive_if_made(), **environment}
    return subprocess.run([str(script), *argv], cwd=cwd, env=made, capture_output=True, text=True, timeout=280)


def archive_if_made() -> dict[str, str]:
    """Return variables that keep the script from making an archive, if there is none to use."""
    return {} if current_archive(find_java(), spark_home()) else {"FEDPING_SPARK_ARCHIVE": "off"}


def test_the_shipped_zip_is_enough_to_run_the_command(tmp_path: Path) -> None:
    first, again = code_archive(), code_archive()
    assert first == again
    path = tmp_path / "code.zip"
    path.write_bytes(first)
    entry = shutil.copy(ROOT / "server_jobs" / "spark" / "entry.py", tmp_path / "entry.py")
    ran = subprocess.run(
        [sys.executable, entry, "round", "--help"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Usage: fedping round" in ran.stdout
    names = zipfile.ZipFile(path).namelist()
    assert {name.rpartition("/")[0].replace("/", ".") for name in names} >= set(PACKAGES)
    assert not [name for name in names if name.startswith(("fedping/client_sim/", "fedping/analysis/"))]
    assert not [name for name in names if "__pycache__" in name]
    ran = subprocess.run([sys.executable, path, "round", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert "Usage: fedping round" in ran.stdout, "it is a program itself, as drivers on standalone clusters have it"


def test_the_script_runs_through_a_link_from_anywhere(tmp_path: Path) -> None:
    link = tmp_path / "a link"
    link.symlink_to(SCRIPT)
    ran = run_script(["--", "store", "history", "x", "y", "--store", "nowhere"], tmp_path, link)
    assert ran.returncode == 1
    assert ran.stderr.startswith("fedping: ")
    assert "nowhere" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_python_that_is_none_or_lacks_spark_is_told_in_a_sentence(tmp_path: Path) -> None:
    ran = run_script(["--", "round", "x"], tmp_path, FEDPING_PYTHON=str(tmp_path / "none"))
    assert ran.returncode == 2
    assert "is no Python that runs" in ran.stderr
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')
    bare.chmod(0o755)
    ran = run_script(["--", "round", "x"], tmp_path, FEDPING_PYTHON=str(bare))
    assert ran.returncode == 1
    assert "has no pyspark" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a store, pings of its version 0, and version 1 by the NumPy engine."""
    folder = tmp_path_factory.mktemp("landed")
    store_with(folder / "store", small_study())
    for at, clients in enumerate((40, 60)):
        land(folder / "landing", crowd(clients, seed=at, first_document=1000 * at), at_ms=1_700_000_000_000 + at)
    shutil.copytree(folder / "store", folder / "numpy")
    arguments = ["--store", str(folder / "numpy"), "--landing", str(folder / "landing"), "--engine", "numpy", "study"]
    command = [sys.executable, "-m", "fedping", "round", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def arguments_for(landed: Path, folder: Path) -> list[str]:
    store = shutil.copytree(landed / "store", folder / "store")
    return ["--", "round", "--store", str(store), "--landing", str(landed / "landing"), "--json", "study", "main"]


def weights_of_version_1(store: Path) -> tuple[float, ...]:
    return tuple(open_store(store).version("study", "main", 1).weights)


def a_path_without_java(folder: Path) -> Path:
    """Return a folder with the tools of Spark's shell scripts, and no Java."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in (
        "bash",
        "sh",
        "env",
        "dirname",
        "readlink",
        "ps",
        "head",
        "uname",
        "setsid",
        "id",
        "rm",
        "chmod",
        "ls",
    ):
        found = shutil.which(tool)
        if found:
            (tools / tool).symlink_to(found)
    return tools


def running(mark: dict[str, str]) -> list[str]:
    return list(marked(mark).values())


@pytest.mark.long
@pytest.mark.spark
def test_a_round_here_on_a_machine_without_java(landed: Path, tmp_path: Path) -> None:
    mark, cwd = new_mark(), tmp_path / "cwd"
    cwd.mkdir()
    environment = {"PATH": str(a_path_without_java(tmp_path)), "XDG_CACHE_HOME": str(tmp_path / "cache"), **mark}
    environment["FEDPING_SPARK_ARCHIVE"] = "off"  # in an empty cache it would be made
    argv = ["--master", "local[2]", *arguments_for(landed, tmp_path)]
    ran = run_script(argv, cwd, **environment)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)
    assert weights_of_version_1(tmp_path / "store") == weights_of_version_1(landed / "numpy")
    assert not list(cwd.iterdir())

    again = run_script(argv, cwd, **environment)  # no ping of version 1 has landed
    assert (again.returncode, again.stderr) == (0, "")
    assert open_store(tmp_path / "store").iterations("study", "main") == [0, 1]
    assert not left_over(mark, seconds=2)


@pytest.mark.long
@pytest.mark.spark
def test_a_master_that_does_not_exist_is_told_in_a_sentence(landed: Path, tmp_path: Path) -> None:
    mark = new_mark()
    ran = run_script(["--master", "nonsense", *arguments_for(landed, tmp_path)], tmp_path, **mark)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("fedping: Spark did not start on master nonsense: ")
    assert len(ran.stderr.splitlines()) == 1
    assert open_store(tmp_path / "store").iterations("study", "main") == [0]
    assert not left_over(mark, seconds=2)


@pytest.mark.long
@pytest.mark.spark
def test_control_c_ends_the_script_with_everything_it_started(landed: Path, tmp_path: Path) -> None:
    mark = new_mark()
    process = subprocess.Popen(
        [str(SCRIPT), *arguments_for(landed, tmp_path)],
        env=os.environ | mark | {"FEDPING_PYTHON": sys.executable} | archive_if_made(),
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: any("/bin/java -cp" in command for command in running(mark)))
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert (process.returncode, said.strip()) == (130, "fedping: interrupted")
    assert not left_over(mark, seconds=2)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.thorough
def test_a_round_on_a_standalone_cluster_among_files_of_our_rooms_names(
    cluster: Cluster, landed: Path, tmp_path: Path
) -> None:
    mark, before, here = new_mark(), logs_of_executors(cluster), traps(tmp_path / "here")
    options = ["--master", cluster.master, "--deploy-mode", "client"]
    options += [word for key, value in QUICK_EXECUTORS.items() for word in ("--conf", f"{key}={value}")]
    options += ["--conf", f"spark.executorEnv.PYTHONPATH={here}"]
    made = {"PYTHONPATH": str(here), "SPARK_LOCAL_IP": "127.0.0.1", **mark}
    ran = run_script([*options, *arguments_for(landed, tmp_path)], here, **made)
    assert ran.returncode == 0, ran.stderr + cluster.executor_logs()
    assert weights_of_version_1(tmp_path / "store") == weights_of_version_1(landed / "numpy")
    assert logs_of_executors(cluster) - before  # executors of the cluster did it
    assert not left_over(mark, seconds=2)


def logs_of_executors(cluster: Cluster) -> set[Path]:
    return set(cluster.folder.glob("work-*/app-*/*/stderr"))
