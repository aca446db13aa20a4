"""Plan of a fleet of any size: pings, machines, storage, rounds and cost, from the cost of one ping.

Unit costs are measured by ``python -m benchmarks.unit_costs``. The built-in costs were measured on the machine in
`docs/benchmarks.md`; operators may pass their own. Prices always come from the operator.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import MOST_SHARDS, SHARDS, groups_for

DAY_S = 86_400
MONTH_DAYS = 365.25 / 12
GB = 1e9

SHARD_COSTS = ((16, 1.0), (64, 1.59), (256, 2.25))
"""Numbers of shards, each with the processor time of a round relative to 16 shards; measured by
``python -m benchmarks.shards``."""

SHARD_PINGS = TASK_PINGS = 4_000_000
"""Maximum number of pings of a shard in a round, and the approximate number of pings of one task."""

ROW_BYTES = 100
"""Bytes of memory that a task needs for each ping."""

READS, OF_STORE = 3, 80
"""Requests of a round to a bucket: for each row group that a task reads, and for the store
(`docs/object-stores.md`)."""

HEAD_BYTES = 300
"""Approximate bytes of a response without a model."""

COMPACT_S = 60
"""Default time between two landed files of an ingest machine, in seconds."""

Positive = Annotated[float, Meta(gt=0, le=1e12)]
Amount = Annotated[float, Meta(ge=0, le=1e12)]


class UnitCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The costs of one ping.

    Attributes:
        name: name of the model and its upload.
        ping_bytes: bytes of the body of a request with one ping.
        ingest_us: processor microseconds of all ingest processes, from the request to Parquet.
        journal_bytes: bytes in the journal until compaction.
        landed_bytes: bytes in Parquet.
        round_us: processor microseconds in a round of 16 shards.
        round_seconds: sequential processor seconds of a round, for any number of pings.
        model_bytes: bytes of a fetched model, compressed.
    """

    name: str
    ping_bytes: Positive
    ingest_us: Positive
    journal_bytes: Positive
    landed_bytes: Positive
    round_us: Positive
    round_seconds: Amount
    model_bytes: Positive


class OutcomeCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The costs of one later outcome, for any model. The attributes mean the same as in :class:`UnitCosts`."""

    ping_bytes: Positive
    ingest_us: Positive
    journal_bytes: Positive
    landed_bytes: Positive


class Prices(Struct, frozen=True, kw_only=True):
    """Prices of a provider, in any currency; None for unknown prices."""

    core_hour: Amount | None = None
    gb_month: Amount | None = None
    gb_out: Amount | None = None
    million_requests: Amount | None = None


class Fleet(Struct, frozen=True, kw_only=True):
    """The input of a plan.

    Attributes:
        clients: number of clients.
        pings_a_day: mean pings of a client per day.
        fetches_a_day: requests of a client for the newest model per day.
        outcomes_a_day: mean later outcomes of a client per day, each a ping of its own.
        peak: pings of the busiest hour relative to the mean.
        every_s: seconds between two rounds.
        within_s: maximum seconds of a round at the peak.
        busy: maximum share of an ingest machine's busy cores at the peak.
        machine_cores: cores of an ingest machine.
        keep_days: days for which pings are kept.
        journal_hours: hours of the peak that journals can hold while nothing lands.
    """

    clients: Positive
    pings_a_day: Positive = 5.0
    fetches_a_day: Amount = 5.0
    outcomes_a_day: Amount = 0.0
    peak: Annotated[float, Meta(ge=1, le=1e6)] = 3.0
    every_s: Positive = 1800.0
    within_s: Positive = 300.0
    busy: Annotated[float, Meta(gt=0, le=1)] = 0.5
    machine_cores: Annotated[int, Meta(ge=1)] = 8
    keep_days: Amount = 30.0
    journal_hours: Amount = 4.0


class Ingest(Struct, frozen=True, kw_only=True):
    """The ingest machines: one more than the peak needs, because one may fail."""

    mean_pings_s: float
    peak_pings_s: float
    peak_mbit_s: float
    busy_cores: float
    machines: int
    journal_gb_a_machine: float


class Rounds(Struct, frozen=True, kw_only=True):
    """A round at the peak. ``core_hours_a_day`` is the sum over all rounds of a day, most of them smaller.

    ``memory_gb`` is the memory of all cores together.
    """

    pings: float
    shards: int
    cores: int
    seconds: float
    memory_gb: float
    reads: float
    a_day: float
    core_hours_a_day: float


class Stored(Struct, frozen=True, kw_only=True):
    """Landed pings in Parquet, and models that clients fetch."""

    landed_gb_a_day: float
    landed_gb: float
    fetches_peak_s: float
    models_gb_a_day: float


class FleetPlan(Struct, frozen=True, kw_only=True):
    """The plan of a fleet. ``money`` has the monthly cost by purpose, where prices are known."""

    costs: UnitCosts
    fleet: Fleet
    ingest: Ingest
    rounds: Rounds
    stored: Stored
    money: dict[str, float]


MEASURED = {
    "firefox-2018": UnitCosts(
        name="firefox-2018",
        ping_bytes=900,
        ingest_us=229.4,
        journal_bytes=921,
        landed_bytes=138,
        round_us=0.977,
        round_seconds=0.03,
        model_bytes=451,
    ),
    "million": UnitCosts(
        name="million",
        ping_bytes=184_521,
        ingest_us=5094.9,
        journal_bytes=184_646,
        landed_bytes=138_300,
        round_us=33023.28,
        round_seconds=2.27,
        model_bytes=9_081_311,
    ),
}
"""Unit costs from `docs/benchmarks.md`, by name."""

OUTCOME = OutcomeCosts(ping_bytes=164, ingest_us=205.0, journal_bytes=250, landed_bytes=41)
"""The costs of a later outcome, measured by ``python -m benchmarks.outcomes``."""


def planned(fleet: Fleet, costs: UnitCosts, prices: Prices) -> FleetPlan:
    """Return the plan of a fleet.

    Raises:
        InvalidSettings: no cluster finishes a round at the peak in time, or rounds may take longer than their interval.
    """
    if fleet.within_s > fleet.every_s:
        raise InvalidSettings(
            f"rounds every {fleet.every_s:,.0f} s that take up to {fleet.within_s:,.0f} s fall further and further "
            "behind; give a --within of at most --every"
        )
    ingest, rounds, stored = _ingest(fleet, costs), _rounds(fleet, costs), _stored(fleet, costs)
    machines = ingest.machines * fleet.machine_cores
    fetches = fleet.clients * fleet.fetches_a_day
    journals = ingest.machines * ingest.journal_gb_a_machine
    bills = {
        "ingest machines": (machines * 24 * MONTH_DAYS, prices.core_hour),
        "rounds, while they run": (rounds.core_hours_a_day * MONTH_DAYS, prices.core_hour),
        "pings and journals on disk": (stored.landed_gb + journals, prices.gb_month),
        "models to clients": (stored.models_gb_a_day * MONTH_DAYS, prices.gb_out),
        "requests for models": (fetches * MONTH_DAYS / 1e6, prices.million_requests),
    }
    money = {name: amount * price for name, (amount, price) in bills.items() if price is not None}
    return FleetPlan(costs=costs, fleet=fleet, ingest=ingest, rounds=rounds, stored=stored, money=money)


def _ingest(fleet: Fleet, costs: UnitCosts) -> Ingest:
    mean = fleet.clients * fleet.pings_a_day / DAY_S
    peak, outcomes = mean * fleet.peak, fleet.clients * fleet.outcomes_a_day / DAY_S * fleet.peak
    cores = (peak * costs.ingest_us + outcomes * OUTCOME.ingest_us) / 1e6
    journals = peak * costs.journal_bytes + outcomes * OUTCOME.journal_bytes
    machines = math.ceil(cores / (fleet.busy * fleet.machine_cores)) + 1
    return Ingest(
        mean_pings_s=mean + outcomes / fleet.peak,
        peak_pings_s=peak + outcomes,
        peak_mbit_s=(peak * costs.ping_bytes + outcomes * OUTCOME.ping_bytes) * 8 / 1e6,
        busy_cores=cores,
        machines=machines,
        journal_gb_a_machine=journals * fleet.journal_hours * 3600 / machines / GB,
    )


def _rounds(fleet: Fleet, costs: UnitCosts) -> Rounds:
    mean = fleet.clients * fleet.pings_a_day * fleet.every_s / DAY_S  # divided last, so that whole numbers stay whole
    pings = mean * fleet.peak
    shards, cores = _cluster(fleet, costs, pings)
    files = _ingest(fleet, costs).machines * max(1.0, fleet.every_s / COMPACT_S)
    groups = groups_for(int(pings / files), shards)
    tasks = min(shards, max(cores, math.ceil(pings / TASK_PINGS)))
    a_day = DAY_S / fleet.every_s
    each = mean * costs.round_us / 1e6 * shard_cost(shards) + costs.round_seconds * cores  # idle at the end, but held
    return Rounds(
        pings=pings,
        shards=shards,
        cores=cores,
        seconds=_seconds(costs, pings, shards, cores),
        memory_gb=pings / tasks * min(cores, tasks) * ROW_BYTES / GB,
        reads=OF_STORE + files * (tasks + READS * max(groups, tasks)),  # each task reads a footer, and its row groups
        a_day=a_day,
        core_hours_a_day=a_day * each / 3600,
    )


def _cluster(fleet: Fleet, costs: UnitCosts, pings: float) -> tuple[int, int]:
    """Return the minimum numbers of shards and of cores for a round that finishes in time."""
    shards = SHARDS
    while shards <= MOST_SHARDS:
        left = fleet.within_s - costs.round_seconds
        work = pings * costs.round_us / 1e6 * shard_cost(shards)
        if left > 0 and pings <= shards * SHARD_PINGS and (cores := max(1, math.ceil(work / left))) <= shards:
            return shards, cores
        shards *= 2
    raise InvalidSettings(
        f"no cluster completes a round of {pings:,.0f} pings within {fleet.within_s:,.0f} s, because a shard uses "
        f"only one core and a round has at most {MOST_SHARDS:,} shards; give rounds more time (--within), or use "
        "fewer pings or smaller updates"
    )


def _seconds(costs: UnitCosts, pings: float, shards: int, cores: int) -> float:
    return pings * costs.round_us / 1e6 * shard_cost(shards) / min(cores, shards) + costs.round_seconds


def shard_cost(shards: int) -> float:
    """Return the processor time of a round, relative to a round with 16 shards.

    It is interpolated linearly in the logarithm of the number of shards. Beyond the measured numbers, the slope
    between the last two applies.
    """
    points = [(math.log2(count), cost) for count, cost in SHARD_COSTS]
    at = math.log2(shards)
    (low, before), (high, after) = next(
        (pair for pair in zip(points, points[1:], strict=False) if at <= pair[1][0]), (points[-2], points[-1])
    )
    return before + (after - before) * (at - low) / (high - low)


def _stored(fleet: Fleet, costs: UnitCosts) -> Stored:
    outcomes = fleet.outcomes_a_day * OUTCOME.landed_bytes
    landed = fleet.clients * (fleet.pings_a_day * costs.landed_bytes + outcomes) / GB
    fetches = fleet.clients * fleet.fetches_a_day
    new = min(fetches, fleet.clients * DAY_S / fleet.every_s)  # further requests are answered without a model
    return Stored(
        landed_gb_a_day=landed,
        landed_gb=landed * fleet.keep_days,
        fetches_peak_s=fetches / DAY_S * fleet.peak,
        models_gb_a_day=(new * costs.model_bytes + (fetches - new) * HEAD_BYTES) / GB,
    )


def read_costs(path: Path) -> dict[str, UnitCosts]:
    """Return the unit costs of a file written by ``python -m benchmarks.unit_costs --json``, by name.

    Raises:
        InvalidSettings: the file cannot be read, or is not a file of unit costs.
    """
    try:
        costs = msgspec.json.decode(path.read_bytes(), type=list[UnitCosts])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidSettings(
            f"{path} is not a file of unit costs ({why}); create it with 'python -m benchmarks.unit_costs --json'"
        ) from error
    if not costs:
        raise InvalidSettings(
            f"{path} is not a file of unit costs; create it with 'python -m benchmarks.unit_costs --json'"
        )
    return {each.name: each for each in costs}
