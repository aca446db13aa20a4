"""The stage of a line: the clients that get a version first, and its promotion or withdrawal by their reports."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.dashboard.live.decisions import plan_for_held
from fedping.dashboard.live.lineage import lineage_of
from fedping.main import main
from fedping.model_store.decisions import continue_at, discard, release, rollback
from fedping.model_store.store import ModelStore, StoreError, open_store
from fedping.model_store.version import ArmSummary, GuardState, StageResult, StageState, Winsorised
from fedping.protocol.enrolment import enrol, staged_for, uuid_texts
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.guard import Guard, Stage
from fedping.protocol.model import ModelDocument, Staged
from fedping.protocol.study import Declared, Study
from fedping.server_jobs.health.findings import Health
from fedping.server_jobs.health.monitor import dedup_key, payload
from fedping.server_jobs.health.snapshot import StudyMonitor, ingest_snapshot
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.round import RoundOptions, RoundResult, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.guard import verdict
from fedping.server_jobs.round.plan import StageSide
from tests.support.rounds import FIRST_MS, WHEN, Ping, crowd, id_of, land, store_with
from tests.support.versions import after, small_study

ROOT = Path(__file__).parents[2]
CLIENTS, SHARE = 200, 0.25
STAGE = Stage(share=SHARE, clients=20, most=1.1)


def staging(stage: Stage = STAGE, **guard: object) -> Study:
    study = small_study()
    line = msgspec.structs.replace(study.lines[0], guard=Guard(**{"rounds": 50, "window": 50, "stage": stage} | guard))
    return msgspec.structs.replace(study, lines=(line,))


def play(store: ModelStore, landing: Path, now: str = WHEN) -> RoundResult:
    return run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: now, code_version="test")
    )


def gets_it_first(client: int, iteration: int, share: float = SHARE) -> bool:
    return staged_for("study", "main", iteration, share, str(UUID(bytes=id_of("client", client))))


def pings_of(version: int, staged: int, *, tried: float, stayed: float, clients: int = CLIENTS) -> list[Ping]:
    """Return a ping for each client, with the loss ``tried`` on the staged version or ``stayed`` on the old one."""
    found = []
    for each in crowd(clients, seed=staged, version=version, first_document=10_000 * (staged + 1)):
        first = gets_it_first(each.client, staged)
        number, loss = (staged, tried) if first else (version, stayed)
        found.append(Ping(each.document, each.client, each.update, version=number, loss=loss))
    return found


def land_stage(landing: Path, version: int, staged: int, at: int, **losses: float | int) -> None:
    pings = pings_of(version, staged, **losses)
    for number in (version, staged):
        mine = [ping for ping in pings if ping.version == number]
        if mine:
            land(landing, mine, iteration=number, at_ms=FIRST_MS + at)


@pytest.fixture
def staged(tmp_path: Path) -> ModelStore:
    """Give a store with staged version 1, and pings below tmp_path."""
    store = store_with(tmp_path / "store", staging())
    land(tmp_path, crowd(CLIENTS, seed=0), iteration=0)
    assert play(store, tmp_path).status == "staged"
    return store


def shown(tmp_path: Path, name: str = "latest") -> ModelDocument:
    return msgspec.json.decode((tmp_path / f"store/study/main/public/{name}.json").read_bytes(), type=ModelDocument)


def test_a_new_version_goes_to_a_share_of_the_clients_first(staged: ModelStore, tmp_path: Path) -> None:
    assert staged.head("study", "main").iteration == 0
    newest, first = shown(tmp_path), shown(tmp_path, "staged-1")
    assert (newest.iteration, newest.staged) == (0, Staged(iteration=1, share=SHARE))
    held = staged.held.held_version("study", "main")
    assert held is not None
    assert (first.iteration, first.model) == (1, held.model)
    assert shown(tmp_path, "0").staged is msgspec.UNSET, "what is fetched by its number never changes"
    result = play(staged, tmp_path)
    assert result.status == "staged"
    assert result.sentence == (
        "study/main: version 1 is staged to 25 % of clients; 0 of 20 heard, 0 of 20 heard of those who stay"
    )


def test_one_that_holds_is_for_everybody_and_its_pings_are_the_next_rounds(staged: ModelStore, tmp_path: Path) -> None:
    held = staged.held.held_version("study", "main")
    assert held is not None
    land_stage(tmp_path, 0, 1, 5, tried=1.05, stayed=1.0)
    result = play(staged, tmp_path)
    assert result.status == "published"
    head = staged.head("study", "main")
    assert (head.iteration, head.weights, head.state) == (1, held.weights, held.state)
    guard = head.lineage.guard
    assert guard is not None
    assert guard.decision == "promoted"
    assert guard.stage is not None
    assert guard.stage.tried is not None
    assert guard.stage.stayed is not None
    tried = sum(gets_it_first(client, 1) for client in range(CLIENTS))
    assert (guard.stage.tried.clients, guard.stage.stayed.clients) == (tried, CLIENTS - tried)
    assert guard.stage.tried.arms["treatment"].loss == pytest.approx(1.05)
    assert f"{tried} clients that tried it had a mean loss of 1.05 and {CLIENTS - tried} clients" in result.sentence
    assert shown(tmp_path).iteration == 1
    assert shown(tmp_path).staged is msgspec.UNSET
    assert recompute(staged, tmp_path, "study", "main", 1, NumpyEngine()).identical
    again = play(staged, tmp_path)
    assert (again.status, again.iteration, again.counts["used"], again.counts["stale"]) == ("staged", 1, tried, 0)


def test_stale_pings_that_land_while_a_version_is_staged_are_counted_in_its_lineage(
    staged: ModelStore, tmp_path: Path
) -> None:
    land_stage(tmp_path, 0, 1, 5, tried=1.0, stayed=1.0)
    assert play(staged, tmp_path).status == "published"
    second = play(staged, tmp_path)
    assert (second.status, second.counts["stale"]) == ("staged", 0)
    land_stage(tmp_path, 1, 2, 10, tried=1.0, stayed=1.0)
    late = crowd(3, seed=7, version=0, first_document=90_000)
    land(tmp_path, late, iteration=0, at_ms=FIRST_MS + 10)
    assert play(staged, tmp_path).status == "published"
    assert staged.head("study", "main").lineage.counts["stale"] == len(late)
    assert recompute(staged, tmp_path, "study", "main", 2, NumpyEngine()).identical


@pytest.mark.parametrize(("tried", "status"), [(1.05, "published"), (1.2, "withdrawn")])
def test_it_is_judged_by_the_settings_that_it_was_made_with(
    staged: ModelStore, tmp_path: Path, tried: float, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = staging(Stage(share=0.5, clients=10_000, most=1.001)) if tried < 1.1 else small_study()
    staged.studies.change(now, ("lines.main.guard",), at=WHEN, after=0)
    assert play(staged, tmp_path).sentence.endswith("0 of 20 heard, 0 of 20 heard of those who stay")
    assert main(["store", "held", "study", "main", "--store", str(tmp_path / "store")]) == 0
    assert "staged to 25 % of clients, since" in capsys.readouterr().out
    land_stage(tmp_path, 0, 1, 5, tried=tried, stayed=1.0)
    assert play(staged, tmp_path).status == status
    head = staged.head("study", "main")
    assert head.lineage.settings == 0
    assert recompute(staged, tmp_path, "study", "main", head.iteration, NumpyEngine()).identical
    number = head.iteration
    land(tmp_path, crowd(CLIENTS, seed=7, version=number, first_document=90_000), iteration=number, at_ms=FIRST_MS + 9)
    assert play(staged, tmp_path).status == ("staged" if tried < 1.1 else "published")
    made = staged.held.held_version("study", "main") or staged.head("study", "main")
    assert made.lineage.settings == 1


def test_one_that_is_worse_is_withdrawn_by_itself_and_no_number_is_used_twice(
    staged: ModelStore, tmp_path: Path
) -> None:
    before = staged.head("study", "main")
    land_stage(tmp_path, 0, 1, 5, tried=1.2, stayed=1.0)
    result = play(staged, tmp_path)
    assert (result.status, result.restored) == ("withdrawn", 0)
    assert "version 1 is withdrawn, and version 0 is published again as version 2" in result.sentence
    assert "it may be 1.1 at most" in result.sentence
    head = staged.head("study", "main")
    assert (head.iteration, head.parent, head.weights, head.state) == (2, 0, before.weights, before.state)
    assert head.lineage.guard is not None
    assert head.lineage.guard.decision == "withdrawn"
    assert head.lineage.guard.stage is not None
    assert (shown(tmp_path).iteration, shown(tmp_path).staged) == (2, msgspec.UNSET)
    assert not (tmp_path / "store/study/main/public/1.json").exists()
    assert recompute(staged, tmp_path, "study", "main", 2, NumpyEngine()).identical
    assert staged.lines.trouble("study", "main") is None
    land(tmp_path, crowd(CLIENTS, seed=2, version=2), iteration=2, at_ms=FIRST_MS + 6)
    after_it = play(staged, tmp_path)
    assert (after_it.status, after_it.iteration, after_it.counts["stale"]) == ("staged", 2, 0)


def test_who_was_not_dealt_the_version_is_not_heard_of_it(staged: ModelStore, tmp_path: Path) -> None:
    land_stage(tmp_path, 0, 1, 5, tried=1.0, stayed=1.0, clients=40)
    outside = [client for client in range(5000, 5500) if not gets_it_first(client, 1)]
    forged = [Ping(90_000 + client, client, (0.0, 0.0), version=1, loss=1e5) for client in outside]
    inside = [client for client in range(5000, 5500) if gets_it_first(client, 1)]
    forged_back = [Ping(90_000 + client, client, (0.0, 0.0), version=0, loss=1e5) for client in inside]
    land(tmp_path, forged, iteration=1, at_ms=FIRST_MS + 6)
    land(tmp_path, forged_back, iteration=0, at_ms=FIRST_MS + 6)
    result = play(staged, tmp_path)
    assert result.status == "staged"
    assert result.stage is not None
    assert result.stage.tried is not None
    first = sum(gets_it_first(client, 1) for client in range(40))
    assert (result.stage.tried.clients, result.stage.tried.arms["treatment"].loss) == (first, 1.0)
    assert result.missing == f"{first} of 20 heard"
    noted = staged.held.stage("study", "main", 1)
    assert noted == result.stage


def test_pings_that_the_version_was_made_of_are_not_those_of_who_stayed(staged: ModelStore, tmp_path: Path) -> None:
    tried = [ping for ping in pings_of(0, 1, tried=1.0, stayed=1.0) if ping.version == 1]
    land(tmp_path, tried, iteration=1, at_ms=FIRST_MS + 5)
    result = play(staged, tmp_path)
    assert (result.status, result.missing) == ("staged", "0 of 20 heard of those who stay")


def test_a_stage_lasts_as_long_as_it_is_to(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", staging(msgspec.structs.replace(STAGE, minutes=30.0)))
    land(tmp_path, crowd(CLIENTS, seed=0), iteration=0)
    play(store, tmp_path)
    land_stage(tmp_path, 0, 1, 5, tried=1.0, stayed=1.0)
    result = play(store, tmp_path, "2026-01-01T00:29:00.000+00:00")
    assert result.status == "staged"
    assert "it stays staged until at least 2026-01-01 00:30:00 UTC" in result.sentence
    assert play(store, tmp_path, "2026-01-01T00:30:00.000+00:00").status == "published"


def test_a_version_that_the_guard_holds_is_not_staged(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", staging(rounds=3))
    for n in range(3):
        land(tmp_path, crowd(CLIENTS, seed=n, version=n), iteration=n, at_ms=FIRST_MS + 2 * n)
        assert play(store, tmp_path).status == "staged"
        land_stage(tmp_path, n, n + 1, 2 * n + 1, tried=1.0, stayed=1.0)
        assert play(store, tmp_path).status == "published"
    loud = Ping(90_000, 9000, (1e20, -1e20), version=3)
    land(tmp_path, [*crowd(CLIENTS, seed=9, version=3), loud], iteration=3, at_ms=FIRST_MS + 10)
    assert play(store, tmp_path).status == "held"
    assert shown(tmp_path).staged is msgspec.UNSET
    assert not (tmp_path / "store/study/main/public/staged-4.json").exists()


@pytest.mark.parametrize("decision", ["release", "discard"])
def test_people_may_decide_before_the_stage_does(
    staged: ModelStore, tmp_path: Path, decision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--store", str(tmp_path / "store")]
    assert main(["store", "held", "study", "main", *places]) == 0
    assert "is staged to 25 % of clients" in capsys.readouterr().out
    held = staged.held.held_version("study", "main")
    assert held is not None
    assert main(["round", "study", "main", f"--{decision}", *places, "--landing", str(tmp_path)]) == 0
    head = staged.head("study", "main")
    assert head.iteration == (1 if decision == "release" else 2)
    assert head.model == (held.model if decision == "release" else staged.version("study", "main", 0).model)
    assert head.lineage.guard is not None
    assert head.lineage.guard.decision == f"{decision}{'d' if decision == 'release' else 'ed'}"
    assert recompute(staged, tmp_path, "study", "main", head.iteration, NumpyEngine()).identical
    land(tmp_path, crowd(CLIENTS, seed=2, version=head.iteration), iteration=head.iteration, at_ms=FIRST_MS + 6)
    assert play(staged, tmp_path).status == "staged"


def test_no_other_version_gets_the_number_that_some_clients_have(staged: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"version 1 of line 'main' of study 'study' is staged.*Decide first"):
        staged.publish(after(staged.head("study", "main")))
    release(staged, "study", "main", created=WHEN)
    land(tmp_path, crowd(CLIENTS, seed=2, version=1), iteration=1, at_ms=FIRST_MS + 6)
    assert play(staged, tmp_path).status == "staged"
    with pytest.raises(StoreError, match=r"version 2 .* is staged"):
        rollback(staged, "study", "main", 0, created=WHEN, code_version="test")
    continue_at(staged, "study", "main", 7, created=WHEN, code_version="test")
    assert staged.head("study", "main").iteration == 7
    assert shown(tmp_path).staged is msgspec.UNSET


def test_what_the_lineage_says_of_a_stage_has_to_lead_to_its_decision(staged: ModelStore, tmp_path: Path) -> None:
    land_stage(tmp_path, 0, 1, 5, tried=1.05, stayed=1.0)
    play(staged, tmp_path)
    head = staged.head("study", "main")
    guard = head.lineage.guard
    assert guard is not None
    assert guard.stage is not None
    forged = msgspec.structs.replace(guard, stage=seen(2.0, 1.0))
    lineage = msgspec.structs.replace(head.lineage, guard=forged)
    other = ModelStore(staged.documents.storage, staged.where)
    (tmp_path / "store/study/main/versions/1.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(head, lineage=lineage))
    )
    found = recompute(other, tmp_path, "study", "main", 1, NumpyEngine())
    assert not found.identical
    assert "withdrawn" in found.differences[0]


def health_of(tmp_path: Path) -> Health:
    places = IngestSettings(store=tmp_path / "store", landing=tmp_path, journal=tmp_path / "journal")
    return StudyMonitor(places).study("study", ingest_snapshot(places))[1]


def test_a_stage_is_told_wherever_health_is_and_is_no_finding(staged: ModelStore, tmp_path: Path) -> None:
    land_stage(tmp_path, 0, 1, 5, tried=1.2, stayed=1.0, clients=40)
    play(staged, tmp_path)
    first = sum(gets_it_first(client, 1) for client in range(40))
    health = health_of(tmp_path)
    assert [one for one in health.findings if one.name == "held"] == []
    [told] = health.staged
    assert (told.version, told.share, told.heard, told.wanted) == (1, SHARE, first, 20)
    assert told.sentence == f"Version 1 is staged to 25 % of clients; {first} of 20 heard."
    posted = payload("study", Declared(), health)
    assert posted["text"].endswith(told.sentence)
    assert posted["staged"][0]["version"] == 1
    land_stage(tmp_path, 0, 1, 6, tried=1.2, stayed=1.0)
    assert play(staged, tmp_path).status == "withdrawn"
    after_it = health_of(tmp_path)
    assert after_it.staged == ()
    assert dedup_key(Declared(), after_it) != dedup_key(Declared(), health)
    [finding] = [one for one in after_it.findings if one.name == "held"]
    assert finding.severity == "warning"
    assert finding.sentence.startswith("A staged version was withdrawn by version 2: ")


def test_versions_that_are_withdrawn_again_and_again_are_a_problem(staged: ModelStore, tmp_path: Path) -> None:
    found = []
    for number in (0, 2, 4):
        land_stage(tmp_path, number, number + 1, number + 5, tried=1.2, stayed=1.0)
        assert play(staged, tmp_path).status == "withdrawn"
        found += [one for one in health_of(tmp_path).findings if one.name == "held"]
        land(tmp_path, crowd(CLIENTS, version=number + 2, first_document=10**6 * (number + 1)), iteration=number + 2)
        assert play(staged, tmp_path).status == "staged"
    assert [one.severity for one in found] == ["warning", "warning", "problem"]
    assert found[-1].sentence.startswith("The last 3 staged versions were withdrawn, the last by version 6: ")
    assert "fedping round study main --release" in found[-1].sentence
    assert release(staged, "study", "main", created=WHEN).iteration == 7
    assert [one for one in health_of(tmp_path).findings if one.name == "held"] == []


def test_the_pages_tell_how_a_stage_ended_and_offer_to_decide(staged: ModelStore, tmp_path: Path) -> None:
    plan = plan_for_held(staged, "study", "main", "discard")
    assert plan["next"] == 2
    assert "Version 2 will be published with the weights and the optimizer's state of version 0" in plan["sentence"]
    assert plan_for_held(staged, "study", "main", "release")["next"] == 1
    land_stage(tmp_path, 0, 1, 5, tried=1.0, stayed=1.0)
    play(staged, tmp_path)
    made = lineage_of(staged, "study", "main", 1)
    assert made["made_by"] == (
        "Computed by a round from the pings of version 0, staged for 25 % of clients, and then published"
    )
    land(tmp_path, crowd(CLIENTS, seed=3, version=1), iteration=1, at_ms=FIRST_MS + 6)
    play(staged, tmp_path)
    land_stage(tmp_path, 1, 2, 7, tried=2.0, stayed=1.0)
    assert play(staged, tmp_path).status == "withdrawn"
    made = lineage_of(staged, "study", "main", 3)
    assert made["made_by"] == "Repeats version 1 in place of version 2, which was staged and then withdrawn"


def summary(loss: float, error: float | None = None, examples: int = 30) -> ArmSummary:
    known = None
    if error is not None:
        known = Winsorised(clients=examples, examples=examples, loss=loss, loss_error=error)
    return ArmSummary(pings=examples, examples=examples, loss=loss, rank_selected=None, winsorised=known)


def seen(tried: float, stayed: float, clients: tuple[int, int] = (30, 30), error: float | None = None) -> StageState:
    sides = [
        StageResult(clients=number, arms={"treatment": summary(loss, error)}) if number else StageResult()
        for number, loss in zip(clients, (tried, stayed), strict=True)
    ]
    return StageState(share=SHARE, tried=sides[0], stayed=sides[1])


@pytest.mark.parametrize(
    ("tried", "stayed", "decision"),
    [
        (1.1, 1.0, "promoted"),
        (1.11, 1.0, "withdrawn"),
        (0.1, 1.0, "promoted"),
        (-9.5, -10.0, "promoted"),
        (-8.5, -10.0, "withdrawn"),
        (0.0, 0.0, "promoted"),
        (0.1, 0.0, "withdrawn"),
    ],
)
def test_a_stage_decides_by_the_losses_of_both_sides(tried: float, stayed: float, decision: str) -> None:
    found = verdict(STAGE, seen(tried, stayed))
    assert found is not None
    assert found.decision == decision


def test_where_errors_are_known_chance_withdraws_no_version() -> None:
    good = verdict(STAGE, seen(1.25, 1.0, error=0.05))
    bad = verdict(STAGE, seen(1.35, 1.0, error=0.05))
    assert good is not None
    assert bad is not None
    assert (good.decision, bad.decision) == ("promoted", "withdrawn")
    assert "it may be 1.273 at most" in bad.why  # 1.1 times, and 2.33 standard errors of both


@pytest.mark.parametrize("clients", [(0, 0), (19, 500), (500, 19), (500, 0)])
def test_a_stage_waits_for_both_sides(clients: tuple[int, int]) -> None:
    assert verdict(STAGE, seen(9.0, 1.0, clients)) is None


def test_the_share_is_that_of_any_arm_and_another_for_each_version_and_line() -> None:
    ids = [str(UUID(bytes=id_of("client", n))) for n in range(20_000)]
    study = small_study()
    arms = np.array([enrol(study, one).name == "treatment" for one in ids])  # type: ignore[union-attr]
    drawn = {
        key: np.array([staged_for("study", *key, 0.1, one) for one in ids])
        for key in (("main", 1), ("main", 2), ("other", 1))
    }
    for one in drawn.values():
        assert abs(one.mean() - 0.1) < 0.01  # 4.7 standard errors
        assert abs(one[arms].mean() - one[~arms].mean()) < 0.02
    assert abs((drawn["main", 1] & drawn["main", 2]).mean() - 0.01) < 0.004
    assert abs((drawn["main", 1] & drawn["other", 1]).mean() - 0.01) < 0.004


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=20), st.booleans())
def test_a_round_knows_who_gets_it_first_as_the_client_does(ids: list[bytes], inside: bool) -> None:
    rows = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 16)
    side = StageSide(study="study", line="main", iteration=3, share=0.5, inside=inside)
    expected = [staged_for("study", "main", 3, 0.5, str(UUID(bytes=one))) is inside for one in ids]
    assert side.of(rows).tolist() == expected
    assert [text.decode() for text in uuid_texts(rows)] == [str(UUID(bytes=one)) for one in ids]


def test_a_line_whose_model_nobody_applies_cannot_be_staged() -> None:
    study = staging()
    watching = msgspec.structs.replace(study.arms[0], applies=False)
    with pytest.raises(InvalidSettings, match="are staged, but no arm of study 'study' applies them"):
        msgspec.structs.replace(study, arms=(watching, study.arms[1])).__post_init__()


def test_a_guard_that_is_disabled_stages_nothing(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", staging(enabled=False))
    land(tmp_path, crowd(CLIENTS, seed=0), iteration=0)
    assert play(store, tmp_path).status == "published"
    assert store.head("study", "main").lineage.guard is None


def killed_at(write: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a round in a process that is killed by SIGKILL at a write to the store."""
    command = [sys.executable, "-m", "tests.support.killed_round", str(write), str(folder)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )


def kills(folder: Path) -> Iterator[int]:
    """Repeat a round, killed one write later each time, and yield the writes at which it was killed."""
    for write in range(1, 100):
        done = killed_at(write, folder)
        if done.returncode == 0:
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        yield write


@pytest.mark.parametrize(
    ("tried", "decision"), [pytest.param(1.0, "promoted", marks=pytest.mark.long), (2.0, "withdrawn")]
)
def test_a_round_that_is_killed_at_any_write_goes_on_to_the_same_end(
    tmp_path: Path, tried: float, decision: str
) -> None:
    store = store_with(tmp_path / "store", staging())
    land(tmp_path / "landing", crowd(CLIENTS, seed=0), iteration=0)
    assert len(list(kills(tmp_path))) >= 3, "the version, its document, and the newest document that names it"
    assert shown(tmp_path).staged == Staged(iteration=1, share=SHARE)
    held = store.held.held_version("study", "main")
    land_stage(tmp_path / "landing", 0, 1, 5, tried=tried, stayed=1.0)
    assert len(list(kills(tmp_path))) >= 3  # the last of them may be of the round after it
    head = open_store(tmp_path / "store").head("study", "main")
    assert held is not None
    assert head.lineage.guard is not None
    assert head.lineage.guard.decision == decision
    assert head.iteration == (1 if decision == "promoted" else 2)
    assert head.model == (held.model if decision == "promoted" else store.version("study", "main", 0).model)
    assert shown(tmp_path).iteration == head.iteration
    assert recompute(store, tmp_path / "landing", "study", "main", head.iteration, NumpyEngine()).identical


def test_what_was_decided_stays_decided_where_more_has_landed_since_the_kill(
    staged: ModelStore, tmp_path: Path
) -> None:
    os.rename(tmp_path / "study=study", (tmp_path / "landing").mkdir() or tmp_path / "landing" / "study=study")
    land_stage(tmp_path / "landing", 0, 1, 5, tried=2.0, stayed=1.0)
    while staged.held.intended("study", "main") is None:
        assert killed_at(3, tmp_path).returncode == -signal.SIGKILL
    land_stage(tmp_path / "landing", 0, 1, 6, tried=0.0, stayed=9.0, clients=10 * CLIENTS)
    result = play(staged, tmp_path / "landing")
    assert result.status == "withdrawn"
    assert staged.head("study", "main").lineage.guard is not None
    assert recompute(staged, tmp_path / "landing", "study", "main", 2, NumpyEngine()).identical


def test_a_person_who_discards_is_followed_where_the_command_was_killed(staged: ModelStore, tmp_path: Path) -> None:
    from fedping.model_store.decisions import withdrawal

    held = staged.held.held_version("study", "main")
    assert held is not None
    watch = GuardState(decision="discarded", stage=held.staged)
    staged.held.intend(withdrawal(staged.head("study", "main"), held, watch, created=WHEN, code_version="test"))
    land_stage(tmp_path, 0, 1, 5, tried=1.0, stayed=1.0)
    result = play(staged, tmp_path)
    assert (result.status, staged.head("study", "main").iteration) == ("withdrawn", 2)
    assert "by a person's decision" in result.sentence
    with pytest.raises(InvalidSettings, match=r"no version .* is held"):
        discard(staged, "study", "main", created=WHEN, code_version="test")
