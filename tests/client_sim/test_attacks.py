"""Laws of attacks: the updates of hostile clients; those of honest clients stay unchanged."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.client_sim.attacks import Attack, Hostile, Known, Plot, hostile_among, hostile_updates
from fedping.client_sim.attacks.plot import Honest, Spoilt, fooled_by_trigger, hidden_z, spoilt, triggered
from fedping.client_sim.attacks.settings import Backdoor, LabelFlip, Poison
from fedping.client_sim.learning.batch import Examples
from fedping.client_sim.learning.choices import Choices
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.searches import SearchData
from fedping.client_sim.models import Searches
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.errors import InvalidSettings

M = 4
NAMES = tuple(f"w{i}" for i in range(M))
KNOWN = Known(np.arange(M) * 1.0, np.ones(M), NAMES)

ON_UPDATES: list[dict[str, Any]] = [
    {"attack": "sign_flip", "scale": 3.0},
    {"attack": "scale", "scale": 5.0},
    {"attack": "noise", "deviation": 2.0},
    {"attack": "constant", "value": -7.0},
    {"attack": "target_weights", "weights": {"w2": 9.0}, "scale": 10.0},
    {"attack": "inner_product", "epsilon": 0.5},
    {"attack": "little_is_enough"},
    {"attack": "free_rider", "sends": "last_difference", "deviation": 0.5},
]


def attack(**settings: Any) -> Any:
    return msgspec.convert(settings, Attack)  # type: ignore[call-overload]


def keys(count: int) -> Any:
    return child_keys(root_key(7), np.arange(count))


def own(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(2.0, 3.0, (count, M))


def sent(by: Any, updates: Any, known: Known = KNOWN) -> Any:
    return hostile_updates(by, updates, keys(len(updates)), known)


def a_plot(by: Any, clients: int, seed: int = 1, round_: int = 0) -> tuple[Plot, Any]:
    hostile = np.isin(np.arange(clients), hostile_among(by, np.arange(clients), seed))
    return Plot(by, hostile, seed, round_), hostile


def test_flipping_signs_twice_gives_the_update_back_to_the_bit() -> None:
    flip, updates = attack(attack="sign_flip"), own(6)
    np.testing.assert_array_equal(sent(flip, sent(flip, updates)), updates)
    np.testing.assert_array_equal(sent(attack(attack="sign_flip", scale=4), updates), -4 * updates)
    np.testing.assert_array_equal(sent(attack(attack="scale", scale=4), updates), 4 * updates)


@pytest.mark.parametrize("settings", ON_UPDATES, ids=lambda each: each["attack"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_honest_updates_stay_to_the_bit_and_hostile_ones_change(settings: dict[str, Any], dtype: Any) -> None:
    plot, hostile = a_plot(attack(**settings, share=0.25), 40)
    updates = own(40).astype(dtype)
    before = updates.copy()
    found = plot.at_once(np.arange(40), np.zeros(40, np.int64), updates, KNOWN)
    np.testing.assert_array_equal(updates, before)
    np.testing.assert_array_equal(found[~hostile], before[~hostile])
    assert (found[hostile] != before[hostile]).any(axis=1).all()
    assert found.dtype == dtype
    assert hostile.sum() == 10


@pytest.mark.parametrize("settings", ON_UPDATES, ids=lambda each: each["attack"])
def test_what_is_sent_does_not_depend_on_how_a_round_is_cut_into_blocks(settings: dict[str, Any]) -> None:
    by, updates, clients = attack(**settings, share=0.25), own(40), np.arange(40)
    whole = a_plot(by, 40)[0].at_once(clients, np.zeros(40, np.int64), updates, KNOWN)
    plot, hostile = a_plot(by, 40)
    cuts = np.split(clients, range(7, 40, 7))
    times, examples = np.zeros(40, np.int64), np.ones(40)
    parts = np.concatenate([plot.spoil(cut, times[cut], updates[cut], examples[cut], KNOWN) for cut in cuts])
    if plot.waits:
        known = Known(KNOWN.weights, KNOWN.before, NAMES, hostile=10)
        parts[hostile] = plot.late(clients[hostile], updates[hostile], known)
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


@pytest.mark.parametrize("settings", ON_UPDATES, ids=lambda each: each["attack"])
def test_what_is_sent_can_land_whatever_clients_have_come_to(settings: dict[str, Any]) -> None:
    updates = np.array([[1e30, -1e30, 0.0, 1e-30]] * 4, np.float32)
    plot, _ = a_plot(attack(**settings, clients=2), 4)
    found = plot.at_once(np.arange(4), np.zeros(4, np.int64), updates, KNOWN)
    assert np.isfinite(found).all()
    assert np.abs(found.astype(np.float64)).max() <= 1.0001e30


def test_noise_is_another_for_each_client_and_round_and_the_same_again() -> None:
    noise = attack(attack="noise", deviation=2.0, share=0.5)
    clients, times = np.arange(2000), np.zeros(2000, np.int64)
    plots = [a_plot(noise, 2000, round_=round_)[0] for round_ in (0, 0, 1)]
    draws = [plot.at_once(clients, times, np.zeros((2000, M)), KNOWN) for plot in plots]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).any()
    of_hostile = draws[0][(draws[0] != 0).any(axis=1)]
    assert len(np.unique(of_hostile[:, 0])) == 1000
    assert abs(of_hostile.mean()) < 0.15
    assert abs(of_hostile.std() - 2) < 0.1


def test_targeted_weights_are_dragged_and_the_others_left_to_the_own_update() -> None:
    found = sent(attack(attack="target_weights", weights={"w2": 9.0}, scale=10), own(3))
    np.testing.assert_array_equal(found[:, 2], 10 * (9.0 - 2.0))
    np.testing.assert_array_equal(found[:, [0, 1, 3]], own(3)[:, [0, 1, 3]])
    with pytest.raises(InvalidSettings, match=r"'nobody'.*does not have; it has w0"):
        sent(attack(attack="target_weights", weights={"nobody": 1}), own(3))


def test_inner_product_turns_the_mean_of_all_around() -> None:
    updates = own(40)
    plot, hostile = a_plot(attack(attack="inner_product", epsilon=20, share=0.1), 40)
    found = plot.at_once(np.arange(40), np.zeros(40, np.int64), updates, KNOWN)
    honest = updates[~hostile].mean(axis=0)
    np.testing.assert_allclose(found[hostile], np.tile(-20 * honest, (4, 1)))
    assert found.mean(axis=0) @ honest < 0


@given(st.integers(3, 400), st.integers(1, 150), st.integers(0, 2**31))
def test_a_little_is_enough_stays_within_z_deviations_of_the_honest(clients: int, hostile: int, seed: int) -> None:
    hostile = min(hostile, (clients - 1) // 2)
    z = hidden_z(clients, hostile)
    honest = Honest.none(M).and_of(own(clients - hostile, seed))
    found = sent(
        attack(attack="little_is_enough"), np.zeros((1, M)), Known(*[KNOWN.weights] * 2, NAMES, honest, hostile)
    )
    assert 0 <= z < 10
    assert (np.abs(found - honest.mean) <= z * honest.deviation * (1 + 1e-9) + 1e-12).all()


def test_the_z_of_the_paper() -> None:
    # Baruch et al. 2019, 4.1: of 50 clients 24 are hostile, and two honest ones must be farther out: Φ(z) = 24 / 26.
    assert hidden_z(50, 24) == pytest.approx(1.42608, abs=1e-4)
    assert hidden_z(10, 1) == 0.0
    assert hidden_z(2, 1) == 0.0
    assert [hidden_z(100, h) for h in (5, 20, 40, 49)] == sorted(hidden_z(100, h) for h in (5, 20, 40, 49))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2**31))
def test_the_honest_mean_and_deviation_are_those_of_all_blocks_together(sizes: list[int], seed: int) -> None:
    all_ = own(sum(sizes), seed)
    honest = Honest.none(M)
    for block in np.split(all_, np.cumsum(sizes)[:-1]):
        honest = honest.and_of(block)
    np.testing.assert_allclose(honest.mean, all_.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(honest.deviation, all_.std(axis=0), rtol=1e-7, atol=1e-12)


def test_free_riders_send_nothing_noise_or_what_the_model_just_did() -> None:
    assert not sent(attack(attack="free_rider"), own(3)).any()
    step = sent(attack(attack="free_rider", sends="last_difference"), own(3))
    np.testing.assert_array_equal(step, np.tile(KNOWN.weights - KNOWN.before, (3, 1)))
    noisy = sent(attack(attack="free_rider", sends="last_difference", deviation=0.1), own(3))
    assert 0 < np.abs(noisy - step).max() < 1
    assert len(np.unique(noisy[:, 0])) == 3


@given(st.integers(1, 300), st.floats(0.001, 0.999), st.integers(0, 99))
def test_the_share_is_kept_and_a_larger_one_holds_a_smaller(clients: int, share: float, seed: int) -> None:
    everybody = np.arange(clients) * 3 + 5
    some = hostile_among(attack(attack="scale", share=share), everybody, seed)
    assert len(some) == max(1, round(share * clients))
    assert set(some) <= set(everybody)
    np.testing.assert_array_equal(some, hostile_among(attack(attack="noise", share=share), everybody, seed))
    assert set(some) <= set(hostile_among(attack(attack="scale", share=(1 + share) / 2), everybody, seed))


def test_other_seeds_have_other_hostile_clients_and_more_than_there_are_cannot_be() -> None:
    ten = attack(attack="scale", clients=10)
    drawn = [tuple(hostile_among(ten, np.arange(1000), seed)) for seed in range(5)]
    assert len({*drawn}) == 5
    with pytest.raises(InvalidSettings, match="10 hostile clients, and there are 9"):
        hostile_among(ten, np.arange(9), 0)
    assert len(hostile_among(attack(attack="scale", invented=2.0), np.arange(9), 0)) == 0
    assert len(hostile_among(attack(attack="scale"), np.arange(9), 0)) == 1


def test_an_attack_is_on_from_its_first_to_its_last_round() -> None:
    some: Hostile = attack(attack="constant", from_round=3, to_round=5)
    assert [round_ for round_ in range(1, 9) if some.is_on(round_)] == [3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attack": "scale", "share": 0.1, "clients": 3}, "one of 'share', 'clients' and 'invented'"),
        ({"attack": "scale", "from_round": 3, "to_round": 2}, "cannot end with round 2"),
        ({"attack": "label_flip", "source": 1}, "give both, or neither"),
        ({"attack": "target_weights", "weights": {}}, "names no weight"),
        ({"attack": "free_rider", "sends": "noise"}, "needs its 'deviation'"),
        ({"attack": "free_rider", "deviation": 1.0}, "sends no zeros"),
        ({"attack": "reconstruction", "clients": 2}, "one victim"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises((InvalidSettings, msgspec.ValidationError), match=told):
        attack(**settings)


def examples(classes: int = 3) -> Examples:
    random = np.random.default_rng(3)
    weight = (np.arange(5) < np.array([5, 2, 0, 4])[:, None]).astype(float)
    return Examples(random.normal(size=(4, 5, 2)), random.integers(0, classes, (4, 5)), weight)


ROWS = np.array([True, False, True, True])


def test_flipping_labels_twice_gives_them_back_and_honest_ones_stay() -> None:
    for data, classes in ((examples(), 3), (Examples(examples().x, examples().x[..., 0], examples().weight), None)):
        once = spoilt(LabelFlip(), data, ROWS, keys(4), classes)
        there = (data.weight > 0) & ROWS[:, None]
        np.testing.assert_array_equal(once.y[~there], data.y[~there])
        assert (once.y[there] != data.y[there]).any()
        assert once.x is data.x
        np.testing.assert_allclose(spoilt(LabelFlip(), once, ROWS, keys(4), classes).y, data.y)
    only = spoilt(LabelFlip(source=0, target=2), examples(), ROWS, keys(4), 3)
    np.testing.assert_array_equal(only.y != examples().y, there & (examples().y == 0))
    with pytest.raises(InvalidSettings, match="names class 5, and there are classes 0 to 2"):
        spoilt(LabelFlip(source=0, target=5), examples(), ROWS, keys(4), 3)


def test_choices_are_mirrored_and_searches_without_a_choice_stay() -> None:
    made = Choices(np.zeros((2, 2, 4, 1)), np.array([[0, -1], [1, 2]]), np.ones((2, 2)), np.array([[4, 4], [2, 4]]))
    flipped = spoilt(LabelFlip(), made, np.array([True, True]), keys(2), None)
    np.testing.assert_array_equal(flipped.y, [[3, -1], [0, 1]])


def test_poisoned_examples_have_noise_and_labels_of_their_own_range() -> None:
    data = examples()
    found = spoilt(Poison(deviation=2.0), data, ROWS, keys(4), 3)
    there = (data.weight > 0) & ROWS[:, None]
    assert (found.x[there] != data.x[there]).all()
    assert set(found.y.ravel()) <= {0, 1, 2}
    np.testing.assert_array_equal(found.x[~there], data.x[~there])
    np.testing.assert_array_equal(found.y[~there], data.y[~there])


def test_a_trigger_is_put_on_some_examples_and_says_whom_it_fools() -> None:
    door = Backdoor(features=(1,), value=9.0, target=2, part=1.0)
    found = spoilt(door, examples(), ROWS, keys(4), 3)
    assert (found.x[ROWS][..., 1] == 9).all()
    assert (found.y[ROWS] == 2).all()
    np.testing.assert_array_equal(found.x[~ROWS], examples().x[~ROWS])
    np.testing.assert_array_equal(found.x[..., 0], examples().x[..., 0])
    model = LogisticRegression(features=2, classes=3)
    weights = np.zeros(len(model.weight_names))
    none = fooled_by_trigger(door, model, weights, examples())
    assert none.fooled == 0
    assert none.of == ((examples().weight > 0) & (examples().y != 2)).sum()
    part = spoilt(Backdoor(features=(1,), value=9.0, part=0.5), examples(), ROWS, keys(4), 3)
    assert 0 < (part.x[ROWS][..., 1] == 9).sum() < part.x[ROWS][..., 1].size
    with pytest.raises(InvalidSettings, match="sets feature 7"):
        triggered(Backdoor(features=(7,)), examples(), np.ones((4, 5), np.bool_))


def test_the_trigger_of_a_choice_is_on_a_candidate_that_nobody_chose() -> None:
    made = Choices(np.zeros((1, 2, 3, 2)), np.array([[0, 1]]), np.ones((1, 2)), np.array([[3, 2]]))
    found = triggered(Backdoor(features=(1,), value=9.0), made, np.array([[True, True]]))
    np.testing.assert_array_equal(found.y, [[1, 0]])
    np.testing.assert_array_equal(found.x[0, :, :, 1], [[0, 9, 0], [9, 0, 0]])


def test_spoilt_searches_are_those_of_hostile_users_alone() -> None:
    candidates = np.tile(np.arange(4), (6, 1))
    whole = SearchData(None, Searches(candidates, np.array([0, 1, -1, 3, 0, 1])), np.array([0, 0, 1, 1, 2, 2]), 3)  # type: ignore[arg-type]
    hostile = np.array([False, True, True])
    batch: Any = Spoilt(whole, LabelFlip(), hostile, keys(3)).batch(np.arange(3))
    np.testing.assert_array_equal(batch.y, [[0, 1], [-1, 0], [3, 2]])
    with pytest.raises(InvalidSettings, match="pages"):
        Spoilt(whole, Backdoor(), hostile, keys(3)).batch(np.arange(3))
