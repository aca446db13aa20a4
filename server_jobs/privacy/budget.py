"""Privacy budgets of private lines: the study's allowance, and the part spent, which is read from lineages.

There is no separate ledger that could contradict the versions. All versions published by rounds count, including
those abandoned by a rollback. Skipped version numbers count too, because these versions may have been published and
lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fedping.model_store.store import ModelStore
from fedping.model_store.version import Version
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import with_recorded_code
from fedping.protocol.privacy import Central, Privacy
from fedping.protocol.study import Line, Study

if TYPE_CHECKING:
    from fedping.model_store.store import ModelStore
    from fedping.model_store.version import PrivacyEvent, Version


_LAST_DIGITS = 1 + 1e-6
"""Factor by which epsilon may exceed the guarantee, because accountants of different versions differ in the last
digits."""


class Spent(NamedTuple):
    """The number of a line's releases that count, and the last known release; None before the first."""

    releases: int
    last: PrivacyEvent | None


def spent(store: ModelStore, head: Version) -> Spent:
    """Return the budget that a private line has spent up to a version.

    Raises:
        StoreError: a version cannot be read.
    """
    lost, version = 0, head
    while version.lineage.privacy is None and version.parent is not None:
        lost += version.iteration - version.parent - 1
        version = store.version(version.study, version.line, version.parent)
    last = version.lineage.privacy
    return Spent(lost + (last.releases if last else 0), last)


def rounds_left(privacy: Privacy, releases: int) -> int | None:
    """Return a line's number of remaining rounds after a number of releases; None without a bound."""
    return None if privacy.central is None else max(0, privacy.central.rounds - releases)


def epsilon_after(privacy: Privacy, releases: int) -> tuple[float | None, str]:
    """Return ε of a line's central guarantee after a number of releases, and the accountant's name.

    The result is None and "" without a central guarantee. Without sampling, ε is exact and computed at once. With
    sampling, it is computed on a coarse, fast grid of losses. If ε exceeds the guarantee on that grid, as in the last
    rounds, it is computed on the grid that was used to derive the noise.
    """
    central = privacy.central
    if central is None or central.noise_multiplier is None:
        return None, ""
    return _counted(central, min(releases, privacy.contributions) if privacy.contributions is not None else releases)


@lru_cache(maxsize=4096)
def _counted(central: Central, releases: int) -> tuple[float, str]:
    from fedping.server_jobs.privacy.accounting import PLD, Pld, Schedule, epsilon

    assert central.noise_multiplier is not None
    schedule = Schedule(central.sampling, central.noise_multiplier, releases)
    accountant = Pld(grid=1e-3)
    spent_epsilon = epsilon(schedule, central.delta, accountant)
    if spent_epsilon > central.epsilon and central.sampling < 1:
        accountant = PLD
        spent_epsilon = epsilon(schedule, central.delta, accountant)
    return spent_epsilon, accountant.name(central.sampling)


def beyond_promise(privacy: Privacy, releases: int) -> float | None:
    """Return ε of a line after a number of releases if it exceeds the central guarantee; None if not."""
    spent_epsilon, _ = epsilon_after(privacy, releases)
    if spent_epsilon is None or privacy.central is None or spent_epsilon <= privacy.central.epsilon * _LAST_DIGITS:
        return None
    return spent_epsilon


def needs_key(privacy: Privacy) -> bool:
    """Return whether the rounds of a line need a key: to sample clients, or to sign requests to the helper."""
    return privacy.shared is not None or (privacy.central is not None and privacy.central.sampling < 1)


def check_key(privacy: Privacy, line: str, last: PrivacyEvent | None, key: bytes | None) -> bytes | None:
    """Return the key of a round; None if the line needs no key.

    Raises:
        InvalidSettings: the key is missing, or differs from the key of the line's earlier rounds.
    """
    from fedping.server_jobs.privacy.keys import digest_of_key

    central = privacy.central
    if not needs_key(privacy):
        return None
    if key is None and privacy.shared is not None:
        raise InvalidSettings(
            f"line '{line}' signs its requests to the helper: give --privacy-key FILE, which 'fedping privacy key "
            "FILE' creates and whose identity 'fedping privacy identity FILE' prints. Nothing was read."
        )
    if key is None:
        assert central is not None
        raise InvalidSettings(
            f"line '{line}' is private and samples {100 * central.sampling:g} % of its clients in secret: give "
            "--privacy-key FILE, which 'fedping privacy key FILE' creates. Nothing was read."
        )
    if last is not None and last.key_digest != digest_of_key(key):
        raise InvalidSettings(
            f"earlier rounds of line '{line}' used another privacy key, whose SHA-256 starts with "
            f"{last.key_digest[:12]}; give that key. Nothing was read."
        )
    return key


def with_noise(study: Study) -> Study:
    """Return a new study with the noise required by each private line's guarantee; takes seconds with sampling.

    Raises:
        InvalidSettings: a given noise multiplier is too small.
        FedpingError: no noise is large enough.
    """
    return replace(study, lines=tuple(_with_noise(line) for line in study.lines))


def without_derived_noise(stored: Study, written: Study) -> Study:
    """Return a stored study with its derived noise multipliers replaced by those in its file, if any."""
    asked = {line.name: each.noise_multiplier for line in written.lines if (each := _central(line)) is not None}

    def as_asked(line: Line) -> Line:
        central = _central(line)
        if central is None or line.name not in asked:
            return line
        assert line.privacy is not None
        return replace(line, privacy=replace(line.privacy, central=replace(central, noise_multiplier=asked[line.name])))

    return replace(stored, lines=tuple(map(as_asked, stored.lines)))


def stored_with_noise(store: ModelStore, written: Study) -> Study | None:
    """Return a store's copy of a study, with its noise, if it matches the study's file; None without such a copy.

    Raises:
        StoreError: the stored study can't be read.
    """
    if written.name not in store.studies.names():
        return None
    stored = store.study(written.name)
    return stored if without_derived_noise(stored, written) == with_recorded_code(written, stored) else None


def _central(line: Line) -> Central | None:
    return line.privacy.central if line.privacy is not None else None


def needs_accounting(study: Study) -> bool:
    """Return whether a study has a line whose noise :func:`with_noise` derives or checks."""
    return any(_central(line) is not None for line in study.lines)


def _with_noise(line: Line) -> Line:
    if line.privacy is None or line.privacy.central is None:
        return line
    return replace(line, privacy=privacy_with_noise(line.privacy, line.name))


def privacy_with_noise(privacy: Privacy, name: str) -> Privacy:
    """Return a line's privacy settings with the noise that its guarantee requires; see :func:`with_noise`."""
    central, releases = privacy.central, privacy.releases
    if central is None:
        return privacy
    assert releases is not None
    if central.noise_multiplier is not None:
        excess = beyond_promise(privacy, releases)
        if excess is not None:
            raise InvalidSettings(
                f"line '{name}' would spend epsilon = {excess:.4g} with noise_multiplier = "
                f"{central.noise_multiplier:g} over {releases:,} releases, but guarantees {central.epsilon:g}; "
                "remove 'noise_multiplier', and it is derived"
            )
        return privacy
    noise_multiplier = _least_noise(central.epsilon, central.delta, central.sampling, releases)
    if not noise_multiplier < 1e30:
        raise FedpingError(
            f"no noise gives line '{name}' epsilon = {central.epsilon:g} and delta = {central.delta:g} over "
            f"{releases:,} releases; set a larger epsilon or delta, or fewer rounds"
        )
    return replace(privacy, central=replace(central, noise_multiplier=noise_multiplier))


@lru_cache(maxsize=64)
def _least_noise(epsilon: float, delta: float, sampling: float, releases: int) -> float:
    from fedping.server_jobs.privacy.accounting import noise_multiplier_for

    return noise_multiplier_for(epsilon, delta, sampling, releases)


SIMULATED = (
    "This is a simulation: the noise, the samples and the clients' secrets are derived from its seed, so it is "
    "reproducible to the bit. Reproducible noise protects no one."
)
"""Remark about a study that is declared to be simulated."""


class LineSpent(Struct, frozen=True, kw_only=True):
    """The budget that a line's central guarantee has spent.

    Attributes:
        study, line: the line.
        releases: the number of rounds that have released sums.
        epsilon, delta: budget spent so far; None without a central guarantee.
        most: the maximum epsilon.
        rounds_left: the number of rounds left.
        ping_epsilon: the epsilon of each ping by the client's own noise; None if clients add none.
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
        """A sentence about the spent and the remaining budget."""
        if self.most is None and self.ping_epsilon is None:
            return "It spends no epsilon: no server can read a client's update, and the sums have no noise."
        if self.most is None or self.rounds_left is None:
            return (
                "Its clients add the noise themselves, and each contribution costs the epsilon in the study's settings."
            )
        told = f"Epsilon {self.epsilon:.3g} of {self.most:g} is spent, by {_rounds(self.releases)}"
        if self.rounds_left == 0:
            return f"{told}; its guarantee allows no further round."
        return f"{told}, and {_rounds(self.rounds_left)} {'is' if self.rounds_left == 1 else 'are'} left."


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number:,} rounds"


class Together(Struct, frozen=True, kw_only=True):
    """The total budget that several lines have spent on one client."""

    epsilon: float
    delta: float


def spent_by(store: ModelStore, study: Study, line: Line) -> LineSpent:
    """Return the budget that a private line has spent so far.

    Raises:
        FedpingError: a version cannot be read.
    """
    return spent_up_to(store, line, store.head(study.name, line.name))


def spent_up_to(store: ModelStore, line: Line, version: Version) -> LineSpent:
    """Return the budget that a private line had spent at one of its versions; raise like :func:`spent_by`."""
    assert line.privacy is not None
    central = line.privacy.central
    releases, last = spent(store, version)
    if last is not None and last.releases == releases:
        epsilon = last.epsilon  # as computed in its round
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
    """Return the total budget spent on a client that took part in all these lines (basic composition).

    A client is in one arm of a study, and thus in one line. But a client that left and joined again has a new id,
    which may belong to another arm; then it has sent pings to both.
    """
    each = list(lines)
    return Together(epsilon=sum(line.epsilon or 0.0 for line in each), delta=sum(line.delta or 0.0 for line in each))
