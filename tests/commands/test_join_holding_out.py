"""Rows that an institution holds out: never trained on, and used to evaluate versions, in a real round."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fedping.client_sim.data import load
from fedping.client_sim.joining import folder
from fedping.client_sim.joining.holding_out import in_arm
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.landing import open_landing
from fedping.protocol.limits import Limits
from fedping.protocol.study import Arm, Study, public_study
from fedping.server_jobs.participants import evaluations
from tests.support.faulty_server import LANDED, Answer, faulty_server, refusal
from tests.support.ingest_server import running_ingest
from tests.support.institutions import ARMS, STUDY, Typed, tumours, typed_join
from tests.support.rounds import store_with


def study_with_place(**study: Any) -> Study:
    return replace(tumours(arms=ARMS), **{"enrolment": "hash", **study})


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    return typed_join(tmp_path, capsys)


def test_an_institution_sends_what_it_learned_and_how_the_version_does_on_other_rows(typed: Typed) -> None:
    with faulty_server(study_with_place()) as server:
        shown, said = typed(server.url, "--hold-out", "0.25", "--show")
        assert "48 held-out rows" in said or "47 held-out rows" in said
        out, _ = typed(server.url, "--hold-out", "0.25", "--yes", "--rounds", "1", "--json")
        held, learned = (json.loads(attempt.body) for attempt in server.attempts)
    assert [json.loads(line) for line in shown.splitlines()] == [held, learned]
    assert [json.loads(line)["arm"] for line in out.splitlines()] == ["held-out", "hospitals"]
    assert held["clientId"] != learned["clientId"]
    assert held["payload"]["update"] is None
    assert "confusion" not in learned["payload"]
    assert held["payload"]["examples"] + learned["payload"]["examples"] == 190
    # Version 0 has zero weights, so all rows are classified as class 0.
    cells = np.array(held["payload"]["confusion"]).reshape(2, 2)
    assert cells.sum() == held["payload"]["examples"]
    assert cells[:, 1].sum() == 0
    assert cells.sum(axis=1) == pytest.approx(0.25 * classes_of(0), abs=1)


def test_it_is_said_which_of_the_two_tickets_is_missing(typed: Typed) -> None:
    with faulty_server(study_with_place()) as server:
        server.plan = lambda name, attempt: refusal(403, "a ticket is missing")
        _, said = typed(server.url, "--hold-out", "0.25", "--yes", "--rounds", "1", code=1)
        client = json.loads(server.attempts[-1].body)["clientId"]
    assert f"a ticket for the client id {client}, and give its file with --held-out-ticket" in said


def test_what_is_refused_of_the_rows_held_out_is_told_after_the_training_and_does_not_stop_it(typed: Typed) -> None:
    with faulty_server(study_with_place()) as server:

        def plan(name: str, _: int) -> Answer:
            body = next(attempt.body for attempt in server.attempts if attempt.document_id == name)
            held = json.loads(body)["payload"]["update"] is None
            return refusal(422, "the loss is outside of the limits") if held else LANDED

        server.plan = plan
        for _ in range(2):
            _, said = typed(server.url, "--hold-out", "0.25", "--yes", "--rounds", "1", code=1)
            assert "the server rejected the ping of version 0: " in said
        trains = [json.loads(attempt.body)["payload"]["update"] is not None for attempt in server.attempts]
    assert trains.count(True) == 1
    assert trains[:2] == [False, True]


@pytest.mark.parametrize("share", ["0.25", None])
def test_looking_keeps_no_share_and_an_older_folder_is_held_to_what_it_did(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str | None
) -> None:
    mine, other = (["--hold-out", "0.25"], []) if share else ([], ["--hold-out", "0.25"])
    # Without --hold-out the id decides the arm, and one of the two arms doesn't train.
    monkeypatch.setattr(folder, "any_seed", in_arm(public_study(study_with_place()), lambda arm: arm.submits))
    with faulty_server(study_with_place()) as server:
        typed(server.url, *mine, "--yes", "--rounds", "1")
        [kept] = [file for file in tmp_path.rglob("progress.json") if file.parent.name != "held-out"]
        older = json.loads(kept.read_text())
        del older["held_out"]
        kept.write_text(json.dumps(older))
        _, said = typed(server.url, *other, "--show", code=2)
        assert ("has trained with --hold-out, and" if share else "has trained without --hold-out, and") in said
        typed(server.url, *mine, "--show")
        assert json.loads(kept.read_text()).get("held_out") is None


def classes_of(number: int) -> np.ndarray[Any, Any]:
    data = load("breast-cancer")
    order = np.argsort(data.y + np.random.default_rng(5).normal(0, 0.6, len(data)))
    return np.bincount(data.y[np.array_split(order, 3)[number]], minlength=2)


def test_rounds_know_how_versions_do_on_rows_that_were_held_out(
    typed: Typed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, landing = tmp_path / "store", tmp_path / "landing"
    study = study_with_place(limits=Limits(examples=40, loss=(0.0, 100.0)))
    store_with(store, study)
    places = ["--store", str(store), "--landing", str(landing)]
    with running_ingest(store, landing, "--workers", "1") as server:
        for version in range(2):
            for number in range(3):
                typed(server.url, "--hold-out", "0.3", "--yes", "--rounds", "1", number=number)
            server.flush()
            assert main(["round", STUDY, "--engine", "numpy", *places]) == 0
            made = open_store(store).version(STUDY, "main", version + 1).lineage
            assert made is not None
            assert made.counts["used"] == 3
            assert (made.arms["held-out"].pings, made.arms["held-out"].examples) == (3, 120)
    first, second = evaluations(open_landing(landing), study, "main")
    assert (first.version, first.clients, first.examples) == (0, 3, 120)
    assert second.loss < first.loss
    assert second.accuracy is not None
    assert first.accuracy is not None
    assert second.worst is not None
    assert second.accuracy > 0.9 > 0.7 > first.accuracy
    assert second.worst <= second.accuracy
    assert first.balanced_accuracy == 0.5
    assert np.sum(second.confusion) == pytest.approx(120)
    capsys.readouterr()
    assert main(["landing", "evaluation", STUDY, *places]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("tumours/main: version     0 on 120 rows of 3 clients in arm 'held-out'   loss 0.6931")
    assert "balanced over classes 0.5000" in told[0]
    assert main(["landing", "evaluation", STUDY, "--json", *places]) == 0
    assert [json.loads(line)["version"] for line in capsys.readouterr().out.splitlines()] == [0, 1]
    assert main(["landing", "clients", STUDY, "--json", *places]) == 0
    roll = json.loads(capsys.readouterr().out)
    assert roll["clients"] == 6
    assert {(one["arm"], one["version"], one["pings"]) for one in roll["listed"]} == {
        ("hospitals", 1, 2),
        ("held-out", 1, 2),
    }
    assert {one["examples"] for one in roll["listed"]} == {40}  # the limit
    assert all(len(one["client"]) == 8 for one in roll["listed"])
    assert 0 < roll["noise_if_protected"] < 1
    assert main(["landing", "clients", STUDY, *places]) == 0
    listed = capsys.readouterr().out
    assert "tumours/main: 6 clients have sent valid pings" in listed
    assert f"noise on each number of their mean update: {roll['noise_if_protected']:.2g}, if each" in listed


@pytest.mark.parametrize(
    ("study", "options", "says"),
    [
        (tumours(), ["--hold-out", "0.2"], "has no arm for held-out rows"),
        (study_with_place(), ["--hold-out", "1"], "--hold-out 1 is not a share of rows"),
        (study_with_place(), ["--hold-out", "nan"], "--hold-out nan is not a share of rows"),
        (study_with_place(), ["--hold-out", "0.0001"], "leaves 0 held out and 190 to learn from"),
        (study_with_place(), ["--held-out-ticket", "x"], "--held-out-ticket needs --hold-out"),
    ],
)
def test_what_cannot_be_held_out_is_refused(typed: Typed, study: Study, options: list[str], says: str) -> None:
    with faulty_server(study) as server:
        assert says in typed(server.url, "--yes", *options, code=2)[1]
        assert server.attempts == []


def test_who_is_already_in_an_arm_that_does_not_train_holds_nothing_out(typed: Typed) -> None:
    few = (
        Arm(name="hospitals", share=1e-3, line="main", applies=True, submits=True),
        Arm(name="held-out", share=1 - 1e-3, line="main", applies=True),
    )
    with faulty_server(tumours(arms=few)) as server:
        typed(server.url, "--show")
        said = typed(server.url, "--hold-out", "0.2", "--yes", code=2)[1]
        assert "is in arm 'held-out', which does not train" in said


def test_a_round_is_over_once_both_pings_are_taken(typed: Typed) -> None:
    """The evaluation ping is first; until it is accepted, nothing is trained, and a later command continues there."""
    with faulty_server(study_with_place()) as server:
        server.plan = lambda name, attempt: refusal(503)
        typed(server.url, "--hold-out", "0.25", "--yes", "--rounds", "1", "--for", "2s", code=75)
        assert len(server.bodies()) == 1
        server.plan = lambda name, attempt: LANDED
        typed(server.url, "--hold-out", "0.25", "--yes", "--rounds", "1")
        arms = [json.loads(body)["payload"]["study_variation"] for body in server.bodies().values()]
        assert sorted(arms) == ["held-out", "hospitals"]
        typed(server.url, "--hold-out", "0.25", "--yes", "--rounds", "1", "--for", "2s", code=75)
        assert len(server.bodies()) == 2


def test_tickets_are_of_either_client(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("AAAA.1.aa\n")
    (tmp_path / "b").write_text("BBBB.1.bb\n")
    with faulty_server(study_with_place()) as server:
        tickets = ["--ticket", str(tmp_path / "a"), "--held-out-ticket", str(tmp_path / "b")]
        typed(server.url, "--hold-out", "0.25", "--yes", "--rounds", "1", *tickets)
        found = [json.loads(attempt.body)["ticket"] for attempt in server.attempts]
    assert found == ["BBBB.1.bb", "AAAA.1.aa"]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (["--hold-out", "0.2"], ["--hold-out", "0.5"], "trained with --hold-out 0.2, and with another share it would"),
        (["--hold-out", "0.2"], [], "it has learned from; give --hold-out 0.2 again, or give another folder with"),
        ([], ["--hold-out", "0.2"], "trained without --hold-out, and with another share it would evaluate"),
    ],
)
def test_rows_that_were_trained_on_are_not_held_out_later(
    typed: Typed, before: list[str], after: list[str], says: str
) -> None:
    mostly = (replace(ARMS[0], share=1 - 1e-3), replace(ARMS[1], share=1e-3))
    with faulty_server(study_with_place(arms=mostly)) as server:
        typed(server.url, *after, "--show")  # by which nothing is trained that anybody has
        typed(server.url, *before, "--yes", "--rounds", "1")
        server.publish(1)
        sent = len(server.attempts)
        for asked in ("--yes", "--show"):
            assert says in typed(server.url, *after, asked, "--for", "2s", code=2)[1]
        assert len(server.attempts) == sent
        typed(server.url, *before, "--yes", "--rounds", "1")
        assert len(server.attempts) == 2 * sent


def test_before_its_ping_is_taken_a_share_is_kept_too_unless_the_ping_is_refused(typed: Typed) -> None:
    """A ping in flight may be counted; a rejected one never is."""
    with faulty_server(study_with_place()) as server:
        server.plan = lambda name, attempt: LANDED if len(server.bodies()) == 1 else refusal(503)
        typed(server.url, "--hold-out", "0.2", "--yes", "--rounds", "1", "--for", "2s", code=75)
        assert len(server.bodies()) == 2
        assert "give --hold-out 0.2 again" in typed(server.url, "--hold-out", "0.5", "--yes", "--for", "2s", code=2)[1]
        server.plan = lambda name, attempt: refusal(400, "the update is too long")
        typed(server.url, "--hold-out", "0.2", "--yes", "--rounds", "1", code=1)
        server.plan = lambda name, attempt: LANDED
        typed(server.url, "--hold-out", "0.5", "--yes", "--rounds", "1")


def test_the_same_rows_are_held_out_each_time(typed: Typed) -> None:
    with faulty_server(study_with_place()) as server:
        first = typed(server.url, "--hold-out", "0.25", "--show")[0]
        assert typed(server.url, "--hold-out", "0.25", "--show")[0] == first
