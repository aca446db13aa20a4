"""Rounds on a real standalone cluster: with a secret, with the driver on the cluster, and with lost parts."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedping.model_store.store import open_store
from fedping.server_jobs.privacy.keys import read_key
from tests.server_jobs.commands import EVENT_SECONDS, Hold, Place, Running, numpy_weights, script
from tests.server_jobs.standalone import QUICK_EXECUTORS, Cluster, Machines, machines, write_settings
from tests.support.environments import environment
from tests.support.private import private_study
from tests.support.private_rounds import land_private, private_crowd
from tests.support.processes import wait_until
from tests.support.rounds import crowd, land, store_with

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SECRET = "a-secret-of-the-cluster"
SECURED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": SECRET,
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
    "spark.master.rest.enabled": "false",
}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "",
    "spark.dynamicAllocation.maxExecutors": "8",
}
LOGGED = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": ""}
RECOVERED = {"spark.deploy.recoveryMode": "FILESYSTEM", "spark.deploy.recoveryDirectory": ""}
"""Spark's recovery settings from docs/cluster.md; each test fills in the empty ones."""

BY_SCRIPT = {"FEDPING_PYTHON": sys.executable, "FEDPING_SPARK_ARCHIVE": "off"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Give a cluster that accepts only clients with its secret, with room for a driver and executors."""
    with machines(tmp_path_factory.mktemp("secured"), SECURED) as made:
        made.start_master()
        made.start_worker(cores=3, memory="3g")
        made.wait_for_workers()
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Machines]:
    """Give a master and a worker for this test alone."""
    with machines(tmp_path / "cluster") as made:
        made.start_master()
        made.start_worker()
        made.wait_for_workers()
        yield made


@pytest.fixture
def staged(tmp_path: Path) -> dict[str, str]:
    """Give the environment of submissions to a secured cluster, with a folder for code."""
    (tmp_path / "staging").mkdir()
    settings = write_settings(tmp_path / "conf", SECURED)
    return BY_SCRIPT | {"FEDPING_SPARK_STAGING": str(tmp_path / "staging"), "SPARK_CONF_DIR": str(settings)}


def on_it(master: str, *more: str) -> tuple[str, ...]:
    """Return the words that submit a command to run on a cluster."""
    return script("--master", master, "--deploy-mode", "cluster", "--total-executor-cores", "2", *more)


def weights(place: Place, version: int) -> tuple[float, ...]:
    return tuple(place.store.version("study", "main", version).weights)


def driver_of(ran: Running) -> str:
    ran.wait_for("Driver successfully submitted as ")
    found = re.search(r"successfully submitted as (\S+)", ran.said())
    assert found is not None
    return found[1]


# --- the driver on the cluster ---


@pytest.mark.long
def test_a_driver_on_a_standalone_cluster_publishes_what_numpy_does(
    place: Place, cluster: Cluster, staged: dict[str, str], tmp_path: Path
) -> None:
    expected = numpy_weights(place, tmp_path / "numpy")
    write_settings(Path(staged["SPARK_CONF_DIR"]), QUICK_EXECUTORS)
    small = ("--driver-memory", "512m", "--executor-memory", "512m")
    ran = place.start("round", program=on_it(cluster.master, *small), **staged)
    assert ran.ended() == 0, ran.said()
    assert weights(place, 1) == expected


@pytest.mark.long
def test_so_it_does_on_a_cluster_with_a_secret(
    place: Place, secured: Machines, staged: dict[str, str], tmp_path: Path
) -> None:
    expected = numpy_weights(place, tmp_path / "numpy")
    ran = place.start("round", program=on_it(secured.master), **staged)
    assert ran.ended() == 0, ran.said()
    driver = secured.folder / "work-0" / driver_of(ran)
    assert weights(place, 1) == expected, (driver / "stdout").read_text()
    assert "study/main: published version 1" in (driver / "stdout").read_text()
    assert SECRET not in "".join(path.read_text(errors="replace") for path in secured.folder.glob("work-0/*/**/std*"))
    assert SECRET not in ran.said()


@pytest.mark.long
def test_a_command_that_fails_on_the_cluster_fails_here_with_where_its_words_are(
    place: Place, secured: Machines, staged: dict[str, str], tmp_path: Path
) -> None:
    program = on_it(secured.master)
    # Of two stores the last one counts; a variable of this environment is known there.
    ran = subprocess.run([*program, "round", "study"], env=os.environ | staged | {"FEDPING_STORE": "/nowhere"},
                         cwd=tmp_path, capture_output=True, text=True)  # fmt: skip
    assert ran.returncode == 1
    said = ran.stderr.splitlines()[-1]
    found = re.fullmatch(r"spark-submit.sh: (\S+) ended as FAILED; its output is in the folder work/\1 on .*", said)
    assert found is not None, ran.stderr
    assert "there is no model store at /nowhere" in (secured.folder / "work-0" / found[1] / "stdout").read_text()


@pytest.mark.long
def test_a_schedule_on_the_cluster_ends_with_its_driver_and_leaves_no_process(
    place: Place, secured: Machines, staged: dict[str, str]
) -> None:
    ran = place.start("schedule", "--every", "1s", program=on_it(secured.master), **staged)
    ran.wait_until(lambda: place.version == 1)
    place.land_for(1)
    ran.wait_until(lambda: place.version == 2)
    kill = [*script("--master", secured.master, "--kill", driver_of(ran))[:-1]]
    killed = subprocess.run(kill, env=os.environ | staged, capture_output=True, text=True)
    assert killed.returncode == 0, killed.stderr
    assert ran.ended() == 1
    assert f"{driver_of(ran)} ended as KILLED" in ran.said()
    assert wait_until(lambda: not secured.running("fedping-") and not secured.executors())


@pytest.mark.long
def test_a_supervised_driver_is_started_again(place: Place, secured: Machines, staged: dict[str, str]) -> None:
    ran = place.start("schedule", "--every", "1s", program=on_it(secured.master, "--supervise"), **staged)
    ran.wait_until(lambda: place.version == 1)
    (java,) = secured.running("DriverWrapper")
    os.kill(java, signal.SIGKILL)
    place.land_for(1)
    ran.wait_until(lambda: place.version == 2)
    assert secured.running("DriverWrapper") != [java]
    kill = [*script("--master", secured.master, "--kill", driver_of(ran))[:-1]]
    assert subprocess.run(kill, env=os.environ | staged, capture_output=True).returncode == 0
    assert ran.ended() == 1
    assert wait_until(lambda: not secured.running("fedping-") and not secured.executors())


def test_a_driver_needs_a_folder_that_its_machine_sees(place: Place, tmp_path: Path, staged: dict[str, str]) -> None:
    for folder, said in (
        ("", "set FEDPING_SPARK_STAGING to a folder"),
        (str(tmp_path / "no"), "FEDPING_SPARK_STAGING: no folder"),
    ):
        ran = place.start("round", program=on_it("spark://127.0.0.1:9"), **staged | {"FEDPING_SPARK_STAGING": folder})
        assert ran.ended() == (1 if folder else 2)
        assert said in ran.said()
        assert len(ran.said().splitlines()) == 1


# --- the secret ---


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, SECURED | {"spark.authenticate.secret": "another"}], ids=["none", "another"])
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_another_secret_is_told_in_a_sentence(
    place: Place, secured: Machines, staged: dict[str, str], settings: dict[str, str], mode: str
) -> None:
    write_settings(Path(staged["SPARK_CONF_DIR"]), settings)
    ran = place.start("round", program=script("--master", secured.master, "--deploy-mode", mode), **staged)
    assert ran.ended() == 1
    assert f"the master {secured.master} and this machine have different secrets" in ran.said().splitlines()[-1]
    assert place.version == 0


# --- event logs ---


@pytest.mark.long
def test_an_event_log_has_the_round_and_no_secret(tmp_path: Path, secured: Machines, staged: dict[str, str]) -> None:
    study = private_study()
    store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 300))
    key, events = tmp_path / "privacy.key", tmp_path / "events"
    events.mkdir()
    subprocess.run([sys.executable, "-m", "fedping", "privacy", "key", str(key)], check=True)
    conf = LOGGED | {
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.executorEnv.AZURE_STORAGE_ACCOUNT_KEY": "of-azure",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "of-aws",
    }
    write_settings(Path(staged["SPARK_CONF_DIR"]), SECURED | conf)
    program = script("--master", secured.master, "--total-executor-cores", "2")
    places = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing"), "--privacy-key", str(key)]
    made = os.environ | staged | {"SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [*program, "round", study.name, *places], env=made, cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert open_store(tmp_path / "store").head(study.name, study.lines[0].name).iteration == 1
    told = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    lines = [json.loads(line) for path in events.rglob("events_*") for line in path.read_text().splitlines()]
    kinds = {line["Event"] for line in lines}
    assert {"SparkListenerTaskEnd", "SparkListenerApplicationEnd"} <= kinds
    secrets = [SECRET.encode(), b"of-azure", b"of-aws", read_key(key), key.read_bytes().strip()]
    assert [secret for secret in secrets if secret in told] == []
    properties = next(line["Spark Properties"] for line in lines if line["Event"] == "SparkListenerEnvironmentUpdate")
    assert "redacted" in properties["spark.executorEnv.AZURE_STORAGE_ACCOUNT_KEY"], "else it was not even there"


# --- executors come and go ---


@pytest.mark.long
def test_a_round_whose_executor_is_killed_publishes_the_same_bits(
    place: Place, own: Machines, hold: Hold, tmp_path: Path
) -> None:
    land(place.folder / "landing", crowd(500), at_ms=1_700_000_000_001)
    expected = numpy_weights(place, tmp_path / "numpy")
    ran = place.start("round", "--master", own.master, PYSPARK_PYTHON=str(hold.program))
    ran.wait_until(hold.begun.exists)
    (first,) = own.executors()
    os.kill(first, signal.SIGKILL)
    ran.wait_until(lambda: own.executors() and first not in own.executors())
    hold.release()
    assert ran.ended() == 0
    assert weights(place, 1) == expected


@pytest.mark.long
def test_a_schedule_gives_idle_executors_back_and_gets_others_for_its_next_round(place: Place, own: Machines) -> None:
    conf = DYNAMIC | {"spark.dynamicAllocation.executorIdleTimeout": "1s"}
    ran = place.start("schedule", "--master", own.master, "--every", "1s", conf=conf)
    for version in range(2):
        ran.wait_until(lambda: place.version == version + 1)  # noqa: B023
        ran.wait_until(lambda: not own.executors())
        place.land_for(version + 1)
    ran.wait_until(lambda: place.version == 3)
    ran.process.send_signal(signal.SIGTERM)
    assert ran.ended() == 0
    assert own.master_log().count("Registered app") == 1, "all in one session"
    assert "no round of" not in ran.said()


@pytest.mark.long
def test_a_round_waits_for_cores_that_others_have_and_says_so_at_its_limit(
    place: Place, own: Machines, hold: Hold
) -> None:
    first = place.start("round", "--master", own.master, PYSPARK_PYTHON=str(hold.program))
    first.wait_until(hold.begun.exists)  # with it, all cores are in use
    for limit in ("20s", "100s"):
        second = place.start("round", "--master", own.master, "--time-limit", limit)
        assert second.ended() == 75
        if "Spark had not started" not in second.sentence():
            break
    assert f"no executor started: check that {own.master} has live workers" in second.sentence()
    third = place.start("round", "--master", own.master)
    third.wait_for("Initial job has not accepted any resources")
    hold.release()
    assert (first.ended(), third.ended(), place.version) == (0, 0, 1)


# --- the master is restarted ---


@pytest.mark.long
def test_a_master_that_recovers_keeps_the_schedules_session(place: Place, tmp_path: Path) -> None:
    (tmp_path / "recovery").mkdir()
    settings = RECOVERED | {"spark.deploy.recoveryDirectory": str(tmp_path / "recovery")}
    with machines(tmp_path / "cluster", settings) as own:
        own.start_master()
        own.start_worker()
        own.wait_for_workers()
        ran = place.start("schedule", "--master", own.master, "--every", "1s")
        ran.wait_until(lambda: place.version == 1)
        executors = own.executors()
        own.kill_master()
        ran.wait_for("Disconnected from Spark cluster")
        place.land_for(1)
        ran.wait_until(lambda: place.version == 2)  # the executors exist, so the master isn't needed
        own.start_master(elected="RECOVERING")
        ran.wait_until(lambda: "Recovery complete" in own.master_log())
        place.land_for(2)
        ran.wait_until(lambda: place.version == 3)
        assert own.executors() == executors
        ran.process.send_signal(signal.SIGTERM)
        assert ran.ended() == 0
        assert "no round of" not in ran.said()


# --- the executors' Python ---

ANOTHER_FEDPING = "raise ImportError('the fedping of this environment is of another version')\n"


@pytest.mark.long
def test_executors_compute_with_a_packed_environment_of_another_fedping(
    place: Place, own: Machines, tmp_path: Path
) -> None:
    """The nodes have a Python without packages. The archive has the executors' packages, and another fedping."""
    expected = numpy_weights(place, tmp_path / "numpy")
    _, packages = environment(tmp_path / "env", EXECUTORS_NEED)
    (packages / "fedping").mkdir()
    (packages / "fedping" / "__init__.py").write_text(ANOTHER_FEDPING)
    archive = packed(tmp_path / "env", tmp_path / "environment.tar.gz")
    options = ["--master", own.master, "--archives", f"{archive}#environment"]
    options += ["--conf", "spark.pyspark.python=./environment/bin/python"]
    ran = place.start("round", program=script(*options), **BY_SCRIPT)
    assert ran.ended() == 0, ran.said()
    assert weights(place, 1) == expected


EXECUTORS_NEED = ("pyarrow", "numpy", "msgspec", "xxhash")


def packed(folder: Path, archive: Path) -> Path:
    """Pack an environment as docs/cluster.md does, with files in place of links to packages."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        for name in ("bin", "pyvenv.cfg"):
            file.add(folder / name, name)
        file.dereference = True
        file.add(folder / "lib", "lib")
    return archive


# --- YARN, as far as there is one ---


@pytest.mark.long
def test_yarn_without_its_settings_is_told_in_a_sentence(place: Place) -> None:
    ran = place.start("round", "--master", "yarn")
    assert ran.ended() == 1
    assert re.match(r"fedping: Spark did not start on master yarn: .*HADOOP_CONF_DIR or YARN_CONF_DIR", ran.sentence())


@pytest.mark.long
def test_a_round_asks_yarns_resource_manager_and_ends_at_its_limit(place: Place, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as manager:
        address = f"127.0.0.1:{manager.getsockname()[1]}"
        settings = f"<property><name>yarn.resourcemanager.address</name><value>{address}</value></property>"
        (tmp_path / "hadoop").mkdir()
        (tmp_path / "hadoop" / "yarn-site.xml").write_text(f"<configuration>{settings}</configuration>")
        ran = place.start("round", "--master", "yarn", "--time-limit", "100s", HADOOP_CONF_DIR=str(tmp_path / "hadoop"))
        manager.settimeout(EVENT_SECONDS)
        asking, _ = manager.accept()
        with asking:
            assert asking.recv(4) == b"hrpc", "what Hadoop's protocol begins with"
            assert ran.ended() == 75
    assert "Spark had not started on master yarn" in ran.sentence()
    assert place.version == 0
