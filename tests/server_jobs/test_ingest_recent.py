"""Recent requests for the health checks of ingest: counted by each process, and forgotten over time."""

from pathlib import Path

import pytest

from fedping.server_jobs.ingest.counters import (
    NEWEST,
    RECENT_SUFFIX,
    REQUESTS_SUFFIX,
    SLOTS,
    WIDTH,
    Came,
    Recently,
    Recents,
    count_request,
    recently,
    requests_of,
)

NOW = 1_767_225_600.0


def test_the_window_forgets_and_the_newest_stay_for_a_day(tmp_path: Path) -> None:
    now = [NOW]
    recents = Recents(lambda: now[0])
    for _ in range(33):
        recents.add("s", "not_json", 1)
    now[0] += 30 * 60
    (tmp_path / f"a{RECENT_SUFFIX}").write_bytes(recents.encoded())
    refused = Came(rejected={"not_json": 33})
    assert recently(tmp_path, now[0]) == {"s": Recently(newest=refused)}
    assert recently(tmp_path, now[0] + 86_400) == {"s": Recently()}
    for _ in range(200):
        recents.add("s", "", 1)
    (tmp_path / f"a{RECENT_SUFFIX}").write_bytes(recents.encoded())
    found = recently(tmp_path, now[0])["s"]
    assert found.window == Came(accepted=200)
    assert found.newest.rejected == {}
    assert found.newest.accepted >= NEWEST


def test_a_large_batch_hides_no_refusals_after_it(tmp_path: Path) -> None:
    now = [NOW]
    recents = Recents(lambda: now[0])
    recents.add("s", "", 2_400)
    now[0] += 1
    for _ in range(60):
        recents.add("s", "not_json", 1)
    (tmp_path / f"a{RECENT_SUFFIX}").write_bytes(recents.encoded())
    assert recently(tmp_path, now[0])["s"].newest == Came(accepted=40, rejected={"not_json": 60})


def test_of_a_batch_the_newest_have_the_share_that_was_refused(tmp_path: Path) -> None:
    recents = Recents(lambda: NOW)
    recents.add_batch("s", {"": 5_000, "not_json": 500})
    (tmp_path / f"a{RECENT_SUFFIX}").write_bytes(recents.encoded())
    found = recently(tmp_path, NOW)["s"]
    assert found.window == Came(accepted=5_000, rejected={"not_json": 500})
    assert found.newest == Came(accepted=91, rejected={"not_json": 9})


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_sixty_refusals_after_thousands_of_pings_are_most_of_the_newest(tmp_path: Path, processes: int) -> None:
    now = [NOW]
    recents = [Recents(lambda: now[0]) for _ in range(processes)]
    for k in range(2_460):
        now[0] += 0.01
        recents[k % processes].add("s", "not_json" if k >= 2_400 else "", 1)
    for number, one in enumerate(recents):
        (tmp_path / f"{number}{RECENT_SUFFIX}").write_bytes(one.encoded())
    found = recently(tmp_path, now[0])["s"]
    assert found.window == Came(accepted=2_400, rejected={"not_json": 60})
    assert found.newest.rejected["not_json"] > 0.4 * (60 + found.newest.accepted)


def test_requests_are_those_of_this_minute_and_the_last(tmp_path: Path) -> None:
    numbers = memoryview(bytearray(8 * SLOTS * WIDTH)).cast("Q")
    for minute in range(10):
        count_request(numbers, "answered", 10, NOW + 60 * minute)
        count_request(numbers, "failed", minute, NOW + 60 * minute)
    for process in range(2):
        (tmp_path / f"{process}{REQUESTS_SUFFIX}").write_bytes(bytes(numbers))
    (tmp_path / f"torn{REQUESTS_SUFFIX}").write_bytes(b"x")
    seen = requests_of(tmp_path, NOW + 60 * 9 + 30)
    assert (seen["answered"], seen["failed"]) == (40, 34)
    assert requests_of(tmp_path, NOW + 60 * 30)["answered"] == 0
