"""What happened in an iteration, and in all of them, for people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from fedping.client_sim.fleet.fetching import FetchCounts
from fedping.client_sim.fleet.outbox import Counts
from fedping.protocol.draws import FloatArray


class ArmSummary(Struct, frozen=True, kw_only=True):
    """The interactions of one arm. The means are over those in which something was selected; None if there is none.

    ``top_share`` is the accuracy of thesis 7.3: the share of choices that were displayed at the top. Of model updates
    ``selected`` are the pings with an example, ``loss`` is the mean over examples, and the other two are None.
    ``update_bytes`` are those of the updates in all pings, as they are encoded: 4 a weight of a dense one.
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
    """What became of pings. ``carried_over + generated = accepted + rejected + undelivered``, always.

    ``carried_over`` were undelivered before. ``retried`` counts further attempts and ``duplicates`` pings sent again
    after they had been accepted. ``posted_bytes`` are those of the bodies of all attempts, as they travelled. The
    reasons are the server's own sentences, or what the network said.
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
    """What came of asking for models. ``late`` should have asked and did not; ``silent`` took no part at all.

    ``fetched_bytes`` are those of the bodies in which models came.
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

    ``hostile`` is how many of the pings that were made are those of hostile clients. ``waits`` says of a line of shares
    why its clients send nothing, by line.
    """

    iteration: int
    seconds: float
    versions: dict[str, int]
    fetches: FetchSummary
    pings: PingSummary
    arms: tuple[ArmSummary, ...]
    hostile: int = 0
    waits: dict[str, str] = {}


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
    """Return how many clients hold each version, in the versions' order."""
    return dict(sorted(Counter(versions).items()))


def ping_summary(now: Counts, before: Counts, carried_over: int, undelivered: int) -> PingSummary:
    """Return what became of pings between two moments."""
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
    """Return what came of fetches between two moments; ``late`` and ``silent`` clients made none."""
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
    """Return what a counter by reason has gained, most frequent first."""
    return dict((after - before).most_common())
