"""A rehearsal's users as clients: in every round, each sees new lists of a product's items in a model's order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.seeds import key
from fedping.client_sim.fleet.examples import ExampleSettings, OwnVisits, examples_for
from fedping.client_sim.learning import Model
from fedping.client_sim.learning.batch import Clients, FloatArray
from fedping.client_sim.learning.lists import ListBatch, ListData
from fedping.client_sim.rehearsal.recovered import Judge
from fedping.client_sim.rehearsal.settings import BY_CHANCE
from fedping.client_sim.rehearsal.users import VisitData
from fedping.experiments.laboratory.settings.data import Data
from fedping.experiments.laboratory.tallies import RECOVERED
from fedping.experiments.laboratory.users import TRAINING
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import ModelSpec


@dataclass(frozen=True)
class Visitors:
    """The lists of a rehearsal's users: a :class:`fedping.experiments.laboratory.users.NewEachRound`.

    The data of the fleet are the lists of the first round.

    Attributes:
        source: the users and the lists that they see, the same as in a fleet with this seed.
        count: the number of users.
        start: the model's start weights, shape (m,).
        applies: whether lists are in the order of the weights that a client holds; otherwise of the start weights.
    """

    source: OwnVisits
    count: int
    start: FloatArray
    applies: bool

    def __len__(self) -> int:
        return self.count

    @cached_property
    def _first(self) -> VisitData:
        return self.of_iteration(TRAINING, self.start)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of lists of each user in the first round, shape (users,)."""
        return self._first.sizes

    def batch(self, clients: Clients) -> ListBatch:
        """Return the lists of these users in the first round."""
        return self._first.batch(clients)

    def pooled(self, clients: Clients | None = None) -> ListData:
        """Return the lists of the first round, or some users' lists, as a single client's."""
        return self._first.lists(np.arange(self.count) if clients is None else clients).pooled()

    def of_iteration(self, iteration: int, weights: FloatArray) -> VisitData:
        """See :meth:`fedping.experiments.laboratory.users.NewEachRound.of_iteration`."""
        return self.source.of(np.arange(self.count), iteration, weights if self.applies else self.start)

    def drifted(self, iteration: int) -> bool:
        """See :meth:`fedping.experiments.laboratory.users.NewEachRound.drifted`."""
        return iteration > 0 and bool(self.source.users.drift.any())

    def to_judge(self, clients: int, iteration: int, time: int) -> ListData:
        """Return evaluation lists, where the first users see all items of each list and choose their favourite.

        So the choices are free of effects of places, pinned items and early leaving; only their noise remains.
        """
        users = self.source.users
        rehearsal = msgspec.structs.replace(users.rehearsal, look="all", leave=0.0)
        spec = msgspec.structs.replace(users.spec, explore=0.0)
        source = replace(self.source, users=replace(users, spec=spec, rehearsal=rehearsal))
        data = replace(source.of(np.arange(clients), iteration, self.start), iteration=time)
        found = data.lists(np.arange(clients))
        return replace(found, pinned=np.zeros_like(found.pinned))

    def learned(self, clients: int, rounds: int, weights: FloatArray) -> VisitData:
        """Return the first users' lists of the last round; no lists before the first round.

        The lists are in the order of ``weights``, the round's result, because the previous version isn't kept.
        """
        data = self.source.of(np.arange(clients), max(rounds - 1, 0), weights if self.applies else self.start)
        return data if rounds else replace(data, sizes=np.zeros_like(data.sizes))


@dataclass(frozen=True)
class Wishes:
    """Measures how well a version recovers the users' wishes, on validation and test lists.

    Attributes:
        judges: the judge of each split.
        time: the iteration that the users have drifted to.
    """

    judges: Mapping[str, Judge]
    time: int = 0

    def measured(self, split: str, weights: FloatArray) -> dict[str, float]:
        """Return the metrics of recovery for weights of shape (m,), by name."""
        found = self.judges[split].recovered(0, weights, self.time)
        by_name = {name: getattr(found, attribute) for name, attribute in RECOVERED.items()}
        return {name: math.nan if value is None else value for name, value in by_name.items()}

    def ranking(self, weights: FloatArray) -> FloatArray:
        """Return weights, shape (..., m), with the offsets of places, which don't affect the ranking, set to 0."""
        layout = next(iter(self.judges.values())).users.spec.layout
        found = weights.copy()
        found[..., layout.places : layout.places + layout.offsets] = 0.0
        return found


def visitors_of(data: Data, spec: ModelSpec, model: Model[Any], seed: int) -> tuple[Visitors, Wishes]:
    """Return the users that [data] describes for a model of features, and their wishes.

    Raises:
        InvalidSettings: settings of users who search among pages, or a rehearsal that doesn't fit the model.
        FedpingError: a table can't be read.
    """
    assert data.users is not None
    if data.searches:
        raise InvalidSettings(
            "[data] has 'population' or 'groups', whose users search among pages, and the model ranks items by their "
            "features. Describe its users in [data.lists]"
        )
    least, most = data.examples
    settings = ExampleSettings(least=least, most=most, rehearsal=data.lists or BY_CHANCE)
    source = examples_for(spec, model, settings, seed)
    assert isinstance(source, OwnVisits)
    start = spec.start_array
    seeds = {"validation": int(key(seed, "judged validation")), "test": seed}
    judges = {split: Judge(source.users, start, of) for split, of in seeds.items()}
    return Visitors(source, data.users, start, data.applies), Wishes(judges)
