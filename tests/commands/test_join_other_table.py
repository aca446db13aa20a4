"""`fedping join` started again with the folder of a client that has trained on another table."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faulty_server import FaultyServer, faulty_server, refusal
from tests.support.institutions import OPEN, Typed, tumours, typed_join


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server(tumours()) as running:
        yield running


@pytest.fixture
def join(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    typed = typed_join(tmp_path, capsys)
    once = ("--rounds", "1", "--yes")
    return lambda url, *options, **kept: typed(url, *([] if "--show" in options else once), *options, **kept)


@pytest.mark.parametrize("protects", [["--versions", "9"], [OPEN]], ids=["protected", "unprotected"])
def test_another_table_is_refused_and_nothing_is_written_next_to_it(
    server: FaultyServer, join: Typed, tmp_path: Path, protects: list[str]
) -> None:
    join(server.url, *protects)
    other = str(tmp_path / "hospital-1.csv")
    for looks in ([], ["--show"]):
        said = join(server.url, *protects, "--data", other, *looks, code=2)[1]
        assert said.count("\n") == 1
        assert f"--data {other}: none of its 190 rows is in {tmp_path / 'hospital-0.csv'}, which the client in " in said
        assert f"{tmp_path / 'state-0'} has trained on. Give that file again, even with only new rows, or" in said
    assert not [*tmp_path.glob("hospital-1.csv.*")]
    server.publish(1)
    join(server.url, *protects)
    assert len(server.attempts) == 2


def test_a_table_may_grow_and_move_and_have_new_rows(server: FaultyServer, join: Typed, tmp_path: Path) -> None:
    tables = [tmp_path / f"hospital-{number}.csv" for number in range(3)]
    texts = [table.read_text() for table in tables]
    join(server.url)
    moved = tmp_path / "moved.csv"
    tables[0].rename(moved)
    rows = texts[1].split("\n", 1)[1]
    moved.write_text(texts[0] + rows)
    contents = [texts[0] + rows, texts[1], texts[2]]
    for number, text in enumerate(contents, 1):  # what is compared is the last table, and only if the file is another
        moved.write_text(text)
        server.publish(number)
        join(server.url, "--data", str(moved))
    assert len(server.attempts) == 4
    tables[0].write_text(texts[0])
    assert "none of its 190 rows" in join(server.url, code=2)[1]


def test_a_client_that_has_not_trained_takes_another_table(server: FaultyServer, join: Typed, tmp_path: Path) -> None:
    server.plan = lambda name, attempt: refusal(400, "loss: too large")
    join(server.url, code=1)
    join(server.url, "--data", str(tmp_path / "hospital-1.csv"), code=1)
    assert len(server.attempts) == 2


def test_a_folder_of_an_earlier_program_and_a_damaged_file(server: FaultyServer, join: Typed, tmp_path: Path) -> None:
    join(server.url)
    kept = tmp_path / "state-0" / "table.json"
    for damaged in ("{", '{"format":1,"data":"x","marks":"?"}'):
        kept.write_text(damaged)
        assert "table.json is damaged" in join(server.url, "--data", str(tmp_path / "hospital-1.csv"), code=1)[1]
    kept.unlink()
    server.publish(1)
    join(server.url, "--data", str(tmp_path / "hospital-1.csv"))
    assert len(server.attempts) == 2
