"""The planning page quotes the command's output word for word, and its costs match the benchmarks'."""

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.main import main
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import MOST_SHARDS
from fedping.server_jobs.fleet_plan import (
    MEASURED,
    ROW_BYTES,
    SHARD_COSTS,
    SHARD_PINGS,
    TASK_PINGS,
    Fleet,
    Prices,
    UnitCosts,
    planned,
    shard_cost,
)
from fedping.server_jobs.round.plan import ROWS_PER_TASK
from fedping.server_jobs.round.shard import MOST_ROWS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "planning.md").read_text(encoding="utf-8")
BENCHMARKS = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^```sh\n(fedping plan fleet .*?)^```\n+```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ROUND = UnitCosts(
    name="round numbers",
    ping_bytes=1000,
    ingest_us=100,
    journal_bytes=1000,
    landed_bytes=100,
    round_us=1,
    round_seconds=1,
    model_bytes=1000,
)


@pytest.mark.parametrize(("typed", "shown"), SHOWN.findall(PAGE))
def test_the_page_shows_what_the_command_says(typed: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(typed.replace("\\\n", " "))
    assert program == "fedping"
    assert main(words) == 0
    assert capsys.readouterr().out == shown


def test_the_page_shows_both_models_and_money() -> None:
    assert len(SHOWN.findall(PAGE)) >= 3
    assert any("--model million" in typed for typed, _ in SHOWN.findall(PAGE))
    assert any("--price-core-hour" in typed and "total a month" in shown for typed, shown in SHOWN.findall(PAGE))


def test_costs_are_those_that_the_benchmarks_tell() -> None:
    told = dict(re.findall(r"^\| .*?\(`(\w+)`\) \| (.*) \|$", BENCHMARKS, re.MULTILINE))
    assert set(told) == set(UnitCosts.__struct_fields__) - {"name"}
    for field, row in told.items():
        found = [float(number.replace(",", "")) for number in row.split(" | ")]
        assert found == [getattr(MEASURED[name], field) for name in ("firefox-2018", "million")], field
    processor = re.search(r"^\| processor time \| (.*) \|$", BENCHMARKS, re.MULTILINE)
    assert processor is not None
    assert [float(ratio) for ratio in processor[1].split(" | ")[:3]] == [cost for _, cost in SHARD_COSTS]
    assert (SHARD_PINGS, TASK_PINGS) == (MOST_ROWS, ROWS_PER_TASK)


def test_a_plan_by_hand() -> None:
    """86.4 million clients that send once a day give a thousand pings a second."""
    fleet = Fleet(clients=86.4e6, pings_a_day=1, fetches_a_day=2, peak=2, within_s=101, keep_days=10)
    found = planned(fleet, ROUND, Prices(core_hour=0.5, gb_month=2, gb_out=3, million_requests=4))
    assert (found.ingest.mean_pings_s, found.ingest.peak_pings_s, found.ingest.peak_mbit_s) == (1000, 2000, 16)
    assert found.ingest.busy_cores == pytest.approx(0.2)
    assert found.ingest.machines == 2
    assert found.ingest.journal_gb_a_machine == pytest.approx(2000 * 1000 * 4 * 3600 / 2 / 1e9)
    assert (found.rounds.pings, found.rounds.shards, found.rounds.cores) == (3.6e6, 16, 1)
    assert found.rounds.seconds == pytest.approx(4.6)
    assert found.rounds.memory_gb == pytest.approx(3.6e6 * ROW_BYTES / 1e9)
    assert found.rounds.core_hours_a_day == pytest.approx(48 * (1.8 + 1) / 3600)
    assert found.rounds.reads == 80 + 2 * 30 * (1 + 3 * 16)
    assert (found.stored.landed_gb_a_day, found.stored.landed_gb) == (pytest.approx(8.64), pytest.approx(86.4))
    assert found.stored.models_gb_a_day == pytest.approx(172.8)
    month = 365.25 / 12
    assert found.money == {
        "ingest machines": pytest.approx(2 * 8 * 24 * month * 0.5),
        "rounds, while they run": pytest.approx(found.rounds.core_hours_a_day * month * 0.5),
        "pings and journals on disk": pytest.approx((86.4 + 28.8) * 2),
        "models to clients": pytest.approx(172.8 * month * 3),
        "requests for models": pytest.approx(172.8 * month * 4),
    }
    assert planned(fleet, ROUND, Prices()).money == {}


def test_pings_of_a_round_are_whole_where_they_are() -> None:
    """Rounding up a billionth of a ping would add a task, or double the shards."""
    for clients in (1e8, 64e6, 128e6):
        fleet = Fleet(clients=clients, pings_a_day=5, every_s=86_400, peak=1, within_s=3600)
        assert planned(fleet, ROUND, Prices()).rounds.pings == 5 * clients
    assert planned(Fleet(clients=64e6, pings_a_day=1, every_s=86_400, peak=1), ROUND, Prices()).rounds.shards == 16


def test_who_asks_more_often_than_there_are_versions_gets_heads() -> None:
    rarely = planned(Fleet(clients=1e6, fetches_a_day=48), ROUND, Prices()).stored.models_gb_a_day
    often = planned(Fleet(clients=1e6, fetches_a_day=96), ROUND, Prices()).stored.models_gb_a_day
    assert often - rarely == pytest.approx(48 * 1e6 * 300 / 1e9)


@given(
    clients=st.floats(1, 1e9),
    pings=st.floats(0.01, 100),
    within=st.floats(10, 1800),
    costs=st.sampled_from([ROUND, *MEASURED.values()]),
)
def test_a_round_ends_in_time_on_no_more_cores_than_shards_or_is_refused(
    clients: float, pings: float, within: float, costs: UnitCosts
) -> None:
    fleet = Fleet(clients=clients, pings_a_day=pings, within_s=within)
    most = MOST_SHARDS * within * 1e6 / costs.round_us / shard_cost(MOST_SHARDS)
    at_peak = clients * pings / 86_400 * 1800 * 3
    if at_peak > most or within <= costs.round_seconds:
        with pytest.raises(InvalidSettings, match="give rounds more time"):
            planned(fleet, costs, Prices())
        return
    if at_peak > 0.9 * (most - MOST_SHARDS * costs.round_seconds * 1e6 / costs.round_us):
        return  # so near the edge that whole cores decide
    found = planned(fleet, costs, Prices())
    assert found.rounds.cores <= found.rounds.shards <= MOST_SHARDS
    assert found.rounds.seconds <= within * (1 + 1e-9)
    assert found.rounds.pings <= found.rounds.shards * SHARD_PINGS
    assert (found.ingest.machines - 1) * 8 * 0.5 >= found.ingest.busy_cores * (1 - 1e-9)


def test_more_shards_cost_more_beyond_what_was_measured_too() -> None:
    assert [shard_cost(count) for count, _ in SHARD_COSTS] == [cost for _, cost in SHARD_COSTS]
    every = [shard_cost(2**n) for n in range(4, 13)]
    assert every == sorted(every)
    assert every[-1] == pytest.approx(2.25 + 4 * (2.25 - 1.59) / 2)


def test_one_may_plan_with_costs_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "costs.json"
    file.write_bytes(msgspec.json.encode([ROUND]))
    given = ["plan", "fleet", "--clients", "1e6", "--costs", str(file)]
    assert main([*given, "--model", "round numbers", "--json"]) == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert said["costs"]["name"] == "round numbers"
    assert said["ingest"]["machines"] == 2
    assert main(given) == 2
    assert "'firefox-2018' has no measured costs; give one of round numbers" in capsys.readouterr().err
    for wrong in (b"[]", b"{}", b'[{"name": "x"}]', b'[{"name": "\xff"}]'):
        file.write_bytes(wrong)
        assert main(given) == 2
        assert "is not a file of unit costs" in capsys.readouterr().err
    file.unlink()
    assert main(given) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--clients", "1e11"], "no cluster completes a round of"),
        (["--clients", "1e6", "--within", "1s", "--model", "million"], "no cluster completes a round of"),
        (["--clients", "1e6", "--within", "soon"], "'soon' is not a time for --within; give whole seconds, minutes"),
        (["--clients", "1e6", "--pings-a-day", "0"], "can't plan this fleet: 'pings_a_day' is 0.0"),
        (["--clients", "1e6", "--keep-days", "nan"], "can't plan this fleet: 'keep_days' is nan"),
        (["--clients", "1e6", "--price-gb-out", "nan"], "can't use these prices: 'gb_out' is nan"),
        (["--clients", "1e6", "--price-core-hour", "inf"], "can't use these prices: 'core_hour' is inf"),
        (["--clients", "1e6", "--every", "5m", "--within", "6m"], "give a --within of at most --every"),
        (["--clients", "1e6", "--peak", "0.5"], "can't plan this fleet"),
        (["--clients", "1e6", "--busy", "1.5"], "can't plan this fleet"),
        (["--clients", "inf"], "can't plan this fleet"),
        (["--clients", "1e6", "--every", "often"], "often"),
    ],
)
def test_what_cannot_be_planned_is_told_in_a_sentence(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "fleet", *words]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert "Traceback" not in told
