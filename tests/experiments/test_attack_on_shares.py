"""A trained attacker learns nothing from one server's share of a client, with or without proofs."""

import hashlib
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fedping.client_sim.population.settings import PopulationSettings
from fedping.experiments.privacy.membership import Searched, guessed, searched
from fedping.protocol.privacy import frame_of, vectors_of
from fedping.protocol.sharing.shares import Votes, context_of, leader_shares, masks, proven, split_public
from fedping.protocol.study import Study

STUDY = Path(__file__).parents[2] / "experiments/private_study.toml"
ATTRIBUTE = "visited in the last 4 days"
CLIENTS = 48_000
WANTED = (*(4, 14, 31, 90, 100, 70, 50, 30, 10), *(0, 0, 120, 200, 140, 0, 0, 0, 25, 0, 140, 200, 0))
"""Weights of the simulated users' preferences; unlike the start weights, so that updates are informative."""


def views(study: Study, those: Searched, name: bytes) -> dict[str, NDArray[np.float64]]:
    """Return each server's data of the clients with informative updates, and both servers' data together."""
    line, seen = study.lines[0], those.seen
    assert line.privacy is not None
    frame = frame_of(line.privacy, line.spec)
    made = vectors_of(frame, np.asarray(seen.update), seen.loss, (seen.rank == 0).astype(float), line.privacy.loss)
    vectors = made[np.asarray(seen.update).any(axis=1)]
    k, d = vectors.shape
    seeds = [hashlib.sha256(name + b" %d" % number).digest() for number in range(k)]
    documents = np.array([list(seed[:16]) for seed in seeds], np.uint8)
    votes = Votes(d, frame.metric)
    context = context_of(study.name, line.name, 0, "treatment", votes)
    sent, sealed = proven(votes, vectors, documents, seeds, [context] * k)
    own, public = split_public(votes, sent)
    helper = np.array([list(each) for each in sealed], np.uint8)
    elements = np.ascontiguousarray(own[:, : 8 * (votes.bits + votes.circuit.proof)]).view("<u8")
    return {
        "both": vectors.astype(float),
        "leader": leader_shares(vectors, seeds).view("<i8").astype(float),
        "helper": masks(seeds, d).astype("<i8").astype(float),
        "leader, proofs": np.concatenate([elements, public], axis=1).astype(float),
        "helper, proofs": np.concatenate([helper, public], axis=1).astype(float),
    }


@pytest.mark.long
def test_an_attacker_guesses_by_chance_from_either_share_and_well_from_both() -> None:
    """With 13,000 victims the AUC's standard error is 0.005, so by chance it passes 0.02 once in 15,000 guesses."""
    study = msgspec.convert(tomllib.loads(STUDY.read_text()), Study)
    users = PopulationSettings(searches=(1, 1), true_weights=WANTED)
    own, victims = (searched(study.lines[0].spec, users, CLIENTS, seed) for seed in (11, 12))
    known, seen = views(study, own, b"own"), views(study, victims, b"victim")
    labels, truth = (each.attributes[ATTRIBUTE][np.asarray(each.seen.update).any(axis=1)] for each in (own, victims))
    assert len(truth) > 13_000
    aucs = {whose: guessed(known[whose], labels, seen[whose], truth, seed=1).auc for whose in known}
    assert aucs.pop("both") > 0.85
    assert all(abs(auc - 0.5) <= 0.02 for auc in aucs.values()), aucs
