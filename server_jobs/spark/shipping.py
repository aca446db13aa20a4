"""Our own packages for executors on other machines, which then only need the third-party packages."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.spark.arguments import is_local
from fedping.server_jobs.spark.cache import cache_folder, keep_newest, put

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PACKAGES = ("fedping", "fedping.protocol", "fedping.model_store", "fedping.server_jobs", "fedping.commands")
"""The packages that executors may run, and that the entry point needs if the driver runs on the cluster."""

SIMULATING = ("fedping.client_sim", "fedping.analysis", "fedping.experiments")
"""The further packages of executors that simulate clients; those that run rounds have no need of them."""

STAGING = "FEDPING_SPARK_STAGING"
"""The variable that names a folder which all machines of a standalone cluster see under one path."""

ENTRY = Path(__file__).with_name("entry.py")
"""The program that a driver on the cluster runs."""

KEPT = 3
"""Zips kept in the cache folder, because a submission in progress reads one for a few seconds."""

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the zip, so that the same code gives the same bytes."""


def code_archive(more: Sequence[str] = ()) -> bytes:
    """Return a zip of our packages as installed here, and of ``more``, which Python can run.

    Equal code gives equal bytes.
    """
    files = [("__main__.py", ENTRY), *_sources((*PACKAGES, *more))]
    return zipped({name: path.read_bytes() for name, path in files})


def code_archive_file(more: Sequence[str] = ()) -> Path:
    """Write the zip into the cache folder, for a Spark that outlives this process, and return its path."""
    folder = cache_folder() / "code"
    path = _put_code(folder, ".zip", more)
    keep_newest(folder, "*.zip", KEPT)
    return path


def code_jar_file(folder: Path, more: Sequence[str] = ()) -> Path:
    """Write the zip into a folder that a cluster's machines share, with the suffix of Java's, and return its path.

    Nothing is removed there: an application that is started again, days later, fetches it again.

    Raises:
        FedpingError: the folder is not there, or cannot be written.
    """
    if not folder.is_dir():
        raise FedpingError(
            f"there is no folder {folder}; {STAGING} has to name one that all machines of the cluster see"
        )
    try:
        return _put_code(folder, ".jar", more)
    except FedpingError as error:
        raise FedpingError(f"cannot write into {folder}, the folder of {STAGING} ({error.__cause__})") from error


def needed_by(command: Sequence[str]) -> tuple[str, ...]:
    """Return the further packages that a command's driver and executors need."""
    return SIMULATING if {"simulate", "sweep"} & set(command) else ()


def _put_code(folder: Path, suffix: str, more: Sequence[str]) -> Path:
    content = code_archive(more)
    return put(folder / f"fedping-{hashlib.sha256(content).hexdigest()[:16]}{suffix}", content)


def package_roots() -> list[str]:
    """Return the folder (or the zip) from which this process imports our packages."""
    return [str(folder.parent) for _, folder in _folders(["fedping"])]


def ship_code(session: SparkSession, more: Sequence[str] = ()) -> None:
    """Give our packages to a session's executors, unless they run in this machine's JVM or already have them.

    Args:
        session: the session.
        more: further packages than those of rounds.
    """
    context = session.sparkContext
    if is_local(context.getConf().get("spark.master") or ""):
        return
    if carried := next((root for root in package_roots() if not Path(root).is_dir()), None):
        # This process itself runs from such a zip. One that came with --py-files has gone to the executors already.
        if Path(carried).name not in (context.getConf().get("spark.submit.pyFiles") or ""):
            context.addPyFile(carried)
        return
    ship(context, "fedping-code.zip", code_archive(more))


def ship(context: SparkContext, name: str, content: bytes, *, is_on_path: bool = True) -> None:
    """Send a file to a session's executors, once; Python there finds modules in it only if it is on the path."""
    # Executors fetch it whenever they start, so it must last as long as the application, as this folder does.
    path = Path(context._temp_dir, name)
    if not path.exists():
        path.write_bytes(content)
        (context.addPyFile if is_on_path else context.addFile)(str(path))


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of files by their names; of the same files it is the same bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _folders(packages: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            yield package, Path(next(iter(spec.submodule_search_locations)))


def _sources(packages: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for package, folder in _folders(packages):
        for path in folder.glob("*" if package == "fedping" else "**/*"):  # the package itself without its other rooms
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}", path
