"""The demo with two servers: a study with input shares, its helper, and each server's view of one client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.experiments.server_process import helper_process
from fedping.helper.enrol import join, keys_of, pinned_line
from fedping.helper.folder import HelperFolder
from fedping.model_store.store import ModelStore
from fedping.protocol.encodings.payloads import rows_of
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.location import Place
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.protocol.pipeline import RProp
from fedping.protocol.privacy import METRICS, SIGN, Central, Privacy, Shared
from fedping.protocol.sharing.keys import opener
from fedping.protocol.sharing.shares import WORDS, Elements, as_bytes, info_of, layout, mask, words_of
from fedping.protocol.sharing.terms import numbers_of
from fedping.protocol.study import Line, Study, public_study
from fedping.server_jobs.privacy.budget import with_noise
from fedping.server_jobs.privacy.keys import leader_identity
from fedping.server_jobs.round import HttpHelper

MIN_BATCH = 20
EPSILON = 8.0
LOSS = (0.0, 600.0)
UNMOVED = ("permRedirectVisitBonus", "tempRedirectVisitBonus", "defaultVisitBonus")
"""Weights that no simulated client can move."""


def secured(study: Study, helper: str, clients: int, rounds: int) -> Study:
    """Return the demo's study with clients that split their vectors between two servers, which both add noise.

    Args:
        study: the demo's study with one server.
        helper: the helper's identity.
        clients: the number of clients.
        rounds: the number of rounds.
    """

    def of_shares(line: Line) -> Line:
        optimizer = line.pipeline.optimizer
        if isinstance(optimizer, RProp):
            optimizer = replace(optimizer, quorum=None)  # a share of votes, which remains hidden
        return replace(
            line,
            privacy=Privacy(
                shared=Shared(helper=helper, min_batch=MIN_BATCH),
                central=Central(epsilon=EPSILON, delta=min(1e-6, 0.1 / clients), rounds=rounds, population=clients),
                loss=LOSS,
                left_out=UNMOVED,
                delay_minutes=0.0,
            ),
            upload=(),
            guard=None,
            limits=None,
            pipeline=replace(line.pipeline, clip=None, optimizer=optimizer, min_clients=MIN_BATCH),
        )

    lines = tuple(map(of_shares, study.lines))
    return with_noise(replace(study, pings=PRIVATE_UPDATE.name, lines=lines, limits=None))


@dataclass(frozen=True)
class TwoServers:
    """The parts of a demo's two servers, without the leader's store and landing folder."""

    helper: HelperFolder
    key: bytes
    way: HttpHelper


@contextmanager
def helper_beside(helper: HelperFolder, key: bytes, store: ModelStore, study: Study, log: Path) -> Iterator[TwoServers]:
    """Enrol a helper for the lines of a stored study, start it, and yield both servers' parts.

    Args:
        helper: the helper's folder.
        key: the leader's secret.
        store: the leader's model store.
        study: the study as created.
        log: the file for the helper's output.

    Raises:
        FedpingError: the helper does not start.
    """
    public = public_study(study)
    for line in public.lines:
        offer, _ = join(helper, public, line, leader_identity(key))
        store.studies.publish_offer(study.name, line.name, offer)
    with helper_process(helper.path, log) as running:
        yield TwoServers(helper, key, HttpHelper(running.address))


class Seen(NamedTuple):
    """Both servers' views of the client with the most votes, and the evenness of their bytes over all clients.

    Attributes:
        document: the id of the client's ping.
        leader, helper: the client's two input shares, shape (d,).
        vector: the sum of both shares, shape (d,).
        clients: the number of clients with inspected shares.
        leader_p, helper_p: for each server, the probability that uniformly random bytes are as uneven as its shares, by
            the χ² test of 256 counts.
    """

    document: UUID
    leader: Elements
    helper: Elements
    vector: NDArray[np.int64]
    clients: int
    leader_p: float
    helper_p: float

    @property
    def votes(self) -> NDArray[np.int64]:
        """The client's vote for each weight: 1, 0 or -1, shape (m,)."""
        return self.vector[: -len(METRICS)] // SIGN


def seen_by(servers: TwoServers, landing: Place, study: Study, line: Line, iteration: int) -> Seen | None:
    """Return the servers' views of landed clients in arms that submit updates; None without such clients.

    This needs the folders of both servers, because the helper's keys open what the leader has accepted.
    """
    assert line.privacy is not None
    assert line.privacy.shared is not None
    submitting = {arm.name for arm in study.arms if arm.line == line.name and arm.submits}
    d, seal = numbers_of(line), line.privacy.shared.seal
    where = layout(d, seal)
    with servers.helper.records() as records:
        keys = keys_of(servers.helper, records.offers(pinned_line(records, study.name, line.name).number))
    openers = {offer: opener(seal, each.private) for offer, each in keys.items()}
    updates: list[tuple[UUID, Elements, Elements]] = []
    for file in landed_files(partition(landing, study.name, line.name, iteration)):
        with open_landed(file).opened() as opened:
            table = opened.read(columns=["document_id", "study_variation", "update"])
        rows, fits = rows_of(table["update"].combine_chunks(), where.size)
        offers, leaders, sealed = where.parts(rows)
        documents, arms = table["document_id"].to_pylist(), table["study_variation"].to_pylist()
        for at in np.flatnonzero(fits).tolist():
            if arms[at] not in submitting:
                continue
            document, offer = UUID(bytes=documents[at]), offers[at].tobytes()
            info = info_of(study.name, line.name, iteration, arms[at], document, d, offer)
            seed = openers[offer](sealed[at].tobytes(), info) if offer in openers else None
            if seed is not None:
                updates.append((document, words_of(leaders[at : at + 1])[0], mask(seed, d)))
    if not updates:
        return None
    document, leader, helper = max(updates, key=lambda each: int(np.count_nonzero(WORDS.plus(each[1], each[2]))))
    of_leader, of_helper = np.stack([each[1] for each in updates]), np.stack([each[2] for each in updates])
    vector = WORDS.centred(WORDS.plus(leader, helper))
    return Seen(document, leader, helper, vector, len(updates), evenness(of_leader), evenness(of_helper))


def evenness(elements: Elements) -> float:
    """Return the p-value of the χ² test that the bytes of ``elements`` are uniformly random."""
    from scipy.stats import chisquare

    counts = np.bincount(np.frombuffer(as_bytes(elements), np.uint8), minlength=256)
    return float(chisquare(counts).pvalue)
