"""A storage of landed pings that fedping does not have, here a dict: all it takes is the methods of ``Storage``."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedping.main import main
from fedping.protocol import object_storage
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import all_landed, is_landing, mark_landing, rewrite
from fedping.protocol.location import Place, key_in, place_of
from fedping.protocol.storage import Bytes, Opened, Storage
from fedping.server_jobs.round import recompute
from fedping.server_jobs.round.engine import NumpyEngine
from tests.server_jobs.test_landing_in_a_bucket import copied, landed, rounds
from tests.server_jobs.test_store_in_a_bucket import ROUNDS, digests, small_study
from tests.support.rounds import store_with


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
    """Files by their addresses."""

    far = True

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def _ways(self, folder: Place) -> list[tuple[str, str, str]]:
        """Return all that is below a folder, each parted at its first '/' as by ``str.partition``."""
        start = f"{folder}/"
        return [name.removeprefix(start).partition("/") for name in self.kept if name.startswith(start)]

    def _data(self, file: Place) -> bytes:
        try:
            return self.kept[str(file)]
        except KeyError:
            raise FileNotFoundError(f"there is no {file}") from None

    def exists(self, place: Place) -> bool:
        return str(place) in self.kept or bool(self._ways(place))

    def folders(self, folder: Place) -> list[str]:
        return list({first for first, slash, _ in self._ways(folder) if slash})

    def files(self, folder: Place) -> list[str]:
        return [first for first, slash, _ in self._ways(folder) if not slash]

    def tree(self, folder: Place, changed_since_ms: int = 0) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for parts in self._ways(folder):
            way, _, name = "".join(parts).rpartition("/")
            if not any(part.startswith(".") for part in way.split("/")):
                found.setdefault(way, []).append(name)
        return found

    def token(self, folder: Place, now_ns: int | None = None) -> int | None:
        return None

    def size(self, file: Place) -> int:
        return len(self._data(file))

    @contextmanager
    def opened(self, file: Place) -> Iterator[Opened]:
        yield _Open(self._data(file))

    def tail(self, file: Place, most: int) -> tuple[Bytes, int]:
        return self._data(file)[-most:], self.size(file)

    def write(self, file: Place, parts: Iterable[bytes | memoryview]) -> None:
        self.kept[str(file)] = b"".join(parts)

    def write_again(self, file: Place, parts: Iterable[bytes | memoryview]) -> None:
        self._data(file)
        self.write(file, parts)

    def remove(self, file: Place) -> None:
        self.kept.pop(str(file), None)

    def read_note(self, file: Place, most: int) -> bytes | None:
        note = self.kept.get(str(file))
        return note if note is not None and len(note) <= most else None

    def write_note(self, file: Place, data: bytes) -> None:
        self.write(file, [data])


def test_rounds_and_commands_need_nothing_else_of_a_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storage: Storage = DictStorage()
    monkeypatch.setattr(object_storage, "BUCKETS", storage)  # what `storage_of` gives for an address
    there, back = place_of("s3://in-a-dict/pings"), tmp_path / "back"
    assert not is_landing(there)
    mark_landing(there)
    assert is_landing(there)
    landed(there)
    stores = [store_with(tmp_path / name, small_study()) for name in ("one", "other")]
    rounds(stores[0], there, NumpyEngine())
    rounds(stores[1], copied(there, back), NumpyEngine())
    assert digests(stores[0]) == digests(stores[1])
    assert recompute(stores[0], there, "study", "main", ROUNDS, NumpyEngine()).identical

    said = ["--store", str(tmp_path / "one"), "--landing", str(there)]
    assert main(["landing", "copy", "study", "--to", "s3://in-a-dict/copy", *said]) == 0
    assert main(["landing", "prune", "study", "--keep", "1", *said]) == 0
    assert f"{ROUNDS - 1} landed files" in capsys.readouterr().out
    [left] = all_landed(there)
    rows = open_landed(left).footer.num_rows
    rewrite(left, lambda table: table.slice(1))
    assert open_landed(left).footer.num_rows == rows - 1
    copies = [key_in(place_of("s3://in-a-dict/copy"), file) for file in all_landed(place_of("s3://in-a-dict/copy"))]
    assert copies == [key_in(back, file) for file in all_landed(back)]
