"""A real session: its results, a clean end, and the failures that it survives."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedping.commands.analyze import analysis_session
from fedping.protocol.errors import FedpingError
from fedping.server_jobs.spark import jvm
from fedping.server_jobs.spark.archive import make_archive
from fedping.server_jobs.spark.installation import archive_path, current_archive, find_java, spark_home
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import QUICK_START, SparkSettings
from tests.server_jobs.standalone import QUICK_EXECUTORS, Cluster
from tests.support.processes import left_over, marked, new_mark, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_shared_session")]
ROOT = Path(__file__).parents[2]
ZONE = "spark.sql.session.timeZone"


def row_counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the rows of the Parquet files with the given paths, as a round reads its pings."""
    for batch in batches:
        for path in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pydict({"rows": [pq.ParquetFile(path).metadata.num_rows]})


def where_from(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the path from which a worker imports fedping."""
    import fedping.server_jobs.spark.session

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"file": [fedping.server_jobs.spark.session.__file__] * batch.num_rows})


def parquet_files(folder: Path, sizes: list[int]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i}.parquet" for i in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        pq.write_table(pa.table({"x": range(size)}), path)
    return [str(path) for path in paths]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Give a mark that a session's processes inherit; a killed session's files are in the test's folder."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    made = new_mark()
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.mark.long
def test_a_session_computes_by_the_operators_options_and_leaves_nothing(
    tmp_path: Path, mark: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = parquet_files(tmp_path / "data", [3, 5, 7])
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    before = dict(os.environ), list(sys.path), signal.getsignal(signal.SIGINT)
    ours = SparkSettings(master="local[3]", conf={"spark.sql.shuffle.partitions": "3", ZONE: "UTC"})
    theirs = f"--master local[1] --conf {ZONE}=Asia/Tokyo pyspark-shell"

    for settings, of_the_operator in ((SparkSettings(cpus=2), ""), (ours, theirs)):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", of_the_operator)
        with spark_session(settings) as session:
            frame = session.createDataFrame([(path,) for path in paths], "path string").repartition(2)
            assert sum(row.rows for row in frame.mapInArrow(row_counts, "rows long").collect()) == 15
            assert session.sparkContext.master == ("local[1]" if of_the_operator else "local[2]")
            expected = settings.conf.get("spark.sql.shuffle.partitions", "2")
            assert session.conf.get("spark.sql.shuffle.partitions") == expected
            assert signal.getsignal(signal.SIGINT) == before[2]
            assert any("java" in command for command in marked(mark).values())
            if of_the_operator:
                assert session.conf.get(ZONE) == "Asia/Tokyo", "the operator's options win over settings"
        assert os.environ["PYSPARK_SUBMIT_ARGS"] == of_the_operator
        assert not left_over(mark, seconds=2)

    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    assert not set(before[0].items()) ^ set(os.environ.items())
    assert (sys.path, signal.getsignal(signal.SIGINT)) == before[1:]
    assert not list((tmp_path / "cwd").iterdir())
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_a_master_that_is_none_is_told_in_one_sentence(mark: dict[str, str]) -> None:
    with (
        pytest.raises(FedpingError, match="Spark did not start on master nonsense") as error,
        spark_session(SparkSettings(master="nonsense")),
    ):
        pass
    assert "\n" not in str(error.value)
    assert not left_over(mark, seconds=5)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Unable to cleanly shutdown")
def test_a_second_session_beside_the_first_is_refused_and_a_dead_jvm_does_not_stay(mark: dict[str, str]) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        interrupt_with_a_dead_jvm(mark)
    assert isinstance(raised.value.__cause__, Exception)
    assert not left_over(mark, seconds=5)
    with spark_session(SparkSettings(cpus=1)) as session:
        assert session.range(3).count() == 3
    assert not left_over(mark, seconds=2)


def interrupt_with_a_dead_jvm(mark: dict[str, str]) -> None:
    with spark_session(SparkSettings(cpus=1)) as session:
        with pytest.raises(RuntimeError, match="already"), spark_session():
            pass
        for pid, command in marked(mark).items():
            if "SparkSubmit" in command:
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(Exception, match=r"."):
            session.range(3).count()
        try:
            raise KeyboardInterrupt
        finally:
            session.range(3).count()  # which fails, as PySpark's own clean-up would


BY_WHAT_IS_DOCUMENTED = """
import subprocess, sys
from pathlib import Path
from py4j.clientserver import ClientServerConnection
from pyspark import java_gateway
from fedping.protocol.errors import FedpingError
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings

shutdown = ClientServerConnection.shutdown_socket
for slots in (1, 2):
    with spark_session(SparkSettings(cpus=slots)) as session:
        assert session.range(5).count() == 5
        assert session.sparkContext.defaultParallelism == slots
        assert java_gateway.Popen is subprocess.Popen
    assert ClientServerConnection.shutdown_socket is shutdown
try:
    with spark_session(SparkSettings(master="nonsense")):
        pass
except FedpingError as error:
    print(error)
"""


@pytest.mark.long
def test_switched_off_nothing_private_is_touched_and_a_session_computes_the_same(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    made = os.environ | {"PYTHONPATH": str(ROOT), "FEDPING_SPARK_PRIVATE": "off"}
    command = [sys.executable, "-c", BY_WHAT_IS_DOCUMENTED]
    ran = subprocess.run(command, cwd=tmp_path, env=made, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("Spark did not start on master nonsense: ")
    assert not left_over(mark, seconds=5)


def test_private_names_are_used_only_of_the_releases_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import java_gateway

    assert (jvm.private_name_mismatch(), jvm.may_use_private_names()) == (None, True)
    with monkeypatch.context() as other:
        other.setattr(jvm, "version", lambda package: "5.0.0" if package == "pyspark" else "0.10.9.9")
        assert (jvm.private_name_mismatch(), jvm.may_use_private_names()) == ("pyspark 5.0.0", False)
    with monkeypatch.context() as other:
        other.delattr(java_gateway, "Popen")
        assert (jvm.private_name_mismatch(), jvm.may_use_private_names()) == ("pyspark.java_gateway.Popen", False)
    monkeypatch.setenv(jvm.VARIABLE, "off")
    assert not jvm.may_use_private_names()


SLOW_JOB = """
import signal, sys, threading, time
from pathlib import Path
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings

running = Path(sys.argv[1], "running")

def wait(batches):
    running.touch()
    time.sleep(600)
    yield from batches

class Other(threading.Thread):
    "A thread with a connection to the JVM of its own: it sleeps there, and tells whether the connection has stayed."

    def __init__(self, session, seconds):
        super().__init__(daemon=True)
        self.jvm, self.seconds = session._jvm, seconds
        self.start()

    def run(self):
        self.jvm.java.lang.Thread.sleep(0)
        client = self.jvm._gateway_client
        connection = client.get_thread_connection()
        if self.seconds:
            while not running.exists():
                time.sleep(0.02)
            self.jvm.java.lang.Thread.sleep(1000 * self.seconds)
            self.stayed = client.get_thread_connection() is connection
        else:
            time.sleep(600)

try:
    with spark_session(SparkSettings(cpus=2)) as session:
        print("session", flush=True)
        idle, busy = Other(session, 0), Other(session, 2)
        try:
            session.range(2).mapInArrow(wait, "id long").collect()
        except KeyboardInterrupt:
            print("alive", session.sparkContext.statusTracker().getActiveJobsIds(), flush=True)
            busy.join()
            print(busy.stayed, flush=True)
            raise
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def slow_job(tmp_path: Path, mark: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that runs a job of ten minutes, and creates the file `running` when a worker has begun it."""
    script = tmp_path / "job.py"
    script.write_text(SLOW_JOB)
    job = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        start_new_session=True,
    )
    with job:
        yield job
        left_over(mark, seconds=0)


def test_a_killed_python_takes_the_jvm_and_the_workers_with_it(
    tmp_path: Path, slow_job: subprocess.Popen[str], mark: dict[str, str]
) -> None:
    assert wait_until((tmp_path / "running").exists)
    assert sum("/bin/java -cp" in command for command in marked(mark).values()) == 1
    assert any("pyspark.daemon" in command for command in marked(mark).values())
    slow_job.kill()
    slow_job.wait()
    assert not left_over(mark)


@pytest.mark.long
def test_control_c_in_a_job_reaches_python_while_the_jvm_still_works(
    tmp_path: Path, slow_job: subprocess.Popen[str], mark: dict[str, str]
) -> None:
    assert wait_until((tmp_path / "running").exists)
    time.sleep(0.5)  # seconds, until the other thread's call has reached the JVM
    os.killpg(slow_job.pid, signal.SIGINT)  # as the terminal does: to Python, and to the JVM beside it
    said, _ = slow_job.communicate(timeout=240)
    assert (slow_job.returncode, said.split()) == (130, ["session", "alive", "[0]", "True"])
    assert not left_over(mark, seconds=2)


@pytest.mark.parametrize(
    ("stage", "after"),
    [
        ("launcher.Main", 0.0),
        pytest.param("/bin/java -cp", 0.8, marks=pytest.mark.long),
        pytest.param("spark-class", 0.0, marks=pytest.mark.long),
        pytest.param("/bin/java -cp", 0.0, marks=pytest.mark.long),
        *(pytest.param("/bin/java -cp", tenths / 10, marks=pytest.mark.long) for tenths in range(4, 25, 6)),
    ],
)
def test_control_c_while_spark_starts_leaves_no_process(
    slow_job: subprocess.Popen[str], mark: dict[str, str], stage: str, after: float
) -> None:
    assert wait_until(lambda: any(stage in command for command in marked(mark).values()))
    time.sleep(after)  # seconds after the stage was seen: wherever in the start that is
    os.killpg(slow_job.pid, signal.SIGINT)
    slow_job.communicate(timeout=240)
    assert slow_job.returncode == 130
    assert not left_over(mark, seconds=2)


@pytest.mark.long
def test_a_process_that_ignores_control_c_goes_on_ignoring_it(tmp_path: Path, mark: dict[str, str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from fedping.server_jobs.spark.session import spark_session\n"
        "with spark_session() as session:\n    print('counted', session.range(4).count())\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as job:
        assert wait_until(lambda: any("launcher.Main" in command for command in marked(mark).values()))
        os.killpg(job.pid, signal.SIGINT)
        said, _ = job.communicate(timeout=120)
    assert (job.returncode, said) == (0, "counted 4\n")
    assert not left_over(mark, seconds=2)


@pytest.mark.long
def test_under_spark_submit_the_settings_of_its_command_line_stand(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from fedping.server_jobs.spark.session import spark_session\n"
        "from fedping.server_jobs.spark.settings import SparkSettings\n"
        "with spark_session(SparkSettings(master='local[3]', app_name='ours')) as session:\n"
        "    print('got', session.sparkContext.master, session.sparkContext.appName, session.range(4).count())\n"
    )
    mark = new_mark()
    environment = os.environ | mark | {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(find_java().home())}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home())}
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[1]", "--name", "theirs"]
    command += ["--conf", "spark.ui.enabled=false", "--driver-java-options", " ".join(QUICK_START), str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "got local[1] theirs 4" in ran.stdout
    assert not left_over(mark, seconds=5)


@pytest.mark.long
def test_a_session_to_count_with_has_both_compilers_and_leaves_nothing(
    mark: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    with analysis_session("fedping-test", "local[1]") as session:
        assert session.range(4).count() == 4
        assert session.sparkContext.appName == "fedping-test"
        [driver] = (command for command in marked(mark).values() if "SparkSubmit" in command)
        assert re.findall(r"-XX:TieredStopAtLevel=(\d)", driver)[-1] == "4"
        session.sparkContext._jvm.org.apache.logging.log4j.LogManager.getRootLogger().error("of nobody's interest")
    assert not left_over(mark, seconds=2)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.long
def test_an_archive_is_made_once_used_and_never_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDPING_SPARK_ARCHIVE", raising=False)
    java, home = find_java(), spark_home()
    assert current_archive(java, home) is None

    (archive_path(java, home).parent / "making-left-by-a-kill").mkdir(parents=True)
    mark = new_mark()
    command = [sys.executable, "-m", "fedping.server_jobs.spark.archive"]
    both = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | mark, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = sorted(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert sum("another process is preparing them" in text for text in said) == 1
    assert not left_over(mark, seconds=1)

    path = archive_path(java, home)
    assert current_archive(java, home) == path
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([path.name, "lock"])
    assert make_archive() == path  # at once: it is there

    assert str(path) in maps_of_the_jvm()
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    assert str(path) not in maps_of_the_jvm()  # and it still ran
    monkeypatch.setenv("FEDPING_SPARK_ARCHIVE", "off")
    assert current_archive(java, home) is None


def maps_of_the_jvm() -> str:
    """Run a session and return the memory maps of its JVM."""
    with spark_session(SparkSettings(cpus=1)) as session:
        assert session.range(3).count() == 3
        pid = session.sparkContext._gateway.proc.pid
        return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.thorough
def test_executors_of_a_cluster_run_the_shipped_code(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python_without_our_packages(tmp_path)))
    monkeypatch.setattr(row_counts, "__module__", "__main__")  # sent as code: no worker has these tests
    monkeypatch.setattr(where_from, "__module__", "__main__")
    paths = parquet_files(tmp_path / "data", [3, 5, 7, 11])
    with spark_session(SparkSettings(master=cluster.master, conf=QUICK_EXECUTORS)) as session:
        frame = session.createDataFrame([(path,) for path in paths], "path string").repartition(4)
        assert sum(row.rows for row in frame.mapInArrow(row_counts, "rows long").collect()) == 26
        files = {row.file for row in frame.mapInArrow(where_from, "file string").collect()}
        assert all("fedping-code.zip/fedping/server_jobs/spark/session.py" in file for file in files), files
    assert not (ROOT / "work").exists()


def python_without_our_packages(folder: Path) -> Path:
    """Return an interpreter with the third-party packages and without fedping, even if it is installed as editable."""
    site = next(path for path in sys.path if path.endswith("site-packages"))
    bare = folder / "site"
    bare.mkdir()
    for entry in Path(site).iterdir():
        if "fedping" not in entry.name and not entry.name.endswith(".pth"):
            (bare / entry.name).symlink_to(entry)
    program = folder / "python"
    shell = shutil.which("sh")
    program.write_text(f'#!{shell}\nexport PYTHONPATH="{bare}:$PYTHONPATH"\nexec {sys._base_executable} -S "$@"\n')
    program.chmod(0o755)
    return program
