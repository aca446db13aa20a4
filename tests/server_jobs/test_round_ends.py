"""Rounds and schedules end: by a signal at any moment, by their time limit, or without the Spark they wait for."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedping.main import main
from fedping.protocol.errors import InvalidSettings
from fedping.server_jobs.schedule import limit_for, parse_time_limit
from fedping.server_jobs.spark.failures import failure_sentence
from fedping.server_jobs.spark.installation import java_home, spark_home
from fedping.server_jobs.spark.settings import QUICK_START
from tests.server_jobs.commands import EVENT_SECONDS, ROOT, Hold, Place, script
from tests.server_jobs.standalone import Machines, machines
from tests.support import forked
from tests.support.processes import left_over, new_mark

BOTH = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the URL of a master without workers."""
    with machines(tmp_path_factory.mktemp("lonely")) as made:
        yield made.start_master()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Machines]:
    """Give a master and a worker for this test alone."""
    with machines(tmp_path / "cluster") as made:
        made.start_master()
        made.start_worker()
        made.wait_for_workers()
        yield made


def test_time_limits_are_intervals_or_none() -> None:
    assert (parse_time_limit("90s"), parse_time_limit(" none "), parse_time_limit("6h")) == (90, None, 21600)
    assert limit_for(1800) == 1620
    assert limit_for(60) == 600
    for text in ("", "0s", "soon", "None", "-1m"):
        with pytest.raises(InvalidSettings, match="6h, or none"):
            parse_time_limit(text)


def test_a_time_limit_that_is_none_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("round", "schedule"):
        assert main([command, "study", "--store", str(tmp_path), "--time-limit", "soon"]) == 2
        assert "'soon' is not a time limit" in capsys.readouterr().err


# --- without workers ---


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.cluster
def test_a_round_without_workers_ends_at_its_time_limit_and_says_what_is_missing(place: Place, lonely: str) -> None:
    for limit in ("15s", "100s"):  # a machine that is very busy does not start Spark in the first
        ran = place.start("round", "--master", lonely, "--time-limit", limit)
        assert ran.ended() == 75
        assert f"the round of study/main has reached its time limit of {limit}" in ran.sentence()
        if "Spark had not started" not in ran.sentence():
            break
    assert f"no executor started: check that {lonely} has live workers" in ran.sentence()
    assert place.version == 0
    assert place.start("round", "--engine", "numpy").ended() == 0  # the same round, by another engine
    assert place.version == 1


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("round", signal.SIGTERM, 143),
        pytest.param("schedule", signal.SIGINT, 0, marks=pytest.mark.long),
        pytest.param("round", signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param("schedule", signal.SIGTERM, 0, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_what_waits_for_workers(place: Place, lonely: str, command: str, number: int, code: int) -> None:
    more = ("--now", "--every", "24h") if command == "schedule" else ()
    ran = place.start(command, "--master", lonely, *more)
    ran.wait_for("Initial job has not accepted any resources")
    ran.process.send_signal(number)
    assert ran.ended() == code
    assert ran.sentence() == {143: "fedping: terminated", 130: "fedping: interrupted", 0: "fedping: stopped"}[code]
    assert place.version == 0


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long
def test_a_master_that_is_away_is_told_in_a_sentence(place: Place) -> None:
    ran = place.start("round", "--master", "spark://127.0.0.1:9")  # the port of `discard`
    assert ran.ended() == 75
    assert "Spark did not start on master spark://127.0.0.1:9: it does not answer" in ran.sentence()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize("number", BOTH)
def test_a_signal_ends_a_round_that_waits_for_its_master(place: Place, number: int) -> None:
    ran = place.start("round", "--master", "spark://127.0.0.1:9")
    ran.wait_until(lambda: ran.runs("org.apache.spark.deploy.SparkSubmit"))
    ran.process.send_signal(number)
    assert ran.ended() == 128 + number


@pytest.mark.spark
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT])
@pytest.mark.parametrize(
    ("command", "stage"), [pytest.param("round", "spark-class", marks=pytest.mark.long), ("schedule", "launcher.Main")]
)
def test_a_signal_ends_what_starts_a_jvm(place: Place, number: int, command: str, stage: str) -> None:
    more = ("--now", "--every", "24h") if command == "schedule" else ()
    ran = place.start(command, "--master", "local[2]", *more)
    ran.wait_until(lambda: ran.runs(stage))
    ran.process.send_signal(number)
    assert ran.ended() == (128 + number if command == "round" else 0)
    assert place.version == 0


# --- the JVM is killed ---


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.cluster
def test_a_round_whose_jvm_is_killed_ends_with_a_sentence(place: Place, lonely: str) -> None:
    ran = place.start("round", "--master", lonely)
    ran.wait_for("Initial job has not accepted any resources")
    os.kill(ran.java(), signal.SIGKILL)
    assert ran.ended() == 75
    assert "Spark's JVM on this machine ended during the round" in ran.sentence()
    assert place.version == 0


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long
def test_a_schedule_goes_on_after_its_jvm_is_killed_in_the_middle_of_a_round(
    place: Place, cluster: Machines, hold: Hold
) -> None:
    ran = place.start(
        "schedule", "--master", cluster.master, "--now", "--every", "1s", PYSPARK_PYTHON=str(hold.program)
    )
    ran.wait_until(hold.begun.exists)
    os.kill(ran.java(), signal.SIGKILL)
    ran.wait_for("Spark's JVM on this machine ended during the round")
    hold.release()
    ran.wait_until(lambda: place.version == 1)
    ran.process.send_signal(signal.SIGTERM)
    assert ran.ended() == 0


# --- the master is lost ---


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long
def test_a_schedule_publishes_after_its_master_was_restarted_between_two_rounds(
    place: Place, cluster: Machines
) -> None:
    ran = place.start("schedule", "--master", cluster.master, "--now", "--every", "1s")
    ran.wait_until(lambda: place.version == 1)
    cluster.kill_master()
    ran.wait_for("Disconnected from Spark cluster")
    cluster.start_master()
    cluster.wait_for_workers()
    ran.wait_for("Lost executor")  # the new master knows nothing of the application
    place.land_for(1)
    ran.wait_until(lambda: place.version == 2)
    ran.process.send_signal(signal.SIGINT)
    assert ran.ended() == 0
    assert "no round of" not in ran.said(), "a cluster that was lost between two rounds costs none"


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long
def test_a_round_outlives_its_master(place: Place, cluster: Machines, hold: Hold) -> None:
    ran = place.start("round", "--master", cluster.master, PYSPARK_PYTHON=str(hold.program))
    ran.wait_until(hold.begun.exists)
    cluster.kill_master()
    ran.wait_for("Disconnected from Spark cluster")
    hold.release()  # the executors go on without it
    assert ran.ended() == 0
    assert place.version == 1


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("command", "number"),
    [("round", signal.SIGTERM), ("schedule", signal.SIGINT)],
)
def test_a_signal_ends_a_job_whose_master_is_lost(
    place: Place, cluster: Machines, hold: Hold, command: str, number: int
) -> None:
    more = ("--now", "--every", "24h") if command == "schedule" else ()
    ran = place.start(command, "--master", cluster.master, *more, PYSPARK_PYTHON=str(hold.program))
    ran.wait_until(hold.begun.exists)
    cluster.kill_master()
    ran.wait_for("Disconnected from Spark cluster")
    ran.process.send_signal(number)
    assert ran.ended() == (128 + number if command == "round" else 0)
    assert place.version == 0


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long
def test_a_schedule_gives_up_a_round_whose_executors_are_lost_and_publishes_with_the_next(
    place: Place, cluster: Machines, hold: Hold
) -> None:
    ran = place.start(
        "schedule", "--master", cluster.master, "--now", "--every", "1s", PYSPARK_PYTHON=str(hold.program)
    )
    ran.wait_until(hold.begun.exists)
    cluster.kill_master()
    cluster.start_master()
    ran.wait_for("Lost executor")
    ran.wait_for("all executors were lost during the round")
    hold.release()
    ran.wait_until(lambda: place.version == 1)
    ran.process.send_signal(signal.SIGTERM)
    assert ran.ended() == 0


# --- the executors' Python ---

ANOTHER_PYTHON = """#!/bin/sh
exec '{python}' -c '
import runpy, sys
sys.version_info = type("Version", (tuple,), {{"major": 3, "minor": 99}})((3, 99, 0, "final", 0))
runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
' pyspark.worker
"""
"""A Python whose PySpark sees another version, so that PySpark's own check gives the real error of executors."""


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long
def test_executors_without_our_python_are_told_in_a_sentence(place: Place, cluster: Machines) -> None:
    other = place.folder / "other-python"
    other.write_text(ANOTHER_PYTHON.format(python=sys.executable))
    other.chmod(0o755)
    here = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    ran = place.start("round", "--master", cluster.master, PYSPARK_PYTHON=str(other))
    assert ran.ended() == 1
    assert f"the executors of {cluster.master} run Python 3.99, and this is {here}" in ran.sentence()
    ran = place.start("round", "--master", cluster.master, PYSPARK_PYTHON="/nowhere/python")
    assert ran.ended() == 1
    assert f"the executors of {cluster.master} have no Python at /nowhere/python" in ran.sentence()
    assert place.start("round", "--master", cluster.master).ended() == 0


# --- by spark-submit ---


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_ends_the_script_while_it_waits_for_workers(place: Place, lonely: str, number: int) -> None:
    options = ("--master", lonely, "--conf", "spark.starvation.timeout=1s")
    ran = place.start("round", program=script(*options), FEDPING_PYTHON=sys.executable, FEDPING_SPARK_ARCHIVE="off")
    ran.wait_for("Initial job has not accepted any resources")
    ran.process.send_signal(number)
    assert ran.ended() == 128 + number


def under_spark_submit(*options: str) -> tuple[str, ...]:
    """Return the words that run the entry point like a cluster's driver: as a child of Spark's JVM, not its parent."""
    conf = ("--conf", f"spark.driver.extraJavaOptions={' '.join(QUICK_START)}", "--conf", "spark.ui.enabled=false")
    entry = ROOT / "server_jobs" / "spark" / "entry.py"
    return (str(spark_home() / "bin" / "spark-submit"), *conf, *options, str(entry))


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long
def test_where_the_driver_runs_on_the_cluster_its_time_limit_holds_too(place: Place, lonely: str) -> None:
    given = {"JAVA_HOME": str(java_home()), "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    for limit in ("15s", "100s"):
        ran = place.start("round", "--time-limit", limit, program=under_spark_submit("--master", lonely), **given)
        assert ran.ended() == 75
        if "no executor started" in ran.sentence():
            break
    assert "no executor started" in ran.sentence()
    assert place.version == 0


# --- by force ---

HANGS = """
import subprocess, sys, time
from fedping.server_jobs import shutdown

shutdown.FORCED_AFTER = 0.5
nowhere = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "600"], stdout=nowhere, stderr=nowhere)
shutdown.BY_FORCE.append(child.kill)
with shutdown.ended_by_signals() as ended, ended.within(float(sys.argv[1]) or None, "the round"):
    while True:
        try:
            print("ready", flush=True)
            time.sleep(600)
        except BaseException:
            pass  # hangs on its way out
"""


@pytest.mark.parametrize("number", [*BOTH, 0])
def test_what_hangs_on_its_way_out_is_ended_by_force_with_all_that_it_started(tmp_path: Path, number: int) -> None:
    script, mark = tmp_path / "hangs.py", new_mark()
    script.write_text(HANGS)
    ran = subprocess.Popen(
        [sys.executable, str(script), "0" if number else "0.2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | mark | {"PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout is not None
    assert ran.stdout.readline() == "ready\n"
    if number:
        ran.send_signal(number)
    _, said = ran.communicate(timeout=EVENT_SECONDS)
    assert ran.returncode == (128 + number if number else 75)
    assert re.fullmatch(r"fedping: .*hung: ended by force; run the same command to continue\n", said)
    assert not left_over(mark)


MISSES = """
import os, signal
from fedping.server_jobs import shutdown

with shutdown.ended_by_signals():
    # The other thread takes the signal, as if it had come just before the main one began to wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, shutdown.STOP_SIGNALS)
    try:
        print("ready", flush=True)
        os.read(0, 1)
    except shutdown.EndedBySignal as ended:
        raise SystemExit(ended.exit_code)
"""


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_that_does_not_interrupt_what_waits_ends_it_all_the_same(number: int) -> None:
    command = [sys.executable, "-c", MISSES]
    with forked.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        assert ran.stdout.readline() == "ready\n"
        ran.send_signal(number)
        assert (ran.wait(timeout=EVENT_SECONDS), ran.stderr.read()) == (128 + number, "")


# --- Spark's errors, in a sentence ---


@pytest.mark.parametrize(
    ("said", "sentence", "code"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark",
            "the executors of yarn run Python 3.12, but this is Python 3.11",
            1,
        ),
        ("ModuleNotFoundError: No module named 'pyarrow'", "the executors' Python lacks the package pyarrow", 1),
        ('java.io.IOException: Cannot run program "/x/python": error=2', "have no Python at /x/python", 1),
        (
            "Lost task 0.3 in stage 0.0 (TID 3) (1.2.3.4 executor 3): ExecutorLostFailure (executor 3 exited caused by "
            "one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:",
            "were lost repeatedly during the round (Command exited with code 137)",
            75,
        ),
        ("Job 0 cancelled because SparkContext was shut down", "Spark's application was ended", 75),
    ],
)
def test_a_failure_of_spark_is_told_in_a_sentence(said: str, sentence: str, code: int) -> None:
    found = failure_sentence(RuntimeError(said), "yarn")
    assert found is not None
    assert sentence in str(found)
    assert "\n" not in str(found)
    assert found.exit_code == code


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError()], ids=["asked", "telling"])
def test_a_jvm_that_ends_while_partials_are_fetched_is_told_in_a_sentence(error: Exception) -> None:
    found = failure_sentence(error, "yarn")
    assert found is not None
    assert "Spark's JVM on this machine ended during the round" in str(found)
    assert found.exit_code == 75


def test_a_defect_keeps_its_traceback() -> None:
    assert failure_sentence(RuntimeError("ZeroDivisionError: division by zero"), "yarn") is None
