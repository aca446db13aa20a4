"""A fleet's pings: each is counted once by its outcome."""

import asyncio
from collections import Counter
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.fleet import (
    Backoff,
    Behaviour,
    Delivery,
    FleetSettings,
    InProcessTransport,
    IterationSummary,
    Outcome,
    join_study,
    made_users,
)
from fedping.client_sim.fleet.interactions import product_spec
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.models import decayed, losses, model_for, selected_ranks
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import displayed
from fedping.client_sim.transport import ACCEPTED
from fedping.protocol.enrolment import enrol
from fedping.protocol.ping import FRECENCY_UPDATE
from fedping.protocol.spec import published
from fedping.protocol.study import Arm, Study
from tests.support.faulty_server import LANDED, faulty_server, refusal
from tests.support.fleets import (
    RETRY,
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


@pytest.mark.parametrize("gradient", ["finite_differences", "analytic"])
def test_a_ping_says_what_the_model_itself_says_of_the_search(gradient: str) -> None:
    """Compares update, loss, rank and scores with the models' functions, for all clients, arms and old versions."""
    transport = PlannedTransport()
    users = PopulationSettings(searches=(1, 1), nothing_selected=0.2)
    fleet = joined(transport, users, clients=120, gradient=gradient, behaviour=Behaviour(fetch_late=0.4))
    study, position = transport.study, {client: i for i, client in enumerate(fleet.roster.ids)}
    seen_arms = Counter[str]()
    for iteration, pings in enumerate(run_by_iteration(transport, fleet, 3)):
        for client, ping in pings.items():
            arm = enrol(study, str(client))
            assert arm is not None
            spec = next((line.spec for line in study.lines if line.name == arm.line), product_spec())
            model = model_for(spec.model)
            weights = np.array(published(spec, spec.start))
            if arm.applies and arm.line and (version := ping.version) != -1:
                weights = np.array(document(study, arm.line, version).model)
            sample = made_users(3, users)(model).sample(np.array([position[client]]), iteration)
            scores = model.scores(weights, sample.pages)
            if arm.decays:
                for day in range(400):
                    old = (sample.pages.sampled > 0) & (sample.pages.age_days[:, 0] > day)
                    scores[old] = decayed(scores[old])
            shown = displayed(sample.searches, scores)
            how = model.analytic_updates if gradient == "analytic" else model.finite_differences
            more = () if gradient == "analytic" else (spec.epsilon,)
            update = how(weights, sample.pages, shown, spec.margin, *more)[0].tolist()
            assert ping.payload["update"] == (update if arm.submits else None)
            assert ping.payload["loss"] == losses(scores, shown, spec.margin)[0]
            assert ping.payload["rank_selected"] == selected_ranks(scores, shown)[0]
            assert ping.payload["frecency_scores"] == scores[shown.candidates[0]].tolist()
            seen_arms[arm.name] += 1
    assert set(seen_arms) == {"treatment", "control", "linear", "plain"}


def test_an_arm_that_submits_without_applying_ranks_with_version_0_and_learns_at_the_version_it_holds() -> None:
    watching = Arm(name="watching", share=0.5, line="main", submits=True)
    study = msgspec.structs.replace(fleet_study(), arms=(watching,), lines=fleet_study().lines[:1])
    transport = PlannedTransport(study)
    transport.version = 2
    users = PopulationSettings(searches=(1, 1), nothing_selected=0.0)
    fleet = joined(transport, users, clients=60)
    in_virtual_time(iterate(fleet))
    spec, model = study.lines[0].spec, model_for("frecency-2018")
    start, held = np.array(published(spec, spec.start)), np.array(document(study, "main", 2).model)
    position = {client: i for i, client in enumerate(fleet.roster.ids)}
    pings = seen(list(transport.landed.values()))
    assert len(pings) > 10
    for ping in pings:
        sample = made_users(3, users)(model).sample(np.array([position[ping.client_id]]), 0)
        shown = displayed(sample.searches, model.scores(start, sample.pages))
        assert ping.payload["loss"] == losses(model.scores(start, sample.pages), shown, spec.margin)[0]
        update = model.finite_differences(held, sample.pages, shown, spec.margin, spec.epsilon)[0]
        assert ping.payload["update"] == update.tolist()


def all_pings() -> list[PingSeen]:
    transport = PlannedTransport()
    transport.version = 2
    fleet = joined(transport, PopulationSettings(nothing_selected=0.3), clients=300)
    in_virtual_time(iterate(fleet))
    for body in transport.landed.values():
        msgspec.json.decode(body, type=FRECENCY_UPDATE.ping)
    return seen(list(transport.landed.values()))


def test_arms_send_what_they_should_and_nothing_selected_is_all_zero() -> None:
    pings = all_pings()
    for ping in pings:
        update, loss = ping.payload["update"], ping.payload["loss"]
        assert (update is None) == (ping.arm in ("control", "plain"))
        assert ping.version == (-1 if ping.arm == "plain" else 2)
        if ping.payload["rank_selected"] == -1:
            assert loss == 0
            assert update is None or not any(update)
            assert ping.payload["selected_style"] == ""
            assert ping.payload["enter_was_pressed"] == 0
    nothing = Counter(ping.arm for ping in pings if ping.payload["rank_selected"] == -1)
    assert set(nothing) == {"treatment", "control", "linear", "plain"}
    assert any(any(ping.payload["update"]) for ping in pings if ping.payload["update"] is not None)


def test_the_summary_says_what_the_pings_say() -> None:
    transport = PlannedTransport()
    fleet = joined(transport, PopulationSettings(nothing_selected=0.3), clients=300)
    (summary,) = in_virtual_time(iterate(fleet))
    pings = seen(list(transport.landed.values()))
    assert (summary.pings.generated, summary.pings.accepted) == (len(pings), len(pings))
    for arm in summary.arms:
        ours = [ping.payload for ping in pings if ping.arm == arm.arm]
        chosen = [payload for payload in ours if payload["rank_selected"] != -1]
        assert (arm.pings, arm.selected) == (len(ours), len(chosen))
        assert arm.loss == pytest.approx(np.mean([payload["loss"] for payload in chosen]))
        assert arm.rank == pytest.approx(np.mean([payload["rank_selected"] for payload in chosen]))
        assert arm.top_share == pytest.approx(np.mean([payload["rank_selected"] == 0 for payload in chosen]))


def test_a_study_without_lines_and_a_fleet_without_searches_work() -> None:
    plain = Study(name=STUDY, arms=(Arm(name="only", share=1.0, decays=True),))
    transport = PlannedTransport(plain)
    (summary,) = in_virtual_time(iterate(joined(transport, clients=20)))
    assert (summary.pings.accepted, summary.versions, transport.fetches) == (20, {}, [])
    nobody = PlannedTransport()
    (summary,) = in_virtual_time(iterate(joined(nobody, PopulationSettings(searches=(0, 0)), clients=20)))
    assert (summary.pings.generated, nobody.sent) == (0, [])
    assert all(arm.loss is None for arm in summary.arms)


# Outcomes of pings


@given(
    plan=st.lists(
        st.sampled_from([ACCEPTED, RETRY, Outcome(Delivery.REJECTED, "400 a"), Outcome(Delivery.RETRY, "429", 90.0)]),
        min_size=1,
        max_size=11,
    ),
    cancel_after=st.none() | st.floats(0, 60),
    duplicate=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=40, deadline=None)
def test_every_summary_balances_and_a_cancelled_iteration_loses_nothing(
    plan: list[Outcome], cancel_after: float | None, duplicate: float
) -> None:
    transport = PlannedTransport(plan=lambda name, attempt: plan[(name.int + 3 * attempt) % len(plan)])
    transport.takes = 0.2
    behaviour = Behaviour(duplicate=duplicate, go_silent=0.1)
    fleet = joined(
        transport, clients=20, behaviour=behaviour, backoff=Backoff(attempts=3), fetch_within=5.0, send_within=5.0
    )

    def balanced() -> bool:
        counts = fleet.counts
        return counts.accepted + counts.rejected.total() + fleet.undelivered == counts.generated

    async def go() -> None:
        for iteration in range(3):
            task = asyncio.ensure_future(fleet.run_iteration())
            if iteration == 1 and cancel_after is not None:
                await asyncio.sleep(cancel_after)
                task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            assert balanced()
            if isinstance(result, IterationSummary):
                pings = result.pings
                assert pings.carried_over + pings.generated == pings.accepted + pings.rejected + pings.undelivered
                assert pings.rejected == sum(pings.rejected_by_reason.values())
                assert pings.retried == sum(pings.retried_by_reason.values())
                assert pings.undelivered == fleet.undelivered
            else:
                assert isinstance(result, asyncio.CancelledError)
        await fleet.deliver_what_is_left()
        assert balanced()

    in_virtual_time(go())
    assert fleet.counts.accepted == len(transport.landed)


def test_what_nobody_took_is_carried_over_and_lands_once() -> None:
    with faulty_server(fleet_study()) as server:

        async def instantly(seconds: float) -> None:
            await asyncio.sleep(0)

        async def go() -> list[IterationSummary]:
            options = FleetSettings(clients=80, backoff=Backoff(attempts=2), behaviour=Behaviour(duplicate=0.3))
            fleet = await join_study(HttpTransport(server.url), STUDY, options, sleep=instantly)
            server.plan = lambda name, attempt: refusal(503) if name.int % 2 else LANDED
            summaries = await iterate(fleet)
            server.plan = lambda name, attempt: LANDED
            summaries += await iterate(fleet)
            await fleet.close()
            return summaries

        first, second = asyncio.run(go())
    assert first.pings.undelivered == second.pings.carried_over > 10
    assert (second.pings.undelivered, second.pings.rejected) == (0, 0)
    assert first.pings.accepted + second.pings.accepted == len(server.bodies()) == len(server.landings)
    twice = sum(times - 1 for times in server.landings.values())
    assert twice == first.pings.duplicates + second.pings.duplicates > 5


def test_what_a_sink_in_this_process_raises_is_not_hidden() -> None:
    study = fleet_study()

    def sink(document_id: UUID, body: bytes) -> str | None:
        raise ZeroDivisionError

    transport = InProcessTransport(study, lambda line, n: document(study, line, 0), sink)

    async def go() -> None:
        fleet = await join_study(transport, STUDY, FleetSettings(clients=5))
        with pytest.raises(ExceptionGroup) as raised:
            await fleet.run_iteration()
        assert raised.group_contains(ZeroDivisionError)

    asyncio.run(go())
