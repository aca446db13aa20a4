"""Extensions: optimizers, samplings, data sets and other components that users' packages register.

A function or a class is registered by its kind and name, in a package that declares an entry point of the group
``fedping.extensions``, or in a module that ``FEDPING_EXTENSIONS`` names. These modules are imported when a name occurs
that is not built in. So the program's operator decides which code runs: a settings file or a study can only name an
extension.

A settings file selects and configures an extension like a built-in component: ``{ optimizer = "lion", rate = 0.1 }``.
When read, this becomes an :class:`Own`, with the settings checked and complete and the hash of the code, so that it is
part of every digest.
"""

from __future__ import annotations

import copyreg
import dataclasses
import importlib
import inspect
import io
import math
import os
import pickle
import re
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib import metadata
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Struct

from fedping.protocol.errors import FedpingError, InvalidSettings, UnfitTable, as_raised
from fedping.protocol.source_digest import digest_as_written, source_digest
from fedping.protocol.weights import NAME_PATTERN

GROUP = "fedping.extensions"
"""Group of the entry points; each names a module (or an object in one), which registers extensions on import."""

MODULES = "FEDPING_EXTENSIONS"
"""The environment variable that names further modules, with commas between them."""

TO_LOAD = f"install the package that has it, or name its module in {MODULES}"
"""Remedy for an extension that is not loaded."""

OWN = "own"
"""Tag of the struct that replaces an extension's table once read."""

Kind: TypeAlias = Literal[
    "optimizer",
    "client_algorithm",
    "upload_link",
    "aggregation",
    "sampling",
    "partition",
    "metric",
    "data_set",
    "ranking_model",
    "model",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


class ExtensionFailed(FedpingError):
    """An extension raised an error or returned an unusable result; the sentence names the extension."""


class OtherCode(InvalidSettings):
    """The code of the installed extension differs from the code that a document records."""


class Own(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of an extension; each union of built-in settings has one subclass of this.

    Attributes:
        name: its registered name.
        settings: all of its keywords, including those with defaults.
        code: SHA-256 of its source (:func:`fedping.protocol.source_digest.source_digest`).

    Raises:
        InvalidSettings: a setting is not finite, and so cannot be stored.
    """

    kind: ClassVar[Kind]
    name: str
    settings: dict[str, Any] = {}
    code: str

    def __post_init__(self) -> None:
        for setting, value in self.settings.items():
            if not _is_finite(value):
                raise UnfitTable(f"the setting '{setting}' of '{self.name}' is {value}; give a finite number")

    def __hash__(self) -> int:
        return hash((type(self), self.name, self.code, msgspec.json.encode(self.settings, order="sorted")))


_NONE = inspect.Parameter.empty
"""Marker for a setting without a default. A class, because it stays the same object in another process."""


@dataclasses.dataclass(frozen=True)
class _Keyword:
    """A setting: its name and type, and its default or the factory of its default."""

    name: str
    type: Any
    default: Any = _NONE
    factory: Any = _NONE

    @property
    def field(self) -> tuple[str, Any] | tuple[str, Any, Any]:
        """The field as ``msgspec.defstruct`` expects it."""
        if self.factory is not _NONE:
            return self.name, self.type, msgspec.field(default_factory=self.factory)
        return (self.name, self.type) if self.default is _NONE else (self.name, self.type, self.default)


@dataclasses.dataclass(frozen=True)
class Extension:
    """A registered function or class; its keyword-only parameters or its fields are the settings.

    Attributes:
        kind: kind of component.
        name: its name in settings.
        make: the function or the class.
        code: SHA-256 of its source.
        code_as_written: the digest of the same source as earlier versions of fedping recorded it.
        keywords: its settings, one by one; empty for a struct, which declares them itself.
        settings: the type of its settings, built from the annotations.
    """

    kind: Kind
    name: str
    make: Callable[..., Any]
    code: str
    code_as_written: str
    keywords: tuple[_Keyword, ...]
    settings: type[Struct]

    def __str__(self) -> str:
        return _named_in_words(self.kind, self.name)

    def is_recorded_as(self, code: str) -> bool:
        """Return whether a recorded digest identifies this code."""
        return code in (self.code, self.code_as_written)

    @property
    def keyword_names(self) -> tuple[str, ...]:
        """The names of the extension's settings."""
        return tuple(self.settings.__struct_fields__)

    @property
    def help(self) -> str:
        """The docstring of the function or class."""
        return inspect.getdoc(self.make) or ""

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all the settings in JSON types, defaults filled in.

        Raises:
            msgspec.ValidationError: the settings contradict the annotations.
        """
        values = msgspec.convert(given, self.settings)
        found: dict[str, Any] = msgspec.to_builtins(values)
        for name, value in found.items():
            if not _is_finite(value):
                raise InvalidSettings(f"the setting '{name}' of {self} is {value}; give a finite number")
        if dataclasses.is_dataclass(self.make):
            try:
                self.make(**msgspec.structs.asdict(values))
            except ValueError as error:  # of its __post_init__
                raise InvalidSettings(f"{self} does not take these settings: {error}") from error
        read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))  # tuples become lists
        return read

    def made(self, settings: Mapping[str, Any], *given: Any, **asked: Any) -> Any:
        """Return the result of calling the function or class with ``given``, ``asked`` and the settings.

        Raises:
            ExtensionFailed: the extension raised an error, or does not accept the settings.
        """
        try:
            values = msgspec.convert(settings, self.settings)
        except msgspec.ValidationError as error:
            raise ExtensionFailed(f"{self} does not take the settings {dict(settings)}: {error}") from error
        if isinstance(self.make, type) and isinstance(values, self.make):
            return values
        keywords = msgspec.structs.asdict(values)
        with self.guarded():
            return self.make(**keywords) if isinstance(self.make, type) else self.make(*given, **asked, **keywords)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Re-raise errors of the extension's code as sentences that name the extension.

        Errors of more specific classes, such as diverging training, pass unchanged.
        """
        try:
            yield
        except FedpingError as error:
            if type(error) not in (FedpingError, InvalidSettings) or str(self) in str(error):
                raise  # its result was checked, and the error names it
            raise ExtensionFailed(f"{self}, an extension, says: {error}") from error
        except (Exception, SystemExit) as error:
            raise ExtensionFailed(f"{self}, an extension, raised {as_raised(error)}") from error


def asks_for(function: Any, name: str) -> bool:
    """Return whether a function has a parameter of this name that isn't keyword-only, and so isn't a setting."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # not callable, or without a signature
        return False
    return parameter is not None and parameter.kind is parameter.POSITIONAL_OR_KEYWORD


def _named_in_words(kind: Kind, name: str) -> str:
    return f"the {kind.replace('_', ' ')} '{name}'"


_registered: dict[tuple[Kind, str], Extension] = {}
_lost: dict[tuple[Kind, str], str] = {}
"""Extensions that were sent to this process but cannot be loaded here, with the reason."""
_loading = threading.RLock()
_loaded = False


def register(kind: Kind, name: str, make: Callable[..., Any]) -> Extension:
    """Register a function or class under a name; registering it again, as in a notebook's cell, replaces it.

    Raises:
        InvalidSettings: the name is invalid or taken, a keyword has no annotation, or the source cannot be read.
    """
    if not re.fullmatch(NAME_PATTERN, name) or name == OWN:
        raise InvalidSettings(
            f"'{name}' is not a valid extension name. Use letters, digits, '.', '_' and '-', and not '{OWN}'"
        )
    there = _registered.get((kind, name))
    if there is not None and _place(there.make) != _place(make):
        raise InvalidSettings(
            f"{there} is registered twice, by {'.'.join(_place(there.make))} and by {'.'.join(_place(make))}; rename "
            "one, or uninstall one of the packages"
        )
    codes = source_digest(make, name, reads_settings=True), digest_as_written(make, name)
    extension = _extension(kind, name, make, codes, _keywords(name, make))
    _registered[kind, name] = extension
    return extension


def registered(kind: Kind, name: str) -> Extension | None:
    """Return the extension of this name; None if none exists. Installed extensions are imported if the name is unknown.

    Raises:
        InvalidSettings: the extension was sent to this process but cannot be loaded here, or an installed extension
            cannot be imported.
    """
    if (kind, name) in _lost:
        raise InvalidSettings(_lost[kind, name])
    if (kind, name) not in _registered:
        load()
    return _registered.get((kind, name))


def all_of(kind: Kind) -> tuple[Extension, ...]:
    """Return all extensions of a kind, by name."""
    load()
    return tuple(extension for (of, _), extension in sorted(_registered.items()) if of == kind)


def extension_of(own: Own) -> Extension:
    """Return the extension that these settings name.

    Raises:
        InvalidSettings: the extension is not installed.
        OtherCode: its code differs from the code that the settings were made with.
    """
    return recorded(own.kind, own.name, own.code)


def recorded(kind: Kind, name: str, code: str) -> Extension:
    """Return an extension after checking that its code is the recorded one; "" accepts any code.

    Raises:
        InvalidSettings: the extension is not installed.
        OtherCode: its code differs.
    """
    extension = registered(kind, name)
    if extension is None:
        raise InvalidSettings(f"{_named_in_words(kind, name)} is an extension that is not loaded; {TO_LOAD}")
    if code and not extension.is_recorded_as(code):
        raise OtherCode(
            f"{extension} has other code here ({extension.code[:12]}) than the recorded one ({code[:12]}); install "
            f"the version of {extension.make.__module__.partition('.')[0]} that was used then, or start again with "
            "this one"
        )
    return extension


S = TypeVar("S", bound=Struct)


def with_recorded_code(value: S, recorded: Any) -> S:
    """Return settings with a document's code digests, at each place where both identify the same code.

    A document of an earlier fedping has other digests of the same code (:attr:`Extension.code_as_written`). Settings
    that are compared with such a document, or continue its results, take over its digests, so that both have the same
    identity.

    Args:
        value: settings that were just read.
        recorded: the document's settings: a struct, or its JSON types.
    """
    raw = msgspec.to_builtins(value)
    found = _with_recorded_code(raw, msgspec.to_builtins(recorded))
    return value if found == raw else msgspec.json.decode(msgspec.json.encode(found), type=type(value))


def _with_recorded_code(raw: Any, recorded: Any) -> Any:
    if isinstance(raw, dict) and isinstance(recorded, dict):
        found = {key: _with_recorded_code(each, recorded.get(key)) for key, each in raw.items()}
        code, recorded_code = raw.get("code"), recorded.get("code")
        if isinstance(recorded_code, str) and any(
            of.name == raw.get("name") == recorded.get("name") and of.code == code and of.is_recorded_as(recorded_code)
            for of in _registered.values()
        ):
            found["code"] = recorded_code
        return found
    if isinstance(raw, list | tuple) and isinstance(recorded, list | tuple) and len(raw) == len(recorded):
        return [_with_recorded_code(*each) for each in zip(raw, recorded, strict=True)]
    return raw


def load() -> None:
    """Import the modules that the environment names and the modules of all entry points, once per process.

    Raises:
        InvalidSettings: one of the modules cannot be imported.
    """
    global _loaded
    with _loading:
        if _loaded:
            return
        for module in _named():
            _imported(partial(importlib.import_module, module), f"the module '{module}' ({MODULES})")
        for entry in sorted(metadata.entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
            whose = f"the extension '{entry.value}' of the package {entry.dist.name if entry.dist else entry.name}"
            _imported(entry.load, whose)
        _loaded = True


def loaded_modules() -> frozenset[str]:
    """Return the modules that the operator has loaded as extensions: those that :func:`load` imports.

    Raises:
        InvalidSettings: one of the modules cannot be imported.
    """
    load()
    return frozenset(_named()) | {entry.module for entry in metadata.entry_points(group=GROUP)}


def _named() -> list[str]:
    return [name for name in map(str.strip, os.environ.get(MODULES, "").split(",")) if name]


def _imported(load: Callable[[], object], what: str) -> None:
    try:
        load()
    except FedpingError as error:
        raise InvalidSettings(f"{what} cannot be used: {error}") from error
    except ModuleNotFoundError as error:
        raise InvalidSettings(
            f"{what} cannot be imported, because the module '{error.name}' is missing. Install it, or add its folder "
            "to PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise InvalidSettings(f"{what} cannot be imported ({type(error).__name__}: {error})") from error


class Packed(NamedTuple):
    """Extensions packed for another process.

    Attributes:
        data: input of :func:`unpack`.
        modules: the modules that the other process needs, from any package; code that is sent by value may import
            others.
    """

    data: bytes
    modules: frozenset[str]


class _Parcel(NamedTuple):
    """A packed extension: the extension by value, or None if the other process registers it by importing its module."""

    kind: Kind
    name: str
    module: str
    value: bytes | None


def packed() -> Packed:
    """Return this process's extensions packed for another process, which doesn't need most of their modules.

    Most are sent by value. An extension that is or uses a struct can only be sent as its module's name; if it is in a
    script, which other processes can't import, it isn't sent.
    """
    modules: set[str] = set()
    parcels = [_packed(each, modules) for each in _registered.values()]
    return Packed(pickle.dumps(parcels) if parcels else b"", frozenset(modules - {"__main__"}))


def _packed(extension: Extension, modules: set[str]) -> _Parcel:
    """Return an extension for another process, and add the modules that it needs there."""
    cloudpickle = _cloudpickle()
    copyreg.pickle(msgspec.Meta, _reduced)  # it occurs in annotations, and cannot be pickled by itself

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[name-defined, misc]
        def reducer_override(self, of: Any) -> Any:
            if isinstance(of, type) and issubclass(of, Struct) and not of.__module__.startswith("fedping."):
                raise pickle.PicklingError("a struct would arrive without its fields")
            if inspect.ismodule(of):
                modules.add(of.__name__)
            elif inspect.isfunction(of) or isinstance(of, type):
                modules.add(str(of.__module__))
            return super().reducer_override(of)

    module = extension.make.__module__
    modules.add(module)
    home = sys.modules.get(module.partition(".")[0])
    is_elsewhere = home is not None and home.__name__ not in ("__main__", "fedping")
    written = io.BytesIO()
    if is_elsewhere:
        cloudpickle.register_pickle_by_value(home)
    try:
        codes = extension.code, extension.code_as_written
        Pickler(written).dump((extension.make, codes, extension.keywords))
    except (TypeError, pickle.PicklingError):
        return _Parcel(extension.kind, extension.name, module, None)
    finally:
        if is_elsewhere:
            cloudpickle.unregister_pickle_by_value(home)
    return _Parcel(extension.kind, extension.name, module, written.getvalue())


def unpack(data: bytes) -> None:
    """Register the extensions of :func:`packed` in another process; using one that can't be loaded raises an error."""
    _lost.clear()
    for parcel in pickle.loads(data) if data else ():
        if parcel.value is None and parcel.module == "__main__":
            continue
        whose = f"{_named_in_words(parcel.kind, parcel.name)}, which was sent to a worker process,"
        try:
            _imported(partial(_unpacked, parcel), whose)
        except InvalidSettings as error:
            _lost[parcel.kind, parcel.name] = str(error)


def _unpacked(parcel: _Parcel) -> None:
    if parcel.value is None:
        importlib.import_module(parcel.module)  # it registers its extensions, with the hash of the installed code
        return
    extension = _extension(parcel.kind, parcel.name, *pickle.loads(parcel.value))
    _registered[extension.kind, extension.name] = extension


def _reduced(meta: msgspec.Meta) -> tuple[Callable[..., Any], tuple[dict[str, Any]]]:
    said = {name: getattr(meta, name) for name in dir(meta) if not name.startswith("_")}
    return _meta, ({name: each for name, each in said.items() if each is not None},)


def _meta(said: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**said)


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return importlib.import_module("pyspark.cloudpickle")


def _place(make: Callable[..., Any]) -> tuple[str, str]:
    """Return the module and name of a definition; a script has the same name in processes that import it."""
    module = make.__module__
    return ("__main__" if module == "__mp_main__" else module), make.__qualname__


def _keywords(name: str, make: Callable[..., Any]) -> tuple[_Keyword, ...]:
    """Return the fields of a dataclass, or the keyword-only parameters of a function or of a class's ``__init__``."""
    if isinstance(make, type) and issubclass(make, Struct):
        return ()
    is_plain_class = isinstance(make, type) and not dataclasses.is_dataclass(make)
    try:
        hints = typing.get_type_hints(make.__init__ if is_plain_class else make, include_extras=True)
    except Exception as error:
        raise InvalidSettings(f"the annotations of the extension '{name}' cannot be read: {error}") from error
    if dataclasses.is_dataclass(make):
        return tuple(
            _Keyword(each.name, hints[each.name], *(_NONE if of is dataclasses.MISSING else of for of in defaults))
            for each in dataclasses.fields(make)
            if each.init
            for defaults in [(each.default, each.default_factory)]
        )
    found = []
    for each in inspect.signature(make).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            raise InvalidSettings(f"the extension '{name}' takes **{each.name}; name its settings one by one")
        if each.kind is not each.KEYWORD_ONLY:
            continue
        if each.name not in hints:
            raise InvalidSettings(
                f"the setting '{each.name}' of the extension '{name}' has no type; annotate it, as in "
                f"{each.name}: float = 0.1"
            )
        found.append(_Keyword(each.name, hints[each.name], each.default))
    return tuple(found)


def _extension(
    kind: Kind, name: str, make: Callable[..., Any], codes: tuple[str, str], keywords: tuple[_Keyword, ...]
) -> Extension:
    if isinstance(make, type) and issubclass(make, Struct):
        return Extension(kind, name, make, *codes, keywords, make)
    try:
        settings = msgspec.defstruct(
            f"{name}_settings",
            [each.field for each in keywords],
            namespace={"__doc__": inspect.getdoc(make)},
            frozen=True,
            kw_only=True,
            forbid_unknown_fields=True,
        )
        msgspec.inspect.type_info(settings)
    except TypeError as error:
        raise InvalidSettings(
            f"the extension '{name}' has a setting that a settings file cannot hold ({error}); use numbers, texts, "
            "true or false, and lists of them"
        ) from error
    return Extension(kind, name, make, *codes, keywords, settings)


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


class OddSettings(Exception):
    """Invalid settings of an extension: the library's error, and the location of their table."""

    def __init__(self, error: msgspec.ValidationError, place: Sequence[str], kind: type) -> None:
        super().__init__(str(error))
        self.error, self.place, self.kind = error, tuple(place), kind


def with_own(raw: Any, kind: Any) -> Any:
    """Return tables in which each extension's table is replaced by the table of an :class:`Own`.

    Args:
        raw: tables, not yet checked.
        kind: the type that they are converted to next.

    Raises:
        OddSettings: an extension doesn't have one of the settings, or its value has another type.
        InvalidSettings: an extension cannot be imported.
    """
    return _with_own(raw, _type_info(kind), ())


@lru_cache(maxsize=256)
def _type_info(kind: Any) -> msgspec.inspect.Type:
    """Return msgspec's description of a type, cached because that of a study takes a tenth of a second to compute."""
    return msgspec.inspect.type_info(kind)


def _with_own(raw: Any, info: msgspec.inspect.Type, place: tuple[str, ...]) -> Any:
    if isinstance(info, msgspec.inspect.Metadata):
        return _with_own(raw, info.type, place)
    if isinstance(info, msgspec.inspect.VarTupleType | msgspec.inspect.ListType) and isinstance(raw, list | tuple):
        return [_with_own(each, info.item_type, (*place, str(at))) for at, each in enumerate(raw)]
    if isinstance(info, msgspec.inspect.DictType) and isinstance(raw, Mapping):
        return {key: _with_own(each, info.value_type, (*place, str(key))) for key, each in raw.items()}
    structs = structs_of(info)
    open_to = next((each for each in structs if is_own(each)), None)
    if open_to is not None and isinstance(raw, str) and len(structs) == 1:
        raw = {str(open_to.tag_field): raw}
    if not isinstance(raw, Mapping):
        return raw
    if open_to is not None:
        chosen = raw.get(str(open_to.tag_field))
        if isinstance(chosen, str) and chosen not in {each.tag for each in structs}:
            return _own(raw, chosen, open_to, place)
    struct = next((each for each in structs if len(structs) == 1 or raw.get(str(each.tag_field)) == each.tag), None)
    if struct is None or is_own(struct):
        return raw
    types = {field.encode_name: field.type for field in struct.fields}
    return {key: _with_own(each, types[key], (*place, key)) if key in types else each for key, each in raw.items()}


def _own(raw: Mapping[str, Any], name: str, struct: msgspec.inspect.StructType, place: tuple[str, ...]) -> Any:
    extension = registered(kind_of(struct), name)
    if extension is None:
        return raw  # it is rejected later, with the known names
    tag = str(struct.tag_field)
    settings = checked_at(extension, {key: value for key, value in raw.items() if key != tag}, place)
    return {tag: OWN, "name": name, "settings": settings, "code": extension.code}


def checked_at(extension: Extension, settings: Any, place: Sequence[str]) -> dict[str, Any]:
    """Return an extension's settings, checked and complete; ``place`` is the location of their table.

    Raises:
        OddSettings: the extension doesn't have one of the settings, or its value has another type.
    """
    try:
        return extension.checked(settings)
    except msgspec.ValidationError as error:
        raise OddSettings(error, place, extension.settings) from error


def structs_of(info: msgspec.inspect.Type | None) -> list[msgspec.inspect.StructType]:
    """Return the struct types that a value of this type may have."""
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return [each for each in types if isinstance(each, msgspec.inspect.StructType)]


def kind_of(struct: msgspec.inspect.StructType) -> Kind:
    """Return the kind of extensions whose settings a struct holds (:func:`is_own`)."""
    own: type[Own] = struct.cls  # type: ignore[assignment]
    return own.kind


def is_own(struct: msgspec.inspect.StructType) -> bool:
    """Return whether a struct holds the settings of extensions: whether it is a subclass of :class:`Own`."""
    return issubclass(struct.cls, Own)
