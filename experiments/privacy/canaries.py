"""Canaries: tests on the shipped round whether a private line's release reveals that a client took part.

A canary is a client that behaves as badly as possible: it sends more pings than allowed, for two arms, with the largest
possible numbers, all in one direction. Half of the runs have it. Everything else is the round that an operator runs:
landed files, screening, coins, the accumulator, the noise. The attacker sees the release, knows all other clients, and
guesses by the release's component in the canary's direction.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.protocol.arrow import landed_schema
from fedping.protocol.encodings.private import vector_payloads
from fedping.protocol.enrolment import enrol
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.ping import PRIVATE_UPDATE
from fedping.protocol.privacy import METRICS, Central, bounded_vectors, frame_of
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.privacy.keys import KEY_BYTES
from fedping.server_jobs.privacy.noise import Noise
from fedping.server_jobs.round import Engine, Sums, Window, exact_sums, list_landed, private_rules, released, sigma_of

HUGE = 2**31 - 128
"""The largest number that a vector can have, also in float32."""

OTHERS = 8
"""Number of other clients, with zero updates, in addition to the canary."""

_NO_DIGEST = "0" * 64
"""Placeholder digest of every version, because none is stored. So coins differ only by the version's number."""

PINGS = 3
"""Number of pings that the canary sends for each version."""


class Scores(NamedTuple):
    """Components of releases in the canary's direction, in standard deviations of the noise, with and without it.

    Both have shape (runs,).
    """

    present: NDArray[np.float64]
    absent: NDArray[np.float64]


@dataclass(frozen=True)
class _Ping:
    client: bytes
    arm: str
    vector: NDArray[np.int64]


def canary_scores(study: Study, line: Line, folder: Path, engine: Engine, noise: Noise, *, runs: int) -> Scores:
    """Return the scores of ``runs`` rounds with a canary, which are certain to sample it, and of as many without.

    Args:
        study: the study, whose noise has been derived.
        line: a private line of it with a central guarantee.
        folder: an empty folder for landed files.
        engine: computes the rounds.
        noise: the source of the rounds' noise.
        runs: number of rounds with the canary, and the same number without.

    Raises:
        InvalidSettings: the line has no central guarantee.
        FedpingError: the noise was not derived.
    """
    study, line, arm = _certain(study, line)
    towards = _worst(line)[0].astype(np.float64)
    scale = sigma_of(line) * float(np.linalg.norm(towards))

    def scores(present: bool) -> NDArray[np.float64]:
        landing = folder / ("with" if present else "without")
        _land(landing, study, line, _pings(study, line, arm, 0, present), 0)
        sums = _sums(landing, study, line, 0, engine, None)  # exact, and so the same in every run
        releases = [np.array(released(study, line, sums, noise)[arm.name], np.float64) for _ in range(runs)]
        return np.array([each @ towards for each in releases]) / scale

    return Scores(scores(True), scores(False))


def coins_of_canary(study: Study, line: Line, folder: Path, engine: Engine, *, keys: int, versions: int) -> float:
    """Return the probability that independent coins are as uneven as a canary's coins in shipped rounds.

    A canary takes part in a number of versions, under each of a number of keys. The number of versions that count it is
    compared with the binomial distribution (Pearson's chi-square). The result is near 0 for coins that were tossed once
    for all versions, or that come up too often.

    Args:
        study: the study.
        line: a private line of it whose clients are sampled.
        folder: an empty folder for landed files.
        engine: computes the rounds.
        keys: number of newly drawn keys for coins.
        versions: number of versions with each key.

    Raises:
        InvalidSettings: the line has no central guarantee.
    """
    central, arm = _central(line), _submitting(study, line)
    for version in range(versions):
        _land(folder, study, line, _pings(study, line, arm, version, True), version)
    loss = line.spec.m + METRICS.index("loss")  # the others' is the least
    place = [each.name for each in study.arms if each.line == line.name].index(arm.name)
    counted = np.zeros(versions + 1)
    for _ in range(keys):
        key = secrets.token_bytes(KEY_BYTES)
        all_sums = (_sums(folder, study, line, version, engine, key) for version in range(versions))
        counted[sum(place in sums and bool(sums[place][loss]) for sums in all_sums)] += 1
    return _chance_of(counted, central.sampling)


def _chance_of(counted: NDArray[np.float64], share: float) -> float:
    from scipy.stats import binom, chisquare

    expected = counted.sum() * binom.pmf(np.arange(len(counted)), len(counted) - 1, share)
    while len(expected) > 2 and expected.min() < 5:  # such cells are merged with their neighbour
        at = int(expected.argmin())
        beside = at - 1 if at == len(expected) - 1 or (at and expected[at - 1] < expected[at + 1]) else at + 1
        for cells in (expected, counted):
            cells[beside] += cells[at]
        expected, counted = np.delete(expected, at), np.delete(counted, at)
    return float(chisquare(counted, expected * counted.sum() / expected.sum()).pvalue)


@dataclass(frozen=True)
class Canaries:
    """Canaries of one release: their number, and the seed of their vectors and of the fair coins."""

    count: int
    seed: int


def one_run(study: Study, line: Line, folder: Path, engine: Engine, noise: Noise, canaries: Canaries) -> int:
    """Return the number of correctly guessed canaries in one release; a fair coin puts each canary in or out.

    For models of 10,000 weights and more, where random vectors are nearly orthogonal (Steinke, Nasr and Jagielski
    2023). `fedping.experiments.privacy.auditing.in_one_run` returns the ε that this proves.

    Args:
        study: as for :func:`canary_scores`.
        line: likewise.
        folder: likewise.
        engine: likewise.
        noise: likewise.
        canaries: the canaries; the attacker guesses about each.

    Raises:
        InvalidSettings: the line has no central guarantee.
        FedpingError: the noise was not derived.
    """
    study, line, arm = _certain(study, line)
    rng = np.random.default_rng(canaries.seed)
    worst = rng.choice([-HUGE, HUGE], (canaries.count, line.spec.m + len(METRICS)))
    there = rng.random(canaries.count) < 0.5
    pings = [
        _Ping(_client(study, arm, f"canary {number}"), arm.name, vector)
        for number, vector in enumerate(worst)
        if there[number]
    ]
    _land(folder, study, line, pings, 0)
    means = released(study, line, _sums(folder, study, line, 0, engine, None), noise)[arm.name]
    assert line.privacy is not None
    counted = bounded_vectors(line.privacy, frame_of(line.privacy, line.spec), worst.astype(np.float64))[
        :, : line.spec.m
    ]
    scores = counted @ np.array(means[: line.spec.m], np.float64)
    return int(((scores > np.median(scores)) == there).sum())


def _central(line: Line) -> Central:
    if line.privacy is None or line.privacy.central is None:
        raise InvalidSettings(f"line '{line.name}' has no central guarantee, so there is nothing to show a canary in")
    return line.privacy.central


def _submitting(study: Study, line: Line) -> Arm:
    return next(each for each in study.arms if each.line == line.name and each.submits)


def _certain(study: Study, line: Line) -> tuple[Study, Line, Arm]:
    """Return the study and the line with the same noise but without sampling, and the canary's arm."""
    central = replace(_central(line), sampling=1.0)
    assert line.privacy is not None
    certain = replace(line, privacy=replace(line.privacy, central=central))
    lines = tuple(certain if each.name == line.name else each for each in study.lines)
    return replace(study, lines=lines), certain, _submitting(study, line)


def _worst(line: Line) -> NDArray[np.int64]:
    """Return a vector whose counted part is as large as possible, shape (1, m + 3)."""
    assert line.privacy is not None
    huge = np.full((1, line.spec.m + len(METRICS)), float(HUGE))
    return bounded_vectors(line.privacy, frame_of(line.privacy, line.spec), huge)


def _pings(study: Study, line: Line, arm: Arm, version: int, present: bool) -> Iterator[_Ping]:
    d = line.spec.m + len(METRICS)
    nothing = np.zeros(d, np.int64)
    for number in range(OTHERS):
        yield _Ping(_client(study, arm, f"other {number} of version {version}"), arm.name, nothing)
    if present:
        canary, worst = _client(study, arm, f"canary of version {version}"), np.full(d, HUGE)
        for _ in range(PINGS):
            yield _Ping(canary, arm.name, worst)
        for other in study.arms:
            if other.line == line.name and other.name != arm.name:
                yield _Ping(canary, other.name, worst)


def _client(study: Study, arm: Arm, name: str) -> bytes:
    """Return a client id that enrolment assigns to an arm."""
    number = 0
    while True:
        id_ = uuid.uuid5(uuid.NAMESPACE_URL, f"{study.name} {name} {number}")
        if enrol(study, str(id_)) == arm:
            return id_.bytes
        number += 1


def _land(landing: Path, study: Study, line: Line, pings: Iterable[_Ping], version: int) -> None:
    sent: Sequence[_Ping] = list(pings)
    schema = landed_schema(PRIVATE_UPDATE)
    # Of a client's pings for its own arm, the one with the least document id counts: here, the first that was sent.
    documents = sorted(uuid.uuid5(uuid.NAMESPACE_URL, f"{version} {i}").bytes for i in range(len(sent)))
    values: dict[str, pa.Array] = {
        "document_id": pa.array(documents),
        "client_id": pa.array([ping.client for ping in sent]),
        "received_at": pa.array([0] * len(sent)),
        "model_version": pa.array([version] * len(sent)),
        "study_variation": pa.array([ping.arm for ping in sent]),
        "update_encoding": pa.array(["private"] * len(sent)),
        "update": vector_payloads(np.stack([ping.vector for ping in sent])),
    }
    columns = [_as(values[field.name], field.type) for field in schema]
    folder = partition(landing, study.name, line.name, version)
    write_landed(folder, pa.table(columns, schema=schema), 0, token="canaries")


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type).dictionary_encode().cast(kind)
    return column.cast(kind)


def _sums(landing: Path, study: Study, line: Line, version: int, engine: Engine, key: bytes | None) -> Sums:
    manifest = list_landed(landing, study, line.name, version, Window(now_ms=0))
    return exact_sums(landing, manifest, private_rules(study, line, version, _NO_DIGEST, key), engine)
