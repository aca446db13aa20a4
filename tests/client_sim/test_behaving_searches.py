"""Searches of behaving users, compared with a page-by-page implementation, and the weights' effect on them."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.fleet.interactions import Ranking
from fedping.client_sim.models import frecency_start, model_for
from fedping.client_sim.models.reference import loss as reference_loss
from fedping.client_sim.population.behaviour import Behaved, Seekers, Users, UserSettings, behave
from fedping.client_sim.population.behaviour.searches import _WISH
from fedping.client_sim.population.behaviour.users import LONGEST
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.spec import ModelSpec, Step, Weight

MODEL = model_for("frecency-2018")
STEP = Step(start=1, min=1, max=1)
SPEC = ModelSpec(
    name="frecency-2018",
    model="frecency-2018",
    weights=tuple(
        Weight(name=name, start=start, step=STEP, integer=True)
        for name, start in zip(MODEL.weight_names, frecency_start().tolist(), strict=True)
    ),
)
UNLIKE = np.array([4, 14, 31, 90, 10, 30, 50, 70, 100, *[50] * 13], float)  # old visits count most


@cache
def users(seed: int = 1, **changes: float) -> Users:
    return Users(MODEL, UserSettings(**changes), seed)  # type: ignore[arg-type]


def seekers(count: int, seed: int = 5, day: float = 1.5) -> Seekers:
    who = np.arange(count)
    return Seekers(who, child_keys(child_keys(root_key(seed), 7), who), np.full(count, day))


def ranking(weights: np.ndarray | None = None, *, submits: bool = False, decays: bool = False) -> Ranking:
    used = frecency_start() if weights is None else weights
    return Ranking(SPEC, used, used if submits else None, decays)


def spelled(word: int) -> str:
    letters = [(int(word) >> (5 * (LONGEST - 1 - i))) & 31 for i in range(LONGEST)]
    return "".join(chr(ord("a") + letter - 1) for letter in letters if letter)


@pytest.mark.parametrize("weights", [frecency_start(), UNLIKE])
def test_what_is_shown_is_what_a_person_would_list_by_hand(weights: np.ndarray) -> None:
    people, asked = users(), seekers(60)
    behaved = behave(people, ranking(weights), asked, 0)
    words = people.words(asked.users)
    wish = people.wishes(asked.users, child_keys(asked.keys, _WISH), asked.day, 0, words)
    everyones = np.arange(people.settings.pages)
    for s in range(len(asked)):
        pages = people.pages(people.page_keys(asked.users[s : s + 1], everyones), np.full(len(everyones), 1.5))
        scores = MODEL.scores(weights, pages)
        typed = spelled(people.vocabulary.packed[wish.word[s]])[: behaved.typed.characters[s]]
        matching = [
            p
            for p in everyones
            if scores[p] != 0 and any(spelled(people.vocabulary.packed[w]).startswith(typed) for w in words[s, p])
        ]
        listed = sorted(matching, key=lambda p: -scores[p])[: people.settings.rows]
        shown = behaved.seen.scores[s, : behaved.seen.shown[s]]
        assert shown.tolist() == [scores[p] for p in listed]
        if behaved.seen.rank[s] >= 0:
            assert listed[behaved.seen.rank[s]] == wish.page[s]
            assert behaved.seen.loss[s] == reference_loss(shown.tolist(), int(behaved.seen.rank[s]), SPEC.margin)
        else:
            assert behaved.seen.loss[s] == 0


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 12),
    take=st.floats(0, 1),
    first_look=st.floats(1, 9),
    patience=st.floats(0, 1),
    nothing_selected=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_ranks_and_characters_are_in_range(
    rows: int, take: float, first_look: float, patience: float, nothing_selected: float
) -> None:
    people = Users(
        MODEL,
        UserSettings(
            rows=rows,
            take=take,
            first_look=first_look,
            patience=patience,
            nothing_selected=nothing_selected,
            pages=30,
            hosts=10,
        ),
        3,
    )
    behaved = behave(people, ranking(submits=True), seekers(80), 0)
    seen, typed = behaved.seen, behaved.typed
    assert np.all((seen.rank >= -1) & (seen.rank < np.minimum(rows, np.maximum(seen.shown, 1))))
    assert np.all((typed.characters >= 1) & (typed.characters <= LONGEST))
    assert np.all(typed.keys == typed.characters + np.maximum(seen.rank, 0))
    selected = seen.rank >= 0
    assert np.all(typed.keys_at_first_entry[selected] <= typed.characters[selected])
    assert np.all(typed.keys_at_first_entry[selected] >= 1)
    assert np.all(typed.keys_at_first_entry[~selected] == -1)
    assert seen.update is not None
    assert np.all(seen.update[~selected] == 0)
    assert np.all(seen.loss[~selected] == 0)
    if nothing_selected == 1:
        assert not selected.any()


def test_who_submits_without_applying_learns_at_the_version_it_holds() -> None:
    """Version 0 ranks the list and determines its loss; the update is computed at the held weights on the same list."""
    asked = seekers(300)
    applying = behave(users(), ranking(submits=True), asked, 0)
    watching = behave(users(), Ranking(SPEC, frecency_start(), UNLIKE), asked, 0)
    np.testing.assert_array_equal(watching.seen.loss, applying.seen.loss)
    np.testing.assert_array_equal(watching.seen.scores, applying.seen.scores)
    assert watching.seen.update is not None
    assert applying.seen.update is not None
    assert (watching.seen.update != applying.seen.update).any()


def test_whoever_searches_beside_a_user_changes_nothing() -> None:
    asked, people = seekers(200), users()
    together = behave(people, ranking(submits=True), asked, 3)
    some = np.arange(50, 90)
    alone = behave(people, ranking(submits=True), Seekers(asked.users[some], asked.keys[some], asked.day[some]), 3)
    assert together.seen.update is not None
    assert alone.seen.update is not None
    np.testing.assert_array_equal(alone.seen.update, together.seen.update[some])
    np.testing.assert_array_equal(alone.seen.rank, together.seen.rank[some])
    np.testing.assert_array_equal(alone.typed.characters, together.typed.characters[some])


def mean_and_error(behaved: Behaved, values: np.ndarray) -> tuple[float, float]:
    of = values[behaved.seen.rank >= 0].astype(float)
    return float(of.mean()), float(of.std() / np.sqrt(len(of)))


def test_better_weights_are_fewer_characters_and_a_better_rank() -> None:
    """Users want pages by the weights of 2018; a list ranked by other weights makes both worse.

    Each difference must exceed five standard errors of independent samples, which by chance happens once in 3 million.
    """
    good = behave(users(), ranking(), seekers(12_000, seed=11), 0)
    bad = behave(users(), ranking(UNLIKE), seekers(12_000, seed=12), 0)
    for better, worse in (
        (mean_and_error(good, good.seen.rank), mean_and_error(bad, bad.seen.rank)),
        (mean_and_error(good, good.typed.characters), mean_and_error(bad, bad.typed.characters)),
    ):
        assert worse[0] - better[0] > 5 * np.hypot(worse[1], better[1])


def test_control_as_of_2018_is_near_what_its_users_did() -> None:
    """Figure 21: 4.26 characters and rank 0.35 in control; the defaults are documented to be close to that."""
    behaved = behave(users(), ranking(decays=True), seekers(12_000), 0)
    assert mean_and_error(behaved, behaved.typed.characters)[0] == pytest.approx(4.26, abs=0.25)
    assert mean_and_error(behaved, behaved.seen.rank)[0] == pytest.approx(0.35, abs=0.12)


def test_decay_lowers_what_was_not_visited_and_raises_nothing() -> None:
    asked = seekers(3000)
    fresh, stored = behave(users(), ranking(), asked, 0), behave(users(), ranking(decays=True), asked, 0)
    highest_fresh, highest_stored = np.nanmax(fresh.seen.scores), np.nanmax(stored.seen.scores)
    assert highest_stored <= highest_fresh
    same = (fresh.typed.characters == stored.typed.characters) & (fresh.seen.shown == stored.seen.shown)
    before, after = np.nansum(fresh.seen.scores[same], axis=1), np.nansum(stored.seen.scores[same], axis=1)
    assert same.sum() > 2000
    assert np.mean(after < before) > 0.3
    assert np.mean(after > before) < 0.02  # where another ten of more than ten matches are shown


def test_a_drift_changes_wishes_from_its_iteration_on() -> None:
    steady, drifting = users(), Users(MODEL, UserSettings(drift_at=4, drifted_weights=tuple(UNLIKE)), 1)
    asked = seekers(4000)

    def rank_at(people: Users, iteration: int) -> np.ndarray:
        return behave(people, ranking(), asked, iteration).seen.rank

    np.testing.assert_array_equal(rank_at(drifting, 3), rank_at(steady, 3))
    np.testing.assert_array_equal(rank_at(steady, 4), rank_at(steady, 3))
    assert rank_at(drifting, 4).mean() > rank_at(steady, 4).mean() + 0.1
