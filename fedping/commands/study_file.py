"""Study files on the command line: reading, checks, and weights for version 0 from another study."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from fedping.client_sim.learning.study_files import study_from_toml
from fedping.creating import ready
from fedping.options import AnyPlace
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import without_secrets
from fedping.protocol.notation import with_minus
from fedping.protocol.study import Line, Study

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore
    from fedping.protocol.location import Place
    from fedping.server_jobs.warm_start import Warm


own_model_option = click.option(
    "--own-model",
    "own_models",
    multiple=True,
    metavar="NAME",
    help="A model of the product's own clients, whose weights and settings are not checked. May be repeated.",
)


def checked(file: Path, own_models: tuple[str, ...], store_path: Place | None = None) -> Study:
    """Return a file's study as it can be stored, with the safe choices and its noise; print its warnings.

    Raises: InvalidSettings: the file does not describe a study that clients can take part in.
    """
    return checked_with_warnings(file, own_models, store_path)[0]


def checked_with_warnings(
    file: Path, own_models: tuple[str, ...], store_path: Place | None = None
) -> tuple[Study, list[str]]:
    """Return the study as :func:`checked` does, and the printed warnings, one sentence each."""
    try:
        the_study, warnings = ready(study_from_toml(file, new=True), own_models, store_path, _tell_of_noise)
    except InvalidSettings as error:
        if str(file) not in str(error):  # checks of a whole study don't know its file
            error.locate(f"the study file {file}")
        raise
    for warning in warnings:
        click.echo(f"fedping: warning: the study file {file}: {warning}", err=True)
    return the_study, warnings


def _tell_of_noise() -> None:
    click.echo("fedping: deriving the noise that keeps the guarantee, which may take some seconds", err=True)


_FROM = re.compile(r"(?:(?P<line>[^=/@]+)=)?(?P<study>[^=/@]+)/(?P<old>[^=/@]+)(?:@(?P<number>[0-9]{1,9}))?")
MOST_ROWS = 200
"""Maximum number of weights and blocks to list; the others are counted."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def warm_options(command: _Command) -> _Command:
    """Add the options of :class:`WarmOptions` to a command."""
    for option in (
        click.option(
            "--from-store",
            "from_store",
            type=AnyPlace(),
            help="The store of the other study.  [default: --store]",
        ),
        click.option(
            "--renamed",
            multiple=True,
            metavar="NEW=OLD",
            help=(
                "A weight or block that was named OLD; with an empty OLD, NEW keeps its start value. May be repeated."
            ),
        ),
        click.option(
            "--from",
            "wanted",
            multiple=True,
            metavar="[LINE=]OLD_STUDY/LINE[@VERSION]",
            help="Start with the weights of a version (default: the newest) of another study's line, matched by "
            "name. Repeat it with LINE= if several lines do so.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class WarmOptions:
    """The options of the weights that version 0 takes over: --from, --renamed and --from-store."""

    wanted: tuple[str, ...]
    renamed: tuple[str, ...]
    from_store: Place | None


class Wanted(NamedTuple):
    """A line of the new study, and the version whose weights it takes over; ``number`` is None for the newest."""

    line: Line
    study: str
    old: str
    number: int | None


def wanted_of(study: Study, texts: tuple[str, ...]) -> list[Wanted]:
    """Return the versions that --from names.

    Raises:
        InvalidSettings: a text can't be read, names no line of the study, or the line of another text.
    """
    versions: list[Wanted] = []
    for text in texts:
        match = _FROM.fullmatch(text)
        if match is None:
            raise InvalidSettings(
                f"--from {without_secrets(text)!r} names no version; give OLD_STUDY/LINE or OLD_STUDY/LINE@VERSION, "
                "with LINE= in front for one line of the new study"
            )
        if match["line"] is None and len(study.lines) != 1:
            has = ", ".join(line.name for line in study.lines) or "none"
            raise InvalidSettings(
                f"--from {text} names no line of study '{study.name}', which has {has}; give --from LINE={text}"
            )
        line = study.lines[0] if match["line"] is None else study.line(match["line"])
        if any(each.line is line for each in versions):
            raise InvalidSettings(f"--from is given twice for line '{line.name}'; give it once")
        number = match["number"]
        versions.append(Wanted(line, match["study"], match["old"], None if number is None else int(number)))
    return versions


def warm_starts(study: Study, options: WarmOptions, store_path: Place) -> dict[str, Warm]:
    """Return the weights that replace start values in a new study, by line.

    Raises:
        InvalidSettings: an option can't be used, or a line can't begin with these weights.
        StoreError: the other study's version does not exist, or can't be read.
    """
    if not options.wanted:
        if options.renamed or options.from_store is not None:
            idle = "--renamed" if options.renamed else "--from-store"
            raise InvalidSettings(f"{idle} needs --from; add that, or remove the option")
        return {}
    from fedping.model_store.store import open_store
    from fedping.server_jobs.warm_start import warm_from

    wanted = wanted_of(study, options.wanted)
    source = open_store(options.from_store or store_path)
    names = _names(wanted, options.renamed, source)
    starts = {}
    for each in wanted:
        number = each.number
        if number is None:
            number = _begun_with(study, each, store_path)
        starts[each.line.name] = warm_from(source, each.line, each.study, each.old, number, names[each.line.name])
    return starts


def _begun_with(study: Study, wanted: Wanted, store_path: Place) -> int | None:
    """Return the version that a stored study started from, if the same command has run before; else None."""
    from fedping.model_store.store import MissingVersion, StoreError, open_store

    try:
        first = open_store(store_path).version(study.name, wanted.line.name, 0)
    except (MissingVersion, StoreError):
        return None
    origin = first.lineage.warm_start
    if origin is None or (origin.taken.study, origin.taken.line) != (wanted.study, wanted.old):
        return None
    return origin.taken.iteration


def _names(wanted: list[Wanted], renamed: tuple[str, ...], source: ModelStore) -> dict[str, dict[str, str]]:
    """Return the old names of renamed weights, by line. A name may contain '=', so each '=' is tried as separator.

    Raises:
        InvalidSettings: a text names no weight of a line that takes weights over, or can be read in two ways.
    """
    old_names: dict[str, dict[str, str]] = {each.line.name: {} for each in wanted}
    for text in renamed:
        fits = False
        for each in wanted:
            new, old = each.line.spec, source.study(each.study).line(each.old).spec
            ways = [
                (text[:at], text[at + 1 :])
                for at, sign in enumerate(text)
                if sign == "=" and _has(new, text[:at]) and (at + 1 == len(text) or _has(old, text[at + 1 :]))
            ]
            if len(ways) > 1 or (ways and ways[0][0] in old_names[each.line.name]):
                raise InvalidSettings(f"--renamed {text!r} is ambiguous or repeats a name; remove it")
            fits = fits or bool(ways)
            old_names[each.line.name].update(ways)
        if not fits:
            raise InvalidSettings(
                f"--renamed {text!r} is not NEW=OLD, where NEW is a weight or block of the new study, and OLD one of "
                "the old line, or empty; 'fedping study check FILE --from …' lists their names"
            )
    return old_names


def _has(spec: Any, name: str) -> bool:
    return any(each.name == name for each in (*spec.weights, *spec.blocks))


def warnings_about(study: Study, warm: dict[str, Warm]) -> list[str]:
    """Return the warnings about weights that are taken over, one sentence each."""
    sentences = []
    for name, each in warm.items():
        line, taken = study.line(name), each.origin.taken
        if line.spec.model != each.model:
            sentences.append(
                f"line '{name}' evaluates the model '{line.spec.model}', but {taken.told} was trained for "
                f"'{each.model}', where the same names may have another meaning"
            )
        if line.privacy is not None and not taken.private:
            sentences.append(
                f"line '{name}' is private, but {taken.told} was learned from pings without a guarantee: the line's "
                "guarantee does not cover what version 0 reveals about these"
            )
    return sentences


def table_of(study: Study, warm: dict[str, Warm]) -> Iterator[str]:
    """Yield the rows of a table: the weights that each line starts with, and their source."""
    for name, each in warm.items():
        yield f"  line {name} {summary_of(study, name, each)}:"
        yield from _rows(each)


def warm_document(study: Study, warm: dict[str, Warm]) -> dict[str, dict[str, Any]]:
    """Return the version whose weights each line takes over, and the number of these weights, for JSON."""
    return {
        name: {
            "study": each.origin.taken.study,
            "line": each.origin.taken.line,
            "version": each.origin.taken.iteration,
            "taken_over": each.begun.taken,
            "anew": study.line(name).spec.m - each.begun.taken,
            "moved": len(each.begun.moved),
        }
        for name, each in warm.items()
    }


def summary_of(study: Study, name: str, warm: Warm) -> str:
    """Return in words the weights that a line starts with."""
    anew = study.line(name).spec.m - warm.begun.taken
    rest = f", and {anew:,} keep{'s' if anew == 1 else ''} the start value" if anew else ""
    moved = f"; its constraints change {len(warm.begun.moved):,}" if warm.begun.moved else ""
    taken = f"{warm.begun.taken:,} weight{'' if warm.begun.taken == 1 else 's'}"
    return f"takes over {taken} from {warm.origin.taken.told}{rest}{moved}"


def _rows(warm: Warm) -> Iterator[str]:
    """Yield a row for each of the first weights and blocks, and the number of the others."""
    from fedping.server_jobs.warm_start import in_words

    begun, moved = warm.begun, warm.begun.moved
    for part in begun.parts[:MOST_ROWS]:
        count = bisect_left(moved, part.places.stop) - bisect_left(moved, part.places.start)
        notes = [part.note] if part.note else []
        if part.source not in (None, part.name):
            notes.append(f"was '{part.source}'")
        if part.shape is None:
            before = "anew" if part.taken is None else f"{warm.before[part.taken.start]:.6g}"
            after = f"{begun.weights[part.places.start]:.6g}"
            row = f"{with_minus(before):>12} -> {with_minus(after):>12}"
            notes += ["moved by a constraint"] if count else []
        else:
            row = f"{in_words(part.shape):>12}    {'begins anew' if part.taken is None else 'taken over'}"
            notes += [f"{count:,} changed by a constraint"] if count else []
        yield f"    {part.name:<28} {row}" + (f"  ({'; '.join(notes)})" if notes else "")
    if len(begun.parts) > MOST_ROWS:
        yield f"    and {len(begun.parts) - MOST_ROWS:,} more"
