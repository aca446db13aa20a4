"""The folder of a run: its owner, its files, written atomically, and the environment of the computation.

The same command continues the run; a command with other settings, code or data does not overwrite it.

The last bits of results depend on more than settings, code and seed: libraries of matrix products choose a kernel by
the processor, and kernels add in different orders. So the same seed gives the same bits only on processors with the
same kernel. The environment records this. It doesn't identify the run: results that differ in their last bits belong to
the same experiment.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from fedping.client_sim.learning.blas import kernels
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.formats import NewerFormat, with_format, without_format

T = TypeVar("T")

NOTE = "experiment.json"
"""Name of the file that describes the experiment in a run's folder."""

CODE = "code.json"
"""Name of the file with digests of the results' inputs other than settings: code, data, the program."""

MOST_CHANGES = 3
"""Maximum number of different settings that an error names."""

LEAVES_NOTHING = frozenset({NOTE, CODE, "units.json", "environment.json"})
"""Files that are written before a run begins, and are worthless without the run."""


class DamagedRun(FedpingError):
    """A file of a run cannot be read, because it is damaged or a later fedping has written it."""


class OtherRun(InvalidSettings):
    """A folder has results of other settings, code or data, or of another version of fedping."""


def claim(
    out: Path, settings: bytes, made_of: Mapping[str, str] = MappingProxyType({}), as_before: bytes | None = None
) -> None:
    """Assign a folder to the experiment described by ``settings``, or check that the folder is assigned to it.

    A folder where a run of another experiment failed before it left any results is reused.

    Args:
        out: the folder.
        settings: the experiment, as JSON.
        made_of: maps the inputs of the results other than the settings, such as "the file x.csv", to their digests.
            Inputs that the folder doesn't record, because an earlier version began it, are assumed unchanged.
        as_before: an earlier version's form of the same settings. A folder with this form gets the present form.

    Raises:
        OtherRun: the folder has results of another experiment, code or data.
        InvalidSettings: the folder has other contents than a run, or cannot be created.
        NewerFormat: a later version of fedping has begun a run there.
    """
    note = out / NOTE
    if note.is_file():
        begun = without_format(note.read_bytes(), f"the file {note}")
        noted = noted_of(out)
        changed = [name for name, digest in made_of.items() if noted.get(name, digest) != digest]
        other = begun not in (settings, as_before)
        if (other or changed) and _has_results(out):
            what = _changed_settings(begun, settings) if other else _changed_part(changed[0], noted, made_of)
            raise OtherRun(f"{out} holds a run of {what}; put that back, or give another --out")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidSettings(f"{out} exists and holds no run of an experiment; give another --out")
    take_over(out, settings, made_of)


def take_over(out: Path, settings: bytes, made_of: Mapping[str, str]) -> None:
    """Record the folder's new owner, whatever its contents; raise :class:`InvalidSettings` if it can't be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSettings(f"cannot make the folder {out}: {error.strerror}; give another --out") from error
    note = out / NOTE
    if not note.is_file() or without_format(note.read_bytes(), f"the file {note}") != settings:
        write_whole_bytes(note, with_format(settings))
    if made_of and noted_of(out) != dict(made_of):
        write_document(out / CODE, _MadeOf(dict(made_of)))


def is_study(out: Path) -> bool:
    """Return whether a folder's note records the simulation of a study.

    Earlier versions wrote two documents, one per line: the experiment, which names its study, and the study.
    """
    try:
        note = without_format((out / NOTE).read_bytes(), NOTE)
    except (OSError, NewerFormat):
        return False
    for document in (note, note.partition(b"\n")[0]):
        try:
            value = msgspec.json.decode(document)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        return isinstance(value, dict) and "study" in value
    return False


def begun_study(out: Path) -> Any:
    """Return the study simulated in a folder, as decoded JSON; None if there is no readable one."""
    try:
        note = without_format((out / NOTE).read_bytes(), NOTE)
    except (OSError, NewerFormat):
        return None
    try:
        return msgspec.json.decode(note, type=_Simulated).study
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return msgspec.json.decode(note.partition(b"\n")[2])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _Simulated(msgspec.Struct):
    study: dict[str, Any]


class _MadeOf(msgspec.Struct, frozen=True):
    digests: dict[str, str]


def noted_of(out: Path) -> dict[str, str]:
    """Return the inputs of a folder's results that it has recorded, other than the settings."""
    return (read_whole(out / CODE, _MadeOf) or _MadeOf({})).digests


def _has_results(out: Path) -> bool:
    return any(file.is_file() for file in out.rglob("*") if file.parent != out or file.name not in LEAVES_NOTHING)


def _changed_part(name: str, noted: Mapping[str, str], now: Mapping[str, str]) -> str:
    return f"this experiment made with another {name} (it was {noted[name][:12]} and is {now[name][:12]})"


def _changed_settings(before: bytes, now: bytes) -> str:
    """Return a phrase for a folder's experiment, with the different settings if it has the same name."""
    try:
        was, is_now = msgspec.json.decode(before), msgspec.json.decode(now)
        changes = list(_differing(was, is_now, ""))
        same = isinstance(was, dict) and isinstance(is_now, dict) and was.get("name") == is_now.get("name")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _OTHER
    if changes and all(path.endswith(".code") for path, _, _ in changes):
        path, one, other = changes[0]
        return (
            f"this experiment with other code of an extension ('{path.lstrip('.')}' was {str(one)[:12]} and is "
            f"{str(other)[:12]})"
        )
    if not same or not changes:
        return _OTHER
    described = [_change_in_words(*each) for each in changes[:MOST_CHANGES]]
    more = [f"{len(changes) - MOST_CHANGES} more"] if len(changes) > MOST_CHANGES else []
    return f"{_OTHER} ({', '.join([*described, *more])})"


_OTHER = "another experiment, or of this one with other settings"


def _change_in_words(path: str, was: Any, is_now: Any) -> str:
    name = f"'{path.lstrip('.')}'"
    if was is _ABSENT:
        return f"{name} is new"
    return f"{name} is gone" if is_now is _ABSENT else f"{name} was {_short(was)} and is {_short(is_now)}"


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:37]}..."


_ABSENT = object()


def _differing(one: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            yield from _differing(one.get(key, _ABSENT), other.get(key, _ABSENT), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _differing(a, b, f"{path}.{number}")
    elif one != other:
        yield path, one, other


def read_whole(file: Path, kind: type[T]) -> T | None:
    """Return the contents of a JSON file of a run; None if it does not exist.

    Raises:
        DamagedRun: the file has other contents, or a newer format.
    """
    try:
        return msgspec.json.decode(without_format(file.read_bytes(), f"the file {file}"), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except NewerFormat as error:
        raise DamagedRun(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRun(f"the file {file} is damaged ({error}); delete it, and run the experiment again") from error


def write_document(file: Path, document: msgspec.Struct) -> None:
    """Write a struct as readable JSON with its format; :func:`read_whole` reads it."""
    write_whole_bytes(file, msgspec.json.format(with_format(msgspec.json.encode(document))))


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: ``write`` fills a hidden file, which is then renamed."""
    hidden = file.with_name(f".{file.name}.tmp")
    write(hidden)
    hidden.replace(file)


def write_whole_bytes(file: Path, data: bytes) -> None:
    """Write a file atomically."""
    write_whole(file, lambda hidden: hidden.write_bytes(data))


ENVIRONMENT = "environment.json"


class Environment(Struct, frozen=True, kw_only=True):
    """The environment in which a run, or a part of it, was computed.

    Attributes:
        machine: the kind of processor, such as "x86_64".
        python: the version of Python.
        numpy: the version of NumPy.
        blas: NumPy's libraries of matrix products with versions and kernels, such as "openblas 0.3.31 SkylakeX"; empty
            without the package ``threadpoolctl``, which reads them.
    """

    machine: str
    python: str
    numpy: str
    blas: tuple[str, ...]


class Environments(Struct, frozen=True):
    """A run's environments in the order of their use: several if it was killed and continued on another machine."""

    environments: tuple[Environment, ...] = ()


def environment_here() -> Environment:
    """Return the environment of this process."""
    return Environment(
        machine=platform.machine(), python=platform.python_version(), numpy=np.__version__, blas=kernels()
    )


def write_environment(folder: Path, earlier: Iterable[Environment] = ()) -> None:
    """Record this process's environment in a run's folder, after the ``earlier`` environments."""
    together = tuple(dict.fromkeys((*earlier, environment_here())))
    if environments_in(folder) != together:
        write_document(folder / ENVIRONMENT, Environments(together))


def environments_in(folder: Path) -> tuple[Environment, ...]:
    """Return the environments recorded in a run's folder; none if an earlier fedping ran it.

    Raises:
        DamagedRun: the file has other contents.
    """
    return (read_whole(folder / ENVIRONMENT, Environments) or Environments()).environments
