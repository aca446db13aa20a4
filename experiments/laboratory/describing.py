"""Describes clients' data by each client's counts and sums alone: sizes, targets, distributions, correlations.

No client reports a single example. It reports the number of its examples, the number in each class or the sum of its
targets, and for each feature the number of missing values, mean and sum of squares, and a histogram whose bins are
quantiles found by counts. Correlations come from sums over all clients.

Source: the kinds of pictures are those of Fritsch 2018, figures 1 to 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data import ExampleData, partition
from fedping.client_sim.data.bins import Bins, client_bin_counts
from fedping.client_sim.data.choice_sets import candidates_of
from fedping.client_sim.data.federated import (
    client_class_counts,
    quantiles,
    sums_by_client,
)
from fedping.client_sim.data.scores import Pooled, correlations, pooled
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.examples import clients_of, table_of
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.features import FEATURES

BINS = 20
MOST_DRAWN = 12
"""Number of features whose distributions are drawn if the user names none."""

MOST_CORRELATED = 100
"""Maximum number of features in the matrix of correlations."""

_TAIL = 0.005
_FAR = 1.5
"""Maximum ratio of a feature's full range to its range without tails; above this, the bins leave out the tails."""


@dataclass(frozen=True)
class Distribution:
    """A feature's values, by client.

    Attributes:
        name: the feature's name.
        edges: the ends of the bins, ascending, shape (b + 1,). Values beyond lie in the outer bins.
        counts: the number of each client's values in each bin, shape (k, b).
        missing: the number of all missing values.
        mean: the mean over all clients.
        deviation: the standard deviation over all clients, with 1/n.
        between: the share of the variance that lies between clients' means, from 0 to 1.
        whole: whether all values are whole numbers, with a bin for each.
    """

    name: str
    edges: FloatArray
    counts: NDArray[np.int64]
    missing: int
    mean: float
    deviation: float
    between: float
    whole: bool


@dataclass(frozen=True)
class Description:
    """The statistics that describe clients' data.

    Attributes:
        names: the natural keys or else the numbers of the k clients.
        sizes: the number of each client's examples, shape (k,).
        target: the target's name.
        classes: the classes' names; empty if the target is a number.
        targets: the share of each class among a client's examples, shape (k, c), or the mean target, shape (k, 1); NaN
            without examples.
        distributions: of the requested features, or of those that differ most between clients.
        features: the names of the features in ``correlation``.
        correlation: the correlations of pairs of features, shape (d, d), over the examples that have both; NaN for
            constant features.
        left_out: number of features that are not in ``correlation``.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    target: str
    classes: tuple[str, ...]
    targets: FloatArray
    distributions: tuple[Distribution, ...]
    features: tuple[str, ...]
    correlation: FloatArray
    left_out: int

    def to_json(self) -> bytes:
        """Return the counts and sums as JSON, with null for undefined numbers."""
        document = {
            "target": self.target,
            "classes": self.classes,
            "clients": [
                {"name": name, "examples": size, "target": targets}
                for name, size, targets in zip(self.names, self.sizes.tolist(), self.targets.tolist(), strict=True)
            ],
            "distributions": [
                {
                    "feature": each.name,
                    "missing": each.missing,
                    "mean": each.mean,
                    "deviation": each.deviation,
                    "between_clients": each.between,
                    "edges": each.edges.tolist(),
                    "counts": each.counts.tolist(),
                }
                for each in self.distributions
            ],
            "features": self.features,
            "correlation": self.correlation.tolist(),
        }
        return msgspec.json.encode(document)  # NaN becomes null


def examples_of(setup: Setup, seed: int) -> tuple[ExampleData, list[str]]:
    """Return all examples of an experiment's clients before their preparation, and notes on dropped ones.

    Raises:
        FedpingError: the experiment has synthetic users or lists of items, or its data cannot be read or divided.
    """
    if setup.data.users is not None:
        raise InvalidSettings(
            "synthetic users have new examples in each round, and none to describe. Name a data set or a file in [data]"
        )
    if setup.model.get("name") == FEATURES:
        raise InvalidSettings(
            f"the model '{FEATURES}' encodes fields of lists itself. To describe a file's columns, name another model, "
            'as by --set model.name="svm-ranking"'
        )
    notes: list[str] = []
    table = table_of(_with_gaps(setup).data)
    if table.choice is None:
        return clients_of(_with_gaps(setup), table, seed, notes)[0], notes
    candidates = candidates_of(table)
    return candidates.of(partition(candidates.choices, setup.partition, seed).of(candidates.choices)), notes


def _with_gaps(setup: Setup) -> Setup:
    """Return a setup that keeps examples with missing values, unless the settings drop these examples."""
    if setup.data.missing == "drop":
        return setup
    return msgspec.structs.replace(setup, data=msgspec.structs.replace(setup.data, missing="mean"))


def describe(data: ExampleData, features: Sequence[str] = ()) -> Description:
    """Return the description of the clients' examples.

    Args:
        data: all clients' examples, which may have gaps.
        features: names of the features whose distributions are returned; if empty, those that differ most between
            clients.

    Raises:
        InvalidSettings: a named feature doesn't exist.
    """
    for name in features:
        if name not in data.features:
            raise InvalidSettings(f"no feature is '{name}'. There are {', '.join(data.features[:8])}, …")
    moments = [pooled(present(data, at)) for at in range(len(data.features))]
    wanted = [data.features.index(name) for name in features] or _most_different(moments)
    there = np.flatnonzero(~np.isnan(data.x).all(axis=0))
    correlated = there[:MOST_CORRELATED] if not features else np.array(wanted, np.intp)
    keys = data.ids if data.natural_keys is None else data.natural_keys
    return Description(
        names=tuple(map(str, keys.tolist())),
        sizes=data.sizes,
        target=data.target.name,
        classes=data.target.classes,
        targets=_targets(data),
        distributions=tuple(_distribution(data, at, moments[at]) for at in wanted if moments[at].count),
        features=tuple(data.features[at] for at in correlated),
        correlation=correlations(data.x[:, correlated]),
        left_out=len(data.features) - len(correlated),
    )


def present(data: ExampleData, feature: int) -> ExampleData:
    """Return the examples that have a value of ``feature``, without their other features."""
    there = data.only(~np.isnan(data.x[:, feature]))
    x = np.ascontiguousarray(there.x[:, [feature]])
    return replace(there, x=x, features=(data.features[feature],), gaps=False)


def _most_different(moments: Sequence[Pooled]) -> list[int]:
    order = sorted(range(len(moments)), key=lambda at: -moments[at].between)
    return sorted(order[:MOST_DRAWN])


def _targets(data: ExampleData) -> FloatArray:
    sizes = np.where(data.sizes > 0, data.sizes, np.nan)[:, None]
    if data.target.is_class:
        return client_class_counts(data) / sizes
    return sums_by_client(data, data.y[:, None]) / sizes


def _distribution(data: ExampleData, feature: int, moments: Pooled) -> Distribution:
    of = present(data, feature)
    edges, whole = _edges(of)
    counts = client_bin_counts(of, Bins(edges[None, 1:-1]))[:, 0, :]
    return Distribution(
        name=data.features[feature],
        edges=edges,
        counts=counts,
        missing=len(data.y) - moments.count,
        mean=moments.mean,
        deviation=moments.deviation,
        between=moments.between,
        whole=whole,
    )


def _edges(of: ExampleData) -> tuple[FloatArray, bool]:
    """Return the edges of the bins, and whether each bin is one whole number; computed from clients' counts."""
    least, greatest = (float(quantiles(of, share)[0]) for share in (1e-300, 1.0))
    whole = bool(sums_by_client(of, (of.x == np.round(of.x)).astype(np.float64)).sum() == len(of.y))
    if whole and greatest - least <= BINS:
        return np.arange(least, greatest + 2) - 0.5, True
    low, high = (float(quantiles(of, share)[0]) for share in (_TAIL, 1 - _TAIL))
    if not high > low or greatest - least <= _FAR * (high - low):
        low, high = least, greatest
    if not high > low:  # constant
        return np.array([low - 0.5, low + 0.5]), whole
    return np.linspace(low, high, BINS + 1), False
