"""The program of fedping's containers for Spark on Kubernetes: a driver or an executor.

Spark's own images have a script instead. Spark passes the role and its arguments as the container's arguments; an
executor gets other values in variables. The pod templates in ``deploy/kubernetes/spark`` name this module as the
command.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedping.protocol import log
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.server_jobs.spark.installation import java_home, spark_home
from fedping.server_jobs.spark.settings import class_path

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"

EXECUTOR = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""The arguments of an executor, and the environment variables that hold them."""

JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
"""Name of a variable with a Java option of an executor; the group is the option's number."""


def program(words: Sequence[str], environment: Mapping[str, str], home: Path, java: Path) -> list[str]:
    """Return the program of a container and its arguments.

    Args:
        words: the container's arguments; the first is the role.
        environment: the container's environment variables.
        home: the folder of the Spark to run.
        java: the ``JAVA_HOME`` to run it with.

    Raises:
        InvalidSettings: the role is unknown, or a variable of an executor is missing.
    """
    match list(words):
        case ["driver", *rest]:
            address = _variable(environment, "SPARK_DRIVER_BIND_ADDRESS")
            return [
                str(home / "bin" / "spark-submit"),
                *("--conf", f"spark.driver.bindAddress={address}"),
                *("--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}"),
                *("--deploy-mode", "client"),
                *rest,
            ]
        case ["executor", *_]:
            memory = _variable(environment, "SPARK_EXECUTOR_MEMORY")
            folders = [environment.get("SPARK_CLASSPATH"), environment.get("SPARK_CONF_DIR"), class_path(home)]
            arguments = [(flag, _variable(environment, name)) for flag, name in EXECUTOR.items()]
            return [
                str(java / "bin" / "java"),
                *_java_options(environment),
                f"-Xms{memory}",
                f"-Xmx{memory}",
                *("-cp", ":".join(filter(None, folders))),
                BACKEND,
                *(word for pair in arguments for word in pair),
            ]
    raise InvalidSettings(f"{' '.join(words) or 'nothing'} is not a Spark role on Kubernetes; use driver or executor")


def _java_options(environment: Mapping[str, str]) -> list[str]:
    """Return the Java options in numbered variables, in their order."""
    found = {int(name[1]): value for key, value in environment.items() if (name := JAVA_OPTION.fullmatch(key))}
    return [found[number] for number in sorted(found)]


def _variable(environment: Mapping[str, str], name: str) -> str:
    if name not in environment:
        raise InvalidSettings(f"{name} isn't set. This command runs only inside a Spark pod on Kubernetes.")
    return environment[name]


def main(argv: Sequence[str] | None = None) -> int:
    """Replace this process by the container's program; return 1 or 2 if there is no program or it can't be run."""
    try:
        home = spark_home()
        java = java_home()
        words = program(sys.argv[1:] if argv is None else argv, os.environ, home, java)
        environment = {**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java)}
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        try:
            os.execve(words[0], words, environment)
        except OSError as error:
            raise FedpingError(f"cannot run {words[0]} ({error})") from error
    except FedpingError as error:
        log.tell(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
