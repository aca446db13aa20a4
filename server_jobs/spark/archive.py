"""Archive of Spark's parsed and verified classes, which the JVM maps into memory instead of 279 jars.

It is created once per Java and Spark, takes half a minute and 180 MB in the cache folder, and saves two to three
seconds of every later start. Sessions only read it. So runs don't take longer to create it at their end, a killed run
doesn't leave an incomplete archive, and processes don't interfere with each other.

``python -m fedping.server_jobs.spark.archive`` creates it if it is missing, as does `spark-submit.sh` after its first
round. With FEDPING_SPARK_ARCHIVE=off, it is neither created nor used.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.shutdown import ended_by_signals
from fedping.server_jobs.spark.installation import (
    SUFFIX,
    Java,
    archive_path,
    current_archive,
    find_java,
    keep_newest,
    spark_home,
    wants_archive,
)
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings, class_path

MAKING = "making-"

KEPT = 2
"""Number of archives kept per Spark, because cron and a user's shell may find different versions of Java."""


def make_archive() -> Path | None:
    """Create the archive if it is missing; return its path, or None while another process is creating it.

    Raises:
        FedpingError: there is no Java or no disk space, or the JVM fails.
    """
    java, home = find_java(), spark_home()
    path = archive_path(java, home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _sole(path.parent / "lock") as alone:
            if alone and not path.is_file():
                for left in path.parent.glob(f"{MAKING}*"):  # left by a process that was killed
                    shutil.rmtree(left, ignore_errors=True)
                _make(java, home, path)
            return path if path.is_file() else None
    except OSError as error:
        raise FedpingError(f"can't create the archive of Spark's classes {path} ({error})") from error


def _make(java: Java, home: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=MAKING) as folder:
        classes, made = Path(folder, "classes"), Path(folder, "archive")
        _list_classes(classes)
        _dump(java, home, classes, made)
        os.replace(made, path)
    keep_newest(path.parent, f"*{SUFFIX}", KEPT)


def _list_classes(classes: Path) -> None:
    """Run a small job like a round's, and make the JVM list the classes that it loads."""
    options = (f"-XX:DumpLoadedClassList={classes}", "-Xshare:auto", "-Xlog:disable")
    settings = SparkSettings(master="local[2]", app_name="fedping-archive", driver_java_options=options)
    with spark_session(settings) as session:
        paths = session.createDataFrame([("a",), ("b",)], "path string").repartition(2)
        paths.mapInArrow(lambda batches: batches, "path string").collect()
        session.sparkContext.parallelize(["a", "b"], 2).mapPartitions(lambda found: found).collect()


def _dump(java: Java, home: Path, classes: Path, made: Path) -> None:
    command = [str(java.home() / "bin" / "java"), "-Xshare:dump", f"-XX:SharedClassListFile={classes}"]
    command += [f"-XX:SharedArchiveFile={made}", "-Xlog:disable", "-cp", class_path(home)]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if ran.returncode or not made.is_file():
        said = (ran.stderr + ran.stdout).strip().splitlines()[-1:] or [f"exit code {ran.returncode}"]
        raise FedpingError(f"Java {java.version} did not create the archive of Spark's classes: {said[0]}")


@contextmanager
def _sole(path: Path) -> Iterator[bool]:
    """Try to lock a file; yield whether this process holds the lock, which ends with the process at the latest."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def main() -> int:
    """Create the archive if it is missing, with a message on stderr; return 0, 1 on failure, 130 if interrupted."""
    from rich.console import Console

    if not wants_archive() or current_archive(find_java(), spark_home()):
        return 0
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print("fedping: preparing faster starts of Spark, once, for half a minute; Ctrl-C skips it")
    try:
        with ended_by_signals(), console.status("archiving the classes that Spark loads"):
            made = make_archive()
    except FedpingError as error:
        print(f"fedping: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    console.print(f"fedping: prepared: {made}" if made else "fedping: another process is preparing them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
