"""The history of a study: declarations, changed settings and deletions, with author, time and reason.

    <study>/history/<n>.json     the n-th entry, from 1 on

An entry is created atomically: of two simultaneous changes one succeeds, and the other gets an error. Entries never
change. Each entry includes the state after it (the declared state, and the number of the entry with the settings), so
reading the newest entry suffices. Entry 0 stands for the settings in ``study.json``, as created.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from fedping.model_store.documents import Damaged, Documents, StampCache, is_whole, sealed, unsealed
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import NewerFormat, with_format, without_format
from fedping.protocol.object_store import StorageAway
from fedping.protocol.study import Declared, Study

Kind: TypeAlias = Literal["running", "paused", "ended", "changed", "pruned", "forgotten"]


class Standing(Struct, frozen=True, kw_only=True):
    """A study's state after an entry: its number, the declared state, and the number of the entry with the settings."""

    number: Annotated[int, Meta(ge=0)] = 0
    declared: Declared = Declared()
    settings: Annotated[int, Meta(ge=0)] = 0


class Entry(Standing, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a study's history.

    Attributes:
        kind: the declared state; or ``changed`` for settings, ``pruned`` or ``forgotten`` for deleted landed pings.
        at: the time, ISO 8601 in UTC.
        by: the user's name in the system; empty for a program.
        because: the reason, as given by the user; empty if none was given.
        told: a phrase for each change or deletion.
        study: the whole study from then on, if settings were changed.
        versions: the versions, by line, that can no longer be recomputed because their landed pings were deleted.
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
    """Another process has written the entry first; nothing was written."""


_Part = TypeVar("_Part", bound=Standing)


class History:
    """The histories of a store's studies."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._standings: StampCache[Standing] = StampCache()

    def newest(self, study: str) -> int:
        """Return the number of the newest entry, which changes with every change of the study; 0 if there is none."""
        return max((_number(name) for name in self._documents.names(f"{study}/history")), default=0)

    def standing(self, study: str) -> Standing:
        """Return the state after the newest entry; raise :class:`StoreError` if it can't be read."""
        newest = self.newest(study)
        if newest == 0:
            return Standing()
        key = history_key(study, newest)
        return self._standings.value(key, self._documents.stamp(key), lambda: self._read(study, newest, Standing))

    def entry(self, study: str, number: int) -> Entry:
        """Return an entry; raise :class:`StoreError` if it doesn't exist or can't be read."""
        return self._read(study, number, Entry)

    def append(self, study: str, entry: Entry) -> None:
        """Write the next entry.

        Raises:
            HistoryConflict: an entry of this number exists.
        """
        data = sealed(with_format(msgspec.json.encode(entry)))
        if not self._documents.create(history_key(study, entry.number), data):
            try:
                first = self.entry(study, entry.number)
                who, what = first.by or "somebody", IN_WORDS[first.kind]
            except FedpingError:
                who, what = "somebody", "has changed it"
            raise HistoryConflict(
                f"{who} was faster, and {what} of study '{study}', so nothing was done: look with 'fedping study "
                f"history {study}', and run the same command again if you still mean it"
            )

    def _read(self, study: str, number: int, kind: type[_Part]) -> _Part:
        key = history_key(study, number)
        where = f"{self._documents.where}/{key}"
        try:
            data = self._documents.read(key)
            if data is None:
                raise FedpingError("it is missing")
            if not is_whole(data):
                raise FedpingError("it doesn't match its seal")
            found = msgspec.json.decode(without_format(unsealed(data), where), type=kind)
            if found.number != number:
                raise FedpingError(f"it is entry {found.number}")
        except NewerFormat as error:
            raise Damaged(str(error)) from error
        except StorageAway:
            raise
        except (FedpingError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(
                f"{where}, an entry of the history of study '{study}', cannot be read ({error}); it was damaged or is "
                "of a later version of fedping: restore it from a copy"
            ) from error
        return found


def history_key(study: str, number: int) -> str:
    """Return the key of an entry."""
    return f"{study}/history/{number}.json"


IN_WORDS: dict[Kind, str] = {
    "running": "has declared the running",
    "paused": "has declared the pause",
    "ended": "has declared the end",
    "changed": "has changed settings",
    "pruned": "has pruned landed pings",
    "forgotten": "has removed a client's pings",
}


def _number(name: str) -> int:
    """Return the number in an entry's file name; 0 for a foreign name."""
    digits = name.removesuffix(".json")
    return int(digits) if name.endswith(".json") and digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
