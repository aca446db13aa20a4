"""What private lines have spent: of a line, of a study, and of a store, whose studies may have the same clients."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fedping.model_store.store import ModelStore
from fedping.model_store.version import Version
from fedping.protocol.study import Line, Study
from fedping.server_jobs.privacy.budget import epsilon_after, rounds_left, spent

SIMULATED = (
    "This is a simulation: the noise, the coins and the clients' secrets follow from its seed, so that it can be made "
    "again to the bit. Noise that can be drawn again protects nobody."
)
"""To be told of a study that its store declares to be simulated."""


class LineSpent(Struct, frozen=True, kw_only=True):
    """What the central guarantee of a line has spent.

    Attributes:
        study, line: whose.
        releases: how many rounds have released something.
        epsilon, delta, most, rounds_left: so far, and at most; None without a central guarantee.
        ping_epsilon: what each ping costs by the noise that a client adds itself; None where it adds none.
    """

    study: str
    line: str
    releases: int
    rounds_left: int | None
    epsilon: float | None
    most: float | None
    delta: float | None
    ping_epsilon: float | None = None

    @property
    def sentence(self) -> str:
        """What is spent, and what is left."""
        if self.most is None and self.ping_epsilon is None:
            return "It has no epsilon to spend: no server can read what a client sends, and the sums are as they are."
        if self.most is None or self.rounds_left is None:
            return "Its clients add the noise themselves, and each contribution costs them what the study says."
        told = f"Epsilon {self.epsilon:.3g} of {self.most:g} is spent, by {_rounds(self.releases)}"
        if self.rounds_left == 0:
            return f"{told}; its guarantee allows no further round."
        return f"{told}, and {_rounds(self.rounds_left)} {'is' if self.rounds_left == 1 else 'are'} left."


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number:,} rounds"


class Together(Struct, frozen=True, kw_only=True):
    """What the central guarantees of lines have spent together of one client."""

    epsilon: float
    delta: float


def spent_by(store: ModelStore, study: Study, line: Line) -> LineSpent:
    """Return what a private line has spent.

    Raises:
        FedpingError: a version cannot be read.
    """
    return spent_up_to(store, line, store.head(study.name, line.name))


def spent_up_to(store: ModelStore, line: Line, version: Version) -> LineSpent:
    """Return what a private line had spent with a version of it; raises as :func:`spent_by` does."""
    assert line.privacy is not None
    central = line.privacy.central
    releases, last = spent(store, version)
    if last is not None and last.releases == releases:
        epsilon = last.epsilon  # as its round has counted it
    else:
        epsilon, _ = epsilon_after(line.privacy, releases) if releases else (0.0, "")
    return LineSpent(
        study=version.study,
        line=line.name,
        releases=releases,
        rounds_left=rounds_left(line.privacy, releases),
        epsilon=(epsilon or 0.0) if central else None,
        most=central.epsilon if central else None,
        delta=(central.delta if releases else 0.0) if central else None,
        ping_epsilon=line.privacy.local.epsilon if line.privacy.local else None,
    )


def together(lines: Iterable[LineSpent]) -> Together:
    """Return what lines have spent of a client that is in all of them (basic composition).

    A client is in one arm, and so in one line, of a study, but for one that has left it and joined again, under an id
    that may belong to another arm: such a client has given to both.
    """
    each = list(lines)
    return Together(epsilon=sum(line.epsilon or 0.0 for line in each), delta=sum(line.delta or 0.0 for line in each))
