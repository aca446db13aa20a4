"""A private line at one moment: what it guarantees, has spent and has left, and how large its noise is."""

from __future__ import annotations

import math

from msgspec import Struct

from fedping.model_store.helper_requests import PendingRequest
from fedping.model_store.store import ModelStore
from fedping.protocol.privacy import frame_of
from fedping.protocol.study import Line, Study
from fedping.server_jobs.privacy.budget import spent_by
from fedping.server_jobs.privacy.card import guarantee_in_words


class PrivateFacts(Struct, frozen=True, kw_only=True):
    """What there is to tell of a private line; all of it follows from settings and from what rounds have released.

    Attributes:
        guarantee: in a sentence, as on the study's privacy card.
        epsilon, delta: what its rounds have spent; None where the operator gives no guarantee, and clients their own.
        most: the epsilon that all its rounds may spend; None likewise.
        releases: how many rounds have released something.
        rounds, rounds_left: how many may, and how many yet; None where nothing bounds them.
        noise: the standard deviation of the noise on an arm's number of clients; 0 where clients add it.
        loss: the least and the greatest loss that is told.
        local: whether clients add noise themselves.
        shared: whether there are two servers, and `waiting` since when, and for what, the line waits for the second.
    """

    guarantee: str
    epsilon: float | None
    delta: float | None
    most: float | None
    releases: int
    rounds: int | None
    rounds_left: int | None
    noise: float
    loss: tuple[float, float]
    local: bool = False
    shared: bool = False
    waiting: PendingRequest | None = None


def private_facts(store: ModelStore, study: Study, line: Line) -> PrivateFacts:
    """Return what there is to tell of a private line.

    Raises:
        FedpingError: a version cannot be read.
    """
    assert line.privacy is not None
    central, spent = line.privacy.central, spent_by(store, study, line)
    noise = 0.0
    if central is not None and central.noise_multiplier is not None:
        frame = frame_of(line.privacy, line.spec)
        noise = central.noise_multiplier * frame.sensitivity / frame.metric
        noise *= 1.0 if line.privacy.shared is None else math.sqrt(2)  # both servers add it
    return PrivateFacts(
        guarantee=guarantee_in_words(line.privacy),
        epsilon=spent.epsilon,
        delta=central.delta if central else None,
        most=spent.most,
        releases=spent.releases,
        rounds=central.rounds if central else None,
        rounds_left=spent.rounds_left,
        noise=noise,
        loss=line.privacy.loss,
        local=line.privacy.local is not None,
        shared=line.privacy.shared is not None,
    )
