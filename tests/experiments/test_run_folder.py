"""The owner of a run's folder: the same experiment continues in it, another one is rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedping.experiments.laboratory.results import RunFolder, read_units
from fedping.experiments.run_folder import NOTE, DamagedRun, claim
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.formats import with_format

ONE = b'{"name":"one"}'


def test_a_new_folder_is_made_and_known_again(tmp_path: Path) -> None:
    claim(tmp_path / "new" / "run", ONE)
    claim(tmp_path / "new" / "run", ONE)
    assert (tmp_path / "new" / "run" / NOTE).read_bytes() == with_format(ONE)


def test_another_experiment_is_sent_away_where_something_was_left(tmp_path: Path) -> None:
    claim(tmp_path / "run", ONE)
    (tmp_path / "run" / "runs").mkdir()
    (tmp_path / "run" / "runs" / "metrics.parquet").write_bytes(b"figures")
    with pytest.raises(InvalidSettings, match="another experiment"):
        claim(tmp_path / "run", b'{"name":"two"}')
    assert (tmp_path / "run" / NOTE).read_bytes() == with_format(ONE)


def test_a_run_that_failed_before_it_left_anything_may_be_corrected(tmp_path: Path) -> None:
    claim(tmp_path / "run", b'{"name":"mistaken"}')
    (tmp_path / "run" / "runs" / "first").mkdir(parents=True)
    claim(tmp_path / "run", ONE)
    assert (tmp_path / "run" / NOTE).read_bytes() == with_format(ONE)


def test_what_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to_mother.txt").write_text("dear")
    (tmp_path / "file").write_text("not a folder")
    for name in ("letters", "file"):
        with pytest.raises(InvalidSettings, match="holds no run"):
            claim(tmp_path / name, ONE)


@pytest.mark.parametrize("said", [b"", b"{", b"[1]", b"\xff"])
def test_a_damaged_file_of_a_run_is_named(tmp_path: Path, said: bytes) -> None:
    assert read_units(tmp_path) is None
    assert RunFolder(tmp_path).finished() is None
    for name, read in (("units.json", read_units), ("run.json", lambda folder: RunFolder(folder).finished())):
        (tmp_path / name).write_bytes(said)
        with pytest.raises(DamagedRun, match=f"{name} is damaged"):
            read(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,y\n")
    with pytest.raises(InvalidSettings, match=r"rows.csv/out: Not a directory"):
        claim(tmp_path / "rows.csv" / "out", b"{}")
