"""A schedule that ends at a time of day: the accepted times, and the end."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.main import main
from fedping.protocol.errors import InvalidSettings
from fedping.server_jobs.schedule import DAY, parse_until
from tests.support.rounds import crowd, land, store_with
from tests.support.versions import small_study

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
HOUR = 3600


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone of Berlin: an hour ahead of UTC in winter, two in summer."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("2026-11-24T18:00", 5),
        ("2026-11-24 18:00:00", 5),
        ("2026-11-24T18:00Z", 6),
        ("2026-11-24T18:00+00:00", 6),
        ("2026-11-24T18:00-0500", 11),
        ("2026-11-25T08:00+01:00", 19),
        ("2027-07-24T18:00", 242 * 24 + 4),
        ("18:00", 5),
        ("13:00:01", 1 / HOUR),
        ("13:00", 24),
        ("01:00", 12),
    ],
)
def test_a_time_is_by_its_zone_or_by_this_machines_clock(berlin: None, text: str, hours: float) -> None:
    assert parse_until(text, NOON) == pytest.approx(NOON + hours * HOUR)


def test_the_next_time_of_day_is_the_clocks_also_when_that_is_set_back(berlin: None) -> None:
    before = datetime(2026, 10, 24, 16, tzinfo=UTC).timestamp()  # 18:00; in the night summer time ends
    assert parse_until("18:00", before) == before + 25 * HOUR


@given(st.integers(1, 10_000 * DAY), st.integers(-23, 23))
def test_whatever_is_to_come_is_taken_in_every_zone(ahead: int, zone: int) -> None:
    moment = datetime.fromtimestamp(NOON + ahead, UTC)
    local = (moment + timedelta(hours=zone)).replace(tzinfo=None).isoformat()
    assert parse_until(f"{local}{zone:+03d}:00", NOON) == NOON + ahead


@pytest.mark.parametrize(
    "text", ["2026-11-24T12:00Z", "2026-11-24T13:00+01:00", "2026-11-23T23:59", "1969-01-01T00:00Z"]
)
def test_the_past_is_refused(berlin: None, text: str) -> None:
    with pytest.raises(InvalidSettings, match=r"is in the past: it was .* UTC, and now it is 2026-11-24 12:00"):
        parse_until(text, NOON)


@pytest.mark.parametrize(
    "text",
    [
        "", "soon", "18", "25:00", "18:60", "8:00", "18:00Z", "2026-11-25", "2026-W48-3T08:00", "20261125T0800",
        "2026-13-01T00:00", "2026-02-30T00:00", "2026-11-25T08:00+25:00", "2026-11-25T08:00\n", "18:00\n", "9h",
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="Use a time of day such as 18:00"):
        parse_until(text, NOON)


def command(tmp_path: Path, *words: str) -> int:
    places = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    return main(["schedule", "study", *places, "--engine", "numpy", *words])


def test_a_schedule_ends_where_no_round_would_begin_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_with(tmp_path / "store", small_study(m=2))
    land(tmp_path / "landing", crowd(120))
    now = time.time()
    far = int((now + DAY / 2) % DAY)
    until = datetime.fromtimestamp(int(now) + HOUR, UTC)
    code = command(tmp_path, "--now", "--every", "24h", "--offset", f"{far}s", "--until", until.isoformat())
    said = capsys.readouterr().err
    assert code == 0
    assert f"no round starts from {until:%Y-%m-%d %H:%M:%S} UTC on" in said
    assert f"the schedule ended at {until:%H:%M:%S} UTC" in said
    assert store.lines.newest("study", "main") == 1


def test_it_refuses_the_past_and_two_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "--until", "2020-01-01T00:00Z") == 2
    assert "is in the past: it was 2020-01-01 00:00:00 UTC" in capsys.readouterr().err
    assert command(tmp_path, "--until", "18:00", "--for", "8h") == 2
    assert "either --for or --until" in capsys.readouterr().err
