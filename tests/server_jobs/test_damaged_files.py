"""Damaged, hostile or foreign entries in the landing folder: the model stays the same, or an error reports them."""

import contextlib
import functools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedping.protocol.landing
from benchmarks.landing_data import Traffic, landed_tables
from fedping.analysis.study import Window
from fedping.model_store.version import InputFile
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import MAGIC, SEALED_KEY, UnreadableFile, open_landed
from fedping.protocol.landing import open_landing, partition, write_landed
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.aggregate import RoundAggregate, combined
from fedping.server_jobs.round.engine import Engine, NumpyEngine
from fedping.server_jobs.round.ping_file import open_ping_file
from fedping.server_jobs.round.plan import Rules, Work
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.effort import few_or_all
from tests.support.rounds import WHEN, crowd, land, line_of, store_with
from tests.support.versions import small_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


M = 5
RULES = Rules(
    line=line_of(M), iteration=0, arms=("treatment", "control"), submits=(True, False), pings="frecency-update"
)


def landed(folder: Path, *, shards: bool) -> Path:
    """Land a few hundred pings as one file, in one row group or in ingest's layout for large files."""
    (table,) = landed_tables(Traffic(pings=400, clients=90, m=M, duplicates=0.05), 1, 400)
    before, fedping.protocol.landing.SINGLE_GROUP_ROWS = (
        fedping.protocol.landing.SINGLE_GROUP_ROWS,
        1 if shards else 4096,
    )
    try:
        return write_landed(folder, table, 1_700_000_000_000, token="a")
    finally:
        fedping.protocol.landing.SINGLE_GROUP_ROWS = before


def aggregated(path: Path, engine: Engine) -> RoundAggregate:
    """Return the aggregate that a round reads from a file, with rows counted as in a manifest."""
    rows = open_ping_file(path, RULES.document).rows
    return combined(engine.partials(Work(paths=(str(path),), rows=rows, rules=RULES)), RULES)


def bits(size: int, count: int, seed: int) -> list[int]:
    """Return random positions of bits to flip."""
    rng = random.Random(seed)
    return [rng.randrange(8 * size) for _ in range(count)]


def same_or_told(same: Callable[[], bool], path: Path, bit: int) -> str:
    """Return "same" if the result is unchanged, or "told" if an error names the file."""
    try:
        found = same()
    except FedpingError as error:
        found, told = False, str(error)
    else:
        told = ""
    assert found or path.name in told, f"bit {bit} gives another model without a word"
    return "same" if found else "told"


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


@pytest.fixture(params=[False, True], ids=["one row group", "sixteen shards"])
def shards(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.thorough
def test_a_flipped_bit_gives_the_same_model_or_a_sentence(tmp_path: Path, shards: bool) -> None:
    path = landed(tmp_path, shards=shards)
    data, engine = path.read_bytes(), NumpyEngine()
    whole = aggregated(path, engine)
    assert whole.updates.pings > 200
    outcomes = {"same": 0, "told": 0}
    for bit in bits(len(data), few_or_all(120, 2000), seed=7):
        path.write_bytes(flipped(data, bit))
        outcomes[same_or_told(lambda: aggregated(path, engine) == whole, path, bit)] += 1
    assert outcomes["told"] > outcomes["same"] > 0  # damage in parts that rounds don't read is harmless


def test_no_bit_of_what_ties_a_file_together_may_flip(tmp_path: Path) -> None:
    """Covers the whole checksum, and the last bytes of the file."""
    path = landed(tmp_path, shards=False)
    data = path.read_bytes()
    end = data.rindex(MAGIC) + len(MAGIC)
    assert SEALED_KEY in data[end:]
    first = end - 28 - len(open_landed(path).entries or b"")
    assert end - first > 28 + 20 * 24
    for byte in [*range(first, end - 28, 29), *range(end - 28, end, 3), *range(len(data) - 8, len(data))]:
        for bit in range(8):
            path.write_bytes(flipped(data, 8 * byte + bit))
            with pytest.raises(UnreadableFile, match=path.name):
                open_landed(path)


def test_a_file_cut_anywhere_is_told(tmp_path: Path) -> None:
    path = landed(tmp_path, shards=False)
    data = path.read_bytes()
    for size in [*range(40), *range(40, len(data) - 40, 997), *range(len(data) - 40, len(data))]:
        path.write_bytes(data[:size])
        with pytest.raises(UnreadableFile, match=path.name):
            aggregated(path, NumpyEngine())


@pytest.mark.spark
@pytest.mark.thorough
def test_spark_tells_of_flipped_bits_too(tmp_path: Path, shards: bool, spark: "SparkSession") -> None:
    path = landed(tmp_path, shards=shards)
    data, engine = path.read_bytes(), SparkEngine(lambda: nullcontext(spark))
    whole = aggregated(path, NumpyEngine())
    for bit in bits(len(data), few_or_all(6, 200), seed=8):
        path.write_bytes(flipped(data, bit))
        same_or_told(lambda: aggregated(path, engine) == whole, path, bit)


@pytest.mark.thorough
def test_a_flipped_bit_is_told_by_recompute_or_changes_nothing(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    path = land(tmp_path, crowd(40))
    run_round(store, tmp_path, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t"))
    data, outcomes = path.read_bytes(), {"same": 0, "told": 0}
    again = functools.partial(recompute, store, tmp_path, "study", "main", 1, NumpyEngine())
    for bit in bits(len(data), few_or_all(60, 2000), seed=9):
        path.write_bytes(flipped(data, bit))
        outcomes[same_or_told(lambda: again().identical, path, bit)] += 1
    assert outcomes["told"] > outcomes["same"] > 0


def unsealed(path: Path, **options: object) -> Path:
    """Rewrite a landed file as ingest did before checksums, or as another program would, and return it."""
    table = pq.ParquetFile(path).read()
    notes = {key: value for key, value in table.schema.metadata.items() if key != SEALED_KEY}
    pq.write_table(table.replace_schema_metadata(notes), path, **options)
    return path


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "write_page_checksum": True}])
def test_a_file_without_a_seal_gives_the_same_bits(tmp_path: Path, options: dict[str, object]) -> None:
    path = landed(tmp_path, shards=False)
    whole = aggregated(path, NumpyEngine())
    assert aggregated(unsealed(path, **options), NumpyEngine()) == whole
    assert open_landed(path).entries is None


def test_of_a_file_without_a_seal_page_checksums_are_verified(tmp_path: Path) -> None:
    path = unsealed(landed(tmp_path, shards=False), write_page_checksum=True, use_dictionary=False, compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 4
    path.write_bytes(data)
    with pytest.raises(UnreadableFile, match=rf"{path.name} is damaged.*CRC"):
        aggregated(path, NumpyEngine())


def test_versions_made_before_there_were_digests_are_recomputed(tmp_path: Path) -> None:
    """Neither the file nor the document has digests of files; the document's own digest is unchanged."""
    store = store_with(tmp_path / "store", small_study())
    unsealed(land(tmp_path, crowd(40)))
    run_round(store, tmp_path, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t"))
    where = tmp_path / "store/study/main/versions/1.json"
    document = json.loads(where.read_bytes())
    (file,) = document["lineage"]["inputs"]
    assert set(file) == {"path", "rows", "digest"}
    del file["digest"]
    assert msgspec.json.encode(InputFile(file["path"], 40)) == json.dumps(file, separators=(",", ":")).encode()
    where.write_bytes(json.dumps(document).encode())
    assert recompute(store, tmp_path, "study", "main", 1, NumpyEngine()).identical


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one, contextlib.chdir(path.parent):  # a whole path may be too long for it
        one.bind(path.name)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere.parquet")


def _empty(path: Path) -> None:
    path.touch()


NO_FILES = {
    _pipe: "is a pipe, a socket or a device, not a file",
    _socket: "is a pipe, a socket or a device, not a file",
    _device: "is a pipe, a socket or a device, not a file",
    _folder: "is a folder, not a file",
    _dangling: "is a link to nowhere.parquet, which is missing",
    _empty: "is not a whole Parquet file",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("make", "sentence"), NO_FILES.items())
def test_what_is_no_file_is_named_and_nobody_waits_for_it(
    tmp_path: Path, make: Callable[[Path], None], sentence: str
) -> None:
    from fedping.dashboard.results.landed import rows
    from fedping.protocol.ping import FRECENCY_UPDATE
    from fedping.server_jobs.health.snapshot import LandedPings
    from fedping.server_jobs.ingest.duplicates import recently_landed
    from fedping.server_jobs.ingest.pages import LandedCounts
    from fedping.server_jobs.ingest.partitions import landed_segments

    store = store_with(tmp_path / "store", small_study())
    land(tmp_path, crowd(20))
    folder = partition(tmp_path, "study", "main", 0)
    path = folder / "9999999999999-ab.parquet"
    make(path)
    with pytest.raises(UnreadableFile, match=rf"{path.name} {sentence}.*move it out of the way by `mv /.* /.*`"):
        run_round(store, tmp_path, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t"))
    assert landed_segments(folder, 0) == {}
    assert recently_landed(tmp_path) is not None
    assert LandedCounts(tmp_path).of(FRECENCY_UPDATE, "study", "main", 0)["pings"] == 20
    assert LandedPings(open_landing(tmp_path), "study", "main").of(0, 0).unreadable == (path.name,)
    assert rows(path, Window()) == rows(path, Window(since=5)) == 0
    shutil.move(path, folder / f".{path.name}")  # what the sentence says
    result = run_round(
        store, tmp_path, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t")
    )
    assert result.status == "published"


def test_a_link_to_a_landed_file_is_read(tmp_path: Path) -> None:
    path = landed(tmp_path / "elsewhere", shards=False)
    (tmp_path / "0000000000001-b.parquet").symlink_to(path)
    assert aggregated(tmp_path / "0000000000001-b.parquet", NumpyEngine()) == aggregated(path, NumpyEngine())


def equal_pings(path: Path, rows: int, payload: bytes = bytes(4 * M)) -> None:
    """Write equal pings, with only the columns that a round reads, as one row group of a very small file."""
    (table,) = landed_tables(Traffic(pings=1, clients=1, m=M, unselected=0, control=0), 1, 1)
    read = ["document_id", "client_id", "model_version", "study_variation", "update_encoding", "loss", "rank_selected"]
    block = table.select(read).take(pa.array([0] * min(rows, 1_000_000))).combine_chunks()
    updates = pa.repeat(pa.scalar(payload, pa.binary()), len(block))
    block = block.append_column(table.schema.field("update"), updates)
    whole = pa.concat_tables([block] * (rows // len(block)))
    pq.write_table(whole, path, compression="zstd", row_group_size=rows)


BOUNDED = """
import resource, sys
import fedping.server_jobs.round.shard
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.plan import Work
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.ping_file import open_ping_file
from tests.server_jobs.test_damaged_files import RULES
fedping.server_jobs.round.shard.MOST_ROWS = 500_000
rows = open_ping_file(sys.argv[1], RULES.document).rows
before = next(int(row.split()[1]) for row in open("/proc/self/status") if row.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (1024 * before + int(sys.argv[2]) * 2**20, resource.RLIM_INFINITY))
found = combined(NumpyEngine().partials(Work(paths=(sys.argv[1],), rows=rows, rules=RULES)), RULES)
print(sum(found.counts.values()), found.counts.get("over_capacity", 0), found.updates.clients)
"""


def bounded(path: Path, mib: int) -> list[int]:
    """Return a round's counts of pings, left-out pings and clients, in a process limited to ``mib`` MiB more."""
    made = subprocess.run([sys.executable, "-c", BOUNDED, str(path), str(mib)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    return [int(word) for word in made.stdout.split()]


on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the size of the process")


@on_linux
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_small_file_of_very_many_rows_takes_bounded_memory(tmp_path: Path) -> None:
    """Each row takes about 60 bytes when decoded, and as much again in a round."""
    path, rows = tmp_path / "1-a.parquet", few_or_all(6, 60) * 1_000_000
    equal_pings(path, rows)
    assert path.stat().st_size < 4 * 2**20
    assert bounded(path, 500) == [rows, rows - 1024, 1]


@on_linux
def test_few_bytes_that_stand_for_long_updates_take_bounded_memory(tmp_path: Path) -> None:
    """A payload of 200 KB, stored once, is the update of 3,000 pings."""
    path = tmp_path / "1-a.parquet"
    equal_pings(path, 3000, bytes(200_000))
    assert path.stat().st_size < 2**20
    assert bounded(path, 200) == [3000, 0, 0]
