"""Statistics of all clients' examples, merged from clients' reports: classes, means and deviations, quantiles.

A client reports the number of its examples, their mean and their sum of squared deviations from it. The server merges
two such triples into one by the stable recurrence of Chan, Golub and LeVeque (1983); its form for a single example is
that of thesis 7.2. The usual method, E[x²] - μ² from Σx and Σx², loses every digit of a deviation that is small
compared with its mean; it is kept here as the reference.

The server finds a quantile, the number at a given rank, byte by byte. Floating-point numbers are ordered like their 64
bits (with those of negative numbers inverted), so the server asks in eight rounds: of your values that begin with these
bytes, how many have each next byte? A client answers with 256 counts per feature. Only the sums of the answers matter,
so secure aggregation can hide each answer. The result is the exact number, whatever the scale, with no bounds to agree
on beforehand. A histogram would be off by up to the width of its bins, and the mean of clients' quantiles is not the
quantile of all values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.example_data import ExampleData
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import FedpingError, InvalidSettings


def client_class_counts(data: ExampleData) -> NDArray[np.int64]:
    """Return the number of each client's examples of each of c classes, shape (k, c).

    Raises:
        FedpingError: the target is a number.
    """
    if not data.target.is_class:
        raise FedpingError(f"the target '{data.target.name}' is a number and has no classes to count or weigh")
    classes = len(data.target.classes)
    flat = np.bincount(data.client_of * classes + data.y, minlength=len(data) * classes)
    return flat.reshape(len(data), classes)


def class_weights(counts: NDArray[np.int64]) -> FloatArray:
    """Return the weight of an example of each class, shape (c,), from the sum of the clients' counts.

    It is n/(C c_k), where C is the number of classes that have examples. Each class then has the same total weight, and
    all examples together still weigh n, so that a penalty keeps its strength. For two classes it is
    (c_0 + c_1)/(2 c_k). A class without examples gets 0.
    """
    total = counts.sum(axis=0)
    some = total > 0
    return np.where(some, total.sum() / (max(1, int(some.sum())) * np.maximum(total, 1)), 0.0)


@dataclass(frozen=True)
class Moments:
    """The moments of features that k clients report; with k = 1, those of all examples.

    Attributes:
        count: number of examples, whatever their weight, shape (k,).
        mean: mean of each feature, shape (k, d); 0 without examples.
        squares: sum of squared deviations from that mean, shape (k, d).
    """

    count: NDArray[np.int64]
    mean: FloatArray
    squares: FloatArray

    @property
    def deviation(self) -> FloatArray:
        """The standard deviation, with 1/n, shape (k, d)."""
        result: FloatArray = np.sqrt(self.squares / np.maximum(self.count, 1)[:, None])
        return result


def client_moments(data: ExampleData) -> Moments:
    """Return the moments that each client reports."""
    mean = sums_by_client(data, data.x) / np.maximum(data.sizes, 1)[:, None]
    return Moments(data.sizes, mean, sums_by_client(data, (data.x - mean[data.client_of]) ** 2))


def client_value_sums(data: ExampleData) -> tuple[NDArray[np.int64], FloatArray]:
    """Return the number and the sum of each client's present values of each feature, shape (k, d) each."""
    there = ~np.isnan(data.x)
    counts = sums_by_client(data, there.astype(np.float64)).astype(np.int64)
    return counts, sums_by_client(data, np.where(there, data.x, 0.0))


def merged(moments: Moments) -> Moments:
    """Return the moments of all clients together, k = 1. The server merges neighbours until one triple is left."""
    while len(moments.count) > 1:
        odd = slice(len(moments.count) // 2 * 2, None)
        pairs = _merged_pairs(_some(moments, slice(0, odd.start, 2)), _some(moments, slice(1, odd.start, 2)))
        rest = _some(moments, odd)
        moments = Moments(
            np.concatenate([pairs.count, rest.count]),
            np.concatenate([pairs.mean, rest.mean]),
            np.concatenate([pairs.squares, rest.squares]),
        )
    return moments


def constant_features(moments: Moments) -> NDArray[np.bool_]:
    """Return whether each feature has the same value in all examples, up to rounding, shape (d,).

    The bound is the rounding error of a constant's variance (Chan, Golub and LeVeque 1983, eq. 1.7).
    """
    count, mean = moments.count[0], moments.mean[0]
    variance = moments.squares[0] / max(count, 1)
    result: NDArray[np.bool_] = variance <= (count * mean * np.finfo(np.float64).eps) ** 2
    return result


def deviation_from_squares(count: NDArray[np.int64], sums: FloatArray, squares: FloatArray) -> FloatArray:
    """Return the standard deviation from every client's n, Σx and Σx², the usual formula; only a reference.

    It is √(Σx²/n - μ²), which subtracts two numbers that may be nearly equal. Shapes (k,) and (k, d).
    """
    total = count.sum()
    mean = sums.sum(axis=0) / total
    result: FloatArray = np.sqrt(np.maximum(squares.sum(axis=0) / total - mean**2, 0.0))
    return result


def sums_by_client(data: ExampleData, values: FloatArray) -> FloatArray:
    """Return the sums, shape (k, d), of each client's rows of ``values``, shape (N, d)."""
    sums = np.zeros((len(data), *values.shape[1:]))
    some = data.sizes > 0
    if some.any():
        sums[some] = np.add.reduceat(values, data.offsets[:-1][some], axis=0)
    return sums


def _merged_pairs(a: Moments, b: Moments) -> Moments:
    count = a.count + b.count
    share = (b.count / np.maximum(count, 1))[:, None]
    apart = b.mean - a.mean
    return Moments(count, a.mean + apart * share, a.squares + b.squares + apart**2 * share * a.count[:, None])


def _some(moments: Moments, which: slice) -> Moments:
    return Moments(moments.count[which], moments.mean[which], moments.squares[which])


Bits: TypeAlias = NDArray[np.uint64]
BYTES = 8
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class Search:
    """The state of a quantile search.

    Attributes:
        depth: number of bytes known.
        prefix: the known bytes of each feature's quantile, as a number, shape (d,).
        rank: rank of the quantile among the values with this prefix, from 1, shape (d,).
    """

    depth: int
    prefix: Bits
    rank: NDArray[np.int64]


def quantiles(data: ExampleData, share: float) -> FloatArray:
    """Return each feature's smallest value that at least this share of all examples doesn't exceed, shape (d,).

    It equals NumPy's ``inverted_cdf`` quantile of the pooled values to the bit. The counts of all clients are computed
    together, because only their sum is used.

    Raises:
        InvalidSettings: share is not in (0, 1], or there are no examples.
    """
    search, pooled = begun(share, len(data.y), data.x.shape[1]), data.pooled()
    while search.depth < BYTES:
        search = narrowed(search, client_counts(pooled, search).sum(axis=0))
    return _numbers(search.prefix)


def begun(share: float, examples: int, features: int) -> Search:
    """Return the server's search before the first round; the arguments are as for :func:`quantiles`."""
    if not 0 < share <= 1:
        raise InvalidSettings(f"a quantile at {share:g} does not exist; give a share above 0 and up to 1")
    if not examples:
        raise InvalidSettings("there are no examples to take a quantile of; look at how the data are divided")
    rank = max(1, int(np.ceil(share * examples)))
    return Search(0, np.zeros(features, np.uint64), np.full(features, rank, np.int64))


def client_counts(data: ExampleData, search: Search) -> NDArray[np.int64]:
    """Return each client's answer: its numbers of values with the prefix, by their next byte.

    Returns:
        Shape (k, d, 256).
    """
    clients, features = len(data), data.x.shape[1]
    bits = _ordered_bits(data.x)
    after = np.uint64(8 * (BYTES - search.depth - 1))
    begins = (bits >> after >> np.uint64(8)) == search.prefix if search.depth else np.ones(bits.shape, np.bool_)
    bin_of = (data.client_of[:, None] * features + np.arange(features)) * 256
    bin_of = bin_of + ((bits >> after) & np.uint64(0xFF)).astype(np.int64)
    return np.bincount(bin_of[begins], minlength=clients * features * 256).reshape(clients, features, 256)


def narrowed(search: Search, counts: NDArray[np.int64]) -> Search:
    """Return the search with one more byte known, from the sum of the clients' answers, shape (d, 256)."""
    running = np.cumsum(counts, axis=1)
    byte = (running < search.rank[:, None]).sum(axis=1)
    before = np.where(byte > 0, running[np.arange(len(byte)), byte - 1], 0)
    return Search(search.depth + 1, (search.prefix << np.uint64(8)) | byte.astype(np.uint64), search.rank - before)


def client_exceeding(data: ExampleData, bound: FloatArray) -> NDArray[np.int64]:
    """Return the number of each client's values above each feature's bound, shape (k, d)."""
    counts = np.zeros((len(data), data.x.shape[1]), dtype=np.int64)
    np.add.at(counts, data.client_of, data.x > bound)
    return counts


def client_extremes(data: ExampleData) -> tuple[FloatArray, FloatArray]:
    """Return each client's least and greatest value of each feature, shape (k, d) each; ∞ and -∞ without examples."""
    shape = (len(data), data.x.shape[1])
    least, greatest = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(least, data.client_of, data.x)
    np.maximum.at(greatest, data.client_of, data.x)
    return least, greatest


def _ordered_bits(values: FloatArray) -> Bits:
    """Return integers that have the same order as the values."""
    bits = values.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _numbers(ordered: Bits) -> FloatArray:
    bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered)
    return bits.view(np.float64)
