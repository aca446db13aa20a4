"""The privacy card of a study: who trusts whom, what leaves a device, what is guaranteed, and what is not.

It is made of the study's settings and of where its lines began, for whoever takes part, in words and as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from fedping.model_store.version import Ancestor, WarmStart
from fedping.protocol.outcomes import at_choice, later
from fedping.protocol.privacy import ClippedByBlock, ClippedByKind, ClippedFlat, OneSign, Privacy, Shared, Signs
from fedping.protocol.study import Line, Study

NOT_COVERED = (
    "that an installation takes part, when it posts and from which address, which a server sees of any request",
    "an installation is one unit: a person with two profiles or devices, or after a reinstallation, is two",
    "what other studies of the same product learn; their guarantees add up",
)


OF_BOTH_SERVERS = (
    "that both servers see how many clients count in a round, and the number of each ping; the operator, whose",
    "the two servers together: were they to put together what they have, they could read every vector that was sent",
)
"""What is not covered besides, where there are two."""


class LineCard(Struct, frozen=True, kw_only=True):
    """The card of one line; sentences, but for the guarantees, which are numbers too (None where there is none).

    ``begins`` tells of whose pings its start weights tell; empty if nobody's.
    """

    line: str
    private: bool
    trusts: str
    leaves: str
    guarantee: str
    epsilon: float | None = None
    delta: float | None = None
    local_epsilon: float | None = None
    not_covered: tuple[str, ...] = ()
    begins: str = ""


class Card(Struct, frozen=True, kw_only=True):
    """The card of a study."""

    study: str
    lines: tuple[LineCard, ...]

    @property
    def text(self) -> str:
        """The card as it is read."""
        parts = [f"Privacy of the study '{self.study}'"]
        for each in self.lines:
            parts += [
                "",
                f"Line '{each.line}'" + ("" if each.private else " (not private)"),
                f"  Who trusts whom: {each.trusts}",
                f"  What leaves the device: {each.leaves}",
                f"  What is guaranteed: {each.guarantee}",
                *([f"  What it begins with: {each.begins}"] if each.begins else []),
                *(f"  Not covered: {each_not}" for each_not in each.not_covered),
            ]
        return "\n".join(parts)


def card_of(study: Study, begun: Mapping[str, WarmStart] = MappingProxyType({})) -> Card:
    """Return the card of a study; ``begun`` says by line from where its version 0 took weights over."""
    return Card(
        study=study.name,
        lines=tuple(
            replace(_of(line, study), begins=_begins(line, begun[line.name]) if line.name in begun else "")
            for line in study.lines
        ),
    )


def _begins(line: Line, origin: WarmStart) -> str:
    """Return of whose pings the start weights of a line tell, and what was promised to those."""
    ancestors = (origin.taken, *origin.before)
    told = "; ".join(_learned(each) for each in ancestors)
    if line.privacy is None:
        return f"{told}. To its own pings nothing is promised"
    said = f"{told}. None of this is part of the guarantee above, which covers what this line's rounds release"
    spent = [each for each in ancestors if each.epsilon is not None]
    if spent and (central := line.privacy.central) is not None:
        epsilon = central.epsilon + sum(each.epsilon or 0.0 for each in spent)
        delta = central.delta + sum(each.delta or 0.0 for each in spent)
        lines = ", ".join(f"{each.study}/{each.line}" for each in spent)
        said += (
            f"; an installation that took part in {lines} too has (epsilon = {epsilon:.4g}, delta = {delta:.2g}) for "
            "all of it together"
        )
    return said


def _learned(taken: Ancestor) -> str:
    """Return how the pings behind a version were protected."""
    if not taken.private:
        return f"{taken.told} was learned from pings to which nothing was promised"
    by = []
    if taken.epsilon is not None:
        by.append(f"by then (epsilon = {taken.epsilon:.4g}, delta = {taken.delta or 0.0:.2g}) was spent")
    if taken.local_epsilon is not None:
        by.append(f"each contribution had epsilon = {taken.local_epsilon:g} by its own noise")
    return f"{taken.told} was learned privately: {' and '.join(by) or 'no server could read what a client sent'}"


def _of(line: Line, study: Study) -> LineCard:
    privacy = line.privacy
    if privacy is None:
        return LineCard(
            line=line.name,
            private=False,
            trusts="clients trust the operator with every ping, and everybody who sees the published versions",
            leaves=f"every {study.document.name} ping as it is: an update, the loss, and what else the type has, under "
            f"one id for the whole study. An update tells much of what its sender did{_outcomes(study)}",
            guarantee="none",
            not_covered=NOT_COVERED,
        )
    return LineCard(
        line=line.name,
        private=True,
        trusts=_trusts(privacy),
        leaves=_leaves(privacy, line.spec.m - len(set(privacy.left_out))),
        guarantee=guarantee_in_words(privacy),
        epsilon=privacy.central.epsilon if privacy.central else None,
        delta=privacy.central.delta if privacy.central else None,
        local_epsilon=privacy.local.epsilon if privacy.local else None,
        not_covered=NOT_COVERED + (OF_BOTH_SERVERS if privacy.shared else ()),
    )


def _outcomes(study: Study) -> str:
    """Return what a study's clients report of a choice, as the end of a sentence; empty without outcomes."""
    said = []
    if chosen := [outcome.in_words for outcome in at_choice(study.outcomes)]:
        said.append(f". With a choice it reports {', '.join(chosen)}")
    said += (
        f". Up to {outcome.within} after a choice it reports {outcome.in_words}, in a ping of its own under the same id"
        + (" that names the choice" if outcome.linked else "")
        for outcome in later(study.outcomes)
    )
    return "".join(said)


def _trusts(privacy: Privacy) -> str:
    if privacy.shared is not None:
        return _trusts_two(privacy, privacy.shared)
    if privacy.local is not None:
        alone = "clients trust nobody: they add the noise themselves, before anything is sent"
        if privacy.central is None:
            return alone
        return (
            f"for the local guarantee {alone}; for the other they trust the operator as well, to add noise to the sum"
        )
    return (
        "clients trust the operator to bound, sample and sum their vectors, to add the noise, and to delete them; they "
        "need not trust anybody who sees models, pages or reports"
    )


def _trusts_two(privacy: Privacy, shared: Shared) -> str:
    who = (
        "clients trust that of two servers, the operator's and that of a helper, which is somebody else with the key "
        f"{shared.helper[:16]}…, one at least keeps to itself what it has: alone, neither can read anything of a "
        f"client, only sums of {shared.min_batch:,} clients or more"
    )
    if privacy.central is not None:
        who += (
            "; each of the two adds all the noise of the guarantee, so that it holds against the other, and against "
            "everybody who sees models, pages or reports"
        )
    if privacy.local is not None:
        who += "; for the local guarantee they trust nobody, for they add its noise before anything is sent"
    if not shared.proofs:
        who += (
            "; the operator trusts the clients with the model, for what nobody can read nobody can bound: one of them "
            "could move it at will"
        )
    return who


def _leaves(privacy: Privacy, m: int) -> str:
    if isinstance(privacy.local, OneSign):
        what = f"the sign of one of {m:,} weights, drawn by lot, which is the wrong one often enough to be denied"
    elif privacy.local is not None:
        what = f"{m:,} whole numbers, bounded, with noise on each"
    else:
        what = {
            Signs: f"the signs of {m:,} weights",
            ClippedFlat: f"an update of {m:,} weights, shortened to a fixed length",
            ClippedByKind: f"an update of {m:,} weights, each kind shortened to a fixed length",
            ClippedByBlock: f"an update of {m:,} weights, each layer shortened to a fixed length",
        }[type(privacy.contribution)]
        what += ", the loss, and whether the first suggestion was chosen"
    if privacy.shared is not None:
        what += ", split into two shares, each of which alone is noise, one of them sealed for the helper"
    often = "" if privacy.contributions is None else f", for {privacy.contributions:,} versions at most"
    return (
        f"{what}; with it the version and the arm, and nothing else. One ping a version{often}, after a delay of up to "
        f"{privacy.delay_minutes:g} minutes, under an id that changes with every version"
    )


def guarantee_in_words(privacy: Privacy) -> str:
    """Return what a private line guarantees, as part of a sentence."""
    said = []
    if (central := privacy.central) is not None:
        joined = []
        if central.sampling < 1:
            joined.append(f"a secret coin counts {100 * central.sampling:.3g} % of the clients in each")
        if privacy.contributions is not None:
            joined.append(f"a client contributes to {privacy.contributions:,} of them at most, and counts itself")
        each = " and ".join(joined) or "a client may contribute to all of them"
        said.append(
            f"(epsilon = {central.epsilon:g}, delta = {central.delta:.2g}) differential privacy for an installation, "
            f"all {central.rounds:,} rounds together, {each}: whatever is published is up to e^epsilon = "
            f"{_times(math.exp(central.epsilon))} times as likely with it as without it, but for a chance of delta"
            + ("" if privacy.shared is None else ", and so is whatever one of the two servers learns of the sums")
        )
    if (local := privacy.local) is not None:
        times = privacy.contributions
        each = "each contribution" if times is None else f"each of {times:,} contributions"
        delta = f", delta = {local.delta:.2g}" if not isinstance(local, OneSign) else ""
        said.append(
            f"local differential privacy of epsilon = {local.epsilon:g}{delta} for {each}, against everybody, the "
            "operator too"
        )
    if privacy.shared is not None and not said:
        said.append(
            f"no figure: neither of two servers can read what a client sends, and both learn the sums of all, of "
            f"{privacy.shared.min_batch:,} clients or more, as they are"
        )
    return "; and ".join(said)


def _times(number: float) -> str:
    """Return a factor of three digits, written out as long as that can be read."""
    return f"{number:.3g}" if not 100 <= number < 1e6 else f"{float(f'{number:.3g}'):,.0f}"
