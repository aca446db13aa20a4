"""The times of rounds, with a clock that the test sets; and the command, which survives failures and stops."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.main import main
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import Landing, open_landing
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round_status import Attempt, last_attempt
from fedping.server_jobs.schedule import (
    DAY,
    Job,
    WallClock,
    parse_every,
    parse_offset,
    read_plan,
    run_jobs,
    run_schedule,
    slot_after,
    slots_between,
    time_of_day_after,
)
from tests.support import forked
from tests.support.rounds import FIRST_MS, Ping, crowd, land, store_with
from tests.support.versions import small_study

ROOT = Path(__file__).parents[2]
MIDNIGHT = 20_000 * DAY


class FakeClock:
    """A clock that advances only by waits and by rounds, and stops the schedule at its end."""

    def __init__(self, start: float, end: float) -> None:
        self.time, self.end = start, end

    def now(self) -> float:
        return self.time

    def wait_until(self, when: float) -> bool:
        if when >= self.end:
            return False
        self.time = max(self.time, when)
        return True


def times(
    start: float, end: float, every: int, lasting: Callable[[int], float], now_first: bool = False, offset: int = 0
):
    """Return the start times of rounds, in seconds after midnight, and the messages."""
    clock, began, told = FakeClock(MIDNIGHT + start, MIDNIGHT + end), [], []

    def run() -> None:
        began.append(clock.time - MIDNIGHT)
        clock.time += lasting(len(began))

    run_schedule(run, every, clock, told.append, offset=offset, now_first=now_first)
    return began, told


def test_rounds_are_at_multiples_of_the_interval() -> None:
    began, told = times(100, 7300, 1800, lambda _: 20)
    assert began == [1800, 3600, 5400, 7200]
    assert told == ["next round at 00:30:00 UTC"]


def test_a_round_at_once_comes_before_the_first_on_the_clock() -> None:
    began, _ = times(100, 3700, 1800, lambda _: 20, now_first=True)
    assert began == [100, 1800, 3600]


def test_a_round_that_lasts_too_long_skips_what_it_missed_and_says_so() -> None:
    began, told = times(1700, 9100, 1800, lambda n: 4000 if n == 1 else 20)
    assert began == [1800, 7200, 9000]
    assert told[1] == (
        "the round of 00:30:00 UTC lasted until 01:36:40 UTC, so 2 more were skipped; next round at 02:00:00 UTC"
    )


def test_a_round_that_ends_on_the_next_slot_has_missed_it() -> None:
    began, told = times(0, 7300, 1800, lambda n: 1800 if n == 1 else 0)
    assert began == [1800, 5400, 7200]
    assert "so 1 more" in told[1]


def test_a_clock_that_is_set_back_repeats_no_slot() -> None:
    began, _ = times(1700, 7300, 1800, lambda n: -900 if n == 1 else 0)
    assert began == [1800, 3600, 5400, 7200]


def test_an_interval_that_does_not_divide_the_day_begins_anew_at_midnight() -> None:
    began, _ = times(DAY - 7 * 3600, DAY + 8 * 3600, 7 * 3600, lambda _: 0)
    assert [t / 3600 for t in began] == [21, 24, 31]


def test_an_offset_moves_every_round_and_what_is_missed() -> None:
    began, told = times(100, 9100, 1800, lambda n: 2000 if n == 1 else 20, offset=1680)
    assert began == [1680, 5280, 7080, 8880]
    assert told == [
        "next round at 00:28:00 UTC",
        "the round of 00:28:00 UTC lasted until 01:01:20 UTC, so 1 more was skipped; next round at 01:28:00 UTC",
    ]


@pytest.mark.parametrize(("offset", "with_work"), [(0, 6), (28 * 60, 12)])
def test_rounds_that_end_before_clients_fetch_all_have_something_to_do(offset: int, with_work: int) -> None:
    """Checks twelve rounds of one minute, with clients that fetch on the full and half hour."""
    published: list[float] = []
    clock = FakeClock(MIDNIGHT + 1, MIDNIGHT + 6 * 3600 + 1)

    def run() -> None:
        fetched = (clock.time - 1) // 1800 * 1800
        if all(at <= fetched for at in published):
            published.append(clock.time + 60)

    run_schedule(run, 1800, clock, lambda _: None, offset=offset)
    assert len(published) == with_work


@given(st.floats(0, 3e9), st.integers(1, DAY), st.data())
def test_the_next_slot_is_the_first_after_now(now: float, every: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, every - 1))
    slot = slot_after(now, every, offset)
    midnight = slot // DAY * DAY
    # The remainder of a division of times of 10^9 s as floats is exact to less than a microsecond.
    assert now < slot <= now + every + 1e-6
    assert (slot - midnight - offset) % every == 0 or (slot - offset) % DAY == 0 or slot - midnight < offset
    assert slots_between(now, slot, every, offset) == 1
    assert slots_between(now, now, every, offset) == 0


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("0s", 0), ("28m", 1680), (" 45s ", 45)])
def test_offsets(text: str, seconds: int) -> None:
    assert parse_offset(text, 1800) == seconds


@pytest.mark.parametrize("text", ["30m", "1h", "28", "-5m", "m", "", "½m"])
def test_what_is_no_offset_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSettings, match="less than the interval, such as 45s or 28m"):
        parse_offset(text, 1800)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("45s", 45), ("6h", 21600), ("24h", DAY), (" 5m ", 300)])
def test_intervals(text: str, seconds: int) -> None:
    assert parse_every(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "0s", "-5m", "1.5h", "25h", "30 m", "30m30s", "9999999s", "½h", "٣m"])
def test_what_is_no_interval_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSettings, match="such as 45s, 30m or 6h"):
        parse_every(text)


def test_the_real_clock_waits_and_is_woken() -> None:
    clock = WallClock()
    before = time.time()
    assert clock.wait_until(before + 0.05)
    assert time.time() >= before + 0.05
    clock.stop()
    assert not clock.wait_until(before + 3600)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--every", "soon"], "'soon' is not an interval"),
        (["--offset", "30m"], "'30m' is not an offset for rounds every 1800 seconds"),
        (["elsewhere"], "has no line 'elsewhere'"),
        (["--store", "/nonexistent"], "there is no model store"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "store", small_study())
    assert main(["schedule", "study", "--store", str(tmp_path / "store"), *arguments]) in (1, 2)
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def schedule(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    where = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing"), "--every", "1s", "--now"]
    command = [sys.executable, "-m", "fedping", "schedule", "study", *where, *arguments]
    with open(tmp_path / "said", "w") as said:
        return forked.Popen(command, cwd=ROOT, stdout=said, stderr=said, text=True)


def wait_for(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not what():
        assert process.poll() is None, "the schedule ended"
        assert time.monotonic() < deadline, "it did not happen within 90 seconds"
        time.sleep(0.05)


def at_version(store: ModelStore, number: int) -> Callable[[], bool]:
    return lambda: store.head("study", "main").iteration == number


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    (tmp_path / "landing").mkdir()
    store_with(tmp_path / "store", small_study())
    return open_store(tmp_path / "store")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_goes_on_through_bad_files_and_stops_in_order(
    tmp_path: Path, store: ModelStore, number: int
) -> None:
    said = tmp_path / "said"
    bad = land(tmp_path / "landing", crowd(3))
    good = bad.read_bytes()
    bad.write_text("not Parquet")
    process = schedule(tmp_path, "--engine", "numpy")
    try:
        wait_for(lambda: "move it out of the way by `mv " in said.read_text(), process)
        bad.write_bytes(good)
        wait_for(at_version(store, 1), process)
        land(tmp_path / "landing", crowd(3, version=1), iteration=1, at_ms=FIRST_MS + 1)
        wait_for(at_version(store, 2), process)
        process.send_signal(number)
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert said.read_text().rstrip().endswith("fedping: stopped")
    assert "Traceback" not in said.read_text()


def children_of(pid: int) -> dict[int, str]:
    """Return the descendants of a process, with the names of their programs."""
    found: dict[int, str] = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found[int(child)] = Path(f"/proc/{child}/comm").read_text().strip()
        found |= children_of(int(child))
    return found


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds Spark's processes through /proc")
def test_a_spark_session_stays_warm_and_a_dead_one_is_replaced(tmp_path: Path, store: ModelStore) -> None:
    land(tmp_path / "landing", [Ping(1, 1)])
    process = schedule(tmp_path, "--master", "local[2]")
    try:
        wait_for(at_version(store, 1), process)
        first = {pid for pid, name in children_of(process.pid).items() if name == "java"}
        land(tmp_path / "landing", [Ping(2, 1, version=1)], iteration=1)
        wait_for(at_version(store, 2), process)
        assert {pid for pid, name in children_of(process.pid).items() if name == "java"} == first
        (java,) = first
        os.kill(java, signal.SIGKILL)
        land(tmp_path / "landing", [Ping(3, 1, version=2)], iteration=2)
        wait_for(at_version(store, 3), process)
        everything = list(children_of(process.pid))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
    said = (tmp_path / "said").read_text()
    assert said.rstrip().endswith("fedping: stopped")
    assert "Traceback" not in said
    assert "the next one starts with a new" not in said, "a session that died between two rounds costs none"
    deadline = time.monotonic() + 240
    while any(Path(f"/proc/{pid}").exists() for pid in everything) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in everything if Path(f"/proc/{pid}").exists()]


# --- several studies ---


def test_the_job_that_has_waited_longest_is_next_and_a_slow_one_costs_the_others_one_run() -> None:
    clock, began, told = FakeClock(MIDNIGHT + 1, MIDNIGHT + 1000), [], []

    def job(name: str, every: int, lasting: int) -> Job:
        def run() -> None:
            began.append((name, clock.time - MIDNIGHT))
            clock.time += lasting

        return Job(run, lambda now: slot_after(now, every), name)

    run_jobs([job("slow", 200, 150), job("quick", 100, 1)], clock, told.append, until=MIDNIGHT + 601)
    slow, quick = ([at for name, at in began if name == which] for which in ("slow", "quick"))
    assert slow == [200, 400, 600]
    assert quick == [100, 350, 550], "each waits for one run of the slow one, and its missed times make one run"
    assert "the round of quick of 00:03:20 UTC lasted until 00:05:51 UTC, so 1 more was skipped" in told[2]
    assert told[-1] == "the schedule ended at 00:10:01 UTC"


@given(st.floats(0, 3e9), st.lists(st.integers(0, DAY - 1), min_size=1, max_size=5))
def test_a_time_of_day_comes_within_a_day(now: float, at: list[int]) -> None:
    found = time_of_day_after(now, at)
    assert now < found <= now + DAY
    assert found % DAY in at
    assert time_of_day_after(found, at) > found


PLAN = """
[[study]]
name = "study"
every = "1s"

[[study]]
name = "other"
at = ["02:30", "14:30"]
"""


def test_a_plan_gives_each_study_its_times(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    first, second = read_plan(tmp_path / "plan.toml")
    assert (first.next_after(MIDNIGHT + 0.5), first.limit) == (MIDNIGHT + 1, 600)
    assert [second.next_after(MIDNIGHT + at) - MIDNIGHT for at in (0, 9000, 52200)] == [9000, 52200, DAY + 9000]
    assert second.limit == 12 * 3600 * 9 // 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no study"),
        ("[[study]]\nname = 1", "plan.toml: 'name' in [study] of entry 1 is 1: expected a text, got a whole number"),
        ("[[study]]\nevery = '3m'", "[study] of entry 1 needs the setting 'name'; add it"),
        (
            "[[study]]\nname = 'a'\n[[study]]\nname = 'b'\nevry = '3m'",
            "plan.toml: [study] of entry 2 ('b') has no setting 'evry'; did you mean 'every'?",
        ),
        (
            "[[study]]\nname = 'a'\nhour = 3",
            "choose one of name, lines, every, offset, at, time_limit, privacy_key, helpers",
        ),
        ("[[studies]]\nname = 'a'", "plan.toml: there is no setting 'studies'; did you mean 'study'?"),
        ("name = 'a'", "plan.toml: there is no setting 'name'; choose one of study"),
        ("[[study]]\nname = 'a'\nat = '02:30'", "'at' in [study] of entry 1 ('a') is '02:30': expected a list"),
        ("[[study]]\nname = 'a'\nat = ['24:00']", "'24:00' is not a time of day"),
        ("[[study]]\nname = 'a'\nevery = '3 days'", "'3 days' is not an interval"),
        ("[[study]]\nname = 'a'\n[[study]]\nname = 'a'", "has study 'a' twice"),
        ("[[study", "plan.toml is not valid TOML: "),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InvalidSettings, match=re.escape(said)):
        read_plan(tmp_path / "plan.toml")


def test_a_failing_study_does_not_keep_another_from_its_rounds(tmp_path: Path, store: ModelStore) -> None:
    other = msgspec.structs.replace(small_study(), name="other")
    store.create_study(other, first_versions(other, created="2026-01-01T00:00:00.000+00:00", code_version="test"))
    land(tmp_path / "landing", crowd(120)).write_bytes(b"damaged")
    land(tmp_path / "landing", crowd(120), study="other")
    (tmp_path / "plan.toml").write_text(PLAN)
    where = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing"), "--engine", "numpy"]
    command = [sys.executable, "-m", "fedping", "schedule", "--plan", str(tmp_path / "plan.toml"), "--now", *where]
    process = forked.Popen(command, cwd=ROOT)
    try:
        wait_for(lambda: store.lines.newest("other", "main") == 1, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 0
    finally:
        process.kill()
    assert last_attempt(
        open_landing(tmp_path / "landing"), str(tmp_path / "store"), "study", "main"
    ).ended_as.keys() == {"failed"}
    assert main(["schedule", "study", "--plan", str(tmp_path / "plan.toml"), *where]) == 2
    assert main(["schedule", "--plan", str(tmp_path / "plan.toml"), "--every", "3m", *where]) == 2


def test_a_schedule_that_cannot_start_for_the_store_leaves_that_for_the_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_with(tmp_path / "store", small_study(m=2))
    land(tmp_path / "landing", crowd(120))

    def link(source: object, target: object, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(target))

    monkeypatch.setattr(os, "link", link)
    places = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    assert main(["schedule", "study", *places, "--every", "1s", "--for", "1s", "--engine", "numpy"]) != 0
    failing = last_attempt(open_landing(tmp_path / "landing"), str(tmp_path / "store"), "study", "main").failing
    assert failing is not None
    assert failing.part == "store"


def attempts(tmp_path: Path) -> Attempt:
    return last_attempt(open_landing(tmp_path / "landing"), str(tmp_path / "store"), "study", "main")


def briefly(tmp_path: Path, *arguments: str) -> int:
    places = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    return main(["schedule", *arguments, *places, "--now", "--for", "1s", "--engine", "numpy"])


@pytest.mark.parametrize("breaks", ["a file", "the folder"])
def test_a_wait_for_clients_that_fails_is_noted_as_a_round_that_failed(
    tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    land(tmp_path / "landing", crowd(3)).write_bytes(b"damaged")
    if breaks == "the folder":

        def listed(landing: Landing, *_: object) -> list[Path]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(landing))

        monkeypatch.setattr(Landing, "files", listed)
    assert briefly(tmp_path, "study", "--every", "2s", "--wait-for", "3", "--wait-at-most", "1s") == 0
    failing = attempts(tmp_path).failing
    assert failing is not None
    assert failing.part == "landing"


@pytest.mark.parametrize(
    ("given", "why"), [(("--helper", "https://helper.example"), "--helper"), (("--master", "local"), "--master")]
)
def test_a_schedule_that_cannot_start_for_its_settings_leaves_that_for_the_health(
    tmp_path: Path, store: ModelStore, given: tuple[str, str], why: str
) -> None:
    assert briefly(tmp_path, "study", "--every", "2s", *given) == 2
    failing = attempts(tmp_path).failing
    assert failing is not None
    assert why in failing.why


def test_a_plan_that_names_no_study_is_no_failed_round_of_another(tmp_path: Path, store: ModelStore) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    assert briefly(tmp_path, "--plan", str(tmp_path / "plan.toml")) != 0
    assert attempts(tmp_path) == Attempt()
