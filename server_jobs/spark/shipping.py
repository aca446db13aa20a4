"""Our own packages for executors on other machines, which then only need the third-party packages."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import fedping
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
    return _zipped({name: path.read_bytes() for name, path in files})


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
    return [str(Path(next(iter(fedping.__path__))).parent)]


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
    _ship(context, "fedping-code.zip", code_archive(more))


class Shipped(NamedTuple):
    """Modules of the user's own that a session's executors have been sent.

    Attributes:
        archive: the zip that holds them; "" if there are none.
        modules: the top-level modules and packages in it.
    """

    archive: str
    modules: frozenset[str]


def ship_modules(context: SparkContext, modules: Iterable[str]) -> Shipped:
    """Give modules of the user's own to the executors, each with those of the user's own that it imports.

    Modules of installed packages are not sent: executors have them, as they have what fedping depends on.

    Returns:
        what an executor has to :func:`take_up` before it imports one of them.

    Raises:
        FedpingError: a source cannot be read.
    """
    sources = own_sources(modules)
    if not sources:
        return Shipped("", frozenset())
    content = _zipped(sources)
    archive = f"own-code-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    # Not as Spark sends Python: that would put it before what is installed there, whatever is named alike.
    _ship(context, archive, content, is_on_path=False)
    return Shipped(archive, frozenset(name.partition("/")[0].removesuffix(".py") for name in sources))


def take_up(shipped: Shipped) -> None:
    """Have this process, an executor's, import what was shipped to it, and no longer what was shipped before."""
    from pyspark import SparkFiles

    put_first(shipped, SparkFiles.get(shipped.archive))


def put_first(shipped: Shipped, archive: str) -> None:
    """Have these modules imported from an archive: they alone, whatever else of their names there is or was here."""
    before = [each for each in sys.meta_path if isinstance(each, _Shipments)]
    if [each.shipped for each in before] == [shipped]:
        return
    for each in before:
        sys.meta_path.remove(each)
    changed = shipped.modules.union(*(each.shipped.modules for each in before))
    for name in [name for name in sys.modules if name.partition(".")[0] in changed]:
        del sys.modules[name]
    if shipped.modules:
        sys.meta_path.insert(0, _Shipments(shipped, archive))


class _Shipments:
    """Finds what was shipped, and leaves all else to others; a package finds what is in it by its own path."""

    def __init__(self, shipped: Shipped, archive: str) -> None:
        self.shipped = shipped
        self._archive = archive

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._archive]) if name in self.shipped.modules else None


def _ship(context: SparkContext, name: str, content: bytes, is_on_path: bool = True) -> None:
    # Executors fetch it whenever they start, so it must last as long as the application, as this folder does.
    path = Path(context._temp_dir, name)
    if not path.exists():
        path.write_bytes(content)
        (context.addPyFile if is_on_path else context.addFile)(str(path))


def _zipped(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def own_sources(modules: Iterable[str]) -> dict[str, bytes]:
    """Return the sources of modules, and of what they import, by their names in a zip; those of the user's own alone.

    Each is of the file from which this process imports it. A package goes whole, as it may import more of itself later.

    Raises:
        FedpingError: a source cannot be read.
    """
    found: dict[str, bytes] = {}
    left, seen = list(modules), {"fedping", "pyspark", "__main__"}  # which every executor has
    while left:
        if (module := left.pop().partition(".")[0]) in seen:
            continue
        seen.add(module)
        for name, file in _own_files(module):
            found[name] = _read(file) if file else b""
            left += _imports(found[name])
    return found


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise FedpingError(
            f"cannot send {file} to Spark's executors, as it cannot be read ({error.strerror}); make it readable, or "
            "move it elsewhere"
        ) from error


def _imports(source: bytes) -> Iterator[str]:
    """Yield the modules that a source names in import statements, but those of its own package."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):  # nobody has imported it
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _own_files(module: str) -> list[tuple[str, Path | None]]:
    """Return the file of a top-level module, or the files and folders of a package, by their names in a zip.

    There are none if it is installed, or compiled, as a zip cannot have that.
    """
    places = _places(module)
    if any(map(_is_installed, places)):
        return []
    found: list[tuple[str, Path | None]] = []
    for place in places:
        if place.is_file() and place.suffix == ".py":
            found.append((f"{module}.py", place))
        for folder, folders, files in os.walk(place):
            if any(file.endswith(tuple(EXTENSION_SUFFIXES)) for file in files):
                return []
            within = Path(module, Path(folder).relative_to(place))
            found.append((f"{within.as_posix()}/", None))  # by which Python knows a package without an __init__.py
            found += ((f"{within.as_posix()}/{file}", Path(folder, file)) for file in files if _is_source(folder, file))
            folders[:] = [each for each in folders if _is_of_package(Path(folder, each))]
    return found


def _is_source(folder: str, file: str) -> bool:
    return file.endswith(".py") and not file.startswith(".") and Path(folder, file).is_file()  # no broken link


def _is_of_package(folder: Path) -> bool:
    """Return whether a folder in a package is a part of it: not if it is hidden, a cache or a virtual environment."""
    return not folder.name.startswith((".", "__pycache__")) and not (folder / "pyvenv.cfg").exists()


def _places(module: str) -> list[Path]:
    """Return the file of a top-level module, or the folders of a package, as this process has or would import it."""
    if (loaded := sys.modules.get(module)) is not None:
        named = [*getattr(loaded, "__path__", ())] or [getattr(loaded, "__file__", None)]
    else:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return []
        named = [*(spec.submodule_search_locations or ())] or [spec.origin] if spec else []
    return [Path(each) for each in named if each]


def _is_installed(place: Path) -> bool:
    folders = sysconfig.get_paths()
    return bool({"site-packages", "dist-packages"} & set(place.parts)) or any(
        place.is_relative_to(folders[each]) for each in ("stdlib", "platstdlib", "purelib", "platlib")
    )


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
