"""The health checks of a private line: they report its budget, and no exact counts or false alarms from noise."""

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fedping.model_store.helper_requests import PendingRequest
from fedping.model_store.version import ArmSummary, Outcome, Tally
from fedping.protocol.notation import time_at
from fedping.protocol.privacy import ReleasedMeans, standard_errors
from fedping.protocol.study import Arm, Declared
from fedping.server_jobs.health.checks import check_line
from fedping.server_jobs.health.facts import CheckInput, Ingest, Landed, LineSnapshot, PrivateFacts
from fedping.server_jobs.health.snapshot import StudyMonitor
from fedping.server_jobs.ingest.counters import FIELDS, Came, Recently
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.round import RoundOptions, run_round
from tests.support.private_rounds import land_private
from tests.support.rounds import WHEN, store_with
from tests.support.shared_rounds import KEY, Refusing, shared_line

ARMS = (
    Arm(name="treatment", share=0.5, line="main", applies=True, submits=True),
    Arm(name="control", share=0.5, line="main"),
)
NOW = 1_767_225_600.0 + 6 * 600


def facts(
    left: int = 60,
    noise: float = 30.0,
    pings: tuple[int, int] = (300, 300),
    loss: tuple[float, float] = (0.3, 0.3),
    ingest: Ingest | None = None,
) -> CheckInput:
    told = zip(("treatment", "control"), pings, loss, strict=True)
    arms = {name: ArmSummary(pings=n, examples=n, loss=of, rank_selected=None) for name, n, of in told}
    tally = Tally(origin="round", counts={"used": sum(pings)}, arms=arms)
    outcomes = tuple(
        Outcome(iteration=k, created=f"2026-01-01T00:{10 * k:02d}:00.000+00:00", lineage=tally) for k in range(1, 6)
    )
    private = PrivateFacts(
        guarantee="much",
        epsilon=0.5,
        delta=1e-6,
        most=1.0,
        releases=100 - left,
        rounds=100,
        rounds_left=left,
        noise=noise,
        loss=(0.0, 1.0),
    )
    landed = Landed(version=5, pings=77, files=1, newest_ms=1)
    line = LineSnapshot(name="main", min_clients=1, outcomes=outcomes, landed=landed, privacy=private)
    ingest = ingest or Ingest(state="running")
    return CheckInput(study="s", declared=Declared(), arms=ARMS, line=line, ingest=ingest, now=NOW, discreet=True)


def found(seen: CheckInput) -> list[tuple[str, str]]:
    return [(one.name, one.severity) for one in check_line(seen).findings]


def test_few_rounds_left_are_a_warning_and_none_is_a_problem() -> None:
    assert found(facts(left=11)) == []
    assert found(facts(left=10)) == [("privacy", "warning")]
    assert check_line(facts(left=1)).findings[0].sentence.startswith("1 round is left of the 100")
    assert found(facts(left=0)) == [("privacy", "problem")]
    assert "is spent: all its 100 rounds" in check_line(facts(left=0)).findings[0].sentence


def test_shares_and_losses_within_the_noise_raise_no_alarm() -> None:
    uneven = facts(noise=0, pings=(180, 300), loss=(0.6, 0.3))
    assert found(uneven) == [("loss", "problem"), ("arms", "warning")]
    assert found(facts(noise=80, pings=(180, 300), loss=(0.6, 0.3))) == []
    assert found(facts(noise=1, pings=(180, 300), loss=(0.6, 0.3))) == [("loss", "problem"), ("arms", "warning")]


def test_clients_are_new_with_every_version_for_their_ids_are() -> None:
    hour = int(NOW // 3600)
    assert found(facts(ingest=Ingest(state="running", newcomers={"s": {hour - 9: 1, hour: 10_000}}))) == []


@pytest.mark.parametrize(
    "ingest",
    [
        Ingest(state="stopped", pending=4711),
        Ingest(state="running", pending=4711, waiting_since=0.0),
        Ingest(
            state="running",
            recent={"s": Recently(window=Came(accepted=4711, rejected={"not_json": 4711}))},
        ),
        Ingest(
            state="running",
            recent={"s": Recently(window=Came(accepted=4711, rejected={"busy": 4711}))},
        ),
        Ingest(state="running", requests=dict.fromkeys(FIELDS, 4711)),
    ],
)
def test_no_sentence_says_how_many_pings_have_come(ingest: Ingest) -> None:
    findings = check_line(facts(ingest=ingest)).findings
    assert findings
    assert not any("4,711" in one.sentence or "9,422" in one.sentence for one in findings)


@pytest.mark.parametrize("reason", ["not_json", "busy"])
@pytest.mark.parametrize("study", ["s", ""])
def test_no_finding_about_refusals_depends_on_how_many_pings_were_accepted(reason: str, study: str) -> None:
    told = []
    for refused in (0, 1, 10, 30, 49, 50, 51, 100, 500, 10_000):
        seen = set()
        for accepted in (0, 1, 20, 49, 50, 150, 900, 10_000):
            came = Came(accepted=accepted, rejected={reason: refused})
            newest = Came(accepted=min(accepted, 100), rejected={reason: min(refused, max(0, 100 - accepted))})
            recent = {study: Recently(window=came, newest=newest), "t": Recently(window=Came(accepted=accepted))}
            seen.add(check_line(facts(ingest=Ingest(state="running", recent=recent))).findings)
        assert len(seen) == 1, refused
        told.append(len(seen.pop()))
    assert told == ([0] * 5 + [1] * 5)


def test_the_error_of_a_ratio_is_that_of_simulated_noise() -> None:
    import numpy as np

    rng, noise = np.random.default_rng(0), 12.0
    clients, losses = (value + rng.normal(0, noise, 40_000) for value in (400.0, 120.0))
    error = standard_errors(ReleasedMeans(400.0, 1.6, None), noise, (1.0, 3.0)).loss
    assert error is not None
    assert math.isclose(error, float(np.std(1 + 2 * losses / clients)), rel_tol=0.02)


def waiting_since(minutes: int) -> CheckInput:
    """Return a line with rounds every 10 minutes, which has waited for its helper for some minutes."""
    since = time_at(round(1000 * NOW) - 60_000 * minutes)
    seen = facts()
    assert seen.line.privacy is not None
    private = replace(seen.line.privacy, shared=True, waiting=PendingRequest(since=since, why="can't reach the helper"))
    return replace(seen, line=replace(seen.line, privacy=private))


@pytest.mark.parametrize(("minutes", "severity"), [(20, None), (21, "warning"), (40, "warning"), (41, "problem")])
def test_a_line_that_waits_for_its_helper_says_so(minutes: int, severity: str | None) -> None:
    assert found(waiting_since(minutes)) == ([] if severity is None else [("helper", severity)])


def test_a_late_version_of_a_line_that_waits_is_told_once_with_the_reason() -> None:
    late = replace(waiting_since(60), now=NOW + 7200)
    assert found(late) == [("helper", "problem")]
    [awaited] = check_line(late).findings
    assert awaited.message.code == "helper_awaited"
    assert "since 2026-01-01 00:00 UTC: can't reach the helper." in awaited.sentence
    assert late.line.privacy is not None
    idle = replace(late, line=replace(late.line, privacy=replace(late.line.privacy, waiting=None)))
    [only] = check_line(idle).findings
    assert only.name == "rounds"
    assert "enough clients in every arm" in only.sentence


def test_what_a_round_waits_for_is_read_from_the_store_and_gone_with_the_answer(tmp_path: Path) -> None:
    from fedping.server_jobs.round.engine import NumpyEngine

    line = shared_line(tmp_path)
    store = store_with(tmp_path / "store", line.study)
    land_private(tmp_path / "landing", line.study, [*line.crowd(9), *line.crowd(9, arm="control")])
    settings = IngestSettings(store=tmp_path / "store", landing=tmp_path / "landing", journal=tmp_path / "journal")
    watch = StudyMonitor(settings)

    def waits() -> PendingRequest | None:
        private = watch.line("private", "main", Ingest(state="running")).line.privacy
        assert private is not None
        return private.waiting

    def round_with(helper: Any) -> None:
        run_round(
            store,
            tmp_path / "landing",
            "private",
            "main",
            NumpyEngine(),
            RoundOptions(clock=lambda: WHEN, code_version="test", privacy_key=KEY, helper=helper),
        )

    assert waits() is None
    round_with(Refusing("storage"))
    seen = waits()
    assert seen is not None
    assert (seen.since, seen.why) == (WHEN, "it rejects the request (storage: because it likes to)")
    round_with(line.way)
    assert waits() is None


def test_that_no_answer_can_come_any_more_is_a_problem_at_once() -> None:
    seen = waiting_since(0)
    assert seen.line.privacy is not None
    assert seen.line.privacy.waiting is not None
    over = replace(seen.line.privacy.waiting, why="it rejects the request (answered: twice)", for_good=True)
    lost = replace(seen, line=replace(seen.line, privacy=replace(seen.line.privacy, waiting=over)))
    assert found(lost) == [("helper", "problem")]
    [finding] = check_line(lost).findings
    assert finding.message.code == "helper_lost"
    assert "2026-01-01 01:00 UTC: it rejects the request (answered: twice)." in finding.sentence
    assert "fedping store continue" in finding.sentence
