"""A custom storage in a dict, which implements only the methods of ``Storage``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedping.protocol.location import Place, child
from fedping.protocol.storage import LARGEST_BLOB, Bytes, ChangedMeanwhile, Opened, Stamp, TooLarge


class _Open:
    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, start: int, size: int) -> Bytes:
        if start + size > len(self._data):
            raise OSError("it is shorter than that")
        return self._data[start : start + size]


class DictStorage:
    """Files by their addresses, which several storages may share."""

    far = True

    def __init__(self, place: Place = Path("in a dict"), kept: dict[str, bytes] | None = None) -> None:
        self.place = place
        self.kept: dict[str, bytes] = {} if kept is None else kept

    def _name(self, key: str) -> str:
        return str(child(self.place, key) if key else self.place)

    def _ways(self, folder: str) -> list[tuple[str, str, str]]:
        """Return all names below a folder, each split at its first '/' into head and rest."""
        start = f"{self._name(folder)}/"
        return [name.removeprefix(start).partition("/") for name in self.kept if name.startswith(start)]

    def _data(self, key: str) -> bytes:
        try:
            return self.kept[self._name(key)]
        except KeyError:
            raise FileNotFoundError(f"there is no {key}") from None

    def exists(self, key: str) -> bool:
        return self._name(key) in self.kept or bool(self._ways(key))

    def folders(self, folder: str) -> list[str]:
        return list({first for first, slash, _ in self._ways(folder) if slash})

    def files(self, folder: str) -> list[str]:
        return [first for first, slash, _ in self._ways(folder) if not slash]

    def tree(self, folder: str, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for parts in self._ways(folder):
            way, _, name = "".join(parts).rpartition("/")
            if not any(part.startswith(".") for part in way.split("/")):
                found.setdefault(way, []).append(name)
        return found

    def token(self, folder: str, now_ns: int | None = None) -> int | None:
        return None

    def stamp(self, key: str) -> Stamp | None:
        data = self.kept.get(self._name(key))
        return None if data is None else (hash(data), len(data))

    @contextmanager
    def opened(self, key: str) -> Iterator[Opened]:
        yield _Open(self._data(key))

    def tail(self, key: str, most: int) -> tuple[Bytes, int]:
        data = self._data(key)
        return data[-most:], len(data)

    def read(self, key: str, most: int = LARGEST_BLOB) -> bytes | None:
        data = self.kept.get(self._name(key))
        if data is not None and len(data) > most:
            raise TooLarge(len(data))
        return data

    def create(self, key: str, data: bytes) -> bool:
        return self.kept.setdefault(self._name(key), data) is data

    def write(self, key: str, parts: Iterable[Bytes], *, durable: bool = True) -> None:
        self.kept[self._name(key)] = b"".join(parts)

    def rewrite(self, key: str, parts: Iterable[Bytes]) -> None:
        before = self._data(key)
        data = b"".join(parts)
        if self._data(key) is not before:
            raise ChangedMeanwhile(child(self.place, key))
        self.kept[self._name(key)] = data

    def remove(self, key: str) -> None:
        self.kept.pop(self._name(key), None)

    def check_conditional_writes(self) -> None:
        """Always succeed: conditional writes work here."""
