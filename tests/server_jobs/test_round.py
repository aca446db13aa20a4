"""A round end to end: the pings it uses, the version it publishes, and its messages if it can't."""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedping.main import main
from fedping.model_store.decisions import rollback
from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import Version
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import partition
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.round import RoundOptions, RoundResult, recompute, run_round
from fedping.server_jobs.round.aggregate import ShardPartial
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.manifest import Window, list_landed
from fedping.server_jobs.round.plan import Work
from tests.support.rounds import FIRST_MS, WHEN, Ping, crowd, land, store_with
from tests.support.versions import small_study


class NoEngine:
    """An engine that must not be called."""

    def partials(self, work: Work) -> Iterator[ShardPartial]:
        raise AssertionError("nothing has landed, so nothing may be started")

    def close(self) -> None: ...


def play(store: ModelStore, landing: Path, engine: object = None, line: str = "main", **more: object) -> RoundResult:
    engine = engine or NumpyEngine()
    return run_round(
        store, landing, "study", line, engine, RoundOptions(clock=lambda: WHEN, code_version="test", **more)
    )


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def test_a_round_steps_by_the_mean_and_keeps_where_it_came_from(tmp_path: Path, landing: Path) -> None:
    study = small_study()
    store = store_with(tmp_path / "store", study)
    control = [Ping(100 + i, 100 + i, None, arm="control", loss=5.0, rank=2) for i in range(4)]
    path = land(landing, [*crowd(10), *control, Ping(200, 200, rank=-1, loss=0.0)])
    parent = store.head("study", "main")

    result = play(store, landing)

    assert (result.status, result.iteration, result.clients) == ("published", 0, 10)
    assert result.update_bytes == 10 * 2 * 4
    head = store.head("study", "main")
    assert (head.iteration, head.parent, head.parent_digest, head.created) == (1, 0, parent.digest, WHEN)
    mean = np.array([p.update for p in crowd(10)], dtype=np.float32).astype(float).mean(axis=0)
    assert (mean > 0).all()
    assert head.weights == (11.0, 12.0)  # RProp's first step: the start size, in the update's direction
    assert head.state["rprop"]["sign"] == (1.0, 1.0)
    lineage = head.lineage
    assert lineage.counts["used"] == 10
    assert lineage.counts["other_arm"] == 4
    assert lineage.counts["no_example"] == 1
    assert sum(lineage.counts.values()) == 15
    np.testing.assert_allclose(lineage.aggregate.mean, mean, rtol=1e-12)
    assert (lineage.aggregate.clients, lineage.aggregate.pings, lineage.aggregate.weight) == (10, 10, 10.0)
    assert [(f.path, f.rows) for f in lineage.inputs] == [(path.relative_to(landing).as_posix(), 15)]
    assert lineage.arms["control"].loss == 5.0
    assert lineage.arms["control"].rank_selected == 2.0
    np.testing.assert_allclose(lineage.arms["treatment"].loss, np.mean([p.loss for p in crowd(10)]))
    assert (lineage.config_digest, lineage.window_end_ms) == (digest_of(study.lines[0]), FIRST_MS)


def test_integer_weights_are_rounded_when_published_and_kept_as_doubles(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    for n, sign in enumerate([1.0, -1.0]):
        land(landing, [Ping(n, 1, (sign, sign), version=n)], iteration=n)
        play(store, landing)
    head = store.head("study", "main")
    assert head.weights == (10.5, 11.5)
    assert head.model == (10.5, 12.0)


def test_nothing_landed_starts_nothing(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    assert play(store, landing, NoEngine()).status == "nothing"
    land(landing, crowd(3, version=5), iteration=5)
    land(landing, [], iteration=0)
    assert play(store, landing, NoEngine()).status == "nothing"
    assert store.iterations("study", "main") == [0]


def test_no_step_before_enough_clients(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study(min_clients=4))
    land(landing, [*crowd(3), *(Ping(50 + i, 1) for i in range(20)), Ping(90, 9, None)])
    result = play(store, landing)
    assert (result.status, result.clients, result.min_clients) == ("waiting", 3, 4)
    assert "3 of at least 4 clients" in result.sentence
    assert store.iterations("study", "main") == [0]
    land(landing, [Ping(99, 3)], at_ms=FIRST_MS + 1)
    assert play(store, landing).status == "published"
    assert store.head("study", "main").lineage.aggregate.pings == 24


def test_versions_are_never_mixed_and_late_pings_are_counted_once(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    land(landing, crowd(5, seed=1), at_ms=FIRST_MS)
    play(store, landing)
    land(landing, crowd(6, seed=2, version=1), iteration=1, at_ms=FIRST_MS + 10)
    land(landing, crowd(2, seed=3, first_document=70), iteration=0, at_ms=FIRST_MS + 20)
    land(landing, crowd(3, seed=4, version=7), iteration=7, at_ms=FIRST_MS + 30)
    assert play(store, landing).status == "published"
    second = store.head("study", "main").lineage
    assert (second.counts["used"], second.counts["stale"], second.counts["future"]) == (6, 2, 3)
    assert second.window_end_ms == FIRST_MS + 30
    assert [f.rows for f in second.inputs] == [6]
    land(landing, crowd(4, seed=5, version=2), iteration=2, at_ms=FIRST_MS + 40)
    play(store, landing)
    third = store.head("study", "main").lineage
    assert (third.counts["used"], third.counts["stale"], third.counts["future"]) == (4, 0, 0)


@pytest.mark.parametrize("stamp", ["9999999999999", "9" * 30, "99999999999999999999999"])
def test_a_file_named_in_the_far_future_does_not_end_the_counting(tmp_path: Path, landing: Path, stamp: str) -> None:
    store = store_with(tmp_path / "store", small_study())
    file = land(landing, crowd(5))
    file.rename(file.with_name(f"{stamp}-x.parquet"))
    land(landing, crowd(2, first_document=50), at_ms=FIRST_MS + 5)
    play(store, landing)
    first = store.head("study", "main").lineage
    assert (first.counts["used"], first.window_end_ms) == (7, FIRST_MS + 5)
    land(landing, crowd(6, version=1), iteration=1, at_ms=FIRST_MS + 10)
    land(landing, crowd(3, first_document=70), iteration=0, at_ms=FIRST_MS + 10)
    play(store, landing)
    assert store.head("study", "main").lineage.counts["stale"] == 3
    assert recompute(store, landing, "study", "main", 2, NumpyEngine()).identical


def test_a_window_that_ended_in_the_far_future_ends_at_the_clock_of_the_round(tmp_path: Path) -> None:
    """An earlier version of fedping trusted files' names."""
    land(tmp_path, crowd(5))
    land(tmp_path, crowd(3, version=1), iteration=1, at_ms=FIRST_MS + 20)
    manifest = list_landed(tmp_path, small_study(), "main", 1, Window(9_999_999_999_999, FIRST_MS + 10))
    assert manifest.window_end_ms == FIRST_MS + 20


def test_a_file_that_is_replaced_after_it_was_listed_is_not_averaged(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    file = land(landing, crowd(5, seed=1))
    other = land(tmp_path / "elsewhere", crowd(5, seed=2))

    def replace(step: str) -> None:
        if step == "listed" and other.exists():
            other.rename(file)

    with pytest.raises(FedpingError, match=rf"{file.name} has been replaced"):
        play(store, landing, on_step=replace)
    assert store.iterations("study", "main") == [0]
    assert play(store, landing).status == "published"
    assert recompute(store, landing, "study", "main", 1, NumpyEngine()).identical


def test_a_name_that_is_no_text_is_told_in_a_sentence_that_any_terminal_shows(
    tmp_path: Path, landing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_with(tmp_path / "store", small_study())
    file = land(landing, crowd(5))
    foreign = Path(os.fsdecode(os.fsencode(file.parent) + b"/1700000000001-it's\xff.parquet"))
    shutil.copy(file, foreign)
    where = ["--store", str(tmp_path / "store"), "--landing", str(landing)]
    code = main(["round", "study", "main", *where, "--engine", "numpy"])
    told = capsys.readouterr().err
    assert code
    assert r"1700000000001-it's\xff.parquet has a name that is not UTF-8" in told
    assert "Traceback" not in told
    told.encode("ascii")
    [command] = re.findall("`(mv .*)`", told)
    subprocess.run(["bash", "-c", command], check=True)
    assert not foreign.exists()
    assert play(store, landing).clients == 5


def test_a_ping_in_another_versions_folder_is_not_averaged(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    land(landing, [Ping(1, 1, (1.0, 1.0)), Ping(2, 2, (-9.0, -9.0), version=3)])
    play(store, landing)
    lineage = store.head("study", "main").lineage
    assert (lineage.aggregate.mean, lineage.counts["wrong_version"]) == ((1.0, 1.0), 1)


def test_ten_follows_nine_and_a_hundred_ninety_nine(tmp_path: Path, landing: Path) -> None:
    """The original chose its latest state by the order of strings, in which 9 is after 10 and 99 after 100."""
    store = store_with(tmp_path / "store", small_study())
    for n in range(102):
        land(landing, [Ping(n, 1, (1.0, -1.0), version=n)], iteration=n, at_ms=FIRST_MS + n)
        result = play(store, landing)
        assert (result.status, result.iteration) == ("published", n)
    assert store.iterations("study", "main") == list(range(103))
    assert store.head("study", "main").lineage.counts["stale"] == 0


def test_the_next_round_repairs_the_public_files(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    land(landing, crowd(3))
    play(store, landing)
    public = tmp_path / "store/study/main/public"
    (public / "1.json").unlink()
    (public / "latest.json").write_bytes((public / "0.json").read_bytes())
    assert play(store, landing, NoEngine()).status == "nothing"
    assert (public / "latest.json").read_bytes() == (public / "1.json").read_bytes()
    assert msgspec.json.decode((public / "latest.json").read_bytes())["iteration"] == 1


def test_a_round_after_a_rollback_goes_on_from_it(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    land(landing, crowd(3))
    play(store, landing)
    rollback(store, "study", "main", 0, created=WHEN, code_version="test")
    land(landing, crowd(3, version=2), iteration=2, at_ms=FIRST_MS + 5)
    assert play(store, landing).iteration == 2
    assert store.head("study", "main").weights == (11.0, 12.0)
    assert store.head("study", "main").lineage.counts["stale"] == 0


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _damaged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes(200) + data[260:])


def _foreign(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def _nullable(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.set_column(0, "document_id", table["document_id"]), path)


def _no_parquet(path: Path) -> None:
    path.write_text("document_id,client_id\n")


@pytest.mark.parametrize("spoil", [_truncated, _damaged, _foreign, _nullable, _no_parquet])
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_published(
    tmp_path: Path, landing: Path, spoil: object, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_with(tmp_path / "store", small_study())
    land(landing, crowd(3))
    path = land(landing, crowd(3, first_document=50), at_ms=FIRST_MS + 1)
    spoil(path)
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "store").rglob("*"))
    code = main(["round", "study", "--engine", "numpy", "--store", str(tmp_path / "store"), "--landing", str(landing)])
    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert said.err.count("\n") == 1
    assert str(path) in said.err
    assert "move it out of the way by `mv " in said.err
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "store").rglob("*")) == before
    path.unlink()
    assert play(store, landing).status == "published"


def test_a_hidden_or_unfinished_file_is_not_read(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    land(landing, crowd(3))
    (partition(landing, "study", "main", 0) / ".1700000000001-ab.parquet.tmp").write_text("half")
    assert play(store, landing).status == "published"


def test_pings_of_another_model_are_told_apart_from_none(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study(m=3))
    land(landing, crowd(5, m=2))
    with pytest.raises(FedpingError, match=r"none of the 5 updates in .*iteration=0 consists of 3 finite numbers"):
        play(store, landing)
    assert store.iterations("study", "main") == [0]
    land(landing, crowd(2, seed=9, m=3, first_document=80), at_ms=FIRST_MS + 1)
    assert play(store, landing).counts["bad_update"] == 5


def test_one_outlier_that_is_no_number_is_left_out(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    nan = np.array([np.nan, 1], "<f4").tobytes()
    land(landing, [*crowd(4), Ping(50, 50, payload=nan), Ping(51, 51, loss=math.inf)])
    result = play(store, landing)
    assert (result.counts["used"], result.counts["bad_update"], result.counts["bad_loss"]) == (4, 1, 1)
    assert all(math.isfinite(x) for x in store.head("study", "main").lineage.aggregate.mean)


def test_mistakes_of_name_and_place(tmp_path: Path, landing: Path) -> None:
    store = store_with(tmp_path / "store", small_study())
    with pytest.raises(InvalidSettings, match="has no line 'other'; it has main"):
        play(store, landing, line="other")
    with pytest.raises(FedpingError, match=r"no landing folder exists at .*nowhere"):
        play(store, tmp_path / "nowhere")


def two_lines() -> Study:
    one = small_study()
    other = msgspec.structs.replace(one.lines[0], name="second")
    assert isinstance(other, Line)
    arm = Arm(name="t2", share=0.1, line="second", submits=True)
    arms = (msgspec.structs.replace(one.arms[0], share=0.5), one.arms[1], arm)
    return Study(name="study", arms=arms, lines=(one.lines[0], other))


def test_the_command_goes_through_all_lines_and_reports_each(
    tmp_path: Path, landing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "store", two_lines())
    where = ["--engine", "numpy", "--store", str(tmp_path / "store"), "--landing", str(landing)]
    path = land(landing, crowd(3))
    assert main(["round", "study", "--json", *where]) == 0
    rows = [msgspec.json.decode(row) for row in capsys.readouterr().out.splitlines()]
    assert [(row["line"], row["status"]) for row in rows] == [("main", "published"), ("second", "nothing")]
    assert rows[0]["counts"]["used"] == 3

    path = land(landing, crowd(3, version=1), iteration=1)
    path.write_text("not Parquet")
    assert main(["round", "study", *where]) == 1
    said = capsys.readouterr()
    assert "study/second: nothing to do" in said.out
    assert str(path) in said.err
    assert "no round of main in study 'study'" in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nobody"], 1, "has no study 'nobody'; it has study"),
        (["study", "nowhere"], 2, "has no line 'nowhere'"),
        (["study", "--master", "local[1]"], 2, "remove --master"),
        (["study", "--store", "/nonexistent"], 1, "there is no model store at /nonexistent"),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, landing: Path, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "store", small_study())
    where = ["--engine", "numpy", "--store", str(tmp_path / "store"), "--landing", str(landing)]
    assert main(["round", *where, *arguments]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1


@pytest.mark.spark
@pytest.mark.usefixtures("warm_commands")
def test_the_command_on_spark_publishes_what_numpy_would(tmp_path: Path, landing: Path) -> None:
    for name in ("spark", "numpy"):
        store_with(tmp_path / name, two_lines())
    land(landing, crowd(300))
    for name in ("spark", "numpy"):
        where = ["--store", str(tmp_path / name), "--landing", str(landing), "--engine", name]
        assert main(["round", "study", *where, *(["--master", "local[2]"] if name == "spark" else [])]) == 0
    one, other = (store_version(tmp_path / name) for name in ("spark", "numpy"))
    assert msgspec.structs.replace(one, created="") == msgspec.structs.replace(other, created="")


def store_version(where: Path) -> Version:
    return open_store(where).version("study", "main", 1)
