"""Outcomes end to end: declared by a study, validated by ingest, typed in Parquet, and ignored by rounds."""

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import fedping
from fedping.main import main
from fedping.protocol.arrow import landed_schema
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import open_landing
from fedping.protocol.outcomes import FlagOutcome, NumberOutcome
from fedping.protocol.ping import LIST_UPDATE, OUTCOME
from fedping.server_jobs.ingest.compactor import Compactor
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.segments import CLOSED, document_in, journal_in, segments
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import IngestApp, ingest_app, landed_ids
from tests.support.outcomes import (
    AFTER,
    AT_CHOICE,
    CLIENT,
    LATER,
    LISTS,
    SHOP,
    list_json,
    outcome_json,
    outcome_paths,
    paid_json,
    post,
    shop_study,
)
from tests.support.versions import WHEN

CHOSEN = {"basket": True, "opened": 3, "seconds": 12.5, "device": "2026-11-26"}


@pytest.fixture
def ingest(tmp_path: Path) -> IngestApp:
    return ingest_app(tmp_path, others=[shop_study()])


def list_paths(landing: Path) -> list[Path]:
    return sorted(landing.glob(f"study={SHOP}/line=*/iteration=*/*.parquet"))


def rows(paths: list[Path]) -> list[dict[str, Any]]:
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def test_a_list_lands_with_its_outcomes_in_typed_columns(ingest: IngestApp) -> None:
    assert post(ingest, list_json(**CHOSEN)) == (200, "")
    assert post(ingest, list_json(place=0, loss=0.0, update=[0.0] * 3, swapped=True)) == (200, "")
    ingest.land()
    [path] = list_paths(ingest.settings.landing)
    assert pq.read_schema(path).equals(landed_schema(shop_study().document), check_metadata=False)
    chosen, empty = sorted(rows([path]), key=lambda row: -row["place"])
    assert CHOSEN.items() <= chosen.items()
    assert {name: empty[name] for name in CHOSEN} == dict.fromkeys(CHOSEN)
    assert (chosen["seen"], chosen["swapped"], empty["swapped"], chosen["pinned"]) == (5, None, True, None)


def test_a_later_outcome_lands_apart_in_typed_columns(ingest: IngestApp) -> None:
    choice = str(uuid.uuid4())
    assert post(ingest, *paid_json(choice)) == (200, "")
    assert post(ingest, outcome_json(returned=False, age=100)) == (200, "")
    ingest.land()
    assert list_paths(ingest.settings.landing) == []
    [path] = outcome_paths(ingest.settings.landing)
    assert path.parent.name == f"day={datetime.now(UTC):%Y-%m-%d}"
    document = shop_study().later_outcomes
    assert document is not None
    assert pq.read_schema(path).equals(landed_schema(document), check_metadata=False)
    assert "update" not in pq.read_schema(path).names
    by_age = {row["age"]: row for row in rows([path])}
    assert (by_age[5]["paid"], by_age[5]["returned"], by_age[5]["choice"]) == (49.9, None, uuid.UUID(choice).bytes)
    assert (by_age[100]["paid"], by_age[100]["returned"], by_age[100]["choice"]) == (None, False, None)
    assert len(landed_ids(ingest.settings.landing)) == 2


@pytest.mark.parametrize("name", ["column", "columns", "grids", "class", "constructor", "keys"])
def test_an_outcome_may_have_any_name_that_no_column_has(tmp_path: Path, name: str) -> None:
    at_choice, later = (replace(AT_CHOICE[0], name=name), replace(AFTER[1], name=name))
    lists, after = (ingest_app(tmp_path / str(n), others=[shop_study(o)]) for n, o in enumerate((at_choice, later)))
    assert post(lists, list_json(**{name: True})) == (200, "")
    assert post(after, outcome_json(**{name: False})) == (200, "")
    for ingest in (lists, after):
        ingest.land()
    assert [row[name] for row in rows(list_paths(lists.settings.landing))] == [True]
    assert [row[name] for row in rows(outcome_paths(after.settings.landing))] == [False]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("outcome_bounds", list_json(opened=21), "opened"),
    ("outcome_bounds", list_json(opened=-1), "opened"),
    ("outcome_bounds", list_json(seconds=600.5), "seconds"),
    ("outcome_bounds", list_json(seconds=0.25), "finer than 0.5"),
    ("outcome_bounds", list_json(device="tv"), "device"),
    ("outcome_bounds", list_json(basket=1), "basket"),
    ("outcome_bounds", list_json(basket=None), "basket"),
    ("outcome_undeclared", list_json(wished=True), "wished"),
    ("outcome_undeclared", list_json(paid=5.0), "paid"),
    ("outcome_undeclared", outcome_json(basket=True), "basket"),
    ("outcome_undeclared", outcome_json(returned=True, update=[1.0, 1.0, 1.0]), "update"),
    ("outcome_bounds", outcome_json(paid=500.01, choice=str(uuid.UUID(int=1))), "paid"),
    ("outcome_late", outcome_json(paid=5.0, age=48, choice=str(uuid.UUID(int=1))), "48h"),
    ("outcome_late", outcome_json(returned=True, age=14 * 24), "14d"),
    ("outcome_choice", outcome_json(paid=5.0), "choice"),
    ("outcome_choice", outcome_json(returned=True, choice=str(uuid.UUID(int=1))), "choice"),
    ("document_id", outcome_json(paid=5.0, choice=str(uuid.UUID(int=1))), "is not derived from"),
    ("not_a_ping", outcome_json(), "one of paid, returned"),
    ("not_a_ping", outcome_json(returned=True, paid=5.0), "this has 2"),
    ("not_a_ping", outcome_json(returned=True, age=-1), "age"),
    ("not_a_ping", list_json(place=9), "`place` is 9"),
    ("not_a_ping", list_json(place=6), "`seen`"),
    ("not_a_ping", list_json(place=0, pinned=True, loss=0.0, update=[0.0] * 3), "pinned"),
    ("update_not_zero", list_json(place=0), "zero"),
    ("model_version", outcome_json(returned=True, model_version=3), "published"),
    ("unknown_arm", outcome_json(returned=True, study_variation="other"), "other"),
]


@pytest.mark.parametrize(("reason", "ping", "said"), REFUSED, ids=[f"{n}-{each[0]}" for n, each in enumerate(REFUSED)])
def test_what_is_not_as_declared_is_refused_with_a_reason(
    ingest: IngestApp, reason: str, ping: dict[str, Any], said: str
) -> None:
    status, sentence = post(ingest, ping)
    assert (status, ingest.totals()[f"rejected.{reason}"]) == (400, 1), sentence
    assert said in sentence
    path = LATER if ping["type"] == "outcome" else LISTS
    line = json.dumps(ping | {"documentId": str(uuid.uuid4())}).encode()
    answer = ingest.post(path, line).json
    assert (answer["accepted"], said in answer["rejected"][0]["reason"]) == (0, True)
    ingest.land()
    assert landed_ids(ingest.settings.landing) == []


def test_bounds_themselves_and_whole_steps_are_taken(ingest: IngestApp) -> None:
    for seconds in (0, 600, 0.5, 599.5, 12):
        assert post(ingest, list_json(seconds=seconds)) == (200, "")
    for cents in (0, 1, 7, 29, 57, 4990, 50_000):
        assert post(ingest, *paid_json(str(uuid.uuid4()), cents * 0.01)) == (200, "")
        assert post(ingest, *paid_json(str(uuid.uuid4()), cents / 100, age=47)) == (200, "")


def test_a_study_without_later_outcomes_takes_no_such_ping(ingest: IngestApp) -> None:
    answer = ingest.post(f"/submit/study/outcome/1/{uuid.uuid4()}", json.dumps(outcome_json(returned=True)).encode())
    assert answer.status_code == 404
    assert "declares no later outcome" in answer.json["error"]
    assert ingest.post(f"/submit/{SHOP}/outcome/2/{uuid.uuid4()}", b"{}").status_code == 404


def test_segments_with_other_outcomes_land_in_one_pass(tmp_path: Path) -> None:
    """Two workers leave such segments if each has received another outcome."""
    ingest = ingest_app(tmp_path, others=[shop_study()], roll_bytes=1)
    assert post(ingest, *paid_json(str(uuid.uuid4()))) == (200, "")
    assert post(ingest, outcome_json(returned=True)) == (200, "")
    assert post(ingest, list_json(basket=True)) == (200, "")
    assert post(ingest, list_json(device="phone")) == (200, "")
    ingest.land()
    assert sum(len(rows([path])) for path in outcome_paths(ingest.settings.landing)) == 2
    found = rows(list_paths(ingest.settings.landing))
    assert {(row["basket"], row["device"]) for row in found} == {(True, None), (None, "phone")}


def test_a_repetition_lands_once(ingest: IngestApp) -> None:
    choice = str(uuid.uuid4())
    for _ in range(2):
        assert post(ingest, *paid_json(choice)) == (200, "")
    ingest.land()
    assert post(ingest, *paid_json(choice, 12.0)) == (200, "")
    ingest.land()
    assert [row["paid"] for row in rows(outcome_paths(ingest.settings.landing))] == [49.9]
    assert ingest.totals()["duplicates"] == 2
    restarted = Compactor(ingest.settings, Counters(ingest.settings.counters))
    assert post(ingest, *paid_json(choice)) == (200, "")
    ingest.services.journals.roll()
    assert restarted.run_once()
    assert len(landed_ids(ingest.settings.landing)) == 1


def test_each_study_has_segments_of_its_own(tmp_path: Path) -> None:
    """A column may have another kind in another study."""
    other = replace(
        shop_study(NumberOutcome(name="basket", low=0.0, high=9.0, round=1.0), FlagOutcome(name="gone", within="1h")),
        name="shop.v2",
    )
    ingest = ingest_app(tmp_path, others=[shop_study(), other])
    assert post(ingest, list_json(basket=True)) == (200, "")
    body = json.dumps(list_json(basket=7)).encode()
    assert ingest.post(f"/submit/shop.v2/list-update/1/{uuid.uuid4()}", body).status_code == 200
    ingest.services.journals.roll()
    found = segments(ingest.settings.journal, CLOSED)
    assert sorted(map(journal_in, found)) == ["list-update@shop", "list-update@shop.v2"]
    assert {document_in(path) for path in found} == {LIST_UPDATE.name}
    ingest.land()
    [one] = list_paths(ingest.settings.landing)
    [two] = sorted(ingest.settings.landing.glob("study=shop.v2/*/*/*.parquet"))
    assert (rows([one])[0]["basket"], rows([two])[0]["basket"]) == (True, 7.0)
    assert ingest.totals()["quarantined"] == 0


def test_columns_follow_from_the_pings_where_the_store_is_away(ingest: IngestApp) -> None:
    assert post(ingest, list_json(**CHOSEN)) == (200, "")
    assert post(ingest, *paid_json(str(uuid.uuid4()))) == (200, "")
    ingest.settings.store.rename(ingest.settings.store.with_name("away"))
    ingest.land()
    [path] = list_paths(ingest.settings.landing)
    declared, found = landed_schema(shop_study().document), pq.read_schema(path)
    assert {field.name: field.type for field in found} == {field.name: field.type for field in declared}
    assert CHOSEN.items() <= rows([path])[0].items()
    [path] = outcome_paths(ingest.settings.landing)
    assert pq.read_schema(path).names == [*landed_schema(OUTCOME).names, "paid"]


def play(ingest: IngestApp) -> str:
    options = RoundOptions(clock=lambda: WHEN, code_version="test")
    return run_round(ingest.services.store, ingest.settings.landing, SHOP, "main", NumpyEngine(), options).status


def test_no_round_opens_a_file_of_outcomes(ingest: IngestApp) -> None:
    """With damaged files of outcomes, rounds still publish and recompute; the files' clients don't count in a round."""
    assert post(ingest, *paid_json(str(uuid.uuid4()))) == (200, "")
    ingest.land()
    assert play(ingest) != "published"
    assert post(ingest, list_json(**CHOSEN)) == (200, "")
    ingest.land()
    [path] = outcome_paths(ingest.settings.landing)
    path.write_bytes(b"not Parquet")
    assert play(ingest) == "published"
    store = ingest.services.store
    version = store.head(SHOP, "main")
    assert [file.path.partition("/")[0] for file in version.lineage.inputs] == [f"study={SHOP}"]
    assert recompute(store, ingest.settings.landing, SHOP, "main", 1, NumpyEngine()).identical
    assert open_landing(ingest.settings.landing).studies() == [SHOP]


def test_no_outcome_ping_can_carry_an_update() -> None:
    document = shop_study().later_outcomes
    assert document is not None
    assert "update" not in document.payload.__struct_fields__
    assert "update" not in landed_schema(document).names


def test_outcomes_are_counted_as_other_pings(ingest: IngestApp) -> None:
    assert post(ingest, *paid_json(str(uuid.uuid4()))) == (200, "")
    lines = "\n".join(json.dumps(outcome_json(returned=True) | {"documentId": str(uuid.uuid4())}) for _ in range(3))
    assert ingest.post(LATER, lines.encode()).json == {"accepted": 3, "rejected": []}
    ingest.land()
    totals = ingest.totals()
    assert (totals["accepted"], totals["landed"], totals["files"]) == (4, 4, 1)


def test_a_damaged_frame_loses_itself_alone(ingest: IngestApp) -> None:
    assert post(ingest, list_json(**CHOSEN)) == (200, "")
    document = shop_study().document
    ingest.services.journals.of(document).append(b'{"document_id":"x","odd":[1]}\n', 1)
    ingest.land()
    assert len(landed_ids(ingest.settings.landing)) == 1
    assert ingest.totals()["quarantined_pings"] == 1


def test_what_is_declared_is_published(ingest: IngestApp) -> None:
    told = ingest.client.get(f"/models/{SHOP}/study.json").json
    assert [each["name"] for each in told["outcomes"]] == [each.name for each in AT_CHOICE + AFTER]
    assert told["outcomes"][2] == {"kind": "number", "name": "seconds", "low": 0.0, "high": 600.0, "round": 0.5}
    assert told["outcomes"][4]["within"] == "48h"
    assert "outcomes" not in ingest.client.get("/models/study/study.json").json


def test_types_of_columns_are_those_of_their_kinds() -> None:
    schema = landed_schema(shop_study().document)
    text = pa.dictionary(pa.int32(), pa.string())
    kinds = {"basket": pa.bool_(), "opened": pa.int32(), "seconds": pa.float64(), "device": text}
    assert {name: schema.field(name).type for name in kinds} == kinds
    assert all(schema.field(name).nullable for name in kinds)


def command(ingest: IngestApp, *words: str) -> int:
    places = ["--store", str(ingest.settings.store), "--landing", str(ingest.settings.landing)]
    return main(["landing", *words, *places])


def test_a_person_who_asks_is_forgotten_in_outcomes_too(
    ingest: IngestApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert post(ingest, list_json(**CHOSEN)) == (200, "")
    assert post(ingest, outcome_json(returned=True)) == (200, "")
    assert post(ingest, outcome_json(returned=False) | {"clientId": str(uuid.UUID(int=3))}) == (200, "")
    ingest.land()
    assert post(ingest, *paid_json(str(uuid.uuid4()))) == (200, "")
    ingest.services.journals.roll()
    assert command(ingest, "forget", CLIENT, "--json", "--journal", str(ingest.settings.journal)) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["pings"], told["files"], told["waiting"]) == (2, 2, 1)
    ingest.land()
    assert command(ingest, "forget", CLIENT, "--journal", str(ingest.settings.journal)) == 0
    left = rows(list_paths(ingest.settings.landing) + outcome_paths(ingest.settings.landing))
    assert [row["client_id"] for row in left] == [uuid.UUID(int=3).bytes]
    assert [entry.kind for entry in ingest.services.store.studies.history(SHOP)] == ["forgotten", "forgotten"]


def test_pruning_removes_outcomes_as_far_back_as_pings(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pruning removes only outcomes that landed before the first round of the kept versions."""
    moment = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    for number in range(4):
        monkeypatch.setattr("time.time", lambda number=number: moment / 1000 + 86_400 * number)
        assert post(ingest, list_json(model_version=number)) == (200, "")
        assert post(ingest, outcome_json(returned=True, model_version=number)) == (200, "")
        ingest.land()
        at = datetime.fromtimestamp(moment / 1000 + 86_400 * number + 60, UTC).isoformat()
        options = RoundOptions(clock=lambda at=at: at, code_version="test")
        assert run_round(ingest.services.store, ingest.settings.landing, SHOP, "main", NumpyEngine(), options).status
    monkeypatch.undo()
    days = [path.parent.name for path in outcome_paths(ingest.settings.landing)]
    assert days == [f"day=2026-01-0{day}" for day in (1, 2, 3, 4)]
    assert command(ingest, "prune", SHOP, "--keep", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"]
    left = [path.parent.name for path in outcome_paths(ingest.settings.landing)]
    assert left == days[-len(left) :] != days
    assert command(ingest, "prune", SHOP, "--keep", "2", "--json") == 0
    assert not json.loads(capsys.readouterr().out)["removed"]


def test_a_copy_of_the_landing_folder_has_them(ingest: IngestApp, tmp_path: Path) -> None:
    assert post(ingest, list_json(**CHOSEN)) == (200, "")
    assert post(ingest, *paid_json(str(uuid.uuid4()))) == (200, "")
    ingest.land()
    assert command(ingest, "copy", SHOP, "--to", str(tmp_path / "copy")) == 0
    [mine], [theirs] = outcome_paths(ingest.settings.landing), outcome_paths(tmp_path / "copy")
    assert mine.read_bytes() == theirs.read_bytes()
    assert landed_ids(tmp_path / "copy") == landed_ids(ingest.settings.landing)


def test_python_reads_outcomes_and_columns_that_a_file_lacks_are_null(ingest: IngestApp) -> None:
    assert post(ingest, outcome_json(returned=True)) == (200, "")
    assert post(ingest, list_json(**CHOSEN)) == (200, "")
    ingest.land()
    study = ingest.services.store.study(SHOP)
    more = (*study.outcomes, FlagOutcome(name="wished"), FlagOutcome(name="kept", within="30d"))
    ingest.services.store.studies.change(
        replace(study, outcomes=more), ("outcomes",), at=WHEN, by="me", because="we can", after=0
    )
    ingest.services.catalogue.refresh()
    assert post(ingest, list_json(wished=True)) == (200, "")
    assert post(ingest, outcome_json(kept=True)) == (200, "")
    ingest.land()
    landing = str(ingest.settings.landing)
    batches = list(fedping.read_pings(landing, SHOP, columns=["wished", "basket"]))
    assert sorted((row["wished"], row["basket"]) for b in batches for row in b.to_pylist() if row["basket"]) == [
        (None, True)
    ]
    assert sorted(str(row["wished"]) for b in batches for row in b.to_pylist()) == ["None", "True"]
    outcomes = [
        row for b in fedping.read_outcomes(landing, SHOP, columns=["kept", "returned"]) for row in b.to_pylist()
    ]
    assert sorted(outcomes, key=str) == [{"kept": None, "returned": True}, {"kept": True, "returned": None}]
    with pytest.raises(FedpingError, match="no column 'lost'"):
        list(fedping.read_outcomes(landing, SHOP, columns=["lost"]))
    with pytest.raises(FedpingError, match="no later outcomes of study 'study'"):
        fedping.read_outcomes(landing, "study")


def test_readers_of_hive_partitions_skip_later_outcomes_and_can_read_them(ingest: IngestApp) -> None:
    assert post(ingest, list_json(**CHOSEN)) == (200, "")
    assert post(ingest, *paid_json(str(uuid.uuid4()))) == (200, "")
    ingest.land()
    landing = ingest.settings.landing
    assert ds.dataset(landing, partitioning="hive").to_table().num_rows == 1
    table = ds.dataset(landing / "_outcomes" / f"study={SHOP}", partitioning="hive").to_table()
    assert table["paid"].to_pylist() == [49.9]
    assert "day" in table.schema.names


def test_what_is_odd_about_later_outcomes_is_counted(
    ingest: IngestApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Covers an outcome whose choice never arrived, a late one, and one repeated after a compactor forgot it."""
    choice, now = str(uuid.uuid4()), 1_790_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    assert post(ingest, list_json(), choice) == (200, "")
    assert post(ingest, *paid_json(str(uuid.uuid4()), 1.0)) == (200, "")
    ingest.land()
    monkeypatch.setattr("time.time", lambda: now + 49 * 3600)
    assert post(ingest, *paid_json(choice, 2.0, age=40)) == (200, "")
    assert post(ingest, outcome_json(returned=True)) == (200, "")
    ingest.land()
    monkeypatch.setattr("time.time", lambda: now + 60 * 3600)
    assert post(ingest, *paid_json(choice, 3.0, age=40)) == (200, "")
    ingest.land()
    assert command(ingest, "outcomes", SHOP, "--json") == 0
    paid, returned = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert paid == {
        "study": SHOP,
        "column": "paid",
        "outcomes": 2,
        "clients": 1,
        "arms": {"treatment": 2},
        "repeated": 1,
        "without_choice": 1,
        "received_late": 1,
    }
    assert (returned["outcomes"], returned["without_choice"]) == (1, None)
    assert command(ingest, "outcomes", SHOP) == 0
    assert "1 without a landed choice, 1 received late" in capsys.readouterr().out
    assert command(ingest, "outcomes", "study") == 0
    assert "declares no later outcome" in capsys.readouterr().out


def test_refused_outcomes_are_in_metrics_and_in_the_health_of_their_study(
    ingest: IngestApp, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(10):
        assert post(ingest, outcome_json(returned=True)) == (200, "")
    for _ in range(60):
        assert post(ingest, outcome_json(returned=True, age=14 * 24))[0] == 400
    ingest.services.flush()
    told = ingest.operator.get("/metrics").text
    assert 'fedping_ingest_rejected_total{reason="outcome_late"} 60.0' in told
    assert f'fedping_study_accepted_total{{study="{SHOP}"}} 10.0' in told
    where = ["--store", str(ingest.settings.store), "--landing", str(ingest.settings.landing)]
    main(["study", "health", SHOP, *where, "--journal", str(ingest.settings.journal)])
    assert "outcome_late" in capsys.readouterr().out
