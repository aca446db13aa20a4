"""Interactions of browsers, for many searches at once: the ranking, the loss and update of a search, the keystrokes.

A fleet (`search_round.py`) and a simulated study (`fedping.experiments.simulate`) have different users and times. The
interaction of a finished search is computed here for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import NO_STATE, Personalizes, bare
from fedping.client_sim.learning.algorithms import algorithm_for
from fedping.client_sim.learning.batch import ClientData
from fedping.client_sim.learning.bounds import bounded, unbounded
from fedping.client_sim.learning.model import Model, Projections
from fedping.client_sim.learning.models.page_ranking import PageRanking
from fedping.client_sim.learning.registry import learner_for
from fedping.client_sim.learning.searches import SearchData
from fedping.client_sim.learning.states import Kept
from fedping.client_sim.learning.updates import updates_of_fleet
from fedping.client_sim.models import (
    FRECENCY_NAMES,
    NO_CANDIDATE,
    NOTHING_CHOSEN,
    PageTable,
    Searches,
    decayed,
    frecency_start,
    losses,
)
from fedping.client_sim.population.synthetic import displayed
from fedping.client_sim.upload import sent_updates
from fedping.protocol.draws import FloatArray, Keys, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import ModelSpec, Step, Weight, published_array
from fedping.protocol.study import Arm, PublicStudy, training_of
from fedping.protocol.training import OneGradient, Training
from fedping.protocol.update import Payloads, size_of_updates
from fedping.protocol.upload import Sending


@dataclass(frozen=True, kw_only=True)
class KeystrokeSettings:
    """Settings of keystrokes: one character is always typed; the number of further ones is exponential, rounded down.

    A choice below the top takes one press of the down key for each place. The characters don't depend on the ranking,
    so a study on synthetic users has no effect on them, unlike the study of 2018 (thesis 7.5).

    Attributes:
        mean_characters: mean number of characters typed before the choice, at least 1.
        milliseconds: time between one key and the next.
        enter: the share of choices made with Enter and not with the mouse.
    """

    mean_characters: float = 4.0
    milliseconds: float = 250.0
    enter: float = 0.8


@dataclass(frozen=True)
class Keystrokes:
    """The keystrokes of S searches, each array of shape (S,).

    Attributes:
        characters: number of typed characters.
        keys: number of pressed keys, without Enter.
        keys_at_first_entry: number of keys pressed when the chosen item first appeared; -1 without a choice.
        milliseconds: time from focus to the end.
        milliseconds_at_first_entry: time from focus to the first appearance of the chosen item; -1 without a choice.
        enter: whether Enter was pressed.
    """

    characters: NDArray[np.int64]
    keys: NDArray[np.int64]
    keys_at_first_entry: NDArray[np.int64]
    milliseconds: NDArray[np.int64]
    milliseconds_at_first_entry: NDArray[np.int64]
    enter: NDArray[np.bool_]


def keystrokes(keys: Keys, rank: NDArray[np.intp], settings: KeystrokeSettings) -> Keystrokes:
    """Draw the keystrokes of each search, from its key and the rank of the choice, -1 for none."""
    more, first, hand = uniforms(keys, 3).T
    selected = rank >= 0
    characters = 1 + np.floor(_exponential(more, settings.mean_characters - 1)).astype(np.int64)
    pressed = characters + np.maximum(rank, 0)
    appeared = 1 + (first * characters).astype(np.int64)
    return Keystrokes(
        characters=characters,
        keys=pressed,
        keys_at_first_entry=np.where(selected, appeared, -1),
        milliseconds=(pressed * settings.milliseconds).astype(np.int64),
        milliseconds_at_first_entry=np.where(selected, appeared * settings.milliseconds, -1).astype(np.int64),
        enter=selected & (hand < settings.enter),
    )


def _exponential(uniform: NDArray[np.float64], floored_mean: float) -> NDArray[np.float64]:
    """Return exponential numbers whose *floors* have this mean."""
    if floored_mean <= 0:
        return np.zeros_like(uniform)
    numbers: NDArray[np.float64] = -np.log1p(-uniform) / np.log1p(1 / floored_mean)
    return numbers


_ONE_GRADIENT = OneGradient()

Gradient: TypeAlias = Literal["finite_differences", "analytic"]


@dataclass(frozen=True)
class Ranking:
    """The ranking and the training of a group of clients.

    Attributes:
        spec: the model, its margin and its ε.
        weights: weights of the version that ranks, shape (m,).
        learns_at: weights at which updates are computed, shape (m,): the weights of the clients' version, even if they
            rank with another; None without training.
        decays: whether their stored scores decay by the day.
        gradient: ``analytic`` overrides the spec's method; else the spec decides.
        training: the training, with one interaction as all its examples.
        version: number of the version that ranks.
        personal: whether each client ranks with its local weights.
        submits: whether they send updates.
    """

    spec: ModelSpec
    weights: FloatArray
    learns_at: FloatArray | None = None
    decays: bool = False
    gradient: Gradient = "finite_differences"
    training: Training = _ONE_GRADIENT
    version: int = 0
    personal: bool = False
    submits: bool = True

    @cached_property
    def learner(self) -> PageRanking:
        """The model that the spec names.

        Raises:
            InvalidSettings: the spec has settings or weights that are not the model's.
        """
        learner = unbounded(bare(learner_for(self.spec, self.training)))
        if not isinstance(learner, PageRanking):
            raise InvalidSettings(f"the model '{self.spec.model}' ranks no pages")
        return replace(learner, gradient="analytic") if self.gradient == "analytic" else learner

    @cached_property
    def trained(self) -> Model[Any]:
        """The model of :attr:`learner`, with the bounds of clients' local weights, if any."""
        return bounded(self.learner, self.spec, self.training)

    def scores(self, pages: PageTable) -> FloatArray:
        """Return the scores of pages as stored by clients without local weights, shape (P,)."""
        scores = self.learner.ranker.scores(self.weights[: self.learner.ranker.m], pages)
        return stored_scores(scores, pages) if self.decays else scores

    def scores_of(self, pages: PageTable, searches: Searches, kept: Kept | None) -> FloatArray:
        """Return the scores of pages as stored by the S clients that search among them, shape (P,).

        Consecutive searches of one client share their ranking. Pages that aren't candidates have no score, NaN.
        """
        if not self.personal:
            return self.scores(pages)
        algorithm, each = algorithm_for(self.training, self.version), np.arange(len(searches))
        assert isinstance(algorithm, Personalizes)
        batch = SearchData(pages, searches, each, len(each)).batch(each)
        state = kept.states.load(kept.clients) if kept else NO_STATE
        model = algorithm.personal_model(self.trained)
        own: Any = algorithm.personal_weights(self.trained, self.weights, batch, state)
        present = searches.candidates != NO_CANDIDATE
        scores = np.full(len(pages), np.nan)
        scores[searches.candidates[present]] = model.predict(own, batch)[:, 0][present]
        return stored_scores(scores, pages) if self.decays else scores


@dataclass(frozen=True)
class Interactions:
    """S finished searches.

    Attributes:
        scores: scores of the candidates in displayed order, then NaN, shape (S, C). Where clients rank with local
            weights, these are the shared model's scores, the highest first. The loss and the update are then summed
            in this order, because the displayed order would reveal how the client's model permutes it.
        shown: number of candidates, shape (S,).
        rank: rank of the choice, 0 at the top, -1 without one, shape (S,).
        bookmarked: whether the chosen page has a bookmark, shape (S,).
        loss: the SVM loss under these scores, shape (S,).
        update: direction of descent, shape (S, m), or its S payloads; None if the arm submits none.
        sends: whether each client sends its update, shape (S,); None if all do.
    """

    scores: FloatArray
    shown: NDArray[np.intp]
    rank: NDArray[np.intp]
    bookmarked: NDArray[np.bool_]
    loss: FloatArray
    update: NDArray[np.floating[Any]] | Payloads | None
    sends: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def update_bytes(self) -> int:
        """The size of the sent updates, as encoded, in bytes."""
        if self.update is None:
            return 0
        sizes = size_of_updates(self.update)
        return int((sizes if self.sends is None else sizes[self.sends]).sum())

    def at(self, rows: NDArray[np.intp]) -> Interactions:
        """Return the interactions at some positions, shape (k,); updates must not be encoded as payloads yet."""
        assert not isinstance(self.update, Payloads)
        return Interactions(
            scores=self.scores[rows],
            shown=self.shown[rows],
            rank=self.rank[rows],
            bookmarked=self.bookmarked[rows],
            loss=self.loss[rows],
            update=None if self.update is None else self.update[rows],
            sends=None if self.sends is None else self.sends[rows],
        )


Corruption: TypeAlias = Callable[[ClientData[Any]], ClientData[Any]]
"""Changes the examples of S searches, one client per search, before hostile clients train on them."""


@dataclass(frozen=True)
class Conditions:
    """Conditions under which S clients train on their searches.

    Attributes:
        kept: the clients' state, if their training keeps any.
        corrupt: changes the examples of hostile clients; None if there are none.
        projections: projections or factors for structured training (:func:`fedping.client_sim.upload.projections`).
    """

    kept: Kept | None = None
    corrupt: Corruption | None = None
    projections: Projections | None = None


PLAIN = Conditions()
"""Training without state, attack or structure."""


def interact(
    ranking: Ranking,
    pages: PageTable,
    searches: Searches,
    keys: Keys,
    conditions: Conditions = PLAIN,
) -> Interactions:
    """Rank the candidates of S searches, given in any order, and return the interactions.

    The other arguments are the same as for :func:`finished`.
    """
    scores = ranking.scores_of(pages, searches, conditions.kept)
    return finished(ranking, pages, scores, displayed(searches, scores), keys, conditions)


def finished(
    ranking: Ranking,
    pages: PageTable,
    scores: FloatArray,
    ranked: Searches,
    keys: Keys,
    conditions: Conditions = PLAIN,
) -> Interactions:
    """Return the interactions of finished searches.

    Args:
        ranking: the ranking of the clients' arm and version.
        pages: P pages.
        scores: the scores that ranked the pages, shape (P,).
        ranked: S searches over them, the candidates in displayed order.
        keys: a random key for each training, shape (S,).
        conditions: the conditions of the training.
    """
    reported = ranked
    if ranking.personal:
        scores = ranking.scores(pages)
        reported = displayed(ranked, scores)
    present = reported.candidates != NO_CANDIDATE
    listed = np.full(present.shape, np.nan)
    listed[present] = scores[reported.candidates[present]]
    chosen = np.take_along_axis(ranked.candidates, np.maximum(ranked.chosen, 0)[:, None], axis=1)[:, 0]
    selected = ranked.chosen != NOTHING_CHOSEN
    bookmarked = np.zeros(len(ranked), np.bool_)
    bookmarked[selected] = pages.bookmarked[chosen[selected]]
    update, sends = _updates(ranking, pages, reported, keys, conditions)
    return Interactions(
        scores=listed,
        shown=present.sum(axis=1),
        rank=ranked.chosen.astype(np.intp),
        bookmarked=bookmarked,
        loss=losses(scores, reported, ranking.spec.margin),
        update=update,
        sends=sends,
    )


def _updates(
    ranking: Ranking,
    pages: PageTable,
    ranked: Searches,
    keys: Keys,
    conditions: Conditions,
) -> tuple[FloatArray | None, NDArray[np.bool_] | None]:
    """Return each search's update, shape (S, m), and whether it is sent; a search is a client with one example."""
    if ranking.learns_at is None:
        return None, None
    each = np.arange(len(ranked))
    data: ClientData[Any] = SearchData(pages, ranked, each, len(each))
    if conditions.corrupt:
        data = conditions.corrupt(data)
    updates = np.empty((len(each), len(ranking.learns_at)))
    sends = np.ones(len(each), np.bool_)
    for block in updates_of_fleet(
        ranking.trained,
        ranking.training,
        ranking.learns_at,
        data,
        each,
        keys,
        version=ranking.version,
        kept=conditions.kept,
        projections=conditions.projections,
        losses=False,
    ):
        updates[block.at] = block.updates
        if block.sends is not None:
            sends[block.at] = block.sends
    if not ranking.submits:
        return None, None
    return updates, None if sends.all() else sends


def stored_scores(scores: FloatArray, pages: PageTable) -> FloatArray:
    """Return scores after decay for every whole day since the page's newest visit, when the score was computed.

    A page without visits has no such day and keeps its score.
    """
    result = scores.copy()
    days = np.where(pages.sampled > 0, pages.age_days[:, 0], 0)
    for day in range(1, int(days.max(initial=0)) + 1):
        old = np.flatnonzero(days >= day)
        after = decayed(result[old])
        if np.array_equal(after, result[old]):  # stable scores stay stable
            break
        result[old] = after
    return result


class Browsers:
    """The ranking and training of the browsers of a study of interactions, arm by arm.

    An arm without a line ranks like the first line's version 0, or like a browser outside studies.

    Args:
        study: the study, checked by :func:`fedping.client_sim.learning.checking.check_clients`.
        gradient: see :attr:`Ranking.gradient`.
    """

    def __init__(self, study: PublicStudy, gradient: Gradient) -> None:
        self._lines = {line.name: line for line in study.lines}
        self._product = study.lines[0].spec if study.lines else product_spec()
        self._gradient: Gradient = gradient

    def spec(self, arm: Arm) -> ModelSpec:
        """Return the model of an arm."""
        return self._product if arm.line is None else self._lines[arm.line].spec

    def ranking(self, arm: Arm, held: FloatArray | None, version: int = 0) -> Ranking:
        """Return the ranking of an arm's clients; ``held`` are the weights of the version that they hold, if any."""
        spec = self.spec(arm)
        start = published_array(spec, spec.start_array)
        held = start if held is None else held
        return Ranking(
            spec=spec,
            weights=held if arm.applies else start,
            learns_at=held if arm.submits or arm.personal else None,
            decays=arm.decays,
            gradient=self._gradient,
            training=_ONE_GRADIENT if arm.line is None else training_of(self._lines[arm.line], arm),
            version=version,
            personal=arm.personal,
            submits=arm.submits,
        )


def by_arm_and_version(
    arms: NDArray[np.integer], versions: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """Yield groups of clients by arm and version: the arm, the version, and their positions.

    Args:
        arms: the position of each client's arm in the study, shape (k,).
        versions: the version that each holds, shape (k,).
    """
    for arm in np.unique(arms).tolist():
        mine = np.flatnonzero(arms == arm)
        for version in np.unique(versions[mine]).tolist():
            yield arm, version, mine[versions[mine] == version]


def product_spec() -> ModelSpec:
    """Return the model of a browser outside studies: frecency with the shipped weights."""
    step = Step(start=1, min=1, max=1)
    weights = zip(FRECENCY_NAMES, frecency_start().tolist(), strict=True)
    return ModelSpec(
        name="product",
        model="frecency-2018",
        weights=tuple(Weight(name=name, start=start, step=step, integer=True) for name, start in weights),
    )


def as_sent(interactions: Interactions, links: Sending, keys: Keys) -> Interactions:
    """Return interactions with their updates as sent through upload links; ``keys``, (S,), are the interactions'."""
    if not isinstance(interactions.update, np.ndarray):
        return interactions
    return replace(interactions, update=sent_updates(links, interactions.update, keys))
