"""Update vectors and checks for the tests of all update encodings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.client_sim.learning import SearchData, cohort_updates, learner_for, model_spec
from fedping.client_sim.models import model_for
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import SyntheticPopulation
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.links import Dense, Mask, Upload, UploadLink, in_words
from fedping.protocol.rules import traits_of
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.training import OneGradient
from fedping.protocol.upload import Receiving, Sending, receiving, sending
from tests.support.links import line_with

STEP = Step(start=1, min=1, max=1)


def _examples() -> Iterator[UploadLink]:
    """Yield the example settings from the modules of all registered links."""
    for module in dict.fromkeys(link.__module__ for link in get_args(UploadLink)):
        yield from getattr(sys.modules[module], "EXAMPLES", ())


EXAMPLES: tuple[UploadLink, ...] = tuple(_examples())
"""The example settings of all links, in the order of registration."""


def _encoded() -> Iterator[Upload]:
    """Yield the examples of encoding links; for each link that may follow a mask, also its first example after one."""
    behind_a_mask = set()
    for link in EXAMPLES:
        if "encodes" not in traits_of(link) or isinstance(link, Dense):
            continue
        yield (link,)
        if "follows a mask" in traits_of(link) and type(link) not in behind_a_mask:
            behind_a_mask.add(type(link))
            yield Mask(keep=0.3), link


ENCODED: dict[str, Upload] = {in_words(upload): upload for upload in _encoded()}
"""Lists of links that encode updates, by their description."""


def spec_of(m: int) -> ModelSpec:
    """Return the spec of a model of m single weights."""
    return ModelSpec(name="any", model="any", weights=tuple(Weight(f"w{place}", 0.0, STEP) for place in range(m)))


def both_ends(upload: Upload, spec: ModelSpec) -> tuple[Sending, Receiving]:
    """Return the two sides of a line with these links."""
    line = line_with(upload, spec=spec)
    return sending(line), receiving(line)


def keys_of(count: int, seed: int = 1) -> NDArray[np.uint64]:
    """Return a number of random keys."""
    return child_keys(root_key(seed), np.arange(count))


def sent_and_read(upload: Upload, updates: NDArray[Any], seed: int = 1, spec: ModelSpec | None = None) -> NDArray[Any]:
    """Return updates of shape (k, m) as the server reads them from their payloads, all readable."""
    m = updates.shape[1]
    client, server = both_ends(upload, spec or spec_of(m))
    assert client.encode is not None
    payloads = client.encode(updates, keys_of(len(updates), seed))
    decoded, ok = server.decode(payloads, m)
    assert ok.all()
    least, most = server.lengths(m)
    for payload in payloads[:3].to_pylist():
        assert least <= len(payload) <= most
        assert server.trouble(payload, m) is None
    return decoded


def two_sparse() -> NDArray[np.float64]:
    """Return an update of which two of 22 weights are not zero."""
    update = np.zeros(22)
    update[[3, 7]] = 10.75, -4.0
    return update


def one_outlier() -> NDArray[np.float64]:
    """Return an update of 40 weights, one of which is a million times the others."""
    update = np.random.default_rng(3).normal(size=40)
    update[11] = 1e6
    return update


@cache
def frecency_updates() -> NDArray[np.float64]:
    """Return updates of 22 weights by simulated users' browsers, shape (k, 22), without users that send none."""
    clients, model = np.arange(40), learner_for(model_spec("frecency-2018"))
    sample = SyntheticPopulation(model_for("frecency-2018"), PopulationSettings(), seed=1).sample(clients, 0)
    data = SearchData(sample.pages, sample.searches, sample.client, len(clients))
    found = cohort_updates(model, OneGradient(), model.start, data.batch(clients), keys_of(len(clients)))
    updates = np.asarray(found.updates, np.float64)
    return updates[updates.any(axis=1)]


def assert_unbiased(
    encoded_and_decoded: Callable[[NDArray[Any]], NDArray[Any]],
    update: NDArray[np.float64],
    variance: NDArray[np.float64] | None = None,
) -> None:
    """Check the mean of 20,000 encodings of an update, weight by weight, within four standard errors.

    The errors are computed from the weights' variance, shape (m,), if given: the sample's variance misses events too
    rare for any draw.
    """
    draws = encoded_and_decoded(np.tile(update, (20_000, 1))).astype(np.float64)
    if variance is None:
        variance = draws.var(axis=0, ddof=1)
    rounding = 2.0**-23 * np.abs(update)
    assert (np.abs(draws.mean(axis=0) - update) <= 4 * np.sqrt(variance / len(draws)) + rounding).all()


def assert_refused_alike(server: Receiving, payload: bytes | None, m: int) -> None:
    """Check that a round and ingest both reject a payload, and that a valid one in the same batch is read."""
    values, ok = server.decode(pa.array([payload], pa.binary()), m)
    assert not ok[0]
    assert not values.any()
    least, most = server.lengths(m)
    assert payload is None or not least <= len(payload) <= most or server.trouble(payload, m)
