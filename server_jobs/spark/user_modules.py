"""The modules of a user for executors, as extensions and losses need them: the very files that this process imports.

They come in a zip that is on nobody's path: a finder serves what is in it and no other name, so that standard and
installed modules win there as here.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedping.protocol.errors import FedpingError
from fedping.protocol.extensions import packed, unpack
from fedping.server_jobs.spark.shipping import ship, zipped

if TYPE_CHECKING:
    from pyspark import SparkContext


class _Shipped(NamedTuple):
    """Modules of the user's own that a session's executors have been sent.

    Attributes:
        archive: the zip that holds them; "" if there are none.
        modules: the top-level modules and packages in it.
    """

    archive: str
    modules: frozenset[str]


def send_own(context: SparkContext, modules: Iterable[str] = ()) -> Callable[[], None]:
    """Give the executors the extensions that this process has met, and modules of the user's own.

    Each module goes with those of the user's own that it imports. Those of installed packages are not sent: executors
    have them, as they have what fedping depends on.

    Args:
        context: of the session.
        modules: that are needed besides those of the extensions.

    Returns:
        what an executor calls before it uses any of them.

    Raises:
        FedpingError: a source cannot be read.
    """
    extensions = packed()
    return partial(_take_up, _shipped(context, {*modules, *extensions.modules}), extensions.data)


def _take_up(shipped: _Shipped, extensions: bytes) -> None:
    """Have this process, an executor's, import what was shipped to it, and no longer what was shipped before."""
    from pyspark import SparkFiles

    _put_first(shipped, SparkFiles.get(shipped.archive))
    unpack(extensions)


def _shipped(context: SparkContext, modules: Iterable[str]) -> _Shipped:
    sources = own_sources(modules)
    if not sources:
        return _Shipped("", frozenset())
    content = zipped(sources)
    archive = f"own-code-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    # Not as Spark sends Python: that would put it before what is installed there, whatever is named alike.
    ship(context, archive, content, is_on_path=False)
    return _Shipped(archive, frozenset(name.partition("/")[0].removesuffix(".py") for name in sources))


def _put_first(shipped: _Shipped, archive: str) -> None:
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

    def __init__(self, shipped: _Shipped, archive: str) -> None:
        self.shipped = shipped
        self._archive = archive

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self._archive]) if name in self.shipped.modules else None


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
