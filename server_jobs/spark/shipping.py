"""Ships code to executors on other machines: fedping's packages, and users' modules for extensions and losses.

fedping's packages are a zip on the executors' path, so that executors only need third-party packages. The user's
modules are the files that this process imports. They are in a zip outside the path: a finder serves only the names in
the zip, so that standard and installed modules take precedence as in this process.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.spark.installation import cache_folder, keep_newest, put, put_cached
from fedping.server_jobs.spark.settings import is_local

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


PACKAGES = ("fedping", "fedping.protocol", "fedping.model_store", "fedping.server_jobs", "fedping.commands")
"""Packages for executors, and for the entry point if the driver runs on the cluster."""

SIMULATING = ("fedping.client_sim", "fedping.analysis", "fedping.experiments")
"""Further packages for executors that simulate clients; rounds don't need them."""

STAGING = "FEDPING_SPARK_STAGING"
"""Variable for a folder that all machines of a standalone cluster share under the same path."""

ENTRY = Path(__file__).with_name("entry.py")
"""The program of a driver on the cluster."""

KEPT = 3
"""Number of zips kept in the cache folder, because a running submission reads its zip for a few seconds."""

EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of all files in the zip, so that equal code results in equal bytes."""


def code_archive(more: Sequence[str] = ()) -> bytes:
    """Return a zip, which Python can run, of fedping's installed packages and those in ``more``.

    Equal code results in equal bytes.
    """
    files = [("__main__.py", ENTRY), *_sources((*PACKAGES, *more))]
    return zipped({name: path.read_bytes() for name, path in files})


def code_archive_file(more: Sequence[str] = ()) -> Path:
    """Write the zip to the cache folder, for a Spark that outlives this process, and return its path."""
    folder = cache_folder() / "code"
    content = code_archive(more)
    path = put_cached(folder / _code_name(content, ".zip"), content)
    keep_newest(folder, "*.zip", KEPT)
    return path


def code_jar_file(folder: Path, more: Sequence[str] = ()) -> Path:
    """Write the zip to a folder shared by a cluster's machines, with Java's suffix, and return its path.

    Older zips aren't removed, because an application that restarts days later fetches its zip again.

    Raises:
        FedpingError: the folder doesn't exist, or can't be written.
    """
    if not folder.is_dir():
        raise FedpingError(f"{STAGING}: no folder {folder}. Name a folder that all machines of the cluster share.")
    content = code_archive(more)
    try:
        return put(folder / _code_name(content, ".jar"), content)
    except OSError as error:
        raise FedpingError(f"{STAGING}: can't write into {folder} ({error}). Correct its permissions.") from error


def needed_by(command: Sequence[str]) -> tuple[str, ...]:
    """Return the additional packages that a command's driver and executors need."""
    return SIMULATING if {"simulate", "sweep"} & set(command) else ()


def _code_name(content: bytes, suffix: str) -> str:
    return f"fedping-{hashlib.sha256(content).hexdigest()[:16]}{suffix}"


def package_roots() -> list[str]:
    """Return the folder (or the zip) from which this process imports fedping's packages."""
    return [str(folder.parent) for _, folder in _folders(["fedping"])]


def ship_code(session: SparkSession, more: Sequence[str] = ()) -> None:
    """Send fedping's packages to a session's executors, unless they run in this machine's JVM or have them already.

    Args:
        session: the session.
        more: packages in addition to those of rounds.
    """
    context = session.sparkContext
    if is_local(context.getConf().get("spark.master") or ""):
        return
    if carried := next((root for root in package_roots() if not Path(root).is_dir()), None):
        # This process runs from such a zip. Executors already have one from --py-files.
        if Path(carried).name not in (context.getConf().get("spark.submit.pyFiles") or ""):
            context.addPyFile(carried)
        return
    ship(context, "fedping-code.zip", code_archive(more))


def ship(context: SparkContext, name: str, content: bytes, *, is_on_path: bool = True) -> None:
    """Send a file to a session's executors once. Their Python finds modules in it only if it is on the path."""
    # Executors fetch the file when they start, so it must exist as long as the application, like this folder.
    path = Path(context._temp_dir, name)
    if not path.exists():
        path.write_bytes(content)
        (context.addPyFile if is_on_path else context.addFile)(str(path))


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of files, given by name. Equal files result in equal bytes."""
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
        for path in folder.glob("*" if package == "fedping" else "**/*"):  # without the packages that it links to
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}", path


class _Shipped(NamedTuple):
    """The user's modules that were sent to a session's executors.

    Attributes:
        archive: name of the modules' zip; "" without modules.
        modules: the top-level modules and packages in the zip.
    """

    archive: str
    modules: frozenset[str]


def send_own(context: SparkContext, modules: Iterable[str] = ()) -> Callable[[], None]:
    """Send the extensions that this process has imported, and users' modules, to the executors.

    A module is sent with the user's modules that it imports. Installed packages aren't sent: executors must have
    them, like the dependencies of fedping.

    Args:
        context: the session's context.
        modules: modules in addition to those of the extensions.

    Returns:
        a function that an executor must call before it uses any of these modules.

    Raises:
        FedpingError: a source can't be read.
    """
    from fedping.protocol.extensions import packed  # not above: spark-submit.sh reports missing packages itself

    extensions = packed()
    return partial(_take_up, _shipped(context, {*modules, *extensions.modules}), extensions.data)


def _take_up(shipped: _Shipped, extensions: bytes) -> None:
    """Make this executor's process import only the modules shipped last, none from earlier shipments."""
    from pyspark import SparkFiles

    from fedping.protocol.extensions import unpack

    _put_first(shipped, SparkFiles.get(shipped.archive))
    unpack(extensions)


def _shipped(context: SparkContext, modules: Iterable[str]) -> _Shipped:
    sources = own_sources(modules)
    if not sources:
        return _Shipped("", frozenset())
    content = zipped(sources)
    archive = f"own-code-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    # Not as Spark ships Python files, which would take precedence over installed modules of the same name.
    ship(context, archive, content, is_on_path=False)
    return _Shipped(archive, frozenset(name.partition("/")[0].removesuffix(".py") for name in sources))


def _put_first(shipped: _Shipped, archive: str) -> None:
    """Make Python import the shipped modules from an archive, instead of other modules with these names."""
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
    """A finder for the shipped top-level modules. Packages find their modules by their path."""

    def __init__(self, shipped: _Shipped, archive: str) -> None:
        self.shipped = shipped
        self._archive = archive

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._archive]) if name in self.shipped.modules else None


def own_sources(modules: Iterable[str]) -> dict[str, bytes]:
    """Return the sources of the user's modules among ``modules`` and their imports, by their names in a zip.

    Each source is the file that this process imports. Packages are sent completely, because they may import modules
    later.

    Raises:
        FedpingError: a source can't be read.
    """
    sources: dict[str, bytes] = {}
    pending, seen = list(modules), {"fedping", "pyspark", "__main__"}  # every executor has these
    while pending:
        if (module := pending.pop().partition(".")[0]) in seen:
            continue
        seen.add(module)
        for name, file in _own_files(module):
            sources[name] = _read(file) if file else b""
            pending += _imports(sources[name])
    return sources


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise FedpingError(
            f"{file}: can't send it to Spark's executors, because it can't be read ({error.strerror}). Make it "
            "readable, or move it."
        ) from error


def _imports(source: bytes) -> Iterator[str]:
    """Yield the modules in a source's import statements, except modules of its own package."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):  # not a module that was imported
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _own_files(module: str) -> list[tuple[str, Path | None]]:
    """Return the file of a top-level module, or the files and folders of a package, by their names in a zip.

    The result is empty for installed modules, and for compiled modules, which can't be imported from a zip.
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
            found.append((f"{within.as_posix()}/", None))  # makes a package without an __init__.py importable
            found += ((f"{within.as_posix()}/{file}", Path(folder, file)) for file in files if _is_source(folder, file))
            folders[:] = [each for each in folders if _is_of_package(Path(folder, each))]
    return found


def _is_source(folder: str, file: str) -> bool:
    return file.endswith(".py") and not file.startswith(".") and Path(folder, file).is_file()  # not a broken link


def _is_of_package(folder: Path) -> bool:
    """Return whether a folder belongs to its package, and isn't hidden, a cache or a virtual environment."""
    return not folder.name.startswith((".", "__pycache__")) and not (folder / "pyvenv.cfg").exists()


def _places(module: str) -> list[Path]:
    """Return the file of a top-level module, or the folders of a package, from which this process imports it."""
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
