"""The release of a private round: sums with noise, which is drawn once, and the version computed from them.

Exact sums are used only in :func:`released`. Everything else is computed from its result, which may be public: the
step, the figures of the arms, and the check for enough clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.model_store.version import FORMAT, Answered, ArmSummary, Lineage, PrivacyEvent, Version
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import FedpingError
from fedping.protocol.model import out_of_range, validate_spec
from fedping.protocol.privacy import METRICS, Frame, Privacy, ReleasedMeans, frame_of, told
from fedping.protocol.spec import published
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.optimize import BrokenLink, state_to_document
from fedping.server_jobs.optimize.transformation import States, Vector
from fedping.server_jobs.privacy.keys import digest_of_key
from fedping.server_jobs.privacy.noise import Noise
from fedping.server_jobs.round.private_sums import Released, Sums, private_sums
from fedping.server_jobs.round.step import apply_step, state_of


def total_sigma_of(line: Line) -> float:
    """Return the standard deviation of the total noise on a line's release; 0 if only its clients add noise.

    On a two-server line, the helper adds noise of the same size as the round.

    Raises:
        FedpingError: the noise was never derived.
    """
    privacy, _ = _of(line)
    return sigma_of(line) * (1.0 if privacy.shared is None else sqrt(2))


def sigma_of(line: Line) -> float:
    """Return the standard deviation of the noise that a round adds to a line's sums; 0 if only clients add noise.

    Raises:
        FedpingError: the noise was never derived.
    """
    privacy, frame = _of(line)
    if privacy.central is None:
        return 0.0
    if privacy.central.noise_multiplier is None:
        raise FedpingError(
            f"line '{line.name}' is private, but its study lacks the noise multiplier; create the study with "
            "'fedping study create', which derives it"
        )
    return privacy.central.noise_multiplier * frame.sensitivity


def released(study: Study, line: Line, sums: Sums, noise: Noise) -> dict[str, tuple[int, ...]]:
    """Return a line's sums by arm with noise. This is the only function that draws the operator's noise.

    Arms that don't submit updates, and weights that clients can't move, are released as 0.
    """
    _, frame = _of(line)
    arms, sigma = _following(study, line), sigma_of(line)
    masks = [released_places(frame, arm) for arm in arms]
    size = sum(int(mask.sum()) for mask in masks)
    drawn_noise = noise.integers(sigma, size) if sigma else np.zeros(size, np.int64)
    noisy, start = {}, 0
    for number, (arm, mask) in enumerate(zip(arms, masks, strict=True)):
        values = np.where(mask, sums.get(number, 0), 0)
        end = start + int(mask.sum())
        values[mask] += drawn_noise[start:end]
        noisy[arm.name], start = tuple(values.tolist()), end
    return noisy


def event_of(
    line: Line,
    made: dict[str, tuple[int, ...]],
    releases: int,
    key: bytes | None,
    counted: tuple[float | None, str],
    shared: Answered | None = None,
) -> PrivacyEvent:
    """Return the lineage's record of a release.

    Args:
        line: the private line.
        made: the released sums by arm.
        releases: the number of this release.
        key: the privacy key; None if the line needs none.
        counted: epsilon and the accountant's name (`fedping.server_jobs.privacy.budget.epsilon_after`).
        shared: the record of the helper's answer on a two-server line.
    """
    privacy, frame = _of(line)
    central = privacy.central
    epsilon, accountant = counted
    return PrivacyEvent(
        released=made,
        sigma=total_sigma_of(line),
        noise_multiplier=central.noise_multiplier or 0.0 if central else 0.0,
        sensitivity=frame.sensitivity,
        sampling=central.sampling if central else 1.0,
        releases=releases,
        epsilon=epsilon,
        delta=central.delta if central else None,
        accountant=accountant,
        key_digest=digest_of_key(key) if key is not None else "",
        shared=shared,
    )


def replay_event(line: Line, event: PrivacyEvent, releases: int) -> PrivacyEvent:
    """Return the lineage's record of a release in a recomputation.

    The noise, the key and ε are copied, because the last digits of ε depend on the accountant's version.
    """
    counted = (event.epsilon, event.accountant)
    again = event_of(line, event.released, releases, None, counted, event.shared)
    return replace(again, key_digest=event.key_digest)


def next_private(
    study: Study, line: Line, parent: Version, event: PrivacyEvent, *, created: str, code_version: str
) -> Version:
    """Return the next version, computed only from a release.

    If the noisy count is too small, or the step fails or leads to weights that clients couldn't read, the version has
    the weights and the state of the parent.
    """
    by_arm = released_means(study, line, event)
    submitting = [arm.name for arm in _following(study, line) if arm.submits]
    clients = sum(by_arm[name].clients for name in submitting)
    moved = None
    if clients >= line.pipeline.min_clients:
        moved = _moved(study, line, parent, event, clients)
    weights, state = moved or (parent.weights, parent.state)
    return replace(
        parent,
        format=FORMAT,
        iteration=parent.iteration + 1,
        parent=parent.iteration,
        parent_digest=parent.digest,
        created=created,
        model=published(line.spec, weights),
        weights=weights,
        state=state,
        lineage=Lineage(
            origin="round",
            code_version=code_version,
            config_digest=digest_of(line),
            counts={"used": sum(_whole(each.clients) for each in by_arm.values())},
            arms={name: _summary(each) for name, each in by_arm.items()},
            window_end_ms=parent.lineage.window_end_ms,
            privacy=replace(event, stepped=moved is not None),
            shards=study.shards,
        ),
    )


def released_means(study: Study, line: Line, event: PrivacyEvent) -> dict[str, ReleasedMeans]:
    """Return each arm's noisy metrics in a release. Clients that add noise don't report a loss."""
    privacy, frame = _of(line)
    means = {}
    for arm in _following(study, line):
        each = told(frame, np.array(event.released[arm.name], np.int64), privacy.loss)
        means[arm.name] = each if privacy.local is None else ReleasedMeans(each.clients, None, None)
    return means


def noise_in_clients(event: PrivacyEvent, line: Line) -> float:
    """Return the standard deviation of the noise on an arm's number of clients."""
    return event.sigma / _of(line)[1].metric


def total_of(study: Study, line: Line, made: Mapping[str, Sequence[int]], sigma: float, clients: float) -> Released:
    """Return the input of a step, which may be public.

    Args:
        study: the line's study.
        line: the private line.
        made: released sums by arm, shape (m + 3,).
        sigma: the standard deviation of the noise on each number.
        clients: the number of clients that submitted updates. It is used only if it isn't secret; otherwise, a constant
            is used.
    """
    assert line.privacy is not None
    central = line.privacy.central
    submitting = [arm for arm in _following(study, line) if arm.submits]
    sums = np.array([made[arm.name] for arm in submitting], np.int64).sum(axis=0)
    if central is not None:
        clients = central.expected * line.privacy.turns * sum(arm.share for arm in submitting)
    return Released(sums[: -len(METRICS)], sigma * sqrt(len(submitting)), max(1.0, clients))


class PrivateArrayRound:
    """A round in memory of a private line's only arm, with the same sums, release and step as a round over files.

    Args:
        study: the line's study.
        line: a private line whose noise is derived.
    """

    def __init__(self, study: Study, line: Line) -> None:
        self._study, self._line, self._sigma = study, line, sigma_of(line)
        self._accumulator = private_sums(line)
        self._sums = self._accumulator.init(line)

    def add(self, vectors: NDArray[np.int64]) -> None:
        """Add the vectors of k clients, shape (k, m + 3)."""
        k = len(vectors)
        self._sums = self._accumulator.add(self._sums, vectors, np.ones(k), np.zeros(k, np.int16))

    def stepped(self, weights: Vector, state: States, key: bytes, noise: Noise) -> tuple[Vector, States] | None:
        """Draw noise and return the weights and the state after the release; None with too few clients."""
        privacy, frame = _of(self._line)
        noisy = released(self._study, self._line, self._sums, noise)
        [arm] = _following(self._study, self._line)
        clients = told(frame, np.array(noisy[arm.name], np.int64), privacy.loss).clients
        if clients < self._line.pipeline.min_clients:
            return None
        total = total_of(self._study, self._line, noisy, self._sigma, clients)
        return apply_step(self._line, weights, state, total, key)


def _moved(
    study: Study, line: Line, parent: Version, event: PrivacyEvent, clients: float
) -> tuple[tuple[float, ...], object] | None:
    """Return the weights and the state after a step; None if it fails or clients couldn't read the weights.

    The round doesn't fail if a link fails on a release. Otherwise the round would be repeated, uncharged, with other
    noise on the same sums, and each failure would leak information about them.
    """
    total = total_of(study, line, event.released, event.sigma, clients)
    try:
        stepped, after = _stepped(line, parent, total)
    except BrokenLink:
        return None
    weights = tuple(stepped.tolist())
    if not np.isfinite(stepped).all():
        return None
    moved = replace(parent, weights=weights, model=published(line.spec, weights), state=state_to_document(after))
    if moved.unreadable or out_of_range(moved.model, line.spec) or validate_spec(moved.model, line.spec):
        return None
    return weights, moved.state


def check_release(line: Line, parent: Version) -> None:
    """Try a step with an update of zeros before any ping is read; raise the errors that prevent any step.

    Raises:
        BrokenLink: a link fails, or returns an unusable result.
        FedpingError: an extension isn't installed, or the state belongs to other links.
    """
    _stepped(line, parent, Released(np.zeros(line.spec.m, np.int64), total_sigma_of(line), 1.0))


def _stepped(line: Line, parent: Version, total: Released) -> tuple[Vector, States]:
    key = bytes.fromhex(parent.digest)
    return apply_step(line, np.array(parent.weights), state_of(line, parent), total, key)


def _of(line: Line) -> tuple[Privacy, Frame]:
    assert line.privacy is not None
    return line.privacy, frame_of(line.privacy, line.spec)


def _following(study: Study, line: Line) -> list[Arm]:
    return [arm for arm in study.arms if arm.line == line.name]


def released_places(frame: Frame, arm: Arm) -> NDArray[np.bool_]:
    """Return a mask, shape (m + 3,), of the numbers of an arm's sum that are released."""
    weights = (frame.group >= 0) & arm.submits
    return np.concatenate([weights, np.ones(len(METRICS), np.bool_)])


def _whole(clients: float) -> int:
    return max(0, round(clients))


def _summary(each: ReleasedMeans) -> ArmSummary:
    clients = _whole(each.clients)
    return ArmSummary(pings=clients, examples=clients, loss=each.loss, rank_selected=None)
