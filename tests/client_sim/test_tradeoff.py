"""The closed form of thesis 4.5, compared with means of sampled clients' updates sent through real masks."""

from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fedping.client_sim.tradeoff import (
    Spread,
    error_of_mask,
    keep_for,
    spread_of,
    times_variance,
    variance_of_mean,
)
from fedping.client_sim.upload import sent_updates
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.links import Mask
from fedping.protocol.spec import Block, ModelSpec, Step
from fedping.protocol.study import Line
from fedping.protocol.update import Payloads
from fedping.protocol.upload import receiving, sending

CLIENTS, M, DRAWS = 300, 15, 2000


def updates_of_clients() -> NDArray[np.float32]:
    """Return updates like users': three of four weights are zero, the others have a heavy tail and a common part."""
    random = np.random.default_rng(3)
    made = 0.3 + random.standard_t(4, (CLIENTS, M))
    return np.where(random.random((CLIENTS, M)) < 0.75, 0.0, made).astype(np.float32)


def mean_square_error(keep: float, draw: Literal["blocks", "independent"], clients: int, replace: bool) -> float:
    """Return the mean of |mean of decoded updates - mean of all|² over many samples, each with different masks."""
    updates = updates_of_clients()
    random = np.random.default_rng(4)
    everybody = np.argsort(random.random((DRAWS, CLIENTS)), axis=1)[:, :clients]
    sampled = random.integers(0, CLIENTS, (DRAWS, clients)) if replace else everybody
    block = Block(name="w", shape=(M,), step=Step(start=1, min=1, max=1))
    line = Line(
        name="main",
        spec=ModelSpec(name="any", model="own", blocks=(block,)),
        upload=(Mask(keep=keep, draw=draw),),
    )
    sent = sent_updates(sending(line), updates[sampled.ravel()], child_keys(root_key(5), np.arange(sampled.size)))
    assert isinstance(sent, Payloads)
    decoded, readable = receiving(line).decode(sent.column, M)
    assert readable.all()
    means = decoded.reshape(DRAWS, clients, M).mean(axis=1, dtype=np.float64)
    return float(((means - updates.mean(axis=0, dtype=np.float64)) ** 2).sum(axis=1).mean())


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize(
    ("keep", "draw", "clients"), [(1.0, "blocks", 20), (0.2, "blocks", 100), (0.2, "independent", 20)]
)
def test_the_variance_of_the_mean_is_what_the_formula_says(
    keep: float, draw: Literal["blocks", "independent"], clients: int, replace: bool
) -> None:
    expected = variance_of_mean(
        spread_of(updates_of_clients()), clients, error_of_mask(keep), None if replace else CLIENTS
    )
    assert mean_square_error(keep, draw, clients, replace) == pytest.approx(expected, rel=0.05)


def test_everybody_leaves_nothing_to_sampling_but_all_to_encoding() -> None:
    spread = spread_of(updates_of_clients())
    assert variance_of_mean(spread, CLIENTS, drawn_from=CLIENTS) == 0
    assert variance_of_mean(spread, CLIENTS, 9.0, CLIENTS) == pytest.approx(9 * spread.square / CLIENTS)
    assert variance_of_mean(Spread(4.0, 0.0), 1, drawn_from=1) == 0


def test_ten_times_the_clients_at_equal_bytes_cost_no_more_than_their_common_part() -> None:
    spread = Spread(mean_square=0.019, variance=1.0)  # as measured of linear-15
    error = error_of_mask(0.1)
    assert times_variance(spread, error, 0.1) == pytest.approx(1 + 0.9 * 0.019)
    assert times_variance(spread, error) == pytest.approx(10 + 9 * 0.019)
    assert times_variance(spread, error, 0.1) == pytest.approx(
        variance_of_mean(spread, 2000, error) / variance_of_mean(spread, 200)
    )


@pytest.mark.parametrize("clients", [200, 5000])
def test_the_share_to_keep_gives_the_variance_that_was_asked_for(clients: int) -> None:
    spread = Spread(mean_square=0.5, variance=2.0)
    keep = keep_for(spread, clients, 0.02)
    assert keep is not None
    assert 0 < keep <= 1
    assert variance_of_mean(spread, clients, error_of_mask(keep)) == pytest.approx(0.02)


def test_there_is_no_share_to_keep_if_whole_updates_vary_too_much() -> None:
    spread = Spread(mean_square=0.5, variance=2.0)
    assert keep_for(spread, 99, 0.02) is None
    assert keep_for(spread, 100, 0.02) == pytest.approx(1)
