"""A fleet's clients: their ids, versions, and actions."""

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest

from fedping.client_sim.fleet import (
    Behaviour,
    Fetched,
    Fleet,
    FleetSettings,
    IterationSummary,
    NotModified,
    Unavailable,
    join_study,
)
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.population.settings import PopulationSettings
from fedping.protocol.enrolment import enrol
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.model import ModelDocument
from tests.support.faulty_server import faulty_server, refusal
from tests.support.fleets import (
    STUDY,
    PingSeen,
    PlannedTransport,
    document,
    fleet_study,
    iterate,
    joined,
    run_by_iteration,
    seen,
)
from tests.support.virtual_time import in_virtual_time


def of_line(pings: dict[UUID, PingSeen]) -> dict[UUID, PingSeen]:
    return {client: ping for client, ping in pings.items() if ping.arm != "plain"}


def pings_of(clients: int, seed: int, run: int = 0, gradient: str = "analytic") -> dict[UUID, bytes]:
    transport = PlannedTransport()
    users = PopulationSettings(nothing_selected=0.2)
    fleet = joined(transport, users, clients=clients, seed=seed, run=run, gradient=gradient)
    in_virtual_time(iterate(fleet, 2))
    return transport.landed


# The clients' ids


def test_clients_enrol_themselves_and_only_who_is_enrolled_sends() -> None:
    transport = PlannedTransport()
    fleet = joined(transport, clients=500)
    pings = of_line(run_by_iteration(transport, fleet, 1)[0])
    study = fleet_study()
    for client, ping in pings.items():
        arm = enrol(study, str(client))
        assert arm is not None
        assert arm.name == ping.arm
    enrolled = [client for client in fleet.roster.ids if enrol(study, str(client)) is not None]
    assert 400 < len(enrolled) < 500
    assert len(transport.sent) == len(enrolled)
    assert all(client.version == 4 for client in fleet.roster.ids)
    assert len(set(fleet.roster.ids)) == 500


def test_the_same_seed_gives_the_same_bytes_and_another_seed_or_run_other_documents() -> None:
    assert pings_of(40, 5) == pings_of(40, 5)
    assert not pings_of(40, 5).keys() & pings_of(40, 6).keys()
    again = pings_of(40, 5, run=1)
    assert not pings_of(40, 5).keys() & again.keys()
    assert sorted(pings_of(40, 5).values()) == sorted(again.values())


@pytest.mark.parametrize("gradient", ["finite_differences", "analytic"])
@pytest.mark.parametrize("few", [1, 7, 60])
def test_a_client_does_the_same_however_many_others_there_are(few: int, gradient: str) -> None:
    some, many = pings_of(few, 9, gradient=gradient), pings_of(150, 9, gradient=gradient)
    assert some.items() <= many.items()
    assert len(some) >= few  # at least one search each, in each of two iterations


def test_document_ids_are_never_used_twice() -> None:
    transport = PlannedTransport()
    fleet = joined(transport, PopulationSettings(searches=(0, 4)), clients=300)
    in_virtual_time(iterate(fleet, 3))
    assert fleet.counts.generated == len(transport.landed) == len(transport.sent) > 1000


# Fetched and held versions


def test_everybody_fetches_once_an_iteration_and_by_the_tag_of_what_it_holds() -> None:
    transport = PlannedTransport()
    fleet = joined(transport)
    summaries = in_virtual_time(iterate(fleet, 2))
    following = int((fleet.roster.arm >= 0).sum() - (fleet.roster.arm == 3).sum())
    asked = [etag for _, _, etag in transport.fetches]
    assert asked == [None] * following + ["0"] * following
    assert [s.fetches.fetched for s in summaries] == [following, 0]
    assert [s.fetches.not_modified for s in summaries] == [0, following]
    assert summaries[1].versions == {"main": 0, "other": 0}


def test_one_fetch_may_stand_for_all_clients_and_changes_no_ping() -> None:
    alone, together = PlannedTransport(), PlannedTransport()
    behaviour = Behaviour(fetch_late=0.3, go_silent=0.2)
    each, shared = joined(alone, behaviour=behaviour), joined(together, behaviour=behaviour, fetch_together=True)
    assert run_by_iteration(alone, each, 4) == run_by_iteration(together, shared, 4)
    assert alone.landed == together.landed
    assert len(together.fetches) == 2 * 4  # two lines
    assert each.fetch_counts == shared.fetch_counts


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_late_fetchers_keep_what_they_have_and_say_so(share: float) -> None:
    transport = PlannedTransport()
    fleet = joined(transport, behaviour=Behaviour(fetch_late=share))
    held: dict[UUID, object] = {}
    for iteration, pings in enumerate(run_by_iteration(transport, fleet, 4)):
        for client, ping in of_line(pings).items():
            assert ping.version in (iteration, held.get(client, -1))
            held[client] = ping.version
    spread = Counter(held.values())
    assert set(spread) == ({-1} if share == 1 else {-1, 0, 1, 2, 3})
    assert bool(transport.fetches) == (share < 1)


def test_late_fetchers_are_counted() -> None:
    transport = PlannedTransport()
    fleet = joined(transport, behaviour=Behaviour(fetch_late=0.4))

    async def go() -> None:
        for transport.version in range(4):
            summary = await fleet.run_iteration()
            versions = fleet.roster.version[(fleet.roster.arm >= 0) & (fleet.roster.arm < 3)]
            assert summary.fetches.late == int((versions < transport.version).sum()) > 0
            assert summary.fetches.late + summary.fetches.fetched == len(versions)
            (treatment, *_) = summary.arms
            assert sum(treatment.versions.values()) == treatment.clients
            assert treatment.versions[transport.version] == max(treatment.versions.values())

    in_virtual_time(go())


@pytest.mark.parametrize("silent_for", [1, 3])
def test_silent_clients_send_nothing_for_as_long_as_they_are_silent(silent_for: int) -> None:
    transport = PlannedTransport()
    fleet = joined(transport, behaviour=Behaviour(go_silent=0.2, silent_for=silent_for))
    by_iteration = run_by_iteration(transport, fleet, 9)
    everybody = {client for pings in by_iteration for client in pings}
    silences = Counter[int]()
    for client in everybody:
        present = [client in pings for pings in by_iteration]
        gaps = "".join("x" if here else "." for here in present).strip(".").split("x")
        silences.update(len(gap) for gap in gaps if gap)
    assert silences
    assert all(length % silent_for == 0 for length in silences)  # going silent again at once makes it twice as long
    assert silences[silent_for] == max(silences.values())


def test_who_is_silent_does_not_fetch_either() -> None:
    transport = PlannedTransport()
    fleet = joined(transport, behaviour=Behaviour(go_silent=1.0, silent_for=2))
    summaries = in_virtual_time(iterate(fleet, 3))
    assert (transport.fetches, transport.sent) == ([], [])
    enrolled = int((fleet.roster.arm >= 0).sum())
    assert [s.fetches.silent for s in summaries] == [enrolled] * 3
    assert all(s.pings.generated == 0 and all(arm.clients == 0 for arm in s.arms) for s in summaries)


@pytest.mark.parametrize("stale", [0.0, 1.0])
def test_who_comes_back_stale_reports_the_version_that_it_held(stale: float) -> None:
    transport = PlannedTransport()
    fleet = joined(transport, behaviour=Behaviour(go_silent=0.15, silent_for=2, return_stale=stale))
    by_iteration = [of_line(pings) for pings in run_by_iteration(transport, fleet, 8)]
    returned = 0
    for before, first, second, after in zip(by_iteration, by_iteration[1:], by_iteration[2:], by_iteration[3:]):  # noqa: B905
        for client in before.keys() & after.keys() - first.keys() - second.keys():
            returned += 1
            newest = by_iteration.index(after)
            assert after[client].version == (before[client].version if stale else newest)
    assert returned > 20
    for iteration, (before, after) in enumerate(zip(by_iteration, by_iteration[1:]), 1):  # noqa: B905
        for client in before.keys() & after.keys():
            assert after[client].version == iteration  # active clients stay up to date, stale ones from then on


def test_fetches_are_spread_over_the_whole_time_given() -> None:
    transport = PlannedTransport()
    fleet = joined(transport, clients=500, at_once=500, fetch_within=100.0)
    in_virtual_time(iterate(fleet))
    moments = [at for at, _, _ in transport.fetches]
    quarters = Counter(int(at // 25) for at in moments)
    assert set(quarters) == {0, 1, 2, 3}
    assert max(quarters.values()) < 1.5 * min(quarters.values())
    assert len(set(moments)) == len(moments)


def test_clients_fetch_in_another_order_each_iteration() -> None:
    """In a fixed order, the same clients would be the first at every new version."""

    class Watching(PlannedTransport):
        async def fetch_model(
            self, study: str, line: str, iteration: int | None, etag: str | None
        ) -> Fetched | NotModified | Unavailable:
            up_to_date.append(set(np.flatnonzero(fleet.roster.version == self.version).tolist()))
            return await super().fetch_model(study, line, iteration, etag)

    up_to_date: list[set[int]] = []
    transport = Watching()
    fleet = joined(transport, at_once=1)
    run_by_iteration(transport, fleet, 2)
    middle = len(up_to_date) // 4
    first, second = up_to_date[middle], up_to_date[middle + len(up_to_date) // 2]
    assert len(first) == len(second) == middle
    assert len(first & second) < 0.8 * middle


def test_fetches_keep_to_the_limit() -> None:
    transport = PlannedTransport()
    transport.takes = 1
    fleet = joined(transport, at_once=9)
    in_virtual_time(iterate(fleet))
    assert transport.most_at_once == 9


def test_without_a_model_clients_go_on_with_what_they_have_and_the_reason_is_counted() -> None:
    with faulty_server(fleet_study()) as server:

        async def go() -> tuple[Fleet, list[IterationSummary]]:
            fleet = await join_study(HttpTransport(server.url), STUDY, FleetSettings(clients=60))
            summaries = await iterate(fleet)
            server.model = refusal(503)
            server.publish(1)
            summaries += await iterate(fleet)
            server.model = None
            summaries += await iterate(fleet)
            await fleet.close()
            return fleet, summaries

        fleet, (first, second, third) = asyncio.run(go())
    following = first.fetches.fetched
    assert second.fetches.unavailable_by_reason == {"HTTP 503": following}
    assert (second.versions, third.versions) == ({"main": 0, "other": 0}, {"main": 1, "other": 1})
    assert third.fetches.fetched == following
    assert fleet.counts.accepted == fleet.counts.generated


def test_a_model_of_another_shape_is_not_taken() -> None:
    class Wrong(PlannedTransport):
        async def fetch_model(
            self, study: str, line: str, iteration: int | None, etag: str | None
        ) -> Fetched | Unavailable:
            whole = document(self.study, line, 4)
            cut: ModelDocument = msgspec.structs.replace(whole, model=whole.model[:-1])
            return Fetched(cut, "x")

    transport = Wrong()
    fleet = joined(transport)
    (summary,) = in_virtual_time(iterate(fleet))
    assert set(summary.fetches.unavailable_by_reason) == {
        "version 4 of line 'main' does not have the weights of the study's model",
        "version 4 of line 'other' does not have the weights of the study's model",
    }
    assert {ping.version for ping in seen(list(transport.landed.values()))} == {-1}


# Settings of behaviour


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0}, {"clients": 1, "at_once": 0}, {"clients": 1, "seed": -1}, {"clients": 1, "run": -1},
        {"clients": 1, "fetch_within": -1.0}, {"clients": 1, "send_within": float("nan")},
        {"clients": 1, "fetch_within": float("inf")},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="a fleet needs at least"):
        FleetSettings(**wrong)


@pytest.mark.parametrize("wrong", [{"fetch_late": 1.1}, {"duplicate": -0.1}, {"go_silent": float("nan")}])
def test_probabilities_outside_0_to_1_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=f"the probability {next(iter(wrong))} is"):
        Behaviour(**wrong)
    with pytest.raises(InvalidSettings, match="cannot be silent for 0 iterations"):
        Behaviour(silent_for=0)
