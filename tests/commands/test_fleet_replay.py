"""`fedping fleet --replay` posts recorded pings of any model again: to a real ingest, at a rate, in bounded memory."""

import asyncio
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from fedping.client_sim.client import Backoff
from fedping.client_sim.fleet.replay import Recorded, Recording, Replay, ReplaySettings
from fedping.client_sim.fleet.summary import MOST_REASONS, OTHER_REASONS
from fedping.client_sim.transport import ACCEPTED, Outcome
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.landed_file import LandedFile
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import copy_landed, open_landing, partition, write_landed
from fedping.protocol.location import child, place_of
from fedping.protocol.object_store import PATIENCE_VARIABLE
from fedping.protocol.study import Study, public_study
from tests.support import forked
from tests.support.faulty_server import LANDED, Answer, FaultyServer, faulty_server, refusal
from tests.support.fleets import RETRY, PlannedTransport, fleet_study
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.landed import landed_table, random_ids
from tests.support.model_updates import STUDY, model_lines, model_study
from tests.support.object_server import bucket_of
from tests.support.processes import left_over, new_mark, wait_until
from tests.support.versions import after, version_0
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time

ROOT = Path(__file__).parents[2]
ENVELOPE = ["document_id", "received_at", "iteration", "line", "study"]


def own_study(m: int = 3) -> Study:
    """Return a study with a model that only its product knows."""
    study = model_study(m)
    spec = msgspec.structs.replace(study.lines[0].spec, model="house-prices")
    return msgspec.structs.replace(study, lines=(msgspec.structs.replace(study.lines[0], spec=spec),))


def recorded(landing: Path, study: Study, clients: int = 40, seed: int = 1, version: int = 0) -> None:
    """Land pings of every arm, two files for each."""
    rng = np.random.default_rng(seed)
    m = study.lines[0].spec.m
    for number, arm in enumerate(study.arms):
        for part in range(2):
            pings = ModelPings(
                document_ids=random_ids(rng, clients),
                client_ids=random_ids(rng, clients),
                arm=arm.name,
                version=version if arm.line else -1,
                updates=rng.normal(size=(clients, m)) if arm.submits else None,
                losses=rng.gamma(2.0, 1.0, clients),
                examples=rng.integers(1, 50, clients),
            )
            where = partition(landing, study.name, arm.line, version if arm.line else -1)
            write_landed(where, landed_model_updates(pings, 1_700_000_000_000), 1_700_000_000_000 + 2 * number + part)


def rows_of(landing: Path) -> pd.DataFrame:
    table = ds.dataset(landing, partitioning="hive").to_table()
    return table.to_pandas().sort_values(["client_id", "loss"]).reset_index(drop=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IngestServer]:
    """Run a real ingest with a study at version 1, whose model no simulated client has."""
    store, study = open_store(tmp_path / "store", create=True), own_study()
    first = version_0(study)
    store.create_study(study, (first,))
    store.publish(after(first))
    recorded(tmp_path / "recording", study)
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as running:
        yield running


@pytest.fixture
def planned() -> Iterator[FaultyServer]:
    with faulty_server(own_study()) as running:
        yield running


def said(capsys: pytest.CaptureFixture[str], url: str, *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(["fleet", url, STUDY, *arguments]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out, captured.err


def replayed(capsys: pytest.CaptureFixture[str], url: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    out, _ = said(capsys, url, "--json", *arguments, code=code)
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_model_that_nobody_can_simulate_is_refused_with_the_way_out(
    server: IngestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = said(capsys, server.url, code=2)
    assert out == ""
    assert err.startswith("fedping: simulated clients do not have the model 'house-prices' of line 'main', only ")
    assert err.endswith("; post recorded pings again with --replay\n")


def test_a_replay_says_before_it_posts_that_the_study_counts_it(
    server: IngestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = said(capsys, server.url, "--replay", str(tmp_path / "recording"))
    assert f"note: replayed clients will send to study '{STUDY}' at {server.url}, whose rounds and results count" in err


def test_a_landing_folder_lands_again_bit_for_bit_under_new_document_ids(
    server: IngestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replayed(capsys, server.url, "--replay", str(tmp_path / "recording"))
    assert (found["pings"]["accepted"], found["pings"]["rejected"], found["skipped_by_reason"]) == (240, 0, {})
    assert list(found["latency_ms"]) == ["half", "99_of_100", "longest"]
    server.flush()
    before, again = rows_of(tmp_path / "recording"), rows_of(tmp_path / "landing")
    pd.testing.assert_frame_equal(again.drop(columns=ENVELOPE), before.drop(columns=ENVELOPE))
    assert set(again["document_id"]).isdisjoint(before["document_id"])
    assert again["document_id"].nunique() == 240
    assert list(again["line"]) == list(before["line"])


def test_what_landed_in_a_bucket_lands_again(
    server: IngestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], object_servers: Callable[[str], str]
) -> None:
    with bucket_of(object_servers("s3")) as bucket:
        landing = f"{bucket.url}/landing"
        for file in open_landing(tmp_path / "recording").all_files():
            copy_landed(file, child(place_of(landing), file.relative_to(tmp_path / "recording").as_posix()))
        found = replayed(capsys, server.url, "--replay", landing, "--same-ids")
        assert (found["pings"]["accepted"], found["skipped_by_reason"]) == (240, {})
        _, err = said(capsys, server.url, "--replay", landing, "--from-study", "other", code=1)
        assert f"no pings of study 'other', only of {STUDY}; name one of them with --from-study" in err
        _, err = said(capsys, server.url, "--replay", bucket.url, code=1)
        assert f"the landing folder {bucket.url} has no pings of study '{STUDY}'; give another --replay" in err
    server.flush()
    pd.testing.assert_frame_equal(
        rows_of(tmp_path / "landing").drop(columns="received_at"),
        rows_of(tmp_path / "recording").drop(columns="received_at"),
    )


def test_the_recorded_ids_are_kept_where_asked_and_a_run_given_again_posts_the_same(
    server: IngestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = ["--replay", str(tmp_path / "recording")]
    replayed(capsys, server.url, *recording, "--same-ids")
    first = replayed(capsys, server.url, *recording)
    replayed(capsys, server.url, *recording, "--run", str(first["run"]))
    server.flush()
    again = rows_of(tmp_path / "landing")
    assert set(rows_of(tmp_path / "recording")["document_id"]) < set(again["document_id"])
    assert again["document_id"].nunique() == 2 * 240


def test_versions_are_mapped_to_the_current_one_where_asked(
    server: IngestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed(capsys, server.url, "--replay", str(tmp_path / "recording"), "--to-current-version")
    server.flush()
    again = rows_of(tmp_path / "landing")
    assert set(again[again.line == "main"].model_version) == {1}
    assert set(again[again.line == "none"].model_version) == {-1}


def test_ndjson_is_posted_again_plain_and_compressed(
    server: IngestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = model_lines(30)
    without = {key: value for key, value in json.loads(lines[0]).items() if key != "documentId"}
    text = b"\n".join([*lines, json.dumps(without).encode(), b"", b"{"]) + b"\n"
    (tmp_path / "a.ndjson").write_bytes(text)
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(text))
    with pa.output_stream(str(tmp_path / "c.ndjson.zst"), compression="zstd") as compressed:
        compressed.write(text)
    skipped = b"\x50\x2a\x4d\x18" + bytes([3, 0, 0, 0]) + b"..."  # a frame as pzstd writes it first
    (tmp_path / "d.ndjson.zst").write_bytes(skipped + (tmp_path / "c.ndjson.zst").read_bytes())
    for name in ("a.ndjson", "b.ndjson.gz", "c.ndjson.zst", "d.ndjson.zst"):
        found = replayed(capsys, server.url, "--replay", str(tmp_path / name))
        assert found["pings"]["accepted"] == 31
        assert found["skipped_by_reason"] == {"it is not a ping: give a line as the batch endpoint takes it": 1}
    server.flush()
    assert len(rows_of(tmp_path / "landing")) == 124


def test_pings_that_the_study_cannot_have_are_skipped_and_told(
    server: IngestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = own_study(4)
    arms = (*study.arms[:2], msgspec.structs.replace(study.arms[2], name="gone"))
    recorded(tmp_path / "other", msgspec.structs.replace(study, arms=arms))
    out, _ = said(capsys, server.url, "--replay", str(tmp_path / "other"))
    assert out.startswith("replay   0  run ")
    assert "80 pings accepted, 160 skipped in " in out
    assert "80 skipped: its arm 'gone' is none of study 'models'" in out
    assert "80 skipped: its update is none of the weights of arm 'treatment'" in out


def test_a_recording_of_another_study_is_found_by_its_name(
    server: IngestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "other", msgspec.structs.replace(own_study(), name="pilot"))
    where = ["--replay", str(tmp_path / "other")]
    _, err = said(capsys, server.url, *where, code=1)
    assert "has no pings of study 'models', only of pilot; name one of them with --from-study" in err
    assert replayed(capsys, server.url, *where, "--from-study", "pilot")["pings"]["accepted"] == 240


def test_pings_of_browsers_are_replayed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = fleet_study()
    where = partition(tmp_path, study.name, "main", 0)
    write_landed(where, landed_table(50, 1, arms=("treatment",)), 1)
    with faulty_server(study) as running:
        assert main(["fleet", running.url, study.name, "--replay", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["pings"]["accepted"] == 50
        path = next(attempt.path for attempt in running.attempts)
        assert path.startswith(f"/submit/{study.name}/frecency-update/1/")
        payload = json.loads(running.attempts[0].body)["payload"]
        assert payload["frecency_scores"] == [3.0, 1.0]
        assert len(payload["update"]) == 22


def test_files_of_one_name_hold_different_pings(
    planned: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Like most exports: a folder for each day, a file of the same name in each, lines without a document id."""
    lines = [json.loads(line) for line in model_lines(20)]
    texts = [json.dumps({key: line[key] for key in line if key != "documentId"}) + "\n" for line in lines]
    for day, some in (("1", texts[:10]), ("2", texts[10:])):
        (tmp_path / day).mkdir()
        (tmp_path / day / "pings.ndjson").write_text("".join(some))
    assert replayed(capsys, planned.url, "--replay", str(tmp_path))["pings"]["accepted"] == 20
    assert len(planned.bodies()) == 20


def test_a_document_that_was_recorded_twice_is_posted_twice(
    planned: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two hosts or a late retry may land a ping twice, and a load test must repeat the original load."""
    table = landed_model_updates(made(np.random.default_rng(1), 20, 3), 1)
    for moment in (1, 2):
        write_landed(partition(tmp_path / "landing", STUDY, "main", 0), table, moment)
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join([*model_lines(5), *model_lines(5)]))
    answers = (LANDED, refusal(400, "no such arm"), refusal(503, Retry_After="3600"))
    planned.plan = lambda name, attempt: answers[name.int % 3]
    for where, count in ((tmp_path / "landing", 20), (tmp_path / "pings.ndjson", 5)):
        before = len(planned.attempts)
        pings = replayed(capsys, planned.url, "--replay", str(where), "--run", "1", code=1)["pings"]
        names = Counter(attempt.document_id for attempt in planned.attempts[before:])
        assert sorted(names.values()) == [2] * count
        assert pings["accepted"] == 2 * sum(name.int % 3 == 0 for name in names)
        assert pings["rejected"] == 2 * sum(name.int % 3 == 1 for name in names)
        assert pings["undelivered"] == 2 * sum(name.int % 3 == 2 for name in names)


def of_pings(tmp_path: Path, column: str, values: pa.Array | None = None) -> Path:
    """Write ten landed pings with other values in a column, or with the column a second time."""
    table = landed_model_updates(made(np.random.default_rng(1), 10, 3), 1)
    at = table.schema.get_field_index(column)
    table = table.append_column(column, table[column]) if values is None else table.set_column(at, column, values)
    pq.write_table(table, tmp_path / f"{column}.parquet")
    return tmp_path / f"{column}.parquet"


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("client_id", pa.array(["x" * 16] * 10), "has a column 'client_id' of type string, not of bytes"),
        ("study_variation", pa.array([{"a": 1}] * 10), "has a column 'study_variation' of type struct<a: int64>, not"),
        (
            "update",
            pa.array([[1.0, 2.0, 3.0]] * 10),
            "has a column 'update' of type list<element: double>, not",
        ),
        ("update_encoding", pa.array([1] * 10), "has a column 'update_encoding' of type int64, not of text"),
        (
            "loss",
            pa.array([2**62] * 10, pa.timestamp("us")),
            "has a column 'loss' of type timestamp[us], not of",
        ),
        ("loss", None, "has 2 columns 'loss'"),
        ("study_variation", pa.array([b"\xff"] * 10).view(pa.string()), "is damaged ("),
    ],
)
def test_columns_of_other_values_are_told(
    planned: FaultyServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    column: str,
    values: pa.Array | None,
    sentence: str,
) -> None:
    file = of_pings(tmp_path, column, values)
    _, err = said(capsys, planned.url, "--replay", str(file), code=1)
    assert err.splitlines()[-1].startswith(f"fedping: {file} {sentence}")
    assert planned.attempts == []


def test_pings_that_landed_before_a_field_was_known_are_posted(
    planned: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = landed_model_updates(made(np.random.default_rng(1), 10, 3), 1)
    pq.write_table(table.drop_columns(["confusion"]), tmp_path / "a.parquet")
    assert replayed(capsys, planned.url, "--replay", str(tmp_path))["pings"]["accepted"] == 10


NO_ID = "the id of its document or of its client is not 16 bytes"


@pytest.mark.parametrize(
    ("column", "values", "accepted", "skipped"),
    [
        (
            "document_id",
            pa.nulls(10, pa.binary(16)),
            0,
            {NO_ID: 10},
        ),
        (
            "client_id",
            pa.array([b"12345", *[b"x" * 16] * 9]),
            9,
            {NO_ID: 1},
        ),
        ("study_variation", pa.array([None, *["treatment"] * 9]), 9, {"it names no arm": 1}),
        ("examples", pa.array([3] * 10, pa.int64()), 10, {}),
        (
            "study_variation",
            pa.array(["\x1b[2J\n\x9b"] * 10),
            0,
            {r"its arm '\x1b[2J\n\x9b' is none of study 'models'": 10},
        ),
    ],
)
def test_rows_that_cannot_be_posted_are_skipped_and_told(
    planned: FaultyServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    column: str,
    values: pa.Array,
    accepted: int,
    skipped: dict[str, int],
) -> None:
    """Rewritten pings have plain texts and other integers; control characters in names don't reach the terminal."""
    found = replayed(capsys, planned.url, "--replay", str(of_pings(tmp_path, column, values)))
    assert (found["pings"]["accepted"], found["skipped_by_reason"]) == (accepted, skipped)


def test_what_a_server_or_a_line_says_does_nothing_to_a_terminal(
    planned: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = {**json.loads(model_lines(1)[0]), "type": "\x1b[31m"}
    (tmp_path / "a.ndjson").write_bytes(b"\n".join([model_lines(1)[0], json.dumps(strange).encode()]))
    planned.plan = lambda name, attempt: refusal(400, "no\x1b]0;\n")
    out, _ = said(capsys, planned.url, "--replay", str(tmp_path))
    assert [line for line in out.splitlines() if line.startswith(" ")] == [
        r"    1 rejected: 400 no\x1b]0;\n",
        r"    1 skipped: it is of type '\x1b[31m', and the study takes model-update",
    ]


def test_reasons_of_which_there_are_many_are_counted_together(
    planned: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(model_lines(1)[0]) for _ in range(3 * MOST_REASONS)]
    for number, line in enumerate(lines):
        line["payload"]["study_variation"] = f"arm-{number}"
    posted = model_lines(2 * MOST_REASONS)
    (tmp_path / "a.ndjson").write_bytes(b"\n".join([*(json.dumps(line).encode() for line in lines), *posted]))
    planned.plan = lambda name, attempt: refusal(400, f"not {name}")
    found = replayed(capsys, planned.url, "--replay", str(tmp_path))
    for counted, total in (
        (found["skipped_by_reason"], len(lines)),
        (found["pings"]["rejected_by_reason"], len(posted)),
    ):
        assert len(counted) == MOST_REASONS + 1
        assert (sum(counted.values()), counted[OTHER_REASONS]) == (total, total - MOST_REASONS)


def test_a_link_to_itself_is_no_recording(
    planned: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"\n".join(model_lines(3)))
    (tmp_path / "b.ndjson").symlink_to("b.ndjson")
    assert replayed(capsys, planned.url, "--replay", str(tmp_path))["pings"]["accepted"] == 3
    _, err = said(capsys, planned.url, "--replay", str(tmp_path / "b.ndjson"), code=1)
    assert "no recording exists at " in err


def test_it_ends_in_time_while_there_is_nothing_to_post(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(b'{"clientId":"a","type":"of another product","payload":{}}\n' * 100_000)
    transport = PlannedTransport(own_study())
    recording = Recording(tmp_path, transport.study)
    asked = iter([True, True])
    asyncio.run(Replay(transport, transport.study, recording, ReplaySettings()).run(lambda: next(asked, False)))
    assert 0 < recording.skipped.total() < 50_000


def test_the_rate_is_no_higher_after_a_wait(tmp_path: Path) -> None:
    """Files of 40 pings, each read in five seconds, at 100 pings a second: at most 0.1 seconds' worth at once."""
    recorded(tmp_path, own_study(), clients=40)
    transport = PlannedTransport(own_study())
    recording = Recording(tmp_path, transport.study)

    async def job() -> None:
        loop, read = asyncio.get_running_loop(), recording.batches
        assert isinstance(loop, VirtualTimeLoop)

        def slowly() -> Iterator[list[Recorded]]:
            for batch in read():
                loop.spend(5.0)
                yield batch

        recording.batches = slowly  # type: ignore[method-assign]
        await Replay(transport, transport.study, recording, ReplaySettings(rate=100)).run()

    in_virtual_time(job())
    times = [round(sent.at, 6) for sent in transport.sent]
    assert len(times) == 240
    assert max(Counter(times[:40]).values()) == 1, "there is nothing to make up for before the first ping"
    assert 2 < max(Counter(times).values()) <= 12


def test_the_rate_is_kept_and_the_recording_repeated(
    planned: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "recording", own_study(), clients=5)
    where = ["--replay", str(tmp_path / "recording")]
    out, _ = said(capsys, planned.url, "--json", *where, "--rate", "100", "--iterations", "2")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1]
    assert [row["pings"]["accepted"] for row in rows] == [30, 30]
    assert len(planned.bodies()) == 60, "every time new documents"
    assert all(row["seconds"] >= 29 / 100 for row in rows), "no faster than asked; how much slower is the machine's"


def test_what_is_refused_or_not_taken_is_counted_with_its_reason(
    planned: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "recording", own_study(), clients=5)
    answers = (refusal(400, "no such arm"), refusal(503, Retry_After="3600"), LANDED)
    planned.plan = lambda name, attempt: answers[name.int % 3]
    found = replayed(capsys, planned.url, "--replay", str(tmp_path / "recording"), code=1)
    pings = found["pings"]
    assert pings["generated"] == 30 == pings["accepted"] + pings["rejected"] + pings["undelivered"]
    assert pings["rejected_by_reason"] == {"400 no such arm": pings["rejected"]}
    assert pings["accepted"] == len(planned.landings)
    assert min(pings["accepted"], pings["rejected"], pings["undelivered"]) > 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--replay", "nowhere"], 1, "no recording exists at nowhere. Give a Parquet or NDJSON file, or a landing"),
        (["--replay", "{empty}"], 1, "holds no recording: no file ends with .parquet, .ndjson"),
        (
            ["--replay", "{empty}", "--clients", "5"],
            2,
            ("--clients applies only to simulated clients, and --replay has none"),
        ),
        (["--replay", "{empty}", "--searches", "1", "2"], 2, "--searches applies only to simulated clients"),
        (["--rate", "5"], 2, "--rate applies only to recorded pings; give --replay with it"),
        (["--same-ids"], 2, "--same-ids applies only to recorded pings; give --replay with it"),
        (["--replay", "{empty}", "--rate", "0"], 2, "a rate of 0 pings a second is invalid"),
        (["--replay", "{frecency}"], 1, "has no column 'examples', so it holds no model-update pings, which study"),
        (["--replay", "{damaged}"], 1, "is not a whole Parquet file "),
        (["--replay", "{cut}"], 1, "cannot read the recording "),
    ],
)
def test_mistakes_are_one_sentence(
    planned: FaultyServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    (tmp_path / "empty").mkdir()
    frecency, damaged, cut = (tmp_path / name for name in ("f.parquet", "d.parquet", "cut.ndjson.gz"))
    pq.write_table(landed_table(5, 1), frecency)
    damaged.write_bytes(b"PAR1" + b"x" * 100)
    cut.write_bytes(gzip.compress(b"\n".join(model_lines(30)))[:-40])
    places = {"empty": tmp_path / "empty", "frecency": frecency, "damaged": damaged, "cut": cut}
    _, err = said(capsys, planned.url, *(word.format(**places) for word in arguments), code=code)
    assert sentence in err.splitlines()[-1]


def test_options_that_change_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    browsers = fleet_study()
    with faulty_server(browsers) as running:
        assert main(["fleet", running.url, browsers.name, "--examples", "1", "2"]) == 2
        assert "--examples has no effect: the clients of study 'fleet' learn from searches" in capsys.readouterr().err
        state = ["--client-state", str(tmp_path / "state.sqlite")]
        assert main(["fleet", running.url, browsers.name, *state]) == 2
        assert "--client-state has no effect: the clients of study 'fleet' keep" in capsys.readouterr().err
        assert running.attempts == []


@pytest.mark.long
def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    """Reading ten row groups of 25 MB takes no more memory than reading two, except for the allocator's overhead."""
    few, many = (highest_memory(tmp_path / f"{groups}.parquet", groups) for groups in (2, 10))
    assert many - few < 100_000_000, f"{few / 1e6:.0f} MB, then {many / 1e6:.0f} MB"


READ = """
import resource, sys
from pathlib import Path
from fedping.client_sim.fleet.replay import Recording
from fedping.protocol.study import public_study
from tests.commands.test_fleet_replay import own_study
pings = sum(1 for _ in Recording(Path(sys.argv[1]), public_study(own_study(25_000))).pings())
print(pings, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def highest_memory(file: Path, groups: int) -> int:
    """Return the peak memory, in bytes, of a process that reads a file with a number of row groups."""
    group = landed_model_updates(made(np.random.default_rng(1), 250, 25_000), 1)
    with pq.ParquetWriter(file, group.schema, compression="none") as writer:
        for _ in range(groups):
            writer.write_table(group)
    ran = subprocess.run([sys.executable, "-c", READ, str(file)], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    pings, kilobytes = map(int, ran.stdout.split())
    assert pings == groups * 250
    return kilobytes * 1024


def test_groups_of_a_recording_are_read_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the requested row groups; :func:`test_memory_does_not_grow_with_the_recording` measures the memory."""
    asked: list[list[int]] = []
    batches = LandedFile.batches

    def counted(self: LandedFile, columns: Any, groups: Any = None, *more: Any, **named: Any) -> Any:
        asked.append(list(groups))
        return batches(self, columns, groups, *more, **named)

    table = landed_model_updates(made(np.random.default_rng(1), 30, 3), 1)
    with pq.ParquetWriter(tmp_path / "some.parquet", table.schema) as writer:
        for _ in range(3):
            writer.write_table(table)
    monkeypatch.setattr(LandedFile, "batches", counted)
    assert sum(map(len, Recording(tmp_path / "some.parquet", public_study(own_study())).batches())) == 90
    assert asked == [[0], [1], [2]]


def test_no_more_pings_are_read_than_may_wait(tmp_path: Path) -> None:
    recorded(tmp_path, own_study(), clients=100)
    transport = PlannedTransport(own_study(), lambda name, attempt: ACCEPTED if attempt else RETRY)
    replay = Replay(
        transport, transport.study, Recording(tmp_path, transport.study), ReplaySettings(at_once=3, backoff=Backoff())
    )
    held: list[int] = []
    submit = transport.submit

    async def counted(study: str, document_id: UUID, body: bytes) -> Outcome:
        counts = replay.outbox.counts
        held.append(counts.generated - counts.accepted)
        return await submit(study, document_id, body)

    transport.submit = counted  # type: ignore[method-assign]
    summary = in_virtual_time(replay.run())
    assert summary.pings.accepted == summary.pings.retried == 600
    assert 3 < max(held) <= 12


def made(rng: np.random.Generator, k: int, m: int) -> ModelPings:
    return ModelPings(
        document_ids=random_ids(rng, k),
        client_ids=random_ids(rng, k),
        arm="treatment",
        version=0,
        updates=np.round(rng.normal(size=(k, m)), 1),
        losses=np.ones(k),
        examples=np.ones(k, np.int64),
    )


def test_ctrl_c_ends_it_in_order(planned: FaultyServer, tmp_path: Path) -> None:
    recorded(tmp_path / "recording", own_study(), clients=200)

    def plan(name: Any, attempt: int) -> Answer:
        if len(planned.attempts) >= 40:
            planned.go_on.clear()
        return LANDED

    planned.plan = plan
    mark = new_mark()
    command = [sys.executable, "-m", "fedping", "fleet", planned.url, STUDY, "--replay", str(tmp_path / "recording")]
    ran = forked.Popen(
        [*command, "--at-once", "4"],
        cwd=ROOT,
        env={**os.environ, **mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert planned.blocked.wait(60)
    ran.send_signal(signal.SIGINT)
    out, err = ran.communicate(timeout=240)
    assert (ran.returncode, out) == (130, "")
    assert left_over(mark) == []
    note, total, last = (line for line in err.splitlines() if line)
    assert note.startswith("note: ")
    assert last == "fedping: interrupted"
    generated, accepted, rejected, undelivered = map(int, re.findall(r"\d+(?= )", total))
    assert (accepted + undelivered, rejected) == (generated, 0)
    assert 36 <= accepted <= 44


def test_ctrl_c_is_heeded_while_a_bucket_hangs(
    planned: FaultyServer, tmp_path: Path, object_servers: Callable[[str], str]
) -> None:
    recorded(tmp_path / "recording", own_study(), clients=5)
    with bucket_of(object_servers("s3")) as bucket:
        for file in open_landing(tmp_path / "recording").all_files():
            copy_landed(file, child(place_of(bucket.url), file.relative_to(tmp_path / "recording").as_posix()))
        command = [sys.executable, "-m", "fedping", "fleet", planned.url, STUDY, "--replay", bucket.url, "--rate", "5"]
        environment = {**os.environ, PATIENCE_VARIABLE: "300"}  # longer than the test waits
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with forked.Popen(command, cwd=ROOT, env=environment, **pipes) as ran:
            assert wait_until(lambda: bool(planned.attempts))
            bucket.faults("hangs")
            before = bucket.seen()["GET"]
            assert wait_until(lambda: bucket.seen()["GET"] > before)
            ran.send_signal(signal.SIGINT)
            try:
                out, err = ran.communicate(timeout=240)
            finally:
                bucket.well()
                ran.kill()
    assert (ran.returncode, out) == (130, "")
    note, total, last = (line for line in err.splitlines() if line)
    assert note.startswith("note: ")
    assert re.fullmatch(r"\d+ pings: \d+ accepted, 0 rejected, \d+ undelivered", total)
    assert last == "fedping: interrupted"
