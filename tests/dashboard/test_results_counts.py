"""Counts are processes that run one at a time and store their state in folders; looks are read from stored counts."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedping.analysis.verdict import Asked
from fedping.dashboard.feeds import Change
from fedping.dashboard.results.counts import Count, CountFeed, Counts, refresh
from fedping.dashboard.results.landed import Watch
from fedping.dashboard.results.page import looks_at
from fedping.dashboard.results.question import key_of
from fedping.model_store.store import open_store
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.study import Study
from tests.support.landed import landed_table
from tests.support.processes import left_over, new_mark, wait_until
from tests.support.versions import small_study, version_0

LEVELS = [Asked(alpha=alpha) for alpha in (0.05, 0.01, 0.001)]

STAND_IN = """
import sys, time
from pathlib import Path
go = Path(sys.argv[1])
print("counting the landed pings", file=sys.stderr, flush=True)
while not go.exists():
    time.sleep(0.02)
if said := go.read_text():
    sys.exit(f"fedping: {said}")
print('{"arms": {}}')
"""
"""Script in place of a count: it waits for a file, then fails with the sentence in it, if any."""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no process is left."""
    mark = new_mark()
    for name, value in mark.items():
        monkeypatch.setenv(name, value)
    yield
    assert left_over(mark, seconds=10) == []


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Give a study in a store, with ten landed pings."""
    study = small_study()
    open_store(tmp_path / "store", create=True).create_study(study, (version_0(study),))
    land(tmp_path, 10, stamp=1)
    return study


@pytest.fixture
def counts(tmp_path: Path, mark: None) -> Counts:
    """Give counts whose command waits for a file named after its question's level."""

    def command(_: str, asked: Asked) -> list[str]:
        return [sys.executable, "-c", STAND_IN, str(tmp_path / f"go-{asked.alpha}")]

    return Counts(tmp_path / "results", tmp_path / "store", tmp_path / "landing", command)


def land(folder: Path, pings: int, stamp: int) -> None:
    write_landed(partition(folder / "landing", "study", "main", 0), landed_table(pings, stamp), stamp)


def finish(counts: Counts, count: Count, sentence: str = "") -> Count:
    """Let a count end, start the next, and return the ended count's state."""
    (counts.store.parent / f"go-{count.asked.alpha}").write_text(sentence)
    assert wait_until(lambda: counts.count("study", count.id).is_over)
    counts.start_waiting()
    return counts.count("study", count.id)


def test_one_counts_while_others_wait_for_their_turn(counts: Counts, study: Study) -> None:
    first, second, third = (counts.ask(study, asked) for asked in LEVELS)
    assert [counts.count("study", one.id).state for one in (first, second, third)] == ["running", "waiting", "waiting"]
    assert [counts.ahead(one) for one in (second, third)] == [1, 2]
    assert wait_until(lambda: counts.count("study", first.id).said)
    assert counts.count("study", first.id).said == "counting the landed pings"
    assert counts.ask(study, LEVELS[2]).id == third.id, "it waits already"
    counts.stop("study", second.id)
    done = finish(counts, first)
    assert (done.state, done.printed) == ("finished", b'{"arms": {}}\n')
    assert [counts.count("study", one.id).state for one in (second, third)] == ["stopped", "running"]
    failed = finish(counts, third, "the disk is on fire")
    assert (failed.state, failed.said) == ("failed", "the disk is on fire")
    assert [one.id for one in counts.of("study")] == [third.id, second.id, first.id]


def test_a_count_has_a_low_priority_and_needs_no_other_program_for_that(
    tmp_path: Path, mark: None, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    program = "import json, os; print(json.dumps([os.nice(0), os.environ['FEDPING_PROGRESS']]))"
    places = (tmp_path / "results", tmp_path / "store", tmp_path / "landing")
    counts = Counts(*places, lambda *_: [sys.executable, "-c", program])
    count = counts.ask(study, LEVELS[0])
    assert wait_until(lambda: counts.count("study", count.id).is_over)
    done = counts.count("study", count.id)
    assert (done.state, json.loads(done.printed)) == ("finished", [min(os.nice(0) + 10, 19), "lines"])


def test_a_count_that_cannot_be_started_has_failed_at_once(tmp_path: Path, mark: None, study: Study) -> None:
    places = (tmp_path / "results", tmp_path / "store", tmp_path / "landing")
    counts = Counts(*places, lambda *_: [str(tmp_path / "missing-program")])
    count = counts.ask(study, LEVELS[0])
    assert wait_until(lambda: counts.count("study", count.id).is_over)
    failed = counts.count("study", count.id)
    assert failed.state == "failed"
    assert "missing-program: No such file" in failed.said


def test_a_running_count_is_stopped_and_may_be_asked_for_again(counts: Counts, study: Study) -> None:
    asked = counts.ask(study, LEVELS[0])
    assert counts.count("study", asked.id).state == "running"
    counts.stop("study", asked.id)
    assert wait_until(lambda: counts.count("study", asked.id).is_over)
    assert counts.count("study", asked.id).state == "stopped"
    again = counts.ask(study, LEVELS[0])
    assert again.id != asked.id
    assert finish(counts, again).state == "finished"


def test_the_same_pings_are_counted_once_and_more_of_them_are_another_look(
    counts: Counts, study: Study, tmp_path: Path
) -> None:
    first = finish(counts, counts.ask(study, LEVELS[0]))
    assert counts.ask(study, LEVELS[0]).id == first.id
    assert looks_at(first, counts.of("study"), study).sentences == []
    stricter = finish(counts, counts.ask(study, LEVELS[1]))
    said = looks_at(first, counts.of("study"), study)
    assert (said.number, said.total, said.others) == (1, 1, 1), "another level, but the same pings"
    land(tmp_path, 7, stamp=2)
    second = finish(counts, counts.ask(study, LEVELS[0]))
    assert second.id != first.id
    everything = counts.of("study")
    assert [(looks.number, looks.total) for looks in (looks_at(one, everything, study) for one in (first, second))] == [
        (1, 2),
        (2, 2),
    ]
    assert "look 2 of 2 at these comparisons" in looks_at(second, everything, study).sentences[0]
    assert looks_at(stricter, everything, study).number == 1
    interim = replace(LEVELS[0], interim=True)
    look = finish(counts, counts.ask(study, interim))
    after = counts.of("study")
    assert looks_at(look, after, study).total == 1, "an interim look may be repeated"
    assert looks_at(second, after, study) == looks_at(second, everything, study)


def test_the_feed_tells_each_state_once_and_goes_on_where_it_was(counts: Counts, study: Study, tmp_path: Path) -> None:
    def feed(shown: str | None = None) -> CountFeed:
        watch = Watch(tmp_path / "landing", clock=iter(range(0, 1000, 10)).__next__)
        return CountFeed("study", key_of(LEVELS[0]), shown, study, counts, watch)

    def told(change: Change | None) -> Change:
        assert change is not None
        return change

    nothing = told(feed().since(None))
    assert nothing.data["newest"] is None
    count = counts.ask(study, LEVELS[0])
    assert wait_until(lambda: counts.count("study", count.id).said)
    counting = told(feed().since(nothing.position))
    assert (counting.data["newest"]["state"], counting.data["newest"]["said"]) == (
        "running",
        "counting the landed pings",
    )
    assert feed().since(counting.position) is None
    finish(counts, count)
    done = told(feed(count.id).since(counting.position))
    assert done.data["newest"]["state"] == "finished"
    assert done.data["landed_since"] == {"pings": 0, "complete": True}
    land(tmp_path, 12_345, stamp=3)
    assert told(feed(count.id).since(done.position)).data["landed_since"]["pings"] == 12_345
    assert told(feed(count.id).since("of another server")).data["newest"]["id"] == count.id


@pytest.fixture
def two_arms(tmp_path: Path, study: Study) -> None:
    """Land pings of the other arm too."""
    table = landed_table(10, 5, arms=("control",))
    write_landed(partition(tmp_path / "landing", "study", "main", 0), table, 5)


def test_a_schedule_counts_what_is_new_as_an_interim_look(counts: Counts, two_arms: None, tmp_path: Path) -> None:
    [first] = refresh(counts)
    assert first.asked == Asked(interim=True)
    finish(counts, first)
    [same] = refresh(counts)
    assert same.id == first.id, "nothing has landed since"
    land(tmp_path, 3, stamp=9)
    [second] = refresh(counts)
    assert second.id != first.id
    finish(counts, second)
    assert looks_at(counts.count("study", second.id), counts.of("study"), small_study()).sentences == []


def test_a_schedule_goes_on_with_the_interim_question_that_somebody_asked(
    counts: Counts, two_arms: None, study: Study
) -> None:
    asked = Asked(metrics=("loss",), interim=True, planned_clients=500)
    finish(counts, counts.ask(study, asked))
    [found] = refresh(counts)
    assert found.asked == asked


def test_of_scheduled_looks_the_newest_are_kept_and_of_planned_ends_all(
    counts: Counts, two_arms: None, study: Study, tmp_path: Path
) -> None:
    planned = finish(counts, counts.ask(study, Asked()))
    looks = []
    for stamp in range(20, 23):
        land(tmp_path, 1, stamp)
        looks.append(finish(counts, counts.ask(study, Asked(interim=True))))
    counts.forget("study", key_of(Asked(interim=True)), 2)
    counts.forget("study", key_of(Asked()), 0)
    assert {one.id for one in counts.of("study")} == {planned.id, looks[1].id, looks[2].id}


def test_a_study_without_pings_is_left_alone_by_the_schedule(tmp_path: Path, mark: None) -> None:
    study = small_study()
    open_store(tmp_path / "store", create=True).create_study(study, (version_0(study),))
    assert list(refresh(Counts(tmp_path / "results", tmp_path / "store", tmp_path / "landing"))) == []
