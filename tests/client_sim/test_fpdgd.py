"""FPDGD: its mean update compared with an enumeration of all rankings of a list, and its learning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedping
from fedping.client_sim.features.reference import Shown
from fedping.client_sim.learning import learner_for
from fedping.client_sim.learning.lists import list_data
from fedping.fpdgd import FPDGD
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.features import Number
from fedping.protocol.spec import ModelSpec

SPEC = ModelSpec(name="shop", model="features", features=(Number(name="a"), Number(name="b")))
WEIGHTS = np.array([0.7, -0.4])
ITEMS = [[1.0, 0.5], [-0.5, 2.0], [0.25, -1.0], [3.0, 0.0], [-1.5, 1.0]]
CLIENTS = 40_000


def probability(powers: Sequence[float]) -> float:
    """Return the probability of a ranking under Plackett and Luce's model, from e^s in ranked order."""
    found = 1.0
    for place, power in enumerate(powers):
        found *= power / sum(powers[place:])
    return found


def expected(items: Sequence[Sequence[float]], chosen: int) -> np.ndarray:
    """Return the mean update over all rankings, by the papers' formulas in plain loops."""
    x = np.array(items)
    powers = [exp(float(WEIGHTS @ row)) for row in x]
    total = np.zeros(2)
    for ranking in permutations(range(len(items))):
        chance = probability([powers[i] for i in ranking])
        at = ranking.index(chosen)
        for place in [*range(at), *([at + 1] if at + 1 < len(ranking) else [])]:
            other = ranking[place]
            exchanged = [{chosen: other, other: chosen}.get(i, i) for i in ranking]
            reverse = probability([powers[i] for i in exchanged])
            slope = powers[chosen] * powers[other] / (powers[chosen] + powers[other]) ** 2
            total += chance * reverse / (chance + reverse) * slope * (x[chosen] - x[other])
    return total


def updates_of(lists: Sequence[Shown], count: int, **settings: Any) -> np.ndarray:
    """Return the updates of ``count`` clients that all have these lists, shape (count, 2)."""
    model = learner_for(SPEC)
    data = list_data(SPEC, lists, [len(lists)])
    algorithm = FPDGD(**{"rate": 1.0, "epochs": 1, **settings})
    keys = child_keys(root_key(3), np.arange(count))
    batch = data.batch(np.zeros(count, np.intp))
    return np.asarray(algorithm.update(model, WEIGHTS, batch, keys, algorithm.init_state(model))[0])


def shown(chosen: int, items: Sequence[Sequence[float]] = ITEMS, **more: Any) -> Shown:
    return Shown([{"a": a, "b": b} for a, b in items], {}, chosen, **more)


@pytest.mark.parametrize("chosen", [0, 1, 3])
def test_the_mean_update_is_that_over_all_rankings(chosen: int) -> None:
    """Each of two means is within four standard errors; a correct mean is outside once in 16,000 trials."""
    found = updates_of([shown(chosen)], CLIENTS)
    error = found.std(axis=0) / np.sqrt(CLIENTS)
    assert (np.abs(found.mean(axis=0) - expected(ITEMS, chosen)) < 4 * error).all()
    assert (error < 0.005).all()


def test_items_that_were_not_seen_or_are_pinned_are_in_no_ranking() -> None:
    within = updates_of([shown(1, seen=3)], CLIENTS)
    kept = updates_of([shown(1, [*ITEMS[:1], ITEMS[1], *ITEMS[3:]], pinned=frozenset({0}))], CLIENTS)
    for found, items, chosen in [(within, ITEMS[:3], 1), (kept, [ITEMS[1], *ITEMS[3:]], 0)]:
        error = found.std(axis=0) / np.sqrt(CLIENTS)
        assert (np.abs(found.mean(axis=0) - expected(items, chosen)) < 4 * error).all()


def test_nothing_is_learned_from_no_choice_a_pinned_choice_or_a_single_item() -> None:
    assert not updates_of([shown(-1)], 50).any()
    assert not updates_of([shown(0, pinned=frozenset({0}))], 50).any()
    assert not updates_of([shown(0, ITEMS[:1])], 50).any()


def test_scores_far_apart_give_finite_updates() -> None:
    far = [[1e5, 0.0], [-1e5, 0.0], [0.0, 1e5]]
    assert np.isfinite(updates_of([shown(1, far), shown(0, far)], 200)).all()


def test_a_client_learns_alike_alone_and_among_others_and_anew_in_each_step() -> None:
    lists = [shown(0), shown(3), shown(2)]
    several = updates_of(lists, 5, epochs=2, batch=1)
    assert np.array_equal(several[:2], updates_of(lists, 2, epochs=2, batch=1))
    assert len(np.unique(several, axis=0)) == 5
    once, twice = updates_of([shown(0)], 1, epochs=1), updates_of([shown(0)], 1, epochs=2)
    assert not np.allclose(twice, 2 * once), "the second step draws another ranking"


EXPERIMENT = """
rounds = 12
seeds = 1

[model]
name = "features"
{places}features = [
    {{ kind = "number", name = "a" }},
    {{ kind = "number", name = "b" }},
    {{ kind = "number", name = "c" }},
]

[data]
users = 60
judges = 20
examples = [2, 4]

[data.lists]
shown = 6
truth = {{ a = 1.5, b = -1.0, c = 0.5 }}

[training]
algorithm = "fpdgd"
rate = 0.5
epochs = 1
batch = 1

[server]
optimizer = {{ optimizer = "gradient_descent", rate = 1.0 }}
"""


def test_an_experiment_trains_by_it_and_recovers_what_users_want(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(EXPERIMENT.format(places=""))
    found = fedping.run(file, folder=tmp_path / "out").to_pandas()
    gain = found[(found.metric == "recovered_gain") & (found.split == "test")].sort_values("round")
    assert gain.value.iloc[-1] > 0.8, gain


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (EXPERIMENT.format(places="places = 6\n"), "leave 'places' out"),
        ('rounds = 1\n[model]\nname = "logistic-regression"\n[data]\nname = "breast-cancer"\n'
         '[training]\nalgorithm = "fpdgd"\nrate = 0.1\nepochs = 1\n', "learns from lists of items"),
    ],
)  # fmt: skip
def test_a_model_that_it_cannot_train_is_refused_before_the_first_round(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    with pytest.raises(fedping.FedpingError, match=what):
        fedping.run(file, folder=tmp_path / "out")
