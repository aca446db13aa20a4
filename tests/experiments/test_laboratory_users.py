"""Synthetic users in the laboratory: groups of users, their evaluation, and their start models."""

from typing import Any

import numpy as np
import pytest

from fedping.client_sim.models import linear_15_truth
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.settings.experiment import ONLY_VARIANT
from fedping.protocol.errors import InvalidSettings
from tests.support.laboratory import small

PLAIN: dict[str, Any] = {"noise_variance": 0.0, "nothing_selected": 0.0, "other_visits": 0.0, "unvisited": 0.0}
TYPING = {**PLAIN, "kinds": [0.0, 1.0, 0.0], "searches": [3, 3]}
ONE_VISIT = {**PLAIN, "mean_visits": 1e-9, "candidates_mean": 10.0}


def problem(seed: int = 1, **changes: Any) -> Problem:
    users = {"model": {"name": "linear-15"}, "data": {"users": 400, "judges": 300, "population": PLAIN}}
    experiment = small(**{**users, **changes})
    return prepare(experiment.variants[ONLY_VARIANT], seed, None)


def in_groups(**changes: Any) -> Problem:
    groups = [{"share": 0.25, "population": TYPING}, {"share": 0.75, "population": PLAIN}]
    return problem(data={"users": 400, "judges": 300, "groups": groups}, **changes)


def test_the_users_of_a_group_search_in_its_way_and_the_others_in_theirs() -> None:
    made = in_groups()
    typing = np.flatnonzero(made.train.natural_keys == 0)  # type: ignore[attr-defined]
    assert 70 < len(typing) < 130
    assert (made.train.sizes[typing] == 3).all()
    for clients in (typing[:10], np.arange(30)):
        batch = made.train.batch(clients)
        np.testing.assert_array_equal((batch.rows >= 0).sum(axis=1), made.train.sizes[clients])
        whose, searches = batch.there
        for client, candidates in zip(clients[whose], searches.candidates, strict=True):
            pages = batch.pages.rows(candidates[candidates >= 0])
            visits = pages.visit_type[np.arange(10) < pages.sampled[:, None]]
            assert (visits == 2).all() == (client in typing)


def test_what_a_user_searches_does_not_depend_on_who_else_is_asked() -> None:
    made = in_groups()
    weights = np.arange(15.0)
    together = made.model.losses(weights, made.train.batch(np.arange(50)))
    alone = [made.model.losses(weights, made.train.batch(np.array([client])))[0] for client in range(50)]
    np.testing.assert_array_equal(together, alone)


def test_models_with_the_true_weights_are_always_right_where_users_choose_without_noise() -> None:
    made = problem(data__population=ONE_VISIT)
    batch = made.test.batch(np.arange(len(made.test)))
    counts = made.tally.counts(made.model.predict(linear_15_truth(), batch), batch.y, batch.weight > 0).sum(axis=0)
    assert made.tally.metrics(counts)["top_choice"] == 1.0
    training = made.train.batch(np.arange(300))
    ties = made.tally.counts(made.model.predict(linear_15_truth(), training), training.y, training.weight > 0)
    assert made.tally.metrics(ties.sum(axis=0))["top_choice"] < 0.9


def test_users_with_tastes_are_judged_by_what_each_of_them_wants() -> None:
    made = in_groups(data__groups=[{"share": 0.5, "population": {**ONE_VISIT, "tastes": tau}} for tau in (0.7, 1.2)])
    batch = made.test.batch(np.arange(300))
    own = np.concatenate([habits.wishes.of(np.arange(300))[None] for habits in made.train.habits])  # type: ignore[attr-defined]
    theirs = own[made.train.natural_keys[:300], np.arange(300)]  # type: ignore[attr-defined]
    for weights, right in ((theirs, 1.0), (linear_15_truth(), None)):
        predicted = made.model.predict(weights, batch)
        counts = made.tally.counts(predicted, batch.y, batch.weight > 0).sum(axis=0)
        found = made.tally.metrics(counts)["top_choice"]
        assert found == right if right else found < 0.9


def test_where_users_drift_versions_are_judged_by_how_they_are_at_the_time() -> None:
    to = {"kinds": [0.0, 1.0, 0.0]}
    made = problem(data__population={**PLAIN, "drift": {"at": 2, "over": 2, "to": to}}, rounds=8)

    def typed(judged: Problem) -> float:
        pages = judged.test.batch(np.arange(300)).pages
        return float((pages.visit_type[np.arange(10) < pages.sampled[:, None]] == 2).mean())

    shares = [typed(made.after(rounds)) for rounds in (0, 2, 3, 4, 7)]
    assert shares[0] == shares[1] == typed(made) == pytest.approx(0.2, abs=0.02)
    assert shares[2] == pytest.approx(0.6, abs=0.02)
    assert shares[3] == shares[4] == 1.0
    np.testing.assert_array_equal(made.after(0).test.sizes, made.after(7).test.sizes)
    for round_, share in ((0, 0.2), (3, 0.6), (7, 1.0)):
        pages = made.train_in(round_, made.spec.start_array).batch(np.arange(300)).pages
        there = np.arange(10) < pages.sampled[:, None]
        assert (pages.visit_type[there] == 2).mean() == pytest.approx(share, abs=0.03)
    still = problem()
    assert still.after(5) is still


def test_what_is_judged_by_one_set_of_examples_is_refused_where_users_drift() -> None:
    drifting = {**PLAIN, "drift": {"at": 2, "over": 2, "to": {"days": 90.0}}}
    with pytest.raises(InvalidSettings, match="Remove 'drift'"):
        problem(data__population=drifting, attack={"attack": "sign_flip", "clients": 1})


def test_a_start_is_spread_about_the_models_own_by_the_seed() -> None:
    made = [problem(seed, model={"name": "linear-15", "spread": 50.0, "margin": 0.0}) for seed in (1, 1, 2)]
    starts = [one.spec.start_array for one in made]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])
    apart = np.abs(starts[0] - linear_15_truth())
    assert 30 < apart.max() <= 50
    assert np.abs(problem(model={"name": "linear-15", "start": 7.0, "spread": 1.0}).spec.start_array - 7).max() <= 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"groups": [{"share": 0.5, "population": PLAIN}]}, "do not sum to 1"),
        ({"population": PLAIN, "groups": [{"share": 1.0}]}, "in the groups alone"),
    ],
)
def test_groups_that_cannot_be_meant_are_refused(data: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        problem(data={"users": 10, **data})


def test_a_ranking_may_be_judged_by_any_of_its_metrics_and_by_no_other() -> None:
    assert problem(evaluation__metric="mean_rank").tally.headline == ("top_choice", "mean_rank")
    with pytest.raises(InvalidSettings, match=r"'auc' .*top_choice, mean_rank, loss"):
        problem(evaluation__metric="auc")
