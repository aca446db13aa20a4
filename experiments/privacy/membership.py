"""Inference attacks on membership in a round, from its published step, and on attributes of a ping's sender.

**Membership**: the attacker knows the victim's own update and the public step: which weights went up, which went down.
It guesses by the agreement of these signs with the victim's. A step by signs, such as RProp's, reveals only signs.

**Attribute**: the attacker sees one ping. It knows the model file, which is public, and users' general behaviour: it
simulates users, lets them search, encodes their pings like the line's clients, and trains a classifier on them
(gradient boosting) to guess the kind of the chosen page. It then guesses for victims that it has not seen. A random
guess has an AUC of 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.fleet.interactions import Interactions, Ranking, interact
from fedping.client_sim.models import NOTHING_CHOSEN, PageTable, VisitType, model_for
from fedping.client_sim.models.arrays import FloatArray
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import SyntheticPopulation
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.privacy import Privacy, bounded, frame_of
from fedping.protocol.spec import ModelSpec, published_array

Labels = NDArray[np.bool_]


def _visited_within(days: int) -> Callable[[PageTable], Labels]:
    return lambda pages: np.asarray((pages.sampled > 0) & (pages.age_days[:, 0] <= days))


def _has_visit(kind: VisitType) -> Callable[[PageTable], Labels]:
    def there(pages: PageTable) -> Labels:
        known = np.arange(pages.visit_type.shape[1]) < pages.sampled[:, None]
        return np.asarray(((pages.visit_type == kind) & known).any(axis=1))

    return there


def _has_visit_between(youngest: int, oldest: int) -> Callable[[PageTable], Labels]:
    def there(pages: PageTable) -> Labels:
        known = np.arange(pages.age_days.shape[1]) < pages.sampled[:, None]
        between = (pages.age_days >= youngest) & (pages.age_days <= oldest)
        return np.asarray((between & known).any(axis=1))

    return there


ATTRIBUTES: Mapping[str, Callable[[PageTable], Labels]] = {
    "bookmarked": lambda pages: pages.bookmarked,
    "has a typed visit": _has_visit(VisitType.TYPED),
    "visited in the last 4 days": _visited_within(4),
    "visited 32 to 90 days ago": _has_visit_between(32, 90),
}
"""Attributes of the chosen page that the attacker guesses, each with a function that marks pages, shape (P,)."""


@dataclass(frozen=True)
class Searched:
    """Clients that have searched once and chosen a page.

    Attributes:
        seen: the outcomes of S searches.
        attributes: for each attribute, whether the chosen page has it, shape (S,).
    """

    seen: Interactions
    attributes: Mapping[str, Labels]


def searched(spec: ModelSpec, settings: PopulationSettings, clients: int, seed: int) -> Searched:
    """Return the synthetic users that chose a page when each searched once under a ranking model's start weights.

    Raises:
        InvalidSettings: the model ranks no pages, or has no reference weights to choose by.
    """
    start = published_array(spec, spec.start_array)
    sample = SyntheticPopulation(model_for(spec.model), settings, seed).sample(np.arange(clients), 0)
    first = np.flatnonzero((sample.number == 0) & (sample.searches.chosen != NOTHING_CHOSEN))
    pages, searches = sample.of_searches(first)
    chosen = searches.candidates[np.arange(len(searches)), searches.chosen]
    ranking = Ranking(spec=spec, weights=start, learns_at=start)
    seen = interact(ranking, pages, searches, child_keys(root_key(seed), first))
    of_chosen = pages.rows(chosen.astype(np.intp))
    return Searched(seen, {name: label(of_chosen) for name, label in ATTRIBUTES.items()})


@dataclass(frozen=True)
class Guessed:
    """The quality of guesses of an attribute.

    Attributes:
        auc: the probability that a victim with the attribute is ranked above one without it; 0.5 by chance.
        low, high: the AUC's 95 % interval (DeLong's variance, by the placements of the victims' scores).
        victims: the number of victims.
        share: the share of victims with the attribute.
    """

    auc: float
    low: float
    high: float
    victims: int
    share: float


def guessed(trained_on: FloatArray, labels: Labels, victims: FloatArray, truth: Labels, *, seed: int) -> Guessed:
    """Train an attacker on pings with known labels, shape (k, d), and let it guess those of victims, shape (v, d).

    Raises:
        ValueError: all victims have the attribute, or none.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if truth.all() or not truth.any():
        raise ValueError("all victims have the attribute, or none; there is nothing to guess")
    attacker = HistGradientBoostingClassifier(max_iter=100, learning_rate=0.1, random_state=seed)
    with threadpool_limits(1):  # waiting threads spin, which takes minutes on a busy machine
        scores = attacker.fit(trained_on, labels).predict_proba(victims)[:, 1]
    return auc_of(scores, truth)


def auc_of(scores: FloatArray, truth: Labels) -> Guessed:
    """Return the area under the curve of scores, shape (v,), with its interval (DeLong et al. 1988)."""
    from scipy.stats import rankdata

    positive, negative = scores[truth], scores[~truth]
    together = rankdata(np.concatenate([positive, negative]))
    n, m = len(positive), len(negative)
    above = (together[:n] - rankdata(positive)) / m
    below = 1.0 - (together[n:] - rankdata(negative)) / n
    auc = float(above.mean())
    deviation = math.sqrt(_variance(above) / n + _variance(below) / m)
    return Guessed(auc, max(0.0, auc - 1.96 * deviation), min(1.0, auc + 1.96 * deviation), n + m, n / (n + m))


def _variance(values: FloatArray) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


SCORES = 20
"""Number of the highest scores of a ping that the attacker uses."""


def raw_pings(seen: Interactions) -> FloatArray:
    """Return a non-private ping's contents, shape (S, m + SCORES + 3): also loss, rank, number of shown pages."""
    assert isinstance(seen.update, np.ndarray)
    scores = np.full((len(seen), SCORES), -1.0)
    listed = seen.scores[:, :SCORES]
    scores[:, : listed.shape[1]] = np.nan_to_num(listed, nan=-1.0)
    others = np.stack([seen.loss, seen.rank, seen.shown], axis=1).astype(np.float64)
    return np.concatenate([np.asarray(seen.update, np.float64), scores, others], axis=1)


Vector = NDArray[np.float64]


class Membership(NamedTuple):
    """The quality of membership guesses, and the share of rounds where the victim changes a published sign."""

    guessed: Guessed
    changes: float


class TestedRounds(NamedTuple):
    """Rounds of random clients, with or without a victim.

    Attributes:
        clients: number of sampled clients in each round. The victim has to be sampled too.
        runs: number of rounds with the victim, and the same number without.
        seed: seed of the sampling and of the noise. The noise is the laboratory's and gives no protection.
    """

    clients: int
    runs: int
    seed: int


def membership(
    updates: NDArray[np.floating],
    victim: NDArray[np.floating],
    rounds: TestedRounds,
    spec: ModelSpec,
    privacy: Privacy | None = None,
) -> Membership:
    """Guess a victim's membership from the signs that rounds publish, with and without the victim.

    Args:
        updates: updates of other clients at the same weights, shape (k, m).
        victim: the victim's update, shape (m,).
        rounds: the rounds.
        spec: the model spec.
        privacy: the line's privacy; None for the signs of the mean.

    Raises:
        ValueError: there are fewer updates than clients.
    """
    clients, runs, seed = rounds
    if len(updates) < clients:
        raise ValueError(f"{clients:,} clients a round are asked for, and there are {len(updates):,} updates")
    rng = np.random.default_rng(seed)
    if privacy is None:
        others, mine = np.asarray(updates, np.float64), np.asarray(victim, np.float64)
        sigma = zone = 0.0
        share = 1.0
    else:
        frame = frame_of(privacy, spec)
        shown = np.concatenate([updates, victim[None]]) / (1.0 if frame.signs else frame.units)
        whole = bounded(frame, np.pad(shown, ((0, 0), (0, 3))))[:, : spec.m].astype(np.float64)
        others, mine = whole[:-1], whole[-1]
        central = privacy.central
        sigma = (central.noise_multiplier or 0.0) * frame.sensitivity if central else 0.0
        zone = central.dead_zone * sigma if central else 0.0
        share = central.sampling if central else 1.0
    towards = np.sign(mine)
    scores, changed = np.empty(2 * runs), 0
    for run in range(2 * runs):
        total = others[rng.choice(len(others), clients, replace=False)].sum(axis=0)
        total = total + np.rint(rng.normal(0.0, sigma, len(total))) if sigma else total
        counts = rng.random() < share  # the coin of the line
        without, with_it = _signs(total, zone), _signs(total + counts * mine, zone)
        changed += bool((without != with_it).any())
        scores[run] = (with_it if run < runs else without) @ towards
    scores += rng.uniform(0, 1e-6, len(scores))  # ties are broken at random
    return Membership(auc_of(scores, np.arange(2 * runs) < runs), changed / (2 * runs))


def _signs(total: Vector, zone: float) -> Vector:
    return np.where(np.abs(total) < zone, 0.0, np.sign(total))
