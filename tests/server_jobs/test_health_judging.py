"""The health checks of a study: real problems that once passed unnoticed are reported, and healthy states aren't."""

from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fedping.dashboard.live.feed import now_of
from fedping.model_store.version import ArmSummary, Counted, Outcome, Tally
from fedping.protocol.study import Arm, Declared
from fedping.server_jobs.health.checks import (
    CHECKS,
    FINDINGS,
    Check,
    check,
    check_line,
    interval,
    merge_lines,
    unreadable_study,
)
from fedping.server_jobs.health.facts import CheckInput, Ingest, Landed, LineSnapshot
from fedping.server_jobs.health.findings import RENDERERS, Health, Message, as_document, message
from fedping.server_jobs.ingest.counters import FIELDS, Came, OfStudy, Recently
from fedping.server_jobs.round_status import Failing

ARMS = (
    Arm(name="treatment", share=0.6, line="main", applies=True, submits=True),
    Arm(name="control", share=0.2, line="main"),
    Arm(name="control-no-decay", share=0.2, line="main", decays=True),
)
ROUNDS, MINUTES = 8, 30
NOW = 1_767_225_600.0 + ROUNDS * MINUTES * 60 + 600  # 2026-01-01, ten minutes after the newest version


@dataclass
class Scene:
    """A healthy line, in which a test changes one value."""

    counts: dict[str, int] = field(default_factory=lambda: {"used": 600, "other_arm": 400, "stale": 20})
    pings: dict[str, int] = field(default_factory=lambda: {"treatment": 600, "control": 200, "control-no-decay": 200})
    loss: dict[str, float] = field(default_factory=lambda: {"treatment": 80, "control": 90, "control-no-decay": 90})
    clients: int = 600
    capped: int | None = None
    landed: int = 120
    ingest: Ingest = field(default_factory=lambda: Ingest(state="running", accepted=8_000, landed=8_000))
    declared: Declared = field(default_factory=Declared)
    now: float = NOW
    origins: dict[int, str] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    stopped: bool = False
    longest: float = 0.0

    @property
    def facts(self) -> CheckInput:
        outcomes = tuple(self._outcome(number) for number in range(ROUNDS + 1))
        landed = Landed(version=ROUNDS, pings=self.landed, files=1, newest_ms=1, unreadable=self.files)
        if self.stopped:
            over = Tally(origin="rollback", restored=3, stopped=True)
            outcomes = (*outcomes[:-1], replace(outcomes[-1], lineage=over))
        line = LineSnapshot(
            name="main",
            min_clients=100,
            longest=self.longest,
            most_examples=1000,
            outcomes=outcomes,
            landed=landed,
            troubles=self.troubles,
        )
        return CheckInput(study="s", declared=self.declared, arms=ARMS, line=line, ingest=self.ingest, now=self.now)

    @property
    def health(self) -> Health:
        return check_line(self.facts)

    def _outcome(self, number: int) -> Outcome:
        created = f"2026-01-01T{number * MINUTES // 60:02d}:{number * MINUTES % 60:02d}:00.000+00:00"
        origin: Any = self.origins.get(number, "round" if number else "created")
        if origin != "round":
            return Outcome(iteration=number, created=created, lineage=Tally(origin=origin))
        arms = {
            name: ArmSummary(pings=n, examples=n, loss=self.loss.get(name), rank_selected=None)
            for name, n in self.pings.items()
        }
        made = Counted(pings=self.counts.get("used", 0), clients=self.clients, capped=self.capped)
        tally = Tally(origin="round", counts=self.counts, arms=arms, aggregate=made)
        return Outcome(iteration=number, created=created, lineage=tally)


def told(scene: Scene) -> list[tuple[str, str]]:
    return [(one.name, one.severity) for one in scene.health.findings]


def only(scene: Scene) -> str:
    """Return the sentence of the only finding."""
    (finding,) = scene.health.findings
    return finding.sentence


def test_what_is_well_is_said_to_be() -> None:
    health = Scene().health
    assert (health.verdict, health.message.code, health.findings) == ("healthy", "healthy_lines", ())


def test_a_dead_ingest_with_pings_in_its_journal_is_a_problem() -> None:
    scene = Scene(ingest=Ingest(state="stopped", pending=128, segments=2))
    assert scene.health.verdict == "problem"
    assert scene.health.headline == "Not healthy."
    assert "128 pings" in only(scene)
    assert "Start 'fedping ingest'" in only(scene)
    assert told(Scene(ingest=Ingest(state="stopped"))) == [("ingest", "problem")]
    for state in ("absent", "stopped", "unknown"):
        assert "journal /j/1" in only(Scene(ingest=Ingest(state=state, journal="/j/1")))  # type: ignore[arg-type]


def test_an_ingest_with_another_journal_is_no_reason_to_end_a_study() -> None:
    absent = Ingest(state="absent", journal="/j/1")
    for landed in (120, 0):  # right after a round nothing has landed for its version
        scene = Scene(ingest=absent, landed=landed)
        assert told(scene) == [("ingest", "warning")]
        assert "--journal" in only(scene)
        assert "study end" not in only(scene)
    nothing = dict.fromkeys(range(ROUNDS + 1), "created")
    scene = Scene(ingest=absent, landed=0, origins=nothing)
    assert told(scene) == [("ingest", "problem")]
    assert "--journal" in only(scene)
    assert "study end s" in only(scene)
    assert told(Scene(ingest=Ingest(state="unknown"))) == [("ingest", "warning")]


def test_no_version_has_to_come_once_training_is_over() -> None:
    old = NOW + 30 * 86_400
    assert told(Scene(now=old)) == [("rounds", "problem")]
    over = Scene(now=old, stopped=True).health
    assert (over.verdict, over.findings, over.over) == ("healthy", (), ("main",))
    assert over.message == Message("healthy_and_trained", (("version", 8), ("repeats", 3)))
    dead = Scene(now=old, stopped=True, ingest=Ingest(state="stopped"))
    assert (dead.health.verdict, dead.health.over, told(dead)) == ("problem", ("main",), [("ingest", "problem")])


def test_a_study_tells_which_of_its_lines_are_over() -> None:
    going, over = Scene().health, Scene(stopped=True).health
    other = replace(over, over=("other",))
    some = merge_lines(Declared(), [("main", going), ("other", other)])
    assert "training of line other is over" in some.headline
    assert some.over == ("other",)
    every = merge_lines(Declared(), [("main", over), ("other", other)])
    assert "training of all lines is over" in every.headline
    assert every.over == ("main", "other")


def test_an_iteration_may_last_as_long_as_the_line_says() -> None:
    old = NOW + 3 * 3_600
    assert told(Scene(now=old)) == [("rounds", "problem")]
    assert told(Scene(now=old, longest=3 * 3_600)) == []
    assert told(Scene(now=old + 3_600, longest=3 * 3_600)) == [("rounds", "warning")]


def test_most_pings_stale_is_a_problem() -> None:
    scene = Scene(counts={"used": 400, "other_arm": 261, "stale": 3_147}, origins={6: "rollback"})
    assert told(scene) == [("stale", "problem")]
    assert "3,147 of the 3,808 pings of the last round (83 %) were stale" in only(scene)
    assert told(Scene(counts={"used": 600, "stale": 250})) == [("stale", "warning")]
    assert told(Scene(counts={"used": 1, "stale": 3})) == [], "of twenty pings nothing is said"


def test_pings_that_a_repeated_version_left_behind_are_not_stale() -> None:
    left_behind = {"used": 400, "stale": 3_147}  # pings of version 6 had landed when an operator published 5 again as 7
    assert told(Scene(counts=left_behind, origins={7: "rollback"})) == []
    assert told(Scene(counts=left_behind, origins={7: "continued"})) == []


def test_arms_without_a_ping_are_problems() -> None:
    scene = Scene(pings={"treatment": 600, "control": 0})
    assert told(scene) == [("arms", "problem")] * 2
    names = [one.sentence.split(" has ")[0] for one in scene.health.findings]
    assert names == ["Arm control", "Arm control-no-decay"], "that the third has too many says the same"
    assert "has sent no ping in the last 5 rounds, although its share is 20 %" in scene.health.findings[0].sentence


def test_an_arm_of_another_size_than_its_share_is_a_warning() -> None:
    scene = Scene(pings={"treatment": 600, "control": 200, "control-no-decay": 100})
    assert told(scene) == [("arms", "warning")]
    assert "Arm control-no-decay has sent 500 of the 4,500 pings of the last 5 rounds (11 %)" in only(scene)


def test_arms_that_differ_by_chance_are_left_in_peace() -> None:
    assert told(Scene(pings={"treatment": 610, "control": 190, "control-no-decay": 200})) == []
    few = {"treatment": 6, "control": 4, "control-no-decay": 1}
    assert told(Scene(pings=few, clients=3, counts={"used": 6})) == []
    several_a_client = Scene(pings={"treatment": 600, "control": 140, "control-no-decay": 200}, clients=20)
    assert told(several_a_client) == [], "thirty pings a client vary more than thirty clients' would"


def with_free_arms(beside: int | None, names: tuple[str, ...] = ("plain",)) -> list[tuple[str, str]]:
    free = tuple(Arm(name=name, share=0.25 / len(names)) for name in names)
    facts = replace(Scene().facts, arms=(*ARMS, *free), beside=beside)
    return [(one.severity, one.sentence) for one in check_line(facts).findings if one.name == "arms"]


def test_arms_that_follow_no_line_are_judged_by_what_landed_meanwhile() -> None:
    assert with_free_arms(1_275) == [], "a fifth of 5,100 pings and theirs"
    assert with_free_arms(None) == []
    ((severity, said),) = with_free_arms(0)
    assert severity == "problem"
    assert "Arm plain, which follows no line, has sent 0 of the 5,100 pings of the last 5 rounds (0 %)" in said
    assert "although its share among the line's arms is 20 %" in said
    ((severity, said),) = with_free_arms(600, ("plain", "other"))
    assert severity == "warning"
    assert "Arms plain, other, which follow no line, have sent 600 of the 5,700 pings" in said


def came(accepted: int = 0, **rejected: int) -> Recently:
    """Return the recent requests of a window, with the newest minute like the window's average."""
    return Recently(window=Came(accepted=accepted, rejected=rejected), newest=Came(accepted=100))


def of_ingest(**recent: Recently) -> Ingest:
    """Return an ingest with these recent requests; ``stray`` are for no study."""
    return Ingest(state="running", recent={"" if name == "stray" else name: each for name, each in recent.items()})


def test_refusals_of_another_study_are_not_told_of_this_one() -> None:
    own = of_ingest(s=came(3_600, not_json=400), other=came(4_000), stray=came(path=3))
    assert "400 of the 4,000 pings and requests of study s of the last 15 minutes (10 %), all of them" in only(
        Scene(ingest=own)
    )
    assert told(Scene(ingest=of_ingest(s=came(3_600), other=came(1, not_json=400)))) == []


def test_refusals_are_told_with_their_most_frequent_reason() -> None:
    stray = came(update_length=350, not_json=50)
    scene = Scene(ingest=of_ingest(stray=stray, other=came(3_600)))
    assert told(scene) == [("refused", "warning")]
    which = "pings for unknown studies and accepted pings of all"
    assert f"rejected 400 of the 4,000 {which} of the last 15 minutes (10 %), 350 of them as 'update_length'" in only(
        scene
    )
    assert told(Scene(ingest=of_ingest(stray=stray, other=came(400)))) == [("refused", "problem")]
    assert told(Scene(ingest=of_ingest(stray=came(path=9), other=came(9)))) == []
    ended = of_ingest(s=came(10, study_ended=900))
    assert told(Scene(ingest=ended)) == [], "the pings of a study that has ended are refused as was declared"


def test_many_refusals_in_a_row_are_a_problem_after_any_number_of_accepted_pings() -> None:
    newest = Came(accepted=40, rejected={"not_json": 60})
    recent = Recently(window=Came(accepted=2_400, rejected={"not_json": 60}), newest=newest)
    scene = Scene(ingest=of_ingest(s=recent))
    assert told(scene) == [("refused", "problem")]
    assert "60 of the 100 pings and requests of study s that came last" in only(scene)


def test_what_was_refused_since_the_start_is_no_reason_by_itself() -> None:
    ago = Ingest(state="running", accepted=30, rejected={"not_json": 33}, studies={"s": OfStudy(rejected={"path": 33})})
    assert told(Scene(ingest=ago)) == []


def test_pings_that_are_accepted_when_sent_again_are_not_refused() -> None:
    assert told(Scene(ingest=of_ingest(s=came(470, too_many_pings=530)))) == []
    assert told(Scene(ingest=of_ingest(s=came(10, too_many_pings=530)))) == [("refused", "warning")]
    scene = Scene(ingest=of_ingest(s=came(0, too_many_pings=530, busy=2)))
    assert told(scene) == [("refused", "problem")]
    assert "too_many_pings" in only(scene)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"failed": 40, "answered": 4_000, "rejected.disk_full": 40}, "disk of the journal /j is full"),
        ({"failed": 0, "answered": 0, "no_descriptors": 2}, "LimitNOFILE"),
        ({"failed": 40, "answered": 100, "rejected.not_stored": 40}, "40 of 100 requests"),
        ({"failed": 4, "answered": 4}, None),
        ({"failed": 40, "answered": 4_000}, None),
    ],
)
def test_requests_that_fail_by_a_fault_of_ours_are_a_problem_of_ingest(
    counts: dict[str, int], said: str | None
) -> None:
    requests = dict.fromkeys(FIELDS, 0) | counts
    scene = Scene(ingest=Ingest(state="running", journal="/j", requests=requests))
    assert told(scene) == ([("ingest", "problem")] if said else [])
    if said:
        assert said in only(scene)


@pytest.mark.parametrize(("minutes", "severity"), [(45, None), (75, "warning"), (150, "problem")])
def test_a_version_that_is_late_is_told_with_what_has_landed(minutes: int, severity: str | None) -> None:
    scene = Scene(now=NOW - 600 + 60 * minutes)
    assert told(scene) == ([("rounds", severity)] if severity else [])
    if severity:
        assert (
            "versions were published every 30 minutes. 120 pings of it have landed, and a round needs 100 clients"
            in only(scene)
        )
        assert "No pings of it have landed" in only(Scene(now=scene.now, landed=0))


def test_a_version_whose_date_cannot_be_right_is_not_shown_as_fresh() -> None:
    assert told(Scene(now=NOW - 630)) == [], "clocks may be some seconds apart"
    ahead = Scene(now=NOW - 7 * 24 * 3_600)
    assert told(ahead) == [("rounds", "warning")]
    assert f"Version {ROUNDS} is dated 2026-01-01 04:00 UTC, in the future" in only(ahead)
    facts = Scene().facts
    *before, parent, newest = facts.line.outcomes
    behind = (*before, parent, replace(newest, created="2025-12-31T00:00:00.000+00:00"))
    found = check_line(replace(facts, line=replace(facts.line, outcomes=behind))).findings
    assert [(one.name, one.severity) for one in found] == [("rounds", "warning")], "what is not known is not late"
    assert "before its parent" in found[0].sentence
    assert interval(behind) == 60 * MINUTES, "a step back in time is no time between rounds"


def test_a_loss_above_control_in_every_round_is_told() -> None:
    worse = {"treatment": 100.0, "control": 90.0}
    assert told(Scene(loss=worse)) == [("loss", "warning")]
    assert "above that of control in each of the last 5 rounds, by 11 % on average" in only(Scene(loss=worse))
    assert told(Scene(loss={"treatment": 300.0, "control": 90.0})) == [("loss", "problem")]
    assert told(Scene(loss={"treatment": 92.0, "control": 90.0})) == []
    assert told(Scene(loss=worse, origins={6: "rollback"})) == [], "what was rolled back is judged no more"


def test_a_personal_arms_loss_is_not_blamed_on_the_version() -> None:
    facts = Scene(loss={"treatment": 300.0, "control": 90.0}).facts
    arms = tuple(replace(arm, personal=arm.name == "treatment") for arm in facts.arms)
    assert [one.name for one in check_line(facts).findings] == ["loss"]
    assert check_line(replace(facts, arms=arms)).findings == ()


def test_what_does_not_land_is_told() -> None:
    waiting = Ingest(state="running", pending=5, waiting_since=NOW - 3_600, period=60.0)
    assert told(Scene(ingest=waiting)) == [("landing", "problem")]
    assert "5 pings wait in ingest's journal, some for 1 hour, and should have landed" in only(Scene(ingest=waiting))
    assert told(Scene(ingest=replace(waiting, waiting_since=NOW - 30))) == []
    assert told(Scene(ingest=replace(waiting, period=3_600.0))) == [], "it was asked to land them every hour"
    assert told(Scene(files=("a.parquet", "b.parquet"))) == [("landing", "problem")]
    assert only(Scene(troubles=("store/2.json cannot be read",))) == "store/2.json cannot be read."


def test_a_pause_and_an_end_are_no_problem_but_what_is_lost_meanwhile_is() -> None:
    late = NOW + 86_400 * 5
    paused = Declared(state="paused", since="2026-01-01T04:30:00.000+00:00")
    calm = Scene(declared=paused, now=late).health
    assert (calm.verdict, calm.findings) == ("paused", ())
    assert calm.headline.startswith("Paused since 2026-01-01 04:30 UTC: ")
    assert Scene(declared=paused, ingest=Ingest(state="stopped")).health.headline == "Not healthy, and paused."
    ended = Declared(state="ended", since="2026-01-01T04:30:00.000+00:00")
    assert Scene(declared=ended, now=late, ingest=Ingest(state="stopped")).health.verdict == "ended"
    left = Scene(declared=ended, ingest=Ingest(state="stopped", pending=128))
    assert (left.health.verdict, told(left)) == ("problem", [("ingest", "problem")])


def test_a_simulation_needs_no_ingest() -> None:
    over = Declared(state="ended", since="2018-06-22T12:00:00.000+00:00", simulated=True)
    scene = Scene(declared=over, ingest=Ingest(state="absent"))
    assert scene.health.verdict == "ended"
    assert scene.health.headline == "A finished simulation; its clock stopped at 2018-06-22 12:00 UTC."


def test_of_several_lines_what_concerns_all_is_told_once() -> None:
    dead = Ingest(state="stopped")
    one = Scene(ingest=dead).health
    other = Scene(ingest=dead, counts={"used": 600, "stale": 250}).health
    both = merge_lines(Declared(), [("a", one), ("b", other)])
    assert [(f.name, f.sentence.startswith("Line b: ")) for f in both.findings] == [("ingest", False), ("stale", True)]
    assert unreadable_study("study.json is damaged").findings[0].sentence == "study.json is damaged."


def test_the_interval_is_that_of_rounds() -> None:
    facts = Scene().facts
    assert interval(facts.line.outcomes) == MINUTES * 60
    assert interval(facts.line.outcomes[:2]) is None


def test_every_finding_has_one_of_the_names() -> None:
    everything = Scene(
        ingest=Ingest(
            state="stopped",
            recent={"": came(path=60)},
            troubles=("A.",),
            newcomers={"s": {0: 1, int(NOW + 86_400) // 3600: 1000}},
        ),
        counts={"stale": 100},
        pings={"treatment": 600},
        loss={"treatment": 300, "control": 1},
        now=NOW + 86_400,
        troubles=("b",),
        capped=60,
    )
    assert {name for name, _ in told(everything)} == {*FINDINGS} - {"loss", "held", "privacy", "helper"}
    document = as_document(everything.health)
    assert msgspec.json.decode(msgspec.json.encode(document)) == document
    assert [*document] == ["verdict", "headline", "findings", "over", "staged"]
    assert all([*finding] == ["name", "severity", "sentence"] for finding in document["findings"])


SAMPLES: dict[str, Any] = {
    "int": 3,
    "int | None": None,
    "bool": False,
    "str": "x",
    "tuple[str, ...]": ("x",),
    "Message": Message("late_and_failing", ()),
    "Failing": Failing(since="2026-01-01T00:00:00.000+00:00", last="2026-01-01T01:00:00.000+00:00"),
}
"""A sample value for each type of a message's parameters."""


@pytest.mark.parametrize("code", RENDERERS)
def test_every_message_is_worded_once_as_sentences(code: str) -> None:
    values = {name: SAMPLES[value.annotation] for name, value in signature(RENDERERS[code]).parameters.items()}
    values |= {"state": "paused"} if "state" in values else {}
    worded = str(Message(code, tuple(values.items())))
    assert worded.endswith(".")
    assert worded[0].isupper() or worded[0] in "3x", "a capital letter, unless a value is in front"
    assert len(worded.split()) < 90
    with pytest.raises(ValueError, match=code):
        message(RENDERERS[code])


@pytest.mark.parametrize("name", FINDINGS)
def test_every_finding_has_one_check_and_no_other_can_take_its_name(name: str) -> None:
    assert CHECKS[name].name == name
    assert {each.name for each in CHECKS.values() if each.run is CHECKS[name].run} == {name}
    with pytest.raises(ValueError, match=name):
        check(name)


def test_a_check_that_is_registered_last_has_a_finding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, "last", Check("last", frozenset({"running"}), lambda facts: iter(())))
    assert list(FINDINGS)[-1] == "last", "/metrics and the guide's test go by it"


@pytest.mark.parametrize(("capped", "found"), [(None, []), (0, []), (30, []), (31, [("capped", "warning")])])
def test_clients_that_count_for_fewer_examples_than_they_claim_are_told(
    capped: int | None, found: list[tuple[str, str]]
) -> None:
    scene = Scene(capped=capped)
    assert told(scene) == found
    if found:
        assert "5 % of the clients of the last 5 rounds claim more than 1,000 examples" in only(scene)


def test_what_a_finding_says_is_not_said_once_more_as_a_hint() -> None:
    scene = Scene(landed=0)
    assert now_of(ROUNDS, scene.facts).hint == (
        f"No pings of version {ROUNDS} have arrived yet; clients send them after they have fetched it."
    )
    scene.now += 5 * 3600
    assert "No pings of it have landed" in only(scene)
    assert now_of(ROUNDS, scene.facts).hint == ""


HOUR = int(NOW // 3600)
STEADY = {HOUR - ago: 60 for ago in range(2, 40)}


@pytest.mark.parametrize(
    ("hours", "found"),
    [
        ({**STEADY, HOUR - 1: 60, HOUR: 20}, None),
        ({**STEADY, HOUR - 1: 119}, None),
        ({**STEADY, HOUR - 1: 121}, "warning"),
        ({**STEADY, HOUR: 400}, "problem"),
        ({HOUR - 3: 10, HOUR: 4_000}, None),  # ingest has just been started
        ({HOUR - 30: 2, HOUR: 90}, None),  # too few clients to matter
        ({HOUR - 60: 900, HOUR - 10: 10, HOUR: 400}, "problem"),
    ],
)
def test_many_new_clients_at_once_are_told(hours: dict[int, int], found: str | None) -> None:
    scene = Scene(ingest=Ingest(state="running", accepted=8_000, landed=8_000, newcomers={"s": hours, "other": {}}))
    assert told(scene) == ([] if found is None else [("newcomers", found)])
