"""The audit of a line: its claim, lower bounds of ε from attacks, and the quality of attackers' guesses.

Everything runs on this machine with synthetic data; no running study is read or changed.

Each bound holds with the stated confidence for any data: if it exceeds the claimed ε, the claim is wrong. Sources: Nasr
et al., "Tight Auditing of Differentially Private Machine Learning", 2023, for the bound by Gaussian DP; Jagielski,
Ullman and Oprea, "Auditing Differentially Private Machine Learning", 2020, for the bound by rates; Steinke, Nasr and
Jagielski, "Privacy Auditing with One (1) Training Run", 2023.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from fedping.client_sim.fleet.interactions import Interactions
from fedping.client_sim.models import MODELS
from fedping.client_sim.models.arrays import FloatArray
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.privacy import Chance, Contributor
from fedping.experiments.privacy.canaries import Canaries, canary_scores, coins_of_canary, one_run
from fedping.experiments.privacy.membership import (
    ATTRIBUTES,
    Guessed,
    Searched,
    TestedRounds,
    guessed,
    membership,
    raw_pings,
    searched,
)
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import Privacy
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line, Study
from fedping.server_jobs.privacy.gaussian import NoGuarantee, epsilon_of
from fedping.server_jobs.privacy.noise import Noise, SystemNoise
from fedping.server_jobs.round import NumpyEngine, sigma_of

Scores: TypeAlias = NDArray[np.float64]

CONFIDENCE = 0.95


class Proven(NamedTuple):
    """A lower bound, and the test that proves it."""

    epsilon: float
    """The lower bound of ε, in nats; 0 if the attack proves nothing."""
    threshold: float
    """Minimum score for which the attacker guesses "in"."""
    false_positives: float
    """Upper bound of the share of runs without the canary for which the attacker guesses "in"."""
    false_negatives: float
    """Upper bound of the share of runs with the canary for which the attacker guesses "out"."""


def by_gaussian_dp(inside: ArrayLike, outside: ArrayLike, delta: float, confidence: float = CONFIDENCE) -> Proven:
    """Return a lower bound of a Gaussian mechanism's ε, from an attacker's scores with and without a canary.

    μ is at least Φ⁻¹(1 - FPR) - Φ⁻¹(FNR), with Clopper and Pearson's upper bounds of both rates, and ε follows from μ.
    Every second run serves to choose the threshold, the others to measure. The threshold is that of equal errors: the
    bound hardly depends on it, and a search for the largest bound would follow luck. The bound needs a hundredth of the
    runs that :func:`by_rates` needs, but holds only for Gaussian noise, without sampling or in a round that is certain
    to sample the canary.

    Args:
        inside: scores of independent runs with the canary, such as the canary's product with the release; shape
            (runs,).
        outside: scores of independent runs without the canary; shape (runs,).
        delta: the δ of the claim.
        confidence: probability that the bound is right.

    Raises:
        NoGuarantee: for fewer than 2 runs of either kind, or scores that are no numbers.
    """

    def epsilon(false_positives: float, false_negatives: float) -> float:
        from scipy.special import ndtri

        return epsilon_of(max(0.0, float(ndtri(1 - false_positives) - ndtri(false_negatives))), delta)

    def alike(proven: Proven) -> float:
        return -abs(proven.false_positives - proven.false_negatives)

    return _proven(_scores(inside), _scores(outside), epsilon, confidence, alike)


def by_rates(inside: ArrayLike, outside: ArrayLike, delta: float, confidence: float = CONFIDENCE) -> Proven:
    """Return a lower bound of any mechanism's ε: ln((1 - FNR - δ)/FPR). Arguments: see :func:`by_gaussian_dp`."""

    def epsilon(false_positives: float, false_negatives: float) -> float:
        ratio = (1 - false_negatives - delta) / false_positives
        return math.log(ratio) if ratio > 1 else 0.0

    return _proven(_scores(inside), _scores(outside), epsilon, confidence)


def _scores(values: ArrayLike) -> Scores:
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1 or len(scores) < 2 or not np.all(np.isfinite(scores)):
        raise NoGuarantee("an audit needs the finite scores of at least 2 runs with its canary and 2 without")
    return scores


def _proven(
    inside: Scores,
    outside: Scores,
    epsilon: Callable[[float, float], float],
    confidence: float,
    best_by: Callable[[Proven], float] = lambda proven: proven.epsilon,
) -> Proven:
    each = (1 - confidence) / 2

    def bound_at(inside: Scores, outside: Scores, threshold: float) -> Proven:
        false_positives = _at_most(int(np.sum(outside >= threshold)), len(outside), each)
        false_negatives = _at_most(int(np.sum(inside < threshold)), len(inside), each)
        return Proven(epsilon(false_positives, false_negatives), threshold, false_positives, false_negatives)

    choosing, measuring = (inside[::2], outside[::2]), (inside[1::2], outside[1::2])
    thresholds = np.unique(np.quantile(np.concatenate(choosing), np.linspace(0, 1, 201)))
    best = max((bound_at(*choosing, float(threshold)) for threshold in thresholds), key=best_by)
    return bound_at(*measuring, best.threshold)


def _at_most(count: int, of: int, error: float) -> float:
    """Return Clopper and Pearson's upper bound of a share, given a count; it fails with probability ``error``."""
    from scipy.special import betaincinv

    return 1.0 if count == of else float(betaincinv(count + 1, of - count, 1 - error))


def in_one_run(canaries: int, guesses: int, correct: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return the lower bound of ε, in nats, that a single run with many canaries proves.

    A fair coin puts each canary in or out, and the attacker guesses some of the coins. The bound is the largest ε that
    makes this number of right guesses less likely than 1 - confidence; 0 if there is none.

    Args:
        canaries: m, the number of canaries.
        guesses: r, the number of canaries that the attacker guesses about.
        correct: v, the number of right guesses.
        delta: the δ of the claim.
        confidence: probability that the bound is right.

    Raises:
        NoGuarantee: unless 0 <= v <= r <= m.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise NoGuarantee(f"{correct} right guesses of {guesses} about {canaries} canaries cannot be")
    low, high = 0.0, 1.0
    if _likely(low, canaries, guesses, correct, delta) > 1 - confidence:
        return 0.0
    while _likely(high, canaries, guesses, correct, delta) <= 1 - confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        unlikely = _likely(middle, canaries, guesses, correct, delta) <= 1 - confidence
        low, high = (middle, high) if unlikely else (low, middle)
    return low


def _likely(epsilon: float, canaries: int, guesses: int, correct: int, delta: float) -> float:
    """Return the upper bound of the probability of this many right guesses under (ε, δ) (theorem 5.2)."""
    from scipy.special import expit
    from scipy.stats import binom

    counts = np.arange(correct + 1)
    at_least = binom.sf(correct - 1 - counts, guesses, expit(epsilon))  # v - i right guesses or more
    slack = np.max((at_least[1:] - at_least[0]) / counts[1:], initial=0.0)
    return float(at_least[0] + 2 * canaries * delta * slack)


MANY_WEIGHTS = 10_000
"""Minimum number of weights for an additional audit by one run with many canaries."""

MANY_CANARIES = 500

UNEVEN = 1e-6
"""Coins count as uneven if independent coins would be as uneven with a smaller probability than this."""


class Release(Struct, frozen=True, kw_only=True):
    """The result of the canaries' attacks on the central guarantee.

    Attributes:
        claimed: ε of one round that is certain to sample the canary, by the noise that the line declares.
        delta: δ of the claim.
        proven: a lower bound of that ε by the attack, with 95 % confidence.
        runs: number of runs with the canary, and the same number without.
        one_run: the bound by one run with many canaries, for models that are large enough; else None.
        coins: probability that independent coins are as uneven as the line's; None without sampling of clients.
    """

    claimed: float
    delta: float
    proven: float
    runs: int
    one_run: float | None = None
    coins: float | None = None

    @property
    def holds(self) -> bool:
        """Whether no result contradicts the claim."""
        most = max(self.proven, self.one_run or 0.0)
        return most <= self.claimed and (self.coins is None or self.coins >= UNEVEN)


class Guess(Struct, frozen=True):
    """An AUC with its 95 % interval; 0.5 is chance."""

    auc: float
    low: float
    high: float


class Audit(Struct, frozen=True, kw_only=True):
    """The results of a line's audit.

    Attributes:
        study, line: the names of the study and the line.
        release: the result for the central guarantee; None without one.
        attributes: the quality of guesses of each attribute of the chosen page from an unchanged ping: AUC; only where
            pages are ranked, and of clients whose updates are not zero, which reveal more.
        unprotected: the same guesses from a ping of a line that is not private.
        membership: AUC of the guess that a client took part in a round, from its published step; with the same
            restrictions as ``attributes``.
    """

    study: str
    line: str
    release: Release | None = None
    attributes: Mapping[str, Guess] = {}
    unprotected: Mapping[str, Guess] = {}
    membership: Guess | None = None

    @property
    def holds(self) -> bool:
        """Whether no result contradicts the line's claim."""
        return self.release is None or self.release.holds


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The extent of an audit: its numbers of rounds, clients and users.

    Attributes:
        runs: number of rounds with a canary, and the same number without.
        clients: number of clients whose single pings are guessed; the attacker trains on the same number of its own.
        per_round: number of clients in the rounds whose membership is guessed.
        users: the synthetic users of ranking models; None for the usual ones, with one search each.
        seed: seed of users and attackers. Noise and sampling are the product's own, from the operating system.
    """

    runs: int = 1000
    clients: int = 12_000
    per_round: int = 100
    users: PopulationSettings | None = None
    seed: int = 0


def audit(
    study: Study,
    line: Line,
    effort: Effort | None = None,
    noise: Noise | None = None,
    watch: Callable[[str], None] = lambda step: None,
) -> Audit:
    """Attack a line by all applicable attacks, and return the results.

    Args:
        study: the study, whose noise is derived.
        line: one of its lines.
        effort: the numbers of rounds and clients.
        noise: None for the system's noise; another source tests whether the audit detects it.
        watch: called with a description of each step.

    Raises:
        InvalidSettings: the line is a two-server line.
        FedpingError: the noise was not derived, or the line has a model whose users can't be simulated.
    """
    effort = effort or Effort()
    if line.privacy is not None and line.privacy.rows is not None:
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' sums institutions' tables. Attack your own table with "
            "'fedping audit join'"
        )
    if line.privacy is not None and line.privacy.shared is not None:
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' is a two-server line, where a single ping reveals nothing to "
            "either server. Remove [lines.privacy.shared] from the file to attack the released sums, with the noise "
            "of one server instead of two"
        )
    release = None
    if line.privacy is not None and line.privacy.central is not None:
        release = _release(study, line, effort, noise or SystemNoise(), watch)
    result = Audit(study=study.name, line=line.name, release=release)
    if line.spec.model not in MODELS:
        return result
    watch("guessing from single pings")
    users = effort.users or PopulationSettings(searches=(1, 1), true_weights=_WANTED.get(line.spec.model, ()))
    own, victims = (searched(line.spec, users, effort.clients, effort.seed + each) for each in (1, 2))
    result = replace(result, unprotected=_guesses(own, victims, raw_pings, effort.seed))
    if line.privacy is not None:
        encode = _as_sent(line.privacy, line.spec, effort.seed)
        result = replace(result, attributes=_guesses(own, victims, encode, effort.seed))
    if line.privacy is not None and line.privacy.central is None:
        return result  # only single pings can reveal anything
    watch("guessing who took part")
    updates = np.asarray(own.seen.update)
    loud = updates[np.argmax(np.abs(updates).sum(axis=1))]
    rounds = TestedRounds(clients=effort.per_round, runs=effort.runs, seed=effort.seed)
    member = membership(updates, loud, rounds, line.spec, line.privacy)
    return replace(result, membership=_guess_of(member.guessed))


_WANTED = {
    # what users want in the simulated study of 2018 (`experiments/firefox_study.toml`); the model ships with others
    "frecency-2018": (
        *(4, 14, 31, 90, 100, 70, 50, 30, 10),
        *(0, 0, 120, 200, 140, 0, 0, 0, 25, 0, 140, 200, 0),
    )
}


def _release(study: Study, line: Line, effort: Effort, noise: Noise, watch: Callable[[str], None]) -> Release:
    assert line.privacy is not None
    central, engine, runs = line.privacy.central, NumpyEngine(), effort.runs
    assert central is not None
    sigma_of(line)  # raises if there is nothing to attack
    claimed = epsilon_of(1 / (central.noise_multiplier or 1.0), central.delta)
    one = coins = None
    with tempfile.TemporaryDirectory() as folder:
        watch("hiding canaries in rounds")
        scores = canary_scores(study, line, Path(folder) / "canaries", engine, noise, runs=runs)
        proven = by_gaussian_dp(scores.present, scores.absent, central.delta)
        if central.sampling < 1:
            watch("tossing coins")
            coins = coins_of_canary(study, line, Path(folder) / "coins", engine, keys=max(50, runs // 10), versions=4)
        if line.spec.m >= MANY_WEIGHTS:
            watch("hiding many canaries in one round")
            right = one_run(study, line, Path(folder) / "many", engine, noise, Canaries(MANY_CANARIES, effort.seed))
            one = in_one_run(MANY_CANARIES, MANY_CANARIES, right, central.delta)
    return Release(claimed=claimed, delta=central.delta, proven=proven.epsilon, runs=runs, one_run=one, coins=coins)


def _as_sent(privacy: Privacy, spec: ModelSpec, seed: int) -> Callable[[Interactions], FloatArray]:
    contributor = Contributor(privacy, spec)
    rng = np.random.default_rng(seed)

    def sent(seen: Interactions) -> FloatArray:
        updates = np.asarray(seen.update, np.float64)
        chances = (Chance(rng.bytes) for _ in range(len(seen)))
        vectors = contributor.vectors(updates, seen.loss, (seen.rank == 0).astype(np.float64), chances)
        return vectors.astype(np.float64)

    return sent


def _guesses(
    own: Searched, victims: Searched, encode: Callable[[Interactions], FloatArray], seed: int
) -> dict[str, Guess]:
    there, those = (np.asarray(each.seen.update).any(axis=1) for each in (own, victims))
    known, seen = encode(own.seen)[there], encode(victims.seen)[those]
    return {
        name: _guess_of(guessed(known, own.attributes[name][there], seen, victims.attributes[name][those], seed=seed))
        for name in ATTRIBUTES
    }


def _guess_of(attack: Guessed) -> Guess:
    return Guess(attack.auc, attack.low, attack.high)
