"""What results depend on besides the settings: the user's own code, data files, and this version of fedping.

The user's own code is that of models and extensions, and the user's modules that they import.

A results folder records it, so that it is never mistaken for that of other code or other data. What has changed can be
run again in the folder, and the rest stays.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from fedping.client_sim.learning.models.named import named
from fedping.client_sim.learning.settings import Settings
from fedping.client_sim.models.ranking_model import CODE
from fedping.experiments.laboratory.choices import named_in_modules
from fedping.experiments.laboratory.settings import Experiment, Setup
from fedping.experiments.laboratory.units import Unit, problem_digest, units_of
from fedping.experiments.run_folder import NOTE, noted_of
from fedping.protocol import __version__
from fedping.protocol.extensions import Extension, Own, extension_of, recorded
from fedping.protocol.formats import without_format
from fedping.protocol.source_digest import digest_of_value, own_modules

_OF_ALL = ("metrics.parquet", "summary.json", "report.html")
"""The files of a folder that are made from all runs."""


class OwnModules(dict[str, dict[str, str]]):
    """The results of :func:`own_modules` by module; each is computed once, when it is first needed."""

    def __missing__(self, module: str) -> dict[str, str]:
        self[module] = own_modules(module)
        return self[module]


def code_identity(
    experiment: Experiment, noted: Mapping[str, str] = MappingProxyType({}), modules: OwnModules | None = None
) -> dict[str, str]:
    """Return what an experiment's results depend on besides its settings: by name, a digest or the version.

    Args:
        experiment: the experiment.
        noted: what a folder has noted; if it has the digest that earlier versions of fedping made of the same code,
            that one is returned.
        modules: what is known of the user's own modules; more is added.

    Raises:
        InvalidSettings: a model's code cannot be imported.
    """
    parts = {"version of fedping": __version__}
    modules = OwnModules() if modules is None else modules
    for setup in experiment.variants.values():
        for name in sorted(_parts_of(setup) - parts.keys()):
            parts[name] = _digest(name, setup)
            if name in noted and noted[name] == _digest(name, setup, as_written=True):
                parts[name] = noted[name]
        parts |= _modules_of(setup, modules)
    return parts


def forget_changed(experiment: Experiment, out: Path, now: Mapping[str, str], modules: OwnModules) -> None:
    """Remove from a folder the runs whose settings, code or data have changed, and what was made from all runs.

    Args:
        experiment: the experiment as it is now.
        out: the folder.
        now: the result of :func:`made_of`.
        modules: what it was given, and has added to.
    """
    before = begun_in(out)
    noted = noted_of(out)
    changed = {name for name, digest in now.items() if noted.get(name, digest) != digest}
    known = {} if before is None else {unit.folder(out).path: _identity(unit) for unit in units_of(before)}
    kept = {
        unit.folder(out).path
        for unit in units_of(experiment)
        if known.get(unit.folder(out).path) == _identity(unit)
        and not changed & {"version of fedping", *_parts_of(unit.setup), *_modules_of(unit.setup, modules)}
    }
    for path in [*out.glob("runs/*/*"), *out.glob("baselines/*/*")]:
        if path not in kept:
            shutil.rmtree(path)
            with suppress(OSError):  # it has other runs of the variant
                path.parent.rmdir()
    for name in _OF_ALL:
        (out / name).unlink(missing_ok=True)


def begun_in(out: Path) -> Experiment | None:
    """Return the experiment of a folder; None if there is none, or it can no longer be read."""
    try:
        return msgspec.json.decode(without_format((out / NOTE).read_bytes(), f"the file {out / NOTE}"), type=Experiment)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _identity(unit: Unit) -> tuple[str | None, Setup | str]:
    """Return the settings that a run's results depend on: for a baseline only those of the problem."""
    return unit.baseline, unit.setup if unit.baseline is None else problem_digest(unit.setup)


def _parts_of(setup: Setup) -> set[str]:
    found = {f"file {file}" for file in _files_of(setup)}
    return found | {f"code of {text}" for text in named_in_modules(setup.model).values() if ":" in text}


def _modules_of(setup: Setup, modules: OwnModules) -> dict[str, str]:
    """Return digests of the user's own modules: those of models and extensions, and all that these import."""
    homes = {text.partition(":")[0] for text in named_in_modules(setup.model).values() if ":" in text}
    homes |= {extension.make.__module__ for extension in _extensions_of(setup)}
    return {f"module {name}": digest for home in sorted(homes) for name, digest in modules[home].items()}


def _extensions_of(setup: Setup) -> Iterator[Extension]:
    if CODE in setup.model:
        yield recorded("ranking_model", setup.model["name"], "")
    if setup.data.code:
        yield recorded("data_set", str(setup.data.name), "")
    yield from map(extension_of, _own_in(setup))


def _own_in(value: Any) -> Iterator[Own]:
    """Yield the extensions that settings name."""
    if isinstance(value, Own):
        yield value
    elif isinstance(value, msgspec.Struct):
        yield from _own_in([getattr(value, name) for name in value.__struct_fields__])
    elif isinstance(value, Mapping):
        yield from _own_in([*value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _own_in(each)


def _files_of(setup: Setup) -> list[str]:
    found = (setup.data.file, setup.gossip.file if setup.gossip else None)
    return [file for file in found if file is not None]


def _digest(part: str, setup: Setup, *, as_written: bool = False) -> str:
    for file in _files_of(setup):
        if part == f"file {file}":
            return _of_files(Path(file))
    text = part.removeprefix("code of ")
    value = named(Settings(setup.model["name"], {"function": text}), "function", "my_module:my_loss")
    return digest_of_value(value, as_written=as_written)


def _of_files(path: Path) -> str:
    """Return a digest of a file's contents, or of all files of a folder; that of nothing if there is none."""
    digest = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
        with suppress(OSError), file.open("rb") as source:  # its reader reports the error
            digest.update(hashlib.file_digest(source, "sha256").digest())
    return digest.hexdigest()
