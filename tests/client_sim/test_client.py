"""The state machine of a client: every order of answers leads to the same final state; no version gets two pings."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from fedping.client_sim.client import (
    ONE_ATTEMPT,
    Action,
    Backoff,
    Client,
    Progress,
    Sending,
    SendState,
    SetAside,
    Settled,
    after_attempt,
    arm_position,
    is_due,
    next_action,
    sends_update,
    version_after,
)
from fedping.client_sim.transport import ACCEPTED, Delivery, Fetched, NotModified, Outcome, Unavailable
from tests.support.fleets import REJECTED, RETRY, document, fleet_study

BUSY = Outcome(Delivery.RETRY, "HTTP 429", 40.0)
CLOSED = Outcome(Delivery.RETRY, "HTTP 503", 5000.0)
OUTCOMES = st.sampled_from([ACCEPTED, REJECTED, RETRY, BUSY, CLOSED])
VERSIONS = st.integers(-1, 5)


@given(outcomes=st.lists(OUTCOMES, min_size=8, max_size=8), attempts=st.integers(1, 8))
def test_a_ping_is_posted_until_it_is_settled_or_set_aside(outcomes: list[Outcome], attempts: int) -> None:
    backoff = Backoff(attempts=attempts, longest=60)
    state: SendState = Sending()
    used = 0
    while isinstance(state, Sending):
        state = after_attempt(state, outcomes[used], backoff)
        used += 1
    last = outcomes[used - 1]
    assert used <= attempts
    assert all(outcome in (RETRY, BUSY) for outcome in outcomes[: used - 1])
    if last.delivery is Delivery.RETRY:
        assert state == SetAside(last.reason, last.retry_after or 0.0)
        assert used == attempts or last is CLOSED
    else:
        assert state == Settled(last)
        assert state.accepted is (last is ACCEPTED)


@given(outcome=OUTCOMES)
def test_one_attempt_never_leads_to_another(outcome: Outcome) -> None:
    assert not isinstance(after_attempt(Sending(), outcome, ONE_ATTEMPT), Sending)


@given(held=VERSIONS)
def test_a_client_keeps_its_version_unless_another_one_comes(held: int) -> None:
    assert version_after(held, NotModified()) == version_after(held, Unavailable("away")) == held
    assert version_after(held, Fetched(document(fleet_study(), "main", 3), "3")) == 3


@given(
    once=st.booleans(),
    steps=st.lists(st.tuples(VERSIONS, st.sampled_from([ACCEPTED, REJECTED])), max_size=12),
)
def test_a_version_gets_one_accepted_ping_and_one_ping_at_all_if_it_is_trained_on_once(
    once: bool, steps: list[tuple[int, Outcome]]
) -> None:
    progress, trained, accepted = Progress(), list[int](), list[int]()
    for version, outcome in steps:
        if not is_due(progress, version, once):
            continue
        trained.append(version)
        if once:
            progress = progress.after_training(version, contributed=len(trained))
        progress = progress.after_answer(version, outcome)
        accepted += [version] if outcome is ACCEPTED else []
    assert accepted == sorted(set(accepted))
    assert not once or trained == sorted(set(trained))
    assert progress.sent == len(accepted)
    assert progress.contributed == (len(trained) if once else 0)


@given(
    version=VERSIONS,
    progress=st.builds(Progress, version=VERSIONS, moved=VERSIONS, contributed=st.integers(0, 3)),
    has_ping=st.booleans(),
    has_fetched=st.booleans(),
    once=st.booleans(),
    selected=st.booleans(),
    limit=st.none() | st.integers(1, 3),
)
def test_a_pending_ping_comes_first_and_the_newest_version_before_the_training(
    version: int,
    progress: Progress,
    has_ping: bool,
    has_fetched: bool,
    once: bool,
    selected: bool,
    limit: int | None,
) -> None:
    action = next_action(
        Client(
            version=version,
            progress=progress,
            has_ping=has_ping,
            has_fetched=has_fetched,
            trains_once=once,
            is_selected=selected,
            contributions=limit,
        )
    )
    assert (action is Action.POST) is has_ping
    if action is Action.LEAVE:
        assert limit is not None
        assert progress.contributed >= limit
    if action is Action.TRAIN:
        assert has_fetched
        assert selected
        assert version > progress.version
        assert not once or version > progress.moved
    if action is Action.WAIT:
        assert has_fetched


def test_a_client_of_an_arm_without_updates_is_always_selected_and_one_with_them_by_its_share() -> None:
    study = fleet_study()
    ids = [UUID(int=i, version=4) for i in range(2000)]
    arms = {arm.name: arm for arm in study.arms}
    assert all(sends_update(study.name, arms["control"], 0.1, 0, each) for each in ids)
    chosen = [sends_update(study.name, arms["treatment"], 0.1, 0, each) for each in ids]
    assert 130 < sum(chosen) < 270  # five standard deviations around 200


def test_clients_are_enrolled_by_their_shares() -> None:
    from fedping.protocol.study import public_study

    study = public_study(fleet_study())
    positions = [arm_position(study, UUID(int=i, version=4)) for i in range(2000)]
    assert set(positions) == {-1, 0, 1, 2, 3}
    assert 130 < positions.count(-1) < 270
