"""A new study that begins with the trained weights of an older one: the options, and a table of what is taken over."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from fedping.options import AnyPlace
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import without_secrets
from fedping.protocol.notation import with_minus
from fedping.protocol.study import Line, Study

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore
    from fedping.protocol.location import Place
    from fedping.server_jobs.warm_start import Warm


_FROM = re.compile(r"(?:(?P<line>[^=/@]+)=)?(?P<study>[^=/@]+)/(?P<old>[^=/@]+)(?:@(?P<number>[0-9]{1,9}))?")

MOST_ROWS = 200
"""So many weights and blocks are listed; the others are counted."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def warm_options(command: _Command) -> _Command:
    """Add the options that say which weights version 0 takes over."""
    for option in (
        click.option(
            "--from-store",
            "from_store",
            type=AnyPlace(),
            help="The store of the study that weights are taken from.  [default: that of --store]",
        ),
        click.option(
            "--renamed",
            multiple=True,
            metavar="NEW=OLD",
            help="A weight or block whose name was OLD; with nothing for OLD, NEW starts anew. May be repeated.",
        ),
        click.option(
            "--from",
            "wanted",
            multiple=True,
            metavar="[LINE=]OLD_STUDY/LINE[@VERSION]",
            help="Begin with the weights of a version (default: the newest) of another study's line, by their names. "
            "May be repeated, with LINE= for each of several lines.",
        ),
    ):
        command = option(command)
    return command


class Wanted(NamedTuple):
    """Which line of the new study takes weights over, and from where; ``number`` is None for the newest version."""

    line: Line
    study: str
    old: str
    number: int | None


def wanted_of(study: Study, texts: tuple[str, ...]) -> list[Wanted]:
    """Return what --from asks for.

    Raises:
        InvalidSettings: one cannot be read, names no line of the study, or names one again.
    """
    found: list[Wanted] = []
    for text in texts:
        match = _FROM.fullmatch(text)
        if match is None:
            raise InvalidSettings(
                f"--from {without_secrets(text)!r} names no version; give OLD_STUDY/LINE or OLD_STUDY/LINE@VERSION, "
                "after LINE= if only that line of the new study is to take weights over"
            )
        if match["line"] is None and len(study.lines) != 1:
            has = ", ".join(line.name for line in study.lines) or "none"
            raise InvalidSettings(
                f"--from {text} does not say which line of study '{study.name}' takes the weights over, and it has "
                f"{has}; give --from LINE={text}"
            )
        line = study.lines[0] if match["line"] is None else study.line(match["line"])
        if any(each.line is line for each in found):
            raise InvalidSettings(f"--from says twice what line '{line.name}' begins with; give one of them")
        number = match["number"]
        found.append(Wanted(line, match["study"], match["old"], None if number is None else int(number)))
    return found


def warm_starts(
    study: Study, texts: tuple[str, ...], renamed: tuple[str, ...], store_path: Place, from_store: Place | None
) -> dict[str, Warm]:
    """Return by line what a new study begins with in the place of its start values.

    Raises:
        InvalidSettings: an option cannot be used, or a line cannot begin with these weights.
        StoreError: there is no such version, or it cannot be read.
    """
    if not texts:
        if renamed or from_store is not None:
            idle = "--renamed" if renamed else "--from-store"
            raise InvalidSettings(f"{idle} says where weights are taken from, and nothing takes any; give --from too")
        return {}
    from fedping.model_store.store import open_store
    from fedping.server_jobs.warm_start import warm_from

    wanted = wanted_of(study, texts)
    source = open_store(from_store or store_path)
    names = _names(wanted, renamed, source)
    found = {}
    for each in wanted:
        number = each.number
        if number is None:
            number = _as_begun(study, each, store_path)
        found[each.line.name] = warm_from(source, each.line, each.study, each.old, number, names[each.line.name])
    return found


def _as_begun(study: Study, wanted: Wanted, store_path: Place) -> int | None:
    """Return which version of a line the study has begun with already, if the same command has run before."""
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
    """Return by line which of its names were others. A name may have '=' in it, so every place of one is tried.

    Raises:
        InvalidSettings: it is no name of a line that takes weights over, or can be read in two ways.
    """
    found: dict[str, dict[str, str]] = {each.line.name: {} for each in wanted}
    for text in renamed:
        fits = False
        for each in wanted:
            new, old = each.line.spec, source.study(each.study).line(each.old).spec
            ways = [
                (text[:at], text[at + 1 :])
                for at, sign in enumerate(text)
                if sign == "=" and _has(new, text[:at]) and (at + 1 == len(text) or _has(old, text[at + 1 :]))
            ]
            if len(ways) > 1 or (ways and ways[0][0] in found[each.line.name]):
                raise InvalidSettings(f"--renamed {text!r} can be read in two ways, or says a name twice; leave it out")
            fits = fits or bool(ways)
            found[each.line.name].update(ways)
        if not fits:
            raise InvalidSettings(
                f"--renamed {text!r} is no NEW=OLD, where NEW is a weight or block of the new study and OLD one of the "
                "old line, or nothing; look with 'fedping study check FILE --from …' for their names"
            )
    return found


def _has(spec: Any, name: str) -> bool:
    return any(each.name == name for each in (*spec.weights, *spec.blocks))


def told_of(study: Study, warm: dict[str, Warm]) -> list[str]:
    """Return what is to be warned of before weights are taken over."""
    told = []
    for name, each in warm.items():
        line, taken = study.line(name), each.origin.taken
        if line.spec.model != each.model:
            told.append(
                f"line '{name}' evaluates the model '{line.spec.model}', and {taken.told} was trained for "
                f"'{each.model}': the same names may mean something else there"
            )
        if line.privacy is not None and not taken.private:
            told.append(
                f"line '{name}' is private, and {taken.told} was learned from pings without a guarantee: what version "
                "0 tells of these is not covered"
            )
    return told


def table_of(study: Study, warm: dict[str, Warm]) -> Iterator[str]:
    """Yield the lines of a table: what each line begins with, and from where."""
    for name, each in warm.items():
        yield f"  line {name} {summary_of(study, name, each)}:"
        yield from _rows(each)


def summary_of(study: Study, name: str, warm: Warm) -> str:
    """Return in words what a line begins with."""
    anew = study.line(name).spec.m - warm.begun.taken
    rest = f", and {anew:,} start{'s' if anew == 1 else ''} anew" if anew else ""
    moved = f"; its constraints move {len(warm.begun.moved):,}" if warm.begun.moved else ""
    taken = f"{warm.begun.taken:,} weight{'' if warm.begun.taken == 1 else 's'}"
    return f"takes {taken} over from {warm.origin.taken.told}{rest}{moved}"


def _rows(warm: Warm) -> Iterator[str]:
    """Yield a row for each weight, as far as they are few, and one for each block."""
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
            notes += [f"{count:,} moved by a constraint"] if count else []
        yield f"    {part.name:<28} {row}" + (f"  ({'; '.join(notes)})" if notes else "")
    if len(begun.parts) > MOST_ROWS:
        yield f"    and {len(begun.parts) - MOST_ROWS:,} more"
