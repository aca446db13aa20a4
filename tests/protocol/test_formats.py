"""Every stored document has a format number; every reader reports a newer one in a sentence."""

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.dashboard.live.refused import newest_refusals
from fedping.dashboard.results.counts import read_count
from fedping.dashboard.runs.registry import Note, read_run
from fedping.experiments.laboratory.report import write_report
from fedping.experiments.laboratory.results import RunFolder, read_progress, read_units
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml as laboratory_file
from fedping.experiments.run_folder import write_document
from fedping.experiments.run_process import Ended, Process
from fedping.experiments.simulate import experiment_from_toml as simulation_file
from fedping.experiments.simulate import simulate
from fedping.experiments.simulate.run import Progress, ProgressNote, read_study_progress
from fedping.model_store import StoreError, open_store
from fedping.model_store.decisions import continue_at
from fedping.model_store.documents import sealed, unsealed
from fedping.model_store.version import Aggregate, ArmSummary, InputFile, Version
from fedping.protocol.errors import FedpingError
from fedping.protocol.formats import NewerFormat, format_of, unknown_member, with_format, without_format
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import landed_files, open_landing, partition
from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.counters import RejectionLog
from fedping.server_jobs.ingest.quarantine import FailureNote, failing
from tests.support.laboratory import small_file
from tests.support.rounds import WHEN, crowd, land, store_with
from tests.support.small_experiment import experiment_file
from tests.support.versions import after, small_study, version_0

KEPT = Path(__file__).parents[1] / "model_store" / "written_by_2"

objects = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3)


@given(objects, st.integers(1, 999_999_999), st.booleans())
def test_a_format_goes_in_front_and_comes_off_again(found: dict, number: int, indented: bool) -> None:
    document = msgspec.json.encode(found)
    document = msgspec.json.format(document) if indented else document
    marked = with_format(document, number)
    assert json.loads(marked) == {"format": number} | found or "format" in found
    assert format_of(marked) == format_of(msgspec.json.format(marked)) == number
    assert without_format(marked, "it", number) == document
    if number > 1:
        with pytest.raises(NewerFormat, match=f"it has format {number}, .* upgrade fedping"):
            without_format(marked, "it", number - 1)


@pytest.mark.parametrize("data", [b"", b"[1]", b"{}", b'{"a":{"format":9}}', b'{"a":1,"format":9}', b"12", b"\xff"])
def test_what_says_no_format_in_front_is_of_format_1(data: bytes) -> None:
    assert format_of(data) == 1
    assert without_format(data, "it") == data


@pytest.mark.parametrize("digits", [10, 12, 5000])
def test_a_format_of_very_many_digits_is_a_newer_one(tmp_path: Path, digits: int) -> None:
    number = b"9" * digits
    with pytest.raises(NewerFormat, match="upgrade fedping"):
        without_format(b'{"format":%b,"a":1}' % number, "it", 999_999_999)
    store = store_with(tmp_path / "store", small_study())
    file = tmp_path / "store" / "study" / "main" / "versions" / "0.json"
    file.chmod(0o644)
    file.write_bytes(sealed(unsealed(file.read_bytes()).replace(b'"format":2', b'"format":' + number, 1)))
    with pytest.raises(StoreError, match=r"versions/0.json has format 9+, .*upgrade fedping"):
        store.head("study", "main")


def newer(file: Path, written: int = 1) -> None:
    """Set a document's format to a later one, after checking that it has one."""
    data = file.read_bytes()
    assert format_of(data) == written, file
    assert re.match(rb'\s*\{\s*"format"', data), file
    start = data.index(b"{") + 1
    rest = data[start:].split(b",", 1)[1] if b"," in data[start:] else b"}"
    file.write_bytes(data[:start] + b'"format":99,' + rest)


def told(read: Callable[[], object], kind: type[FedpingError] = FedpingError) -> None:
    with pytest.raises(kind, match=r"has format 99, .* up to format [1-3]"):
        read()


def test_a_study_a_version_and_a_fence(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    continue_at(store, "study", "main", 5, created=WHEN, code_version="test")
    folder = tmp_path / "store" / "study"
    for file, written in (("main/versions/5.json", 2), ("main/versions/1.json", 1), ("study.json", 1)):
        before = (folder / file).read_bytes()
        # without the seal, which would be another one
        (folder / file).write_bytes(re.sub(rb',"seal":"[0-9a-f]{32}"', b"", before))
        newer(folder / file, written)
        again = open_store(tmp_path / "store")
        told(lambda store=again: store.head("study", "main"), StoreError)
        assert "has format 99" in str(again.lines.trouble("study", "main"))
        (folder / file).write_bytes(before)
    assert open_store(tmp_path / "store").head("study", "main").iteration == 5


def test_a_note_in_the_landing_folder_and_a_landed_file(tmp_path: Path) -> None:
    open_landing(tmp_path).record_published("store", "study", "main", 3)
    assert open_landing(tmp_path).read_published("store", "study", "main") == 3
    (note,) = (tmp_path / ".published" / "study" / "main").iterdir()
    note.write_bytes(b'{"format":99,"newest":3}')
    told(lambda: open_landing(tmp_path).read_published("store", "study", "main"))
    land(tmp_path, crowd(2))
    (file,) = landed_files(partition(tmp_path, "study", "main", 0))
    assert open_landed(file).footer.metadata[b"fedping.format"] == b"2"
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.replace_schema_metadata({b"fedping.format": b"99"}), file)
    with pytest.raises(FedpingError, match=r"has format 99, .* upgrade fedping"):
        open_landed(file)


def test_the_folder_of_a_laboratory_run(tmp_path: Path) -> None:
    experiment = laboratory_file(small_file(tmp_path))
    out = tmp_path / "out"
    run_experiment(experiment, out, jobs=1)
    run = out / "runs" / "gradient" / "seed-1"
    readers: dict[Path, Callable[[], object]] = {
        out / "experiment.json": lambda: run_experiment(experiment, out, jobs=1),
        out / "units.json": lambda: read_units(out),
        out / "summary.json": lambda: write_report(out, tmp_path / "report.html"),
        run / "run.json": lambda: RunFolder(run).finished(),
    }
    for file, read in readers.items():
        before = file.read_bytes()
        newer(file)
        told(read)
        file.write_bytes(before)
    run_experiment(experiment, out, jobs=1)
    (run / "progress.jsonl").write_bytes(b'{"format":99,"begun":1.5}\n')
    told(lambda: read_progress(run))


def test_the_folder_of_a_simulated_study(tmp_path: Path) -> None:
    path, out = experiment_file(tmp_path, min_clients=2, clients=60, iterations=1, ticks=1), tmp_path / "out"
    simulate(*simulation_file(path), out, threads=1)
    assert format_of((out / "summary.json").read_bytes()) == 1
    newer(out / "experiment.json")
    told(lambda: simulate(*simulation_file(path), out, threads=1))
    ProgressNote(out).write(Progress("summary", 0, 1, 5))
    assert read_study_progress(out) == Progress("summary", 0, 1, 5)
    newer(out / "progress.json")
    assert read_study_progress(out) is None


def test_the_book_of_runs_and_counts(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    run = tmp_path / "run"
    run.mkdir()
    documents = {"run.json": Note("a run", now), "process.json": Process(1, now), "ended.json": Ended(0, now)}
    for name, document in documents.items():
        write_document(run / name, document)
    assert read_run(run).state == "finished"
    for name, document in documents.items():
        newer(run / name)
        told(lambda: read_run(run))
        write_document(run / name, document)
    count = tmp_path / "1-abc"
    count.mkdir()
    (count / "asked.json").write_bytes(b'{"format":1}')
    assert read_count(count).asked is not None
    for name, read in (
        ("landed.json", lambda: read_count(count).landed),
        ("stdout", lambda: read_count(count).document),
        ("asked.json", lambda: read_count(count)),
    ):
        (count / name).write_bytes(b'{"format":99}')
        told(read)


def test_what_ingest_notes(tmp_path: Path) -> None:
    note = FailureNote(tmp_path / "failing")
    note.failed("the disk is full")
    found = failing(tmp_path / "failing")
    assert found is not None
    assert found.why == "the disk is full"
    newer(tmp_path / "failing")
    later = failing(tmp_path / "failing")
    assert later is not None
    assert "has format 99" in later.why
    (tmp_path / "failing").write_bytes(b'{"since": "\xff"}')
    assert failing(tmp_path / "failing") is None
    log = RejectionLog(tmp_path / "logs", "one")
    log.add("study", Rejection("unknown_arm", "x"))
    log.flush()
    (line,) = (tmp_path / "logs" / "one.jsonl").read_bytes().splitlines()
    assert format_of(line) == 1
    assert [entry.reason for entry in newest_refusals(tmp_path / "logs", "study")] == ["unknown_arm"]
    (tmp_path / "logs" / "one.jsonl").write_bytes(b'{"format":99,"study":"study"}\n')
    (entry,) = newest_refusals(tmp_path / "logs", "study")
    assert "has format 99" in entry.words


def test_older_folders_have_no_formats_and_are_read(tmp_path: Path) -> None:
    kept = Path(shutil.copytree(KEPT, tmp_path / "kept"))
    documents = [*kept.rglob("*.json"), *kept.rglob("*.jsonl")]
    assert len(documents) > 60
    assert not any(b'"format"' in file.read_bytes() for file in documents)
    assert len(read_units(kept / "laboratory" / "out") or ()) == 12


def test_a_member_that_is_no_field_is_found_wherever_it_is() -> None:
    version = after(version_0(small_study()))
    lineage = msgspec.structs.replace(
        version.lineage,
        inputs=(InputFile(path="a", rows=1), InputFile(path="b", rows=2)),
        arms={"x": ArmSummary(pings=1, examples=1, loss=None, rank_selected=None)},
        aggregate=Aggregate(pings=1, clients=1, weight=1.0, mean=(1.0, 2.0), m2=(0.0, 0.0)),
    )
    version = msgspec.structs.replace(version, lineage=lineage)
    whole = msgspec.json.encode(version)
    assert unknown_member(whole, version) is None
    for place in (
        "later",
        "lineage.later",
        "lineage.inputs.1.later",
        "lineage.arms.x.later",
        "lineage.aggregate.later",
    ):
        document = msgspec.json.decode(whole)
        *there, name = place.split(".")
        at = document
        for step in there:
            at = at[int(step) if isinstance(at, list) else step]
        at[name] = 7
        data = msgspec.json.encode(document)
        assert msgspec.json.decode(data, type=Version) == version
        assert unknown_member(data, version) == place
