"""Settings that change while a study runs: allowed and rejected changes; earlier versions stay unchanged."""

import json
import signal
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.commands.analyze import _warn_of_other_shares
from fedping.main import main
from fedping.model_store import ModelStore, open_store
from fedping.model_store.history import HistoryConflict
from fedping.model_store.version import ArmSummary, Counted, Outcome, Tally
from fedping.protocol.enrolment import enrol, hash_assignment
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.notation import milliseconds_of
from fedping.protocol.study import Arm, Declared, Piece, PublicStudy, Study, public_json, public_study
from fedping.protocol.study_changes import reassign_clients
from fedping.server_jobs.health.checks import check_line
from fedping.server_jobs.health.facts import CheckInput, Ingest, LineSnapshot
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import ingest_app
from tests.support.ingest_server import running_ingest
from tests.support.killed_command import killed_at
from tests.support.pings import ping_json
from tests.support.rounds import FIRST_MS, WHEN, crowd, land
from tests.support.versions import small_study

FILE = """
name = "study"
enrolment = "elsewhere"

[limits]
loss = [0.0, 100.0]

[[arms]]
name = "treatment"
share = 0.5
line = "main"
applies = true
submits = true

[[arms]]
name = "control"
share = 0.25
line = "main"

[[lines]]
name = "main"

[lines.pipeline]
min_clients = 1

[lines.guard]
norm = 50

[lines.spec]
name = "small"
model = "mine"
weights = [
  { name = "a", start = 10, step = { start = 1, min = 0.1, max = 3 } },
  { name = "b", start = 11, step = { start = 1, min = 0.1, max = 3 } },
]
"""


NEW_ARM = """
[[arms]]
name = "new"
share = 0.25
line = "main"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(FILE)
    (tmp_path / "landing").mkdir()
    assert command(path, "create", "--landing", str(tmp_path / "landing")) == 0
    return path


def command(file: Path, word: str, *words: str) -> int:
    return main(["study", word, str(file), "--own-model", "mine", "--store", str(file.parent / "store"), *words])


def edit(file: Path, *pairs: tuple[str, str]) -> None:
    text = FILE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def store_of(file: Path) -> ModelStore:
    return open_store(file.parent / "store")


def play(file: Path) -> str:
    store, landing = store_of(file), file.parent / "landing"
    return run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    ).status


def is_the_same_again(file: Path, number: int) -> bool:
    return recompute(store_of(file), file.parent / "landing", "study", "main", number, NumpyEngine()).identical


def test_versions_of_before_are_computed_again_with_the_settings_of_then(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = file.parent / "landing"
    land(landing, crowd(20))
    assert play(file) == "published"
    edit(
        file,
        ("min_clients = 1\n", "min_clients = 5\n"),
        ("loss = [0.0, 100.0]", "loss = [0.0, 3.0]"),
        ("norm = 50", "norm = 40\njump = 20"),
        ("share = 0.25", "share = 0.3"),
    )
    assert command(file, "change", "--because", "the loss was never above 3") == 0
    told = capsys.readouterr().out
    for line in (
        "limits.loss: [0.0,100.0] -> [0.0,3.0]",
        "arms.control.share: 0.25 -> 0.3",
        "lines.main.pipeline.min_clients: 1 -> 5",
        "lines.main.guard.norm: 50.0 -> 40.0",
        "has these settings from its next round on",
    ):
        assert line in told
    assert is_the_same_again(file, 1)

    land(landing, crowd(4, version=1, first_document=100), iteration=1, at_ms=FIRST_MS + 1000)
    assert play(file) == "waiting"
    land(landing, crowd(30, version=1, first_document=200, seed=3), iteration=1, at_ms=FIRST_MS + 2000)
    assert play(file) == "published"
    store = store_of(file)
    first, second = (store.version("study", "main", number).lineage for number in (1, 2))
    assert (first.settings, second.settings) == (0, 1)
    assert "beyond_limits" not in first.counts
    assert second.counts["beyond_limits"] > 0
    assert first.config_digest != second.config_digest

    edit(file)
    assert command(file, "change") == 0
    assert store.studies.settings("study")[0] == 2
    assert store.study("study") == store.studies.settings("study", 0)[1]
    assert is_the_same_again(file, 1)
    assert is_the_same_again(file, 2)
    assert command(file, "change") == 0
    assert "nothing changed" in capsys.readouterr().out

    assert main(["study", "history", "study", "--store", str(file.parent / "store"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["changed", "changed"]
    assert rows[0]["because"] == "the loss was never above 3"
    assert "lines.main.pipeline.min_clients: 1 -> 5" in rows[0]["told"]
    assert command(file, "create", "--landing", str(landing)) == 0
    assert "is already in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        ([("start = 10", "start = 12")], "lines.main.spec.weights.a.start: 10.0 -> 12.0"),
        ([("min_clients = 1\n", 'min_clients = 1\nweighting = "examples"\n')], 'weighting: "client" -> "examples"'),
        ([('[[arms]]\nname = "control"\nshare = 0.25\nline = "main"\n', "")], "arms.control: {"),
        ([("applies = true\n", "")], "arms.treatment.applies: true -> false"),
        ([('enrolment = "elsewhere"', 'enrolment = "hash"')], 'enrolment: "elsewhere" -> "hash"'),
    ],
)
def test_what_may_not_change_is_named_with_both_values(
    file: Path, pairs: list[tuple[str, str]], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(file, *pairs)
    assert command(file, "change") == 2
    said = capsys.readouterr().err
    assert told in said
    assert "create the changed study under a new name" in said
    assert store_of(file).studies.history("study") == []


def test_a_dry_run_changes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, ("min_clients = 1\n", "min_clients = 2\n"))
    capsys.readouterr()
    assert command(file, "change", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "study": "study",
        "changes": ["lines.main.pipeline.min_clients: 1 -> 2"],
        "changed": False,
    }
    assert store_of(file).studies.history("study") == []
    edit(file, ('name = "study"', 'name = "other"'))
    assert command(file, "change") == 1
    assert "has no study 'other'" in capsys.readouterr().err


def test_a_change_that_is_killed_has_happened_or_not_and_goes_on(file: Path) -> None:
    edit(file, ("min_clients = 1\n", "min_clients = 2\n"))
    words = ("study", "change", str(file), "--own-model", "mine", "--store", str(file.parent / "store"))
    assert killed_at(1, *words) == -signal.SIGKILL
    assert store_of(file).study("study").lines[0].pipeline.min_clients == 1
    assert killed_at(2, *words) == 0
    assert store_of(file).study("study").lines[0].pipeline.min_clients == 2


def test_of_two_changes_at_once_one_wins(file: Path) -> None:
    store = store_of(file)
    study = store.study("study")
    one, other = (msgspec.structs.replace(study, tickets=tickets) for tickets in ("required", "none"))
    assert store.studies.change(one, ("tickets",), at=WHEN, by="ana", after=0) == 1
    with pytest.raises(HistoryConflict, match="ana was faster, and has changed settings"):
        store_of(file).studies.change(other, ("tickets",), at=WHEN, after=0)
    assert store_of(file).study("study") == one


def test_what_is_paused_stays_so_when_settings_change(file: Path) -> None:
    where = ["--store", str(file.parent / "store")]
    assert main(["study", "pause", "study", *where]) == 0
    edit(file, ("min_clients = 1\n", "min_clients = 2\n"))
    assert command(file, "change") == 0
    assert store_of(file).studies.declared("study").state == "paused"
    assert main(["study", "resume", "study", *where]) == 0
    assert store_of(file).studies.declared("study").state == "running"
    assert store_of(file).study("study").lines[0].pipeline.min_clients == 2


def test_a_running_ingest_follows_a_change_and_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, landing = tmp_path / "store", tmp_path / "landing"
    landing.mkdir()
    file = tmp_path / "study.toml"
    file.write_text(FILE)
    assert command(file, "create", "--landing", str(landing)) == 0
    ping = ping_json(study_variation="new", update=None)

    def answer() -> tuple[int, str]:
        posting = urllib.request.Request(
            f"{server.url}/submit/study/frecency-update/1/{uuid.uuid4()}",
            json.dumps(ping).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(posting) as told:
                return told.status, ""
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]

    def wait_for(code: int) -> str:
        deadline = time.monotonic() + 240
        while (told := answer())[0] != code:
            assert time.monotonic() < deadline, told
            time.sleep(0.05)
        return told[1]

    with running_ingest(store, landing, "--workers", "1") as server:
        assert "has no arm 'new'" in wait_for(400)
        file.write_text(
            FILE.replace("[[lines]]", '[[arms]]\nname = "new"\nshare = 0.25\nline = "main"\n\n[[lines]]', 1)
        )
        assert command(file, "change") == 0
        wait_for(200)
        told = server.ask("/models/study/study.json")
        assert [arm["name"] for arm in told["arms"]] == ["treatment", "control", "new"]
        assert main(["study", "end", "study", "--store", str(store), "--because", "it is over"]) == 0
        assert "has ended and accepts no more pings; stop sending" in wait_for(410)
        told = server.ask("/models/study/study.json")
        assert told["ended"]
    assert "it is over" not in json.dumps(told), "clients are not told why, nor by whom"


def test_ingest_takes_pings_of_a_new_arm_without_a_restart(tmp_path: Path) -> None:
    ingest = ingest_app(tmp_path)
    catalogue, store = ingest.services.catalogue, open_store(tmp_path / "store")
    mine = ping_json(study_variation="new", update=None)
    assert ingest.ping(mine).status_code == 400
    study = store.study("study")
    arms = tuple(msgspec.structs.replace(arm, share=arm.share / 2) for arm in study.arms)
    changed = msgspec.structs.replace(study, arms=(*arms, Arm(name="new", share=0.2, line="main")))
    store.studies.change(changed, ("arms.new",), at=WHEN, after=0)
    catalogue.refresh()
    assert ingest.ping(mine).status_code == 200
    assert [arm["name"] for arm in ingest.client.get("/models/study/study.json").get_json()["arms"]][-1] == "new"
    assert ingest.ping().status_code == 200


SHARES = st.lists(st.sampled_from([0.03, 0.05, 0.1, 0.15, 0.2, 1 / 3]), min_size=1, max_size=4)


def _dealt(*shares: float) -> Study:
    line = small_study().lines
    arms = [Arm(name="arm0", share=shares[0], line="main", applies=True, submits=True)]
    arms += [Arm(name=f"arm{n}", share=share, line="main") for n, share in enumerate(shares[1:], 1)]
    return Study(name="study", arms=tuple(arms), lines=line, enrolment="hash")


def _arms(study: Study, ids: list[str]) -> list[str | None]:
    return [arm and arm.name for arm in (enrol(study, each) for each in ids)]


IDS = [str(uuid.UUID(int=n)) for n in range(300)]


@given(st.lists(SHARES, min_size=2, max_size=4))
def test_no_client_of_an_arm_gets_into_another_however_often_shares_change(steps: list[list[float]]) -> None:
    study = _dealt(*(steps[0] if sum(steps[0]) <= 1 else [0.1]))
    for shares in steps[1:]:
        # existing arms stay
        wanted = [*shares, *(arm.share for arm in study.arms[len(shares) :])]
        if sum(wanted) > 1:
            continue
        try:
            changed = reassign_clients(study, _dealt(*wanted))
        except InvalidSettings:
            continue
        changed = msgspec.json.decode(msgspec.json.encode(changed), type=Study)
        before, after = _arms(study, IDS), _arms(changed, IDS)
        assert all(one == other or None in (one, other) for one, other in zip(before, after, strict=True))
        sizes = {arm.name: arm.share for arm in study.arms}
        for arm in changed.arms:  # a growing arm loses no client, a shrinking arm gets none
            was, now = (
                {each for each, name in zip(IDS, names, strict=True) if name == arm.name} for names in (before, after)
            )
            assert arm.share < sizes.get(arm.name, 0.0) or was <= now
            assert arm.share > sizes.get(arm.name, 0.0) or now <= was
        dealt = hash_assignment(changed)
        assert dealt is not None
        assert [dealt.arm_of(uuid.UUID(each)) for each in IDS] == after
        places = dealt.places(np.frombuffer(b"".join(uuid.UUID(each).bytes for each in IDS), np.uint8).reshape(-1, 16))
        assert [None if place < 0 else dealt.arms[place] for place in places] == after
        study = changed


def test_arms_that_stay_side_by_side_need_no_pieces() -> None:
    study = _dealt(0.2, 0.2)
    for shares in ((0.2, 0.4), (0.2, 0.1), (0.2, 0.2, 0.3), (0.2, 0.2)):
        assert reassign_clients(study, _dealt(*shares)) == _dealt(*shares)
    assert reassign_clients(study, _dealt(0.3, 0.2)).pieces == (
        Piece(arm="arm0", end=0.2),
        Piece(arm="arm1", end=0.4),
        Piece(arm="arm0", end=0.5),
    )
    with pytest.raises(InvalidSettings, match=r"arm 'arm2' .* 10 % of all clients would have to come from other arms"):
        reassign_clients(_dealt(0.5, 0.4), _dealt(0.4, 0.4, 0.2))
    with pytest.raises(InvalidSettings, match="leave 'pieces' out"):
        msgspec.structs.replace(study, pieces=(Piece(arm="arm0", end=0.3), Piece(arm="arm1", end=0.5)))


def test_both_arms_grow_and_clients_are_told_where_they_lie(tmp_path: Path, file: Path) -> None:
    edit(file, ('enrolment = "elsewhere"', 'enrolment = "hash"'), ('name = "study"', 'name = "grows"'))
    landing = ["--landing", str(tmp_path / "landing")]
    assert command(file, "create", *landing) == 0
    first = store_of(file).study("grows")
    dealt = file.read_text().replace("share = 0.5", "share = 0.55").replace("share = 0.25", "share = 0.4")
    file.write_text(dealt)
    assert command(file, "change") == 0
    study = store_of(file).study("grows")
    before, after = _arms(first, IDS), _arms(study, IDS)
    assert before != after
    assert all(one in (None, other) for one, other in zip(before, after, strict=True))
    told = public_json(public_study(study))
    assert _arms(msgspec.json.decode(told, type=PublicStudy), IDS) == after  # type: ignore[arg-type]
    assert command(file, "change") == 0
    assert command(file, "create", *landing) == 0, "the file is that of the study as it is"
    assert len(store_of(file).studies.history("grows")) == 1


def test_arms_are_judged_by_the_rounds_since_their_shares_changed() -> None:
    study = small_study()
    arms = {"treatment": ArmSummary(pings=7000, examples=1, loss=None, rank_selected=None)}
    arms["control"] = ArmSummary(pings=3000, examples=1, loss=None, rank_selected=None)
    made = Tally(origin="round", arms=arms, aggregate=Counted(pings=6000, clients=6000))
    outcomes = tuple(Outcome(iteration=n, created=WHEN, lineage=made) for n in range(1, 5))
    facts = CheckInput(
        study="study",
        declared=Declared(),
        arms=tuple(msgspec.structs.replace(arm, share=0.5) for arm in study.arms),
        line=LineSnapshot(name="main", min_clients=1, outcomes=outcomes),
        ingest=Ingest(state="running"),
        now=0.0,
    )
    assert "arms" in {finding.name for finding in check_line(facts).findings}
    assert "arms" not in {finding.name for finding in check_line(msgspec.structs.replace(facts, settings=1)).findings}


def test_an_analysis_over_other_shares_is_warned_of(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(file)
    _warn_of_other_shares(store, "study", None)
    edit(file, ("min_clients = 1\n", "min_clients = 2\n"))
    assert command(file, "change") == 0
    _warn_of_other_shares(store, "study", None)
    assert "other shares" not in capsys.readouterr().err
    edit(file, ("share = 0.25", "share = 0.3"))
    assert command(file, "change") == 0
    when = store.studies.history("study")[-1].at[:19]
    _warn_of_other_shares(store, "study", None)
    assert f"give --since {when} to count from then" in capsys.readouterr().err
    _warn_of_other_shares(store, "study", milliseconds_of(f"{when}+00:00"))
    assert capsys.readouterr().err == ""
