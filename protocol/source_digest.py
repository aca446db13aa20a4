"""Digests of source code, recorded to identify the code behind a result.

A digest covers only code that runs (:func:`protocol.canonical_source.canonical_source`). Earlier versions of fedping
hashed the text; the digests that they recorded remain valid for the same code (:func:`digest_as_written`).
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, TypeAlias

from fedping.protocol.canonical_source import CanonicalSource, canonical_source
from fedping.protocol.errors import InvalidSettings

Form: TypeAlias = Callable[[str], CanonicalSource]
"""A function that returns the part of a source that is hashed, and the names in it."""


def source_digest(of: Callable[..., Any], name: str, *, reads_settings: bool = False) -> str:
    """Return the SHA-256 (hexadecimal) of a function's or class's source and of the code and constants that it uses.

    Names in the source are looked up in the enclosing function and the module. The digest covers functions, classes and
    modules of the same package, recursively the names in these functions and classes, and constants: numbers, texts,
    arrays, and lists, tuples, sets and dicts of them. The digest is the same whether the file is run as a script,
    imported or in a notebook, and on every Python. Comments, docstrings, annotations that no code reads, and formatting
    don't affect it.

    Args:
        of: the function or class.
        name: the name for errors.
        reads_settings: whether the annotations of its keyword-only parameters are read, as in an extension.

    Raises:
        InvalidSettings: the source cannot be read.
    """
    digest = _digest(of, name, canonical_source, partial(canonical_source, reads_settings=reads_settings))
    return RECORDED_AS.get(digest, digest)


def digest_as_written(of: Callable[..., Any], name: str) -> str:
    """Return the digest that fedping recorded for the same source when comments and docstrings were included.

    Raises:
        InvalidSettings: the source cannot be read.
    """
    return _digest(of, name, _as_written)


RECORDED_AS: Mapping[str, str] = {
    # scaffold, feddyn and apfl of fedping.algorithms
    "e19abf0c9c9811fa41a1624d676864e4284f1ac67752daf51d76780383d8f7ba": (
        "df01e23e46c1c2e93f042a953cd22da10f4a23d4a2f787b15797478e99fc6c56"
    ),
    "e6543baf09815004eb96557fc14969aa9fb2d3f93fa23b59e48d96b14c87abe9": (
        "9e1d5a51d40eee50cd05752ee9f8d3a07e39c033e682354f88b42ef337142f75"
    ),
    "169f65c314eff96f2a84b649edb2f99c54a917b15ce47deadde8aa8297ebf9a2": (
        "978859dac1608bd4431ce50f2c190fae4cc43b57dadb81153e5de891179ca17b"
    ),
}
"""Digests of fedping's own code, each mapped to the digest that is recorded for it, so that identities persist."""


def digest_of_value(value: Any, *, as_written: bool = False) -> str:
    """Return the SHA-256 (hexadecimal) of a name's value: a constant, or code.

    Code without a source, such as code typed at a prompt, is hashed in its compiled form; other values are hashed by
    their type.

    Args:
        value: the value of the name.
        as_written: whether code is hashed as in earlier versions of fedping (:func:`digest_as_written`).
    """
    if inspect.isfunction(value) or inspect.isclass(value):
        try:
            return (digest_as_written if as_written else source_digest)(value, value.__qualname__)
        except InvalidSettings:
            code = getattr(value, "__code__", None)
            said = (
                _canonical_item(value)
                if code is None
                else _canonical_item([code.co_code, code.co_names, code.co_consts])
            )
    else:
        said = _canonical_item(value)
    return hashlib.sha256(said.encode()).hexdigest()


def own_modules(module: str) -> dict[str, str]:
    """Return SHA-256 digests (hexadecimal) of the code of a module and of all its imports, by module name.

    The modules are read, not imported. Imports within functions and in imported modules are included. Python's own
    modules, installed packages and fedping are left out, and so is an importing script or notebook, because its other
    contents may change.
    """
    found: dict[str, str] = {}
    left, seen, is_own = [module], set[str](), cache(_is_own)
    while left:
        name = left.pop()
        if name in seen or not is_own(name.partition(".")[0]):
            continue
        seen.add(name)
        source = _file_of(name)
        if source is None:
            continue
        data = source.read_bytes()
        found[name] = hashlib.sha256(_what_runs(data)).hexdigest()
        package = name if source.name == "__init__.py" else name.rpartition(".")[0]
        left += [*_parents(name), *_imports(data, package)]
    return {name: digest for name, digest in found.items() if name not in _SCRIPTS}


def _what_runs(data: bytes) -> bytes:
    """Return a file's source in canonical form; a file that is not Python is returned unchanged."""
    try:
        return canonical_source(data.decode()).text.encode()
    except (SyntaxError, ValueError):
        return data


_SCRIPTS = frozenset({"__main__", "__mp_main__"})


def _is_own(package: str) -> bool:
    """Return whether a top-level module is a user's own: not part of Python, not installed, and not fedping."""
    if package in _SCRIPTS:
        return True
    if package == "fedping" or package in sys.stdlib_module_names:
        return False
    spec = _spec_of(package)
    if spec is None:
        return False
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    return not any({"site-packages", "dist-packages"} & {*Path(each).parts} for each in places if each)


def _spec_of(module: str) -> ModuleSpec | None:
    """Return the location from which a module would be imported, or None, without importing the packages around it."""
    package = module.rpartition(".")[0]
    try:
        if not package or package in sys.modules or module in sys.modules:
            return find_spec(module)
        within = _spec_of(package)
        return _spec_in(module, within.submodule_search_locations or ()) if within is not None else None
    except Exception:  # an import that fails shows where it is used
        return None


def _spec_in(module: str, folders: Iterable[str]) -> ModuleSpec | None:
    """Return a module's location in the folders of its package; a module without a file may be in several folders."""
    portions: list[str] = []
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        spec = finder.find_spec(module) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec.submodule_search_locations or ()) if spec is not None else ()
    if not portions:
        return None
    bare = ModuleSpec(module, None, is_package=True)
    bare.submodule_search_locations = portions
    return bare


def _file_of(module: str) -> Path | None:
    """Return a module's file; None without one, as for a notebook or a package without ``__init__.py``."""
    known = getattr(sys.modules.get(module), "__file__", None)
    if known is None and module not in _SCRIPTS:
        spec = _spec_of(module)
        known = spec.origin if spec is not None and spec.has_location else None
    return Path(known) if known is not None and Path(known).is_file() else None


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yield the names of modules that a source may import; none for a file that isn't Python source."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:
                with suppress(ImportError):
                    home = resolve_name("." * node.level + home, package)
            if home:
                yield home
                yield from (f"{home}.{alias.name}" for alias in node.names if alias.name != "*")


def _as_written(source: str) -> CanonicalSource:
    """Return a source unchanged, including comments."""
    return CanonicalSource(
        source, frozenset(node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))
    )


def _digest(of: Callable[..., Any], name: str, form: Form, form_of_it: Form | None = None) -> str:
    sources = dict(_sources(of, name, form, set(), form_of_it))
    return hashlib.sha256("\0".join(sources[key] for key in sorted(sources)).encode()).hexdigest()


def _sources(
    of: Any, name: str, form: Form, seen: set[int], form_of_it: Form | None = None
) -> Iterator[tuple[str, str]]:
    seen.add(id(of))
    try:
        source, used = (form_of_it or form)(textwrap.dedent(_source(of)))
    except (OSError, TypeError, SyntaxError) as error:
        raise InvalidSettings(
            f"the source of the extension '{name}' cannot be read, and its digest is recorded. Define it in a file or "
            "in a cell of a notebook"
        ) from error
    yield of.__qualname__, source
    around = {**(vars(sys.modules[of.__module__]) if of.__module__ in sys.modules else {}), **_enclosed(of)}
    package = _package(of.__module__)
    for each in sorted(used):
        value = around.get(each)
        if inspect.ismodule(value) and _package(value.__name__) == package:
            yield f"{of.__qualname__}:{each}", form(inspect.getsource(value)).text
        elif (said := _canonical(value)) is not None:
            yield f"{of.__qualname__}:{each}", said
        for code in _code_in(value):
            if _package(code.__module__) == package and id(code) not in seen:
                yield from _sources(code, name, form, seen)


def _package(module: str) -> str:
    """Return the package of a module; each of fedping's own extensions counts as a package.

    So, as for users' extensions, changes in the rest of fedping don't change an extension's digest.
    """
    package = module.partition(".")[0]
    return module if package == "fedping" else package


def _enclosed(of: Any) -> dict[str, Any]:
    """Return the values, by name, that a function or a class's methods take from an enclosing function."""
    functions = [each for each in vars(of).values() if inspect.isfunction(each)] if inspect.isclass(of) else [of]
    found: dict[str, Any] = {}
    for function in functions:
        code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not filled yet, as a class's own name while it is being made
                continue
    return found


def _canonical(value: Any) -> str | None:
    """Return a constant as text that is equal in every process, for any order of sets and dicts; else None."""
    match value:
        case bool() | int() | float() | complex() | str() | bytes():
            return repr(value)
        case list() | tuple():
            return f"{type(value).__name__}({', '.join(map(_canonical_item, value))})"
        case set() | frozenset():
            return f"{type(value).__name__}({', '.join(sorted(map(_canonical_item, value)))})"
        case dict():
            pairs = sorted(f"{_canonical_item(key)}: {_canonical_item(each)}" for key, each in value.items())
            return f"dict({', '.join(pairs)})"
    if type(value).__module__ == "numpy" and getattr(value, "dtype", "O") != "O":  # an array, or one number
        return f"{value.dtype.str}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return None


def _canonical_item(value: Any) -> str:
    """Return an item of a container as text: a constant, the name of code, or the type of another value."""
    said = _canonical(value)
    return said if said is not None else str(getattr(value, "__qualname__", type(value).__qualname__))


def _code_in(value: Any) -> Iterator[Any]:
    """Yield the functions and classes in a value: the value itself, or its items if it is a container."""
    if inspect.isfunction(value) or inspect.isclass(value):
        yield value
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _code_in(each)
    elif isinstance(value, dict):
        yield from _code_in([*value.values()])


def _source(of: Any) -> str:
    """Return the source of a function or a class; a class in a notebook is located through one of its methods."""
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):
        methods = [each for each in vars(of).values() if inspect.isfunction(each)] if inspect.isclass(of) else []
        for method in methods:
            lines = linecache.getlines(method.__code__.co_filename)
            for node in ast.walk(ast.parse("".join(lines))):
                if isinstance(node, ast.ClassDef) and node.name == of.__name__:
                    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                    return "".join(lines[first - 1 : node.end_lineno])
        raise
