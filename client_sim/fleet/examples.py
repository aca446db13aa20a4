"""The examples of simulated clients: synthetic ones for a model, rows of a data set, or searches over pages.

A client's examples depend on the seed and its number alone, and are made when they are needed: a fleet of a million
clients stores none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data import Table, load, of_one
from fedping.client_sim.data.choice_sets import candidates_of
from fedping.client_sim.learning.batch import Batch, ClientData, Clients, Examples, FloatArray
from fedping.client_sim.learning.bounds import unbounded
from fedping.client_sim.learning.choices import Choices
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.feature_ranking import FeatureRanking
from fedping.client_sim.learning.models.k_means import KMeans
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.models.matrix_factorization import MatrixFactorization
from fedping.client_sim.learning.models.network import Network
from fedping.client_sim.learning.models.page_ranking import PageRanking
from fedping.client_sim.learning.models.svm_ranking import SvmRanking
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.client_sim.learning.searches import SearchData
from fedping.client_sim.learning.submodel import Part
from fedping.client_sim.population.synthetic import Population
from fedping.client_sim.rehearsal.settings import BY_CHANCE, Rehearsal
from fedping.client_sim.rehearsal.users import Users, VisitData, users_of
from fedping.protocol.draws import Keys, child_keys, normals, root_key, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import ModelSpec

CANDIDATES = 5
"""Number of candidates of a synthetic choice."""

_CLIENTS, _TRUTH = range(2)
_SIZE, _EXAMPLES = range(2)
_X, _NOISE = range(2)


class Source(Protocol):
    """The examples of clients."""

    @property
    def always_new(self) -> bool:
        """Whether a client has new examples in every iteration."""
        ...

    def of(self, clients: NDArray[np.int64], iteration: int, applied: FloatArray) -> ClientData[Any]:
        """Return the examples of these clients, ascending numbers, in an iteration.

        ``applied`` are the weights that rank the clients' lists or pages, shape (m,).
        """
        ...


Make: TypeAlias = Callable[[Keys, FloatArray], Batch]
"""Function from a random key for each of n examples of k clients, shape (k, n), and their weights to a batch."""


@dataclass(frozen=True)
class MadeData:
    """Examples that are made on demand: a :class:`fedping.client_sim.learning.batch.ClientData`.

    Attributes:
        keys: key of each client, shape (clients,).
        sizes: number of examples of each, shape (clients,).
        make: the function that generates them.
    """

    keys: Keys
    sizes: NDArray[np.int64]
    make: Make

    def __len__(self) -> int:
        return len(self.keys)

    def batch(self, clients: Clients) -> Batch:
        """Return all examples of these clients; an example depends only on its client and its number."""
        place = np.arange(int(self.sizes[clients].max(initial=0)))
        weight = (place < self.sizes[clients][:, None]).astype(np.float64)
        return self.make(child_keys(self.keys[clients][:, None], place), weight)


@dataclass(frozen=True)
class OwnExamples:
    """Examples of each client, the same in every iteration: a :class:`Source`.

    Attributes:
        seed: determines them, with the client's number.
        least, most: minimum and maximum number of examples of a client.
        make: the function that generates them.
    """

    seed: int
    least: int
    most: int
    make: Make
    always_new: ClassVar[bool] = False

    def of(self, clients: NDArray[np.int64], iteration: int, applied: FloatArray) -> ClientData[Any]:
        """See :meth:`Source.of`."""
        keys = child_keys(child_keys(root_key(self.seed), _CLIENTS), clients)
        return MadeData(child_keys(keys, _EXAMPLES), _sizes(keys, self.least, self.most), self.make)


def _sizes(keys: Keys, least: int, most: int) -> NDArray[np.int64]:
    """Return the number of examples of each client, uniform from ``least`` to ``most``, shape (k,)."""
    uniform = uniforms(child_keys(keys, _SIZE), 1)[:, 0]
    return least + np.floor(uniform * (most - least + 1)).astype(np.int64)


@dataclass(frozen=True)
class OwnVisits:
    """Lists that a product's users see, new ones in every iteration: a :class:`Source`.

    Attributes:
        users: the users, who choose from the lists.
        seed: determines them, with the client's number and the iteration.
        least, most: minimum and maximum number of lists of a client in an iteration.
    """

    users: Users
    seed: int
    least: int
    most: int
    always_new: ClassVar[bool] = True

    def of(self, clients: NDArray[np.int64], iteration: int, applied: FloatArray) -> VisitData:
        """See :meth:`Source.of`."""
        owners = child_keys(child_keys(root_key(self.seed), _CLIENTS), clients)
        keys = child_keys(child_keys(owners, _EXAMPLES), iteration)
        return VisitData(self.users, owners, keys, _sizes(keys, self.least, self.most), applied, iteration)


@dataclass(frozen=True)
class OwnSearches:
    """Searches of a population's clients, new ones in every iteration: a :class:`Source`."""

    population: Population
    always_new: ClassVar[bool] = True

    def of(self, clients: NDArray[np.int64], iteration: int, applied: FloatArray) -> ClientData[Any]:
        """See :meth:`Source.of`."""
        sample = self.population.sample(clients, iteration)
        return SearchData(sample.pages, sample.searches, sample.client, len(clients))


@dataclass(frozen=True, kw_only=True)
class ExampleSettings:
    """Minimum and maximum number of a client's examples, and their data set or rehearsal; synthetic ones if None.

    Raises:
        InvalidSettings: numbers outside their range.
    """

    least: int = 5
    most: int = 20
    data: str | None = None
    rehearsal: Rehearsal | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1:
            raise InvalidSettings(
                f"a client cannot have from {self.least} to {self.most} examples; give the fewest, then the most"
            )


def examples_for(spec: ModelSpec, model: Model[Any], settings: ExampleSettings, seed: int) -> Source:
    """Return the examples of a model's clients.

    Raises:
        InvalidSettings: no synthetic examples exist for such a model, or the data set doesn't fit it.
        FedpingError: the package of the data set is not installed.
    """
    if isinstance(whole := _whole(model), FeatureRanking) and settings.data is None:
        users = users_of(whole.spec, settings.rehearsal or BY_CHANCE, child_keys(root_key(seed), _TRUTH))
        return OwnVisits(users, seed, settings.least, settings.most)
    if settings.rehearsal is not None:
        raise InvalidSettings(
            f"a rehearsal has lists of items, and the model '{spec.model}' of model spec '{spec.name}' has no "
            "features of items. Remove the rehearsal"
        )
    make = _made(model, root_key(seed)) if settings.data is None else _drawn(spec, model, settings.data)
    if make is None:
        raise InvalidSettings(
            f"simulated clients do not know what the model '{spec.model}' of model spec '{spec.name}' learns from; "
            "give a data set with --data, or post recorded pings again with --replay"
        )
    return OwnExamples(seed, settings.least, settings.most, make)


def searches_for(population: Population) -> Source:
    """Return the searches of a population as examples of a model that ranks pages."""
    return OwnSearches(population)


def ranks_pages(model: Model[Any]) -> bool:
    """Return whether a model trains on searches over pages, which only a population has."""
    return isinstance(unbounded(model), PageRanking)


def _whole(model: Model[Any]) -> Model[Any]:
    """Return the whole model, without bounds, of a bounded or partial one."""
    whole = unbounded(model)
    return whole.whole if isinstance(whole, Part) else whole


def _made(model: Model[Any], root: np.uint64) -> Make | None:
    """Return a maker of noisy examples of a truth drawn from the seed; None for a model without synthetic examples."""
    truth = child_keys(root, _TRUTH)
    match _whole(model):
        case LinearRegression(features=d):
            slopes = normals(truth, d + 1)[0]
            return lambda keys, weight: _numbers(keys, weight, slopes)
        case LogisticRegression(features=d, classes=c) | Network(features=d, classes=c):
            scores = 2.0 * normals(truth, d * c).reshape(d, c) / np.sqrt(d)
            return lambda keys, weight: _classes(keys, weight, scores)
        case TreeModel(features=d, classes=c):
            return _of_network(_whole(model), truth, d, c)
        case KMeans(features=d, clusters=c):
            centres = 3.0 * normals(truth, c * d).reshape(c, d)
            return lambda keys, weight: _groups(keys, weight, centres)
        case MatrixFactorization(items=count, mean=mean):
            good = mean + normals(truth, count)[0]
            return lambda keys, weight: _ratings(keys, weight, good)
        case SvmRanking(features=d):
            preference = normals(truth, d)[0]
            return lambda keys, weight: _choices(keys, weight, preference)
        case _:
            return None


def _of_network(model: Any, truth: Keys, d: int, c: int | None) -> Make:
    """Return a maker of a network's examples: quantities, classes, or sequences of symbols."""
    if (symbols := model.network.vocabulary) is not None:
        follows = np.argsort(uniforms(truth, symbols)[0], kind="stable")
        return lambda keys, weight: _sequences(keys, weight, follows, d)
    if c is None:
        slopes = normals(truth, d + 1)[0]
        return lambda keys, weight: _numbers(keys, weight, slopes)
    scores = 2.0 * normals(truth, d * c).reshape(d, c) / np.sqrt(d)
    return lambda keys, weight: _classes(keys, weight, scores)


def _sequences(keys: Keys, weight: FloatArray, follows: NDArray[np.intp], d: int) -> Examples:
    """Draw sequences of d symbols and the next one; a symbol follows from the previous one, but 1 in 4 is random."""
    noise = _noise(keys, 2 * (d + 1))
    drawn = np.floor(noise[..., : d + 1] * len(follows)).astype(np.intp)
    for at in range(1, d + 1):
        drawn[..., at] = np.where(noise[..., d + 1 + at] < 0.25, drawn[..., at], follows[drawn[..., at - 1]])
    return Examples(drawn[..., :d].astype(np.float64), drawn[..., d], weight)


def _features(keys: Keys, d: int) -> FloatArray:
    """Return standard normal features, shape (k, n, d)."""
    return normals(child_keys(keys.ravel(), _X), d).reshape(*keys.shape, d)


def _noise(keys: Keys, count: int) -> FloatArray:
    """Return uniform numbers in [0, 1), shape (k, n, count)."""
    return uniforms(child_keys(keys.ravel(), _NOISE), count).reshape(*keys.shape, count)


def _numbers(keys: Keys, weight: FloatArray, truth: FloatArray) -> Examples:
    x = _features(keys, len(truth) - 1)
    return Examples(x, x @ truth[:-1] + truth[-1] + _noise(keys, 1)[..., 0] - 0.5, weight)


def _classes(keys: Keys, weight: FloatArray, truth: FloatArray) -> Examples:
    """Draw classes by the softmax of their scores: the largest score after adding Gumbel noise."""
    x = _features(keys, len(truth))
    gumbel = -np.log(-np.log1p(-np.minimum(_noise(keys, truth.shape[1]), 1 - 2**-53)) + 2**-60)
    return Examples(x, (x @ truth + gumbel).argmax(axis=2), weight)


def _groups(keys: Keys, weight: FloatArray, centres: FloatArray) -> Examples:
    which = np.floor(_noise(keys, 1)[..., 0] * len(centres)).astype(np.intp)
    return Examples(centres[which] + _features(keys, centres.shape[1]), which, weight)


def _ratings(keys: Keys, weight: FloatArray, truth: FloatArray) -> Examples:
    """Draw items and their ratings: each item's true rating, with noise."""
    item, noise = np.moveaxis(_noise(keys, 2), -1, 0)
    which = np.floor(item * len(truth)).astype(np.intp)
    return Examples(which[..., None].astype(np.float64), truth[which] + noise - 0.5, weight)


def _choices(keys: Keys, weight: FloatArray, truth: FloatArray) -> Choices:
    x = _features(keys, CANDIDATES * len(truth)).reshape(*keys.shape, CANDIDATES, len(truth))
    chosen = (x @ truth + _noise(keys, CANDIDATES)).argmax(axis=2)
    return Choices(x, chosen, weight, np.full(keys.shape, CANDIDATES))


def _drawn(spec: ModelSpec, model: Model[Any], name: str) -> Make:
    """Return a maker that draws rows of a data set, standardised, with replacement."""
    table = load(name)
    features = 1 if _rates(model) else getattr(model, "features", None)
    if isinstance(unbounded(model), FeatureRanking):
        raise InvalidSettings(
            f"the model '{spec.model}' learns from lists of items, which no data set has. Leave out --data"
        )
    if ranks_pages(model):
        raise InvalidSettings(
            f"the model '{spec.model}' learns from searches over pages, which synthetic users have; leave out --data"
        )
    if features is not None and features != table.x.shape[1]:
        raise InvalidSettings(
            f"the data set '{name}' has {table.x.shape[1]} features, and the model '{spec.model}' of model spec "
            f"'{spec.name}' has {features}; give another --data, or remove it for generated examples"
        )
    if isinstance(model, SvmRanking):
        return _drawn_choices(table)
    classes = getattr(model, "classes", None)
    if classes is not None and len(table.target.classes) != classes:
        has = f"{len(table.target.classes)} classes" if table.target.is_class else "a number"
        raise InvalidSettings(
            f"the target of the data set '{name}' is {has}, and the model '{spec.model}' of model spec '{spec.name}' "
            f"predicts {classes} classes; give another --data, or remove it for generated examples"
        )
    x = table.x if _rates(model) or _reads_symbols(model) else _standardised(table.x)

    def make(keys: Keys, weight: FloatArray) -> Examples:
        rows = _rows(keys, len(x))
        return Examples(x[rows], table.y[rows], weight)

    return make


def _rates(model: Model[Any]) -> bool:
    """Return whether a model's only feature is the number of an item, which has no scale."""
    return isinstance(model.whole if isinstance(model, Part) else model, MatrixFactorization)


def _reads_symbols(model: Model[Any]) -> bool:
    """Return whether a model's features are numbers of symbols, which have no scale."""
    whole = _whole(model)
    return isinstance(whole, TreeModel) and whole.network.vocabulary is not None


def _drawn_choices(table: Table) -> Make:
    candidates = candidates_of(table)
    everyone = of_one(candidates.choices)
    data = candidates.choice_data(everyone, candidates.of(everyone))
    x, counts = _standardised(data.x), data.shown if data.shown is not None else np.full(len(data.y), data.x.shape[1])

    def make(keys: Keys, weight: FloatArray) -> Choices:
        rows = _rows(keys, len(x))
        return Choices(x[rows], data.y[rows], weight, counts[rows])

    return make


def _rows(keys: Keys, count: int) -> NDArray[np.intp]:
    return np.floor(_noise(keys, 1)[..., 0] * count).astype(np.intp)


def _standardised(x: FloatArray) -> FloatArray:
    flat = x.reshape(-1, x.shape[-1])
    spread = flat.std(axis=0)
    scaled: FloatArray = (x - flat.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled
