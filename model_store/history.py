"""The history of a study: who has declared, changed or given up what, when and why.

    <study>/history/<n>.json     the n-th entry, from 1 on

An entry is created or not at all, so of two people at once one is first, and the other is told. None is ever changed.
Each says what holds after it: what is declared, and which entry the settings are of; so the newest is all that has to
be read. The settings of entry 0 are those of ``study.json``, as created.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from fedping.model_store.blobs import Blobs
from fedping.model_store.checksum import is_whole, sealed, unsealed
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import NewerFormat, with_format, without_format
from fedping.protocol.study import Declared, Study

Kind: TypeAlias = Literal["running", "paused", "ended", "changed", "pruned", "forgotten"]


class Standing(Struct, frozen=True, kw_only=True):
    """What holds after an entry: its own number, what is declared, and the entry of which the settings are."""

    number: Annotated[int, Meta(ge=0)] = 0
    declared: Declared = Declared()
    settings: Annotated[int, Meta(ge=0)] = 0


class Entry(Standing, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a study's history.

    Attributes:
        kind: what was declared, or that settings were ``changed``, or landed pings were ``pruned`` or ``forgotten``.
        at: when, ISO 8601 in UTC.
        by: who, as the system calls them; empty where a program has done it by itself.
        because: why, in somebody's own words; empty if nobody said.
        told: what it has changed or given up, a phrase each.
        study: the whole study as it is from then on, where settings were changed.
        versions: by line those that can no longer be computed again, for their landed pings were given up.
        files: the landed files that a client's pings were removed from.
    """

    kind: Kind
    at: str
    by: str = ""
    because: str = ""
    told: tuple[str, ...] = ()
    study: Study | None = None
    versions: dict[str, tuple[int, ...]] = {}
    files: tuple[str, ...] = ()


class HistoryConflict(FedpingError):
    """Somebody else was first; nothing was written."""


_Part = TypeVar("_Part", bound=Standing)


@dataclass(frozen=True, slots=True)
class HistoryOf:
    """The history of one study; ``where`` names the store in messages."""

    blobs: Blobs
    where: str
    study: str

    def newest(self) -> int:
        """Return the number of the newest entry; 0 if there is none. One listing."""
        return max((_number(name) for name in self.blobs.names(f"{self.study}/history")), default=0)

    def standing(self) -> Standing:
        """Return what holds after the newest entry; raises :class:`FedpingError` if it cannot be read."""
        newest = self.newest()
        return self._read(newest, Standing) if newest else Standing()

    def entry(self, number: int) -> Entry:
        """Return an entry; raises :class:`FedpingError` if there is none, or it cannot be read."""
        return self._read(number, Entry)

    def append(self, entry: Entry) -> None:
        """Keep the next entry.

        Raises:
            HistoryConflict: there is one of this number.
        """
        if not self.blobs.create(self.key(entry.number), sealed(with_format(msgspec.json.encode(entry)))):
            try:
                first = self.entry(entry.number)
                who, what = first.by or "somebody", IN_WORDS[first.kind]
            except FedpingError:
                who, what = "somebody", "has changed it"
            raise HistoryConflict(
                f"{who} was faster, and {what} of study '{self.study}', so nothing was done: look with 'fedping study "
                f"history {self.study}', and run the same command again if you still mean it"
            )

    def key(self, number: int) -> str:
        """Return the key of an entry."""
        return f"{self.study}/history/{number}.json"

    def _read(self, number: int, kind: type[_Part]) -> _Part:
        key = self.key(number)
        data = self.blobs.read(key)
        try:
            if data is None:
                raise FedpingError("it is missing")
            if not is_whole(data):
                raise FedpingError("it is not what its seal says")
            found = msgspec.json.decode(without_format(unsealed(data), f"{self.where}/{key}"), type=kind)
            if found.number != number:
                raise FedpingError(f"it is entry {found.number}")
        except NewerFormat:
            raise
        except (FedpingError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FedpingError(
                f"{self.where}/{key}, an entry of the history of study '{self.study}', cannot be read ({error}); it "
                "was damaged or is of a later version of fedping: restore it from a copy"
            ) from error
        return found


IN_WORDS: dict[Kind, str] = {
    "running": "has declared the running",
    "paused": "has declared the pause",
    "ended": "has declared the end",
    "changed": "has changed settings",
    "pruned": "has pruned landed pings",
    "forgotten": "has removed a client's pings",
}


def _number(name: str) -> int:
    """Return the number in the name of an entry; 0 for a foreign name."""
    digits = name.removesuffix(".json")
    return int(digits) if name.endswith(".json") and digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
