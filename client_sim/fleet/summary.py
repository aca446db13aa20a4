"""Counts of fetches and pings, and the summary of an iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct

from fedping.client_sim.rehearsal.recovered import Recovered
from fedping.protocol.draws import FloatArray

MOST_REASONS = 100
"""Maximum number of reasons that are counted separately; there may be a new reason for every ping."""

OTHER_REASONS = f"other reasons than the first {MOST_REASONS}"


def count_reason(reasons: Counter[str], reason: str) -> None:
    """Count a reason; beyond :data:`MOST_REASONS` reasons, a new one counts as :data:`OTHER_REASONS`."""
    reasons[reason if reason in reasons or len(reasons) < MOST_REASONS else OTHER_REASONS] += 1


@dataclass
class Counts:
    """Counts of pings. At any moment accepted + rejected + undelivered = generated.

    ``posted_bytes`` counts the bodies of all attempts, as sent.
    """

    generated: int = 0
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    posted_bytes: int = 0

    def copy(self) -> Counts:
        """Return a copy of the current counts."""
        return replace(self, rejected=self.rejected.copy(), retries=self.retries.copy())


@dataclass
class FetchCounts:
    """Counts of answers to fetches. ``fetched_bytes`` counts the bodies of model documents, as received."""

    fetched: int = 0
    not_modified: int = 0
    unavailable: Counter[str] = field(default_factory=Counter)
    fetched_bytes: int = 0

    def copy(self) -> FetchCounts:
        """Return a copy of the current counts."""
        return replace(self, unavailable=self.unavailable.copy())


class ArmSummary(Struct, frozen=True, kw_only=True):
    """The interactions of one arm. Means are over pings with a choice; None without any.

    ``top_share`` is the accuracy of thesis 7.3: the share of choices that were displayed at the top. For model updates,
    ``selected`` are the pings with an example, ``loss`` is the mean over examples, and ``rank`` and ``top_share`` are
    None. ``update_bytes`` counts the encoded updates in all pings: 4 bytes per weight of a dense one.
    """

    arm: str
    clients: int
    pings: int
    selected: int
    loss: float | None
    rank: float | None
    top_share: float | None
    versions: dict[int, int]
    update_bytes: int = 0


class PingSummary(Struct, frozen=True, kw_only=True):
    """Outcomes of pings. Always ``carried_over + generated = accepted + rejected + undelivered``.

    ``carried_over`` counts earlier undelivered pings. ``retried`` counts further attempts and ``duplicates`` pings sent
    again after they had been accepted. ``posted_bytes`` counts the bodies of all attempts, as sent. The reasons are the
    server's sentences, or network errors.
    """

    carried_over: int
    generated: int
    accepted: int
    rejected: int
    undelivered: int
    retried: int
    duplicates: int
    posted_bytes: int
    rejected_by_reason: dict[str, int]
    retried_by_reason: dict[str, int]


class FetchSummary(Struct, frozen=True, kw_only=True):
    """Outcomes of fetches. ``late`` clients kept their version without a fetch; ``silent`` ones took no part.

    ``fetched_bytes`` counts the bodies of model documents, as received.
    """

    fetched: int
    not_modified: int
    unavailable: int
    late: int
    silent: int
    fetched_bytes: int
    unavailable_by_reason: dict[str, int]


class IterationSummary(Struct, frozen=True, kw_only=True):
    """One iteration of a fleet; ``seconds`` is its wall time. ``versions`` is the newest version held, by line.

    ``hostile`` is the number of generated pings of hostile clients. ``waits`` has, by line, the reason why the clients
    of a two-server line send nothing. ``recovered`` has, for each line that ranks items, the match of the newest held
    version with simulated users' preferences.
    """

    iteration: int
    seconds: float
    versions: dict[str, int]
    fetches: FetchSummary
    pings: PingSummary
    arms: tuple[ArmSummary, ...]
    hostile: int = 0
    waits: dict[str, str] = {}
    recovered: dict[str, Recovered] = {}


def arm_summary(
    arm: str, clients: int, loss: FloatArray, rank: FloatArray, versions: Sequence[int], update_bytes: int
) -> ArmSummary:
    """Summarize an arm from the loss and rank of each of its S interactions, and the version that each client holds."""
    selected = rank >= 0
    some = bool(selected.any())
    return ArmSummary(
        arm=arm,
        clients=clients,
        pings=len(rank),
        selected=int(selected.sum()),
        loss=float(loss[selected].mean()) if some else None,
        rank=float(rank[selected].mean()) if some else None,
        top_share=float((rank[selected] == 0).mean()) if some else None,
        versions=version_counts(versions),
        update_bytes=update_bytes,
    )


def version_counts(versions: Sequence[int]) -> dict[int, int]:
    """Return the number of clients that hold each version, in the versions' order."""
    return dict(sorted(Counter(versions).items()))


def ping_summary(now: Counts, before: Counts, carried_over: int, undelivered: int) -> PingSummary:
    """Return the outcomes of pings between two moments."""
    return PingSummary(
        carried_over=carried_over,
        generated=now.generated - before.generated,
        accepted=now.accepted - before.accepted,
        rejected=now.rejected.total() - before.rejected.total(),
        undelivered=undelivered,
        retried=now.retries.total() - before.retries.total(),
        duplicates=now.duplicates - before.duplicates,
        posted_bytes=now.posted_bytes - before.posted_bytes,
        rejected_by_reason=_difference(now.rejected, before.rejected),
        retried_by_reason=_difference(now.retries, before.retries),
    )


def fetch_summary(now: FetchCounts, before: FetchCounts, late: int, silent: int) -> FetchSummary:
    """Return the outcomes of fetches between two moments; ``late`` and ``silent`` count clients without a fetch."""
    return FetchSummary(
        fetched=now.fetched - before.fetched,
        not_modified=now.not_modified - before.not_modified,
        unavailable=now.unavailable.total() - before.unavailable.total(),
        late=late,
        silent=silent,
        fetched_bytes=now.fetched_bytes - before.fetched_bytes,
        unavailable_by_reason=_difference(now.unavailable, before.unavailable),
    )


def _difference(after: Counter[str], before: Counter[str]) -> dict[str, int]:
    """Return the increase of a counter by reason, most frequent first."""
    return dict((after - before).most_common())
