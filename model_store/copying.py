"""Copy a study, with all its versions, from one store into another: from a folder into a bucket, or back.

What never changes once written (the study, versions, fences, documents of versions) is created in the other store, or
there already with the same bytes; the rest is replaced. ``study.json`` comes last, so that what an interrupted copy
leaves is no study yet; the same call goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedping.model_store.blobs import Blobs
from fedping.model_store.store import ModelStore, StoreError
from fedping.protocol.errors import FedpingError

_ORDER = ("fences", "held", "versions", "public", "asked")
_NEVER_CHANGES = re.compile(r"(study\.json|history/[0-9]+\.json|[^/]+/(versions|fences|public)/[0-9]+\.json)\Z")


@dataclass(frozen=True)
class Copied:
    """How many files a study has, how many of them were not in the other store, and their bytes."""

    files: int
    new: int
    bytes: int


def copy_study(
    source: ModelStore, target: ModelStore, study: str, tell: Callable[[int], object] = lambda files: None
) -> Copied:
    """Copy a study into another store, or bring an earlier copy of it up to date.

    Args:
        source: the store that has it.
        target: the store that is to have it.
        study: its name.
        tell: is told how many files have been looked at so far.

    Raises:
        StoreError: there is no such study, it is damaged, the other store has a file of it with other bytes or versions
            that this one has not, or a version was published while it was copied, and the same call has to be repeated.
    """
    lines = [line.name for line in source.study(study).lines]
    heads = {line: source.head(study, line) for line in lines}
    for line, head in heads.items():
        there = max(target.iterations(study, line), default=-1)
        if there > head.iteration:
            raise StoreError(
                f"line '{line}' of study '{study}' is at version {there} in {target.where} and at {head.iteration} in "
                f"{source.where}: nothing was copied; copy the other way, or to another place"
            )
    target.check_publishing()  # or what is there would be replaced where it is to be created
    files = new = size = 0
    for key in _keys(source.blobs, study, lines):
        data = source.blobs.read(key)
        if data is None:  # gone meanwhile, as what a helper was asked for goes
            continue
        files += 1
        if _put(source, target, key, data, _NEVER_CHANGES.match(key.partition("/")[2]) is not None):
            new, size = new + 1, size + len(data)
        tell(files)
    for line, head in heads.items():
        now, copied = source.head(study, line), target.head(study, line)
        if (now.iteration, now.digest) != (head.iteration, head.digest):
            raise StoreError(
                f"line '{line}' of study '{study}' went on to version {now.iteration} while it was copied; stop its "
                "rounds and run the same command again"
            )
        if copied.digest != head.digest:
            raise StoreError(f"{target.where} has another version {copied.iteration} of line '{line}' than was copied")
    return Copied(files, new, size)


def _keys(blobs: Blobs, study: str, lines: list[str]) -> Iterator[str]:
    """Yield the keys of a study's files: what tells that something is there after what it needs."""
    for name in sorted(blobs.names(f"{study}/history"), key=_by_number):
        yield f"{study}/history/{name}"
    last = [name for name in blobs.names(study) if "." in name]
    for line in lines:
        inside = sorted(blobs.names(f"{study}/{line}"))
        for folder in (name for name in _ORDER if name in inside):
            for name in sorted(blobs.names(f"{study}/{line}/{folder}"), key=_by_number):
                yield f"{study}/{line}/{folder}/{name}"
        yield from (f"{study}/{line}/{name}" for name in inside if "." in name)
    yield from (f"{study}/{name}" for name in sorted(last, key="study.json".__eq__))


def _by_number(name: str) -> tuple[int, str]:
    number = name.partition(".")[0]
    return (int(number) if number.isdecimal() else 2**62), name


def _put(source: ModelStore, target: ModelStore, key: str, data: bytes, lasting: bool) -> bool:
    """Put a file into a store; return whether it was not there as it is.

    Looked at first: most of what is copied again is there, and a put would carry it once more to be told so.
    """
    there = target.blobs.read(key)
    if there is None:
        if target.blobs.create(key, data):
            return True
        there = target.blobs.read(key)  # another copy was faster
    if there == data:
        return False
    if lasting:
        raise FedpingError(
            f"{target.where}/{key} differs from {source.where}/{key}: it is of another study of this name, or damaged; "
            "copy to another place, or restore it"
        )
    target.blobs.replace(key, data)
    return True
