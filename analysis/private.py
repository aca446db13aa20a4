"""Results for the arms of a private study: the metrics that its rounds released, and their errors.

A round releases noisy sums over the clients of each arm: their number, their losses, and the number of times that the
chosen item was on top. A metric is a ratio of two such sums, each over all rounds. Its variance has two parts (delta
method): the known variance of the noise, and the variance of the clients, who are a sample. The clients' variance is
not released. For values between 0 and 1 with mean r it is at most r (1 - r), and for a top choice it is exactly this
value. The number of versions that a client contributed to isn't released either. So every client is assumed to have
contributed to the maximum number, with the same values each time. Intervals are therefore too wide rather than too
narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fedping.protocol.notation import with_minus
from fedping.protocol.privacy import METRICS, Privacy, frame_of
from fedping.protocol.study import Line, Study

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore
    from fedping.model_store.version import PrivacyEvent

ENOUGH = 5.0
"""Minimum number of clients for which a ratio is shown, in standard deviations of the number's noise."""


class Estimated(Struct, frozen=True, kw_only=True):
    """A value, its standard error, and the interval that covers the truth with the requested confidence.

    The interval of a metric is cut at the metric's bounds.
    """

    value: float
    error: float
    low: float
    high: float


class Sums(Struct, frozen=True, kw_only=True):
    """Sums that the rounds of a line have released about an arm.

    Attributes:
        clients, loss, top_choice: the noisy sums; losses are rescaled so that the least is 0 and the greatest 1.
        noise: the standard deviation of the noise on each sum.
        often: maximum number of sums that one client contributes to.
    """

    clients: float
    loss: float
    top_choice: float
    noise: float
    often: float


class ArmResult(Struct, frozen=True, kw_only=True):
    """An arm's approximate contributions and metrics; a metric is None if it has too few clients or was not sent."""

    arm: str
    contributions: Estimated
    loss: Estimated | None
    top_choice: Estimated | None


class Difference(Struct, frozen=True, kw_only=True):
    """The difference of a metric between two arms; ``p`` is two-sided."""

    metric: str
    arm: str
    against: str
    difference: Estimated
    p: float
    sentence: str


class LineResult(Struct, frozen=True, kw_only=True):
    """The results of a line's arms; ``noise`` is the noise on an arm's number of clients in one round."""

    line: str
    rounds: int
    noise: float
    arms: tuple[ArmResult, ...]
    differences: tuple[Difference, ...]


class PrivateResult(Struct, frozen=True, kw_only=True):
    """The released results of a private study."""

    study: str
    confidence: float
    lines: tuple[LineResult, ...]
    note: str = (
        "From the noisy sums that rounds released. Intervals contain the error of the noise and the largest possible "
        "error from sampling clients. P-values are for one look and one comparison."
    )


class LineRounds(Struct, frozen=True, kw_only=True):
    """The results of a line's arms, separately for each round.

    Attributes:
        line: the line's name.
        iterations: for each round, the version that its clients used, shape (R,).
        arms: by name, the arm's result in each of the R rounds.
    """

    line: str
    iterations: tuple[int, ...]
    arms: dict[str, tuple[ArmResult, ...]]


def private_result(store: ModelStore, study: Study, confidence: float = 0.95) -> PrivateResult:
    """Return the results that the rounds of a private study have released about its arms.

    Raises:
        StoreError: a version cannot be read.
    """
    return PrivateResult(
        study=study.name,
        confidence=confidence,
        lines=tuple(_line(store, study, line, confidence) for line in study.lines),
    )


def _line(store: ModelStore, study: Study, line: Line, confidence: float) -> LineResult:
    assert line.privacy is not None
    events = list(_events(store, study, line).values())
    arms = [arm for arm in study.arms if arm.line == line.name]
    noise = _noise(events, line)
    sums = {arm.name: _sums(events, arm.name, noise, line) for arm in arms}
    results = tuple(arm_result(arm.name, sums[arm.name], line.privacy, confidence) for arm in arms)
    by_name = {each.arm: each for each in results}
    applying, others = ([arm.name for arm in arms if arm.applies is applies] for applies in (True, False))
    compared = [
        difference(name, by_name[one], by_name[other], confidence)
        for one in applying
        for other in others
        for name in ("loss", "top_choice")
    ]
    return LineResult(
        line=line.name,
        rounds=len(events),
        noise=noise,
        arms=results,
        differences=tuple(each for each in compared if each is not None),
    )


def line_rounds(store: ModelStore, study: Study, line: Line, confidence: float = 0.95) -> LineRounds:
    """Return the arms' results in each round of a private line.

    Raises:
        StoreError: a version cannot be read.
    """
    assert line.privacy is not None
    events, privacy = _events(store, study, line), line.privacy
    noise = _noise(events.values(), line)
    return LineRounds(
        line=line.name,
        iterations=tuple(events),
        arms={
            arm.name: tuple(
                arm_result(arm.name, _sums([event], arm.name, noise, line), privacy, confidence)
                for event in events.values()
            )
            for arm in study.arms
            if arm.line == line.name
        },
    )


def _events(store: ModelStore, study: Study, line: Line) -> dict[int, PrivacyEvent]:
    """Return the sums that a line's rounds have released, by the version that their clients used."""
    events = {}
    for number in store.iterations(study.name, line.name):
        version = store.version(study.name, line.name, number)
        if version.lineage.privacy is not None and version.parent is not None:
            events[version.parent] = version.lineage.privacy
    return events


def _noise(events: Iterable[PrivacyEvent], line: Line) -> float:
    """Return the standard deviation of the noise on an arm's number of clients in one round."""
    assert line.privacy is not None
    return max((event.sigma for event in events), default=0.0) / frame_of(line.privacy, line.spec).metric


def _sums(events: Sequence[PrivacyEvent], arm: str, noise: float, line: Line) -> Sums:
    assert line.privacy is not None
    released = [event.released[arm][-len(METRICS) :] for event in events]
    return summed(released, frame_of(line.privacy, line.spec).metric, noise, line.privacy)


def summed(released: Sequence[Iterable[int]], metric: int, noise: float, privacy: Privacy) -> Sums:
    """Return an arm's metrics summed over the rounds' releases; ``noise`` is one round's noise."""
    rounds = len(released)
    often = float(min(rounds, privacy.contributions or rounds))
    if privacy.central is not None and privacy.central.sampling < 1:
        often = min(often, 1 + (rounds - 1) * privacy.central.sampling)
    clients, loss, top = (sum(each) / metric for each in zip(*released, strict=True)) if released else (0.0, 0.0, 0.0)
    return Sums(clients=clients, loss=loss, top_choice=top, noise=noise * math.sqrt(rounds), often=max(1.0, often))


def arm_result(arm: str, sums: Sums, privacy: Privacy, confidence: float) -> ArmResult:
    """Return an arm's contributions and metrics."""
    low, high = privacy.loss
    tells = privacy.local is None and sums.clients > max(1.0, ENOUGH * sums.noise)
    return ArmResult(
        arm=arm,
        contributions=estimated(sums.clients, sums.noise, confidence),
        loss=_ratio(sums, sums.loss, low, high - low, confidence) if tells else None,
        top_choice=_ratio(sums, sums.top_choice, 0.0, 1.0, confidence) if tells else None,
    )


def _ratio(sums: Sums, of: float, low: float, span: float, confidence: float) -> Estimated:
    share = min(max(of / sums.clients, 0.0), 1.0)
    of_noise = sums.noise**2 * (1 + share**2)
    of_clients = sums.often * sums.clients * share * (1 - share)
    error = math.sqrt(of_noise + of_clients) / sums.clients
    ratio = estimated(low + span * share, span * error, confidence)
    return replace(ratio, low=max(ratio.low, low), high=min(ratio.high, low + span))


def estimated(value: float, error: float, confidence: float) -> Estimated:
    """Return a value with its interval, by the normal distribution."""
    from scipy.special import ndtri  # avoids scipy.stats, which is slow to load

    half = float(ndtri((1 + confidence) / 2)) * error
    return Estimated(value=value, error=error, low=value - half, high=value + half)


def difference(metric: str, one: ArmResult, other: ArmResult, confidence: float) -> Difference | None:
    """Return the difference of a metric between two arms, whose noise is independent; None unless both have it."""
    a, b = getattr(one, metric), getattr(other, metric)
    if a is None or b is None:
        return None
    estimate = estimated(a.value - b.value, math.hypot(a.error, b.error), confidence)
    p = math.erfc(abs(estimate.value) / estimate.error / math.sqrt(2)) if estimate.error else float(estimate.value == 0)
    words = metric.replace("_", "-") + (" rate" if metric == "top_choice" else "")
    sure = (
        f"is {'above' if estimate.value > 0 else 'below'} the value of {other.arm}"
        if not estimate.low <= 0 <= estimate.high
        else f"doesn't differ from {other.arm} by more than chance and noise explain"
    )
    return Difference(
        metric=metric,
        arm=one.arm,
        against=other.arm,
        difference=estimate,
        p=p,
        sentence=f"The {words} of {one.arm} {sure}: "
        + with_minus(f"{estimate.value:+.4g} ({estimate.low:+.4g} to {estimate.high:+.4g}, p = {p:.2g})."),
    )


def in_words(result: PrivateResult) -> str:
    """Return a result as text for the terminal."""
    parts = [
        f"Study {result.study} is private: its pings are deleted, and these are the results that its rounds released."
    ]
    for line in result.lines:
        rounds = "1 round" if line.rounds == 1 else f"{line.rounds:,} rounds"
        parts += ["", f"Line {line.line}: {rounds}" + (f", noise of ± {line.noise:,.0f} clients" if line.noise else "")]
        parts.append(f"{'arm':<20}  {'contributions':>22}  {'loss':>24}  {'top-choice rate':>24}")
        for arm in line.arms:
            about = f"{max(0.0, arm.contributions.value):,.0f} ± {arm.contributions.error:,.0f}"
            parts.append(f"{arm.arm:<20}  {about:>22}  {_cell(arm.loss):>24}  {_cell(arm.top_choice):>24}")
        parts += [each.sentence for each in line.differences] or ["No two arms can be compared yet."]
    return "\n".join([*parts, "", result.note])


def _cell(found: Estimated | None) -> str:
    return "–" if found is None else f"{found.value:.4g} ({found.low:.4g}–{found.high:.4g})"
