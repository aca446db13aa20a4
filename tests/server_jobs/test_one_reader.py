"""All readers of landed pings list the same files, and reject another program's file for the same true reason."""

import shutil
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedping.analysis.study import Window, count_study
from fedping.dashboard.results.landed import Watch
from fedping.main import main
from fedping.protocol.arrow import landed_schema
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import SEALED_KEY, UnreadableFile, check_columns, open_landed, open_pings
from fedping.protocol.landing import open_landing, partition, write_landed
from fedping.protocol.ping import FRECENCY_UPDATE
from fedping.server_jobs.deletion import find_pings
from fedping.server_jobs.health.snapshot import LandedPings
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import Engine, NumpyEngine
from fedping.server_jobs.round.spark_engine import SparkEngine
from fedping.stored import read_pings
from tests.support.landed import landed_table
from tests.support.rounds import WHEN, store_with
from tests.support.versions import small_study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


M = small_study().lines[0].spec.m
ARMS = ("treatment", "control")
STUDY = msgspec.structs.replace(small_study(), limits=None)


def land(landing: Path, n: int, seed: int, name: str = "a") -> Path:
    """Land pings of version 0."""
    table = landed_table(n, seed, m=M, arms=ARMS)
    return write_landed(partition(landing, "study", "main", 0), table, 1_700_000_000_000 + seed, token=name)


def beside(landing: Path) -> None:
    """Put intact files of other pings where no reader looks: in subfolders, under other names, in foreign folders."""
    whole = land(landing.parent / "elsewhere", 70, 9)
    folder = partition(landing, "study", "main", 0)
    names = ("old/1-a.parquet", "1-a.parquet.gz", "1-a.parquet.bak", ".1-a.parquet", "_1-a.parquet", "1-a.PARQUET")
    for place in (*(folder / name for name in names), folder.with_name("iteration=00") / "1-a.parquet"):
        place.parent.mkdir(exist_ok=True)
        shutil.copy(whole, place)


def rounds_read(landing: Path, store: Path, engine: Engine) -> int:
    """Play a round, and return the number of pings that it read."""
    opened = store_with(store, STUDY)
    run_round(opened, landing, "study", "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test"))
    return sum(file.rows for file in opened.head("study", "main").lineage.inputs)


def test_no_reader_reads_what_rounds_do_not_list(tmp_path: Path, spark: "SparkSession") -> None:
    landing = tmp_path / "landing"
    file = land(landing, 60, 1)
    beside(landing)
    assert open_landing(landing).all_files() == [file], "what forget, copy, and simulations read"
    assert rounds_read(landing, tmp_path / "store", NumpyEngine()) == 60
    assert rounds_read(landing, tmp_path / "spark", SparkEngine(lambda: nullcontext(spark))) == 60
    tally = count_study(spark, landing, STUDY, ())
    assert sum(arm.pings for arm in tally.arms.values()) == 60
    assert sum(batch.num_rows for batch in read_pings(landing, "study")) == 60
    assert Watch(landing).since("none", STUDY, Window(), dict).pings == 60
    assert LandedPings(open_landing(landing), "study", "main").of(0, 0).pings == 60
    # a file beside has this client too
    client = uuid.UUID(bytes=landed_table(70, 9, m=M, arms=ARMS)["client_id"][0].as_py())
    assert list(find_pings(open_landing(landing), client)) == [None]


def test_a_half_copied_file_is_named_and_not_the_whole_one_beside_it(
    tmp_path: Path, warm_commands: object, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "store", STUDY)
    landing = tmp_path / "landing"
    whole = land(landing, 60, 1)
    half = whole.with_name("1700000000001-half.parquet")
    half.write_bytes(whole.read_bytes()[:3000])
    places = ["--store", str(tmp_path / "store"), "--landing", str(landing)]
    for command in (["analyze", "study"], ["round", "study", "main"], ["round", "study", "main", "--engine", "spark"]):
        assert main([*command, *places]) == 1
        said = capsys.readouterr().err
        assert f"{half} is not a whole Parquet file" in said
        assert str(whole) not in said
        assert "java" not in said.lower()
        assert "Traceback" not in said


def plain(table: pa.Table, **types: pa.DataType) -> pa.Table:
    """Return a table as written by another program, without required columns and metadata, with some other types."""
    fields = [pa.field(f.name, types.get(str(f.type), f.type)) for f in table.schema]
    return table.replace_schema_metadata().cast(pa.schema(fields))


def as_duckdb(table: pa.Table) -> pa.Table:
    """Return a table as by DuckDB: blobs of any length, texts without a dictionary, microseconds."""
    types = {"fixed_size_binary[16]": pa.binary(), "timestamp[ms, tz=UTC]": pa.timestamp("us", "UTC")}
    return plain(table, **types, **{str(pa.dictionary(pa.int32(), pa.string())): pa.string()})


def as_polars(table: pa.Table) -> pa.Table:
    """Return a table as by Polars: blobs and texts with long offsets."""
    types = {"fixed_size_binary[16]": pa.large_binary(), "binary": pa.large_binary()}
    return plain(table, **types, **{str(pa.dictionary(pa.int32(), pa.string())): pa.large_string()})


def as_pandas(table: pa.Table) -> pa.Table:
    """Return a table converted to a pandas frame and back."""
    return pa.Table.from_pandas(table.to_pandas(), preserve_index=False)


def with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return a table with one column replaced."""
    return table.set_column(table.schema.get_field_index(name), pa.field(name, column.type, False), column)


def texts(table: pa.Table) -> pa.Table:
    """Return a table with ids as texts."""
    table = table.replace_schema_metadata()
    for name in ("document_id", "client_id"):
        written = pa.array([str(uuid.UUID(bytes=each)) for each in table[name].to_pylist()])
        table = with_column(table, name, written)
    return table


def without_notes(table: pa.Table) -> pa.Table:
    """Return a table without fedping's metadata, whose columns have the right types except one."""
    table = table.replace_schema_metadata()
    return with_column(table, "model_version", table["model_version"].cast(pa.int64()))


def plain_arm(table: pa.Table) -> pa.Table:
    """Return a table whose arm is one text without a dictionary."""
    return with_column(table.replace_schema_metadata(), "study_variation", table["study_variation"].cast(pa.string()))


SHAPES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "nullable": (plain, "its column 'document_id' may be null"),
    "DuckDB": (as_duckdb, "its column 'document_id' is binary, not fixed_size_binary[16]"),
    "Polars": (as_polars, "its column 'document_id' is large_binary, not fixed_size_binary[16]"),
    "pandas": (as_pandas, "its column 'document_id' is binary, not fixed_size_binary[16]"),
    "texts": (texts, "its column 'document_id' is string, not fixed_size_binary[16]"),
    "int64": (without_notes, "its column 'model_version' is int64, not int32"),
    "no dictionary": (plain_arm, "its column 'study_variation' is string, not dictionary"),
    "no column": (
        lambda table: table.replace_schema_metadata().drop_columns(["rank_selected"]),
        "it has no column 'rank_selected'",
    ),
    "rewritten": (lambda table: table, "is not as ingest wrote it: another program wrote it again, without its seal"),
}


@pytest.fixture(params=SHAPES)
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Give a landing folder with an intact file and one of another program, and the reason of its rejection."""
    shape, reason = SHAPES[request.param]
    land(tmp_path / "landing", 60, 1)
    path = land(tmp_path / "landing", 60, 2)
    pq.write_table(shape(pq.ParquetFile(path).read()), path)
    return path, reason


def test_every_reader_names_the_true_reason_why_it_refuses_another_programs_file(
    foreign: tuple[Path, str], tmp_path: Path, spark: "SparkSession"
) -> None:
    path, reason = foreign
    landing = tmp_path / "landing"
    readers: dict[str, Callable[[], object]] = {
        "round": lambda: rounds_read(landing, tmp_path / "store", NumpyEngine()),
        "analyze": lambda: count_study(spark, landing, STUDY, ()),
        "read_pings": lambda: list(read_pings(landing, "study")),
    }
    for name, read in readers.items():
        with pytest.raises(UnreadableFile) as refused:
            read()
        assert reason in str(refused.value), name
        assert str(path) in str(refused.value), name
        assert "damaged" not in str(refused.value), name


def test_forgetting_names_what_it_cannot_look_into(foreign: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = foreign
    found = list(find_pings(open_landing(tmp_path / "landing"), uuid.UUID(int=7)))
    refused = [each for each in found if isinstance(each, UnreadableFile)]
    ours = pq.read_schema(path).field("client_id") == landed_schema().field("client_id")
    sealed = SEALED_KEY in (pq.read_schema(path).metadata or {})
    assert [each.path for each in refused] == ([] if ours and not sealed else [str(path)])


def test_a_round_on_spark_names_the_same_reason(tmp_path: Path, spark: "SparkSession") -> None:
    path = land(tmp_path / "landing", 60, 2)
    pq.write_table(as_duckdb(pq.ParquetFile(path).read()), path)
    with pytest.raises(FedpingError, match=r"'document_id' is binary, not fixed_size_binary\[16\]"):
        rounds_read(tmp_path / "landing", tmp_path / "store", SparkEngine(lambda: nullcontext(spark)))


def test_the_program_that_wrote_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = land(tmp_path, 60, 2)
    pq.write_table(as_duckdb(pq.ParquetFile(path).read()), path)
    data = path.read_bytes()
    ours = pq.read_metadata(path).created_by.encode()
    path.write_bytes(data.replace(ours, b"DuckDB version v1.4".ljust(len(ours), b".")))
    with pytest.raises(UnreadableFile, match=r"DuckDB version v1\.4\.* wrote it"):
        open_pings(path, FRECENCY_UPDATE, ["document_id"])


def test_where_a_seal_is_damaged_it_is_not_said_that_another_program_wrote_it(tmp_path: Path) -> None:
    path = land(tmp_path, 60, 2)
    path.write_bytes(path.read_bytes().replace(b"fpSEAL01", b"fpSEAL00"))
    with pytest.raises(UnreadableFile, match="is damaged"):
        open_landed(path)


def test_a_required_column_may_be_one_that_a_client_could_have_left_out(tmp_path: Path) -> None:
    path = land(tmp_path, 60, 2)
    table = pq.ParquetFile(path).read()
    fields = [f.with_nullable(False) for f in table.schema]
    pq.write_table(table.replace_schema_metadata().cast(pa.schema(fields)), path)
    check_columns(open_landed(path), FRECENCY_UPDATE, landed_schema().names)
