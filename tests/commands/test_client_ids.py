"""A client id on the command line is read as a UUID, and in each form in which Parquet readers print its 16 bytes."""

import base64
import uuid
from pathlib import Path

import click
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedping.main import main
from fedping.options import ClientId
from fedping.protocol.landing import open_landing
from tests.support.rounds import Ping, id_of, land, store_with
from tests.support.versions import small_study


def read(text: str) -> uuid.UUID:
    found: uuid.UUID = ClientId().convert(text, None, None)
    return found


def of_duckdb(value: bytes) -> str:
    """Return a blob as DuckDB's shell prints it: a backslash, quotes and non-printable bytes as \\x and two digits."""
    return "".join(chr(each) if 32 <= each < 127 and chr(each) not in "\\'\"" else f"\\x{each:02X}" for each in value)


@given(st.binary(min_size=16, max_size=16))
@example(b"\\x41" * 4)
@example(b"'\"]['x' 0x\\xAA  ")
def test_every_spelling_of_an_id_is_read(value: bytes) -> None:
    client = uuid.UUID(bytes=value)
    groups = value.hex(" ")
    for text in (
        str(client),
        str(client).upper(),
        f"{{{client}}}",
        client.urn,
        client.hex,
        str(pa.array([value], pa.binary(16))).split()[1],
        repr(value),
        str(pa.scalar(value, pa.binary(16))),
        *([of_duckdb(value)] if "\\x" in of_duckdb(value) else []),
        f"[{groups.upper()}]",
        f"{groups[:23]}   {groups[24:]}",
        f"\\x{value.hex()}",
        f"0x{value.hex()}",
        f"X'{value.hex()}'",
        base64.b64encode(value).decode(),
    ):
        assert read(text) == client, text


@pytest.mark.parametrize(
    "text",
    ["", "4711", "b'short'", "[1, 2]", "00" * 15, "00" * 17, "AAAA", "\\x00\\x", "[10 56]", "b''.join", "é" * 16],
)
def test_anything_else_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a client id"):
        read(text)


def test_a_client_is_forgotten_by_the_bytes_in_its_landed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "store", small_study())
    land(tmp_path / "landing", [Ping(n, n, None) for n in range(5)], iteration=0)
    (file,) = open_landing(tmp_path / "landing").all_files()
    (first, *_) = pa.parquet.read_table(file).column("client_id").to_pylist()
    assert uuid.UUID(bytes=first).bytes in {id_of("client", n) for n in range(5)}
    command = ["landing", "forget", repr(first), "--store", str(tmp_path / "store")]
    assert main([*command, "--landing", str(tmp_path / "landing")]) == 0
    assert "1 ping in 1 landed file removed" in capsys.readouterr().out
    assert first not in pa.parquet.read_table(file).column("client_id").to_pylist()
    assert main(["landing", "forget", "4711", "--store", str(tmp_path / "store")]) == 2
    assert "is not a client id" in capsys.readouterr().err
