"""The privacy card of a study: who trusts whom, what leaves a device, what is guaranteed, and what is not.

It follows from the study's settings and from where its lines began. A card is data: statements, each a code with the
values that it is about. :data:`WORDS` has their words, for the terminal, the page and JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fedping.model_store.version import Ancestor, WarmStart
from fedping.protocol.outcomes import at_choice, later
from fedping.protocol.ping import MODEL_UPDATE
from fedping.protocol.privacy import ClippedByBlock, ClippedByKind, ClippedFlat, OneSign, Privacy, Shared, Signs
from fedping.protocol.row_privacy import (
    EPSILON,
    TABLE_MODELS,
    VERSIONS,
    composed,
    epsilon_of,
    usual_delta,
    why_unprotected,
)
from fedping.protocol.study import Line, Study

WORDS: Mapping[str, str] = {
    # who trusts whom
    "trusts_everybody": ("clients trust the operator with every ping, and everybody who sees the published versions"),
    "trusts_operator": (
        "clients trust the operator to bound, sample and sum their vectors, to add the noise, and to delete them; they "
        "need not trust anybody who sees models, pages or reports"
    ),
    "trusts_nobody": "clients trust nobody: they add the noise themselves, before anything is sent",
    "trusts_nobody_for_local": "for the local guarantee {nobody}",
    "trusts_operator_for_central": "for the other they trust the operator as well, to add noise to the sum",
    "trusts_one_of_two": (
        "clients trust that of two servers, the operator's and that of a helper, which is somebody else with the key "
        "{key}…, one at least keeps to itself what it has: alone, neither can read anything of a client, only sums of "
        "{min_batch:,} clients or more"
    ),
    "each_server_adds_noise": (
        "each of the two adds all the noise of the guarantee, so that it holds against the other, and against "
        "everybody who sees models, pages or reports"
    ),
    "trusts_institutions": (
        "an institution trusts that at most {colluding:,} of {min_batch:,} in a sum tell the operator what noise they "
        "have added, those that the operator has made up included; it may trust fewer, and adds more noise then"
    ),
    "adds_local_noise": ("for the local guarantee they trust nobody, for they add its noise before anything is sent"),
    "operator_trusts_clients": (
        "the operator trusts the clients with the model, for what nobody can read nobody can bound: one of them could "
        "move it at will"
    ),
    # what leaves the device
    "sends_ping": (
        "every {ping} ping as it is: an update, the loss, and what else the type has, under one id for the whole "
        "study. An update tells much of what its sender did"
    ),
    "reports_at_choice": ". With a choice it reports {outcomes}",
    "reports_later": (
        ". Up to {within} after a choice it reports {outcome}, in a ping of its own under the same id{named}"
    ),
    "names_choice": " that names the choice",
    "sends_one_sign": (
        "the sign of one of {weights:,} weights, drawn by lot, which is the wrong one often enough to be denied"
    ),
    "sends_noisy_numbers": "{weights:,} whole numbers, bounded, with noise on each",
    "sends_signs": "the signs of {weights:,} weights",
    "sends_clipped": "an update of {weights:,} weights, shortened to a fixed length",
    "sends_clipped_by_kind": "an update of {weights:,} weights, each kind shortened to a fixed length",
    "sends_clipped_by_block": "an update of {weights:,} weights, each layer shortened to a fixed length",
    "sends_row_sums": (
        "the sum of the gradients of a table's rows, each shortened to a fixed length, in {weights:,} whole numbers "
        "with noise, the sum of their losses, and their number"
    ),
    "sends_metrics": "the loss, and whether the first suggestion was chosen",
    "split_into_shares": ("split into two shares, each of which alone is noise, one of them sealed for the helper"),
    "sends_nothing_else": (
        "with it the version and the arm, and nothing else. One ping a version{at_most}, after a delay of up to "
        "{minutes:g} minutes, under an id that changes with every version"
    ),
    "at_most_versions": ", for {versions:,} versions at most",
    # what is guaranteed
    "no_guarantee": "none",
    "rows_protected": (
        "an institution that joins with a table protects each of its rows by itself, against everybody, the operator "
        "too: epsilon = {epsilon:g} over all versions and all its studies, unless it says otherwise"
    ),
    "rows_unprotected": ("an institution that joins with a table has to accept that its rows can be worked out: {why}"),
    "central": (
        "(epsilon = {epsilon:g}, delta = {delta:.2g}) differential privacy for an installation, all {rounds:,} rounds "
        "together, {each}: whatever is published is up to e^epsilon = {times} times as likely with it as without it, "
        "but for a chance of delta{sums}"
    ),
    "counted_by_coin": "a secret coin counts {percent:.3g} % of the clients in each",
    "contributes_to_some": "a client contributes to {rounds:,} of them at most, and counts itself",
    "contributes_to_all": "a client may contribute to all of them",
    "sums_of_a_server": ", and so is whatever one of the two servers learns of the sums",
    "local": (
        "local differential privacy of epsilon = {epsilon:g}{delta} for {each}, against everybody, the operator too"
    ),
    "local_delta": ", delta = {delta:.2g}",
    "each_contribution": "each contribution",
    "each_of_contributions": "each of {contributions:,} contributions",
    "shares_alone": (
        "no figure: neither of two servers can read what a client sends, and both learn the sums of all, of "
        "{min_batch:,} clients or more, as they are"
    ),
    "rows_in_sums": (
        "each row of an institution's table is protected in sums of {min_batch:,} institutions or more: of 300 rows, "
        "{versions:,} versions tell (epsilon = {epsilon:.3g}, delta = {delta:.2g}), and each institution stops where "
        "its own budget ends"
    ),
    # what the line begins with
    "learned_openly": "{version} was learned from pings to which nothing was promised",
    "learned_privately": "{version} was learned privately: {how}",
    "had_spent": "by then (epsilon = {epsilon:.4g}, delta = {delta:.2g}) was spent",
    "had_local_noise": "each contribution had epsilon = {epsilon:g} by its own noise",
    "had_shares": "no server could read what a client sent",
    "promises_nothing": "To its own pings nothing is promised",
    "begins_outside": ("None of this is part of the guarantee above, which covers what this line's rounds release"),
    "both_guarantees": (
        "an installation that took part in {lines} too has (epsilon = {epsilon:.4g}, delta = {delta:.2g}) for all of "
        "it together"
    ),
    # what is not covered
    "taking_part": (
        "that an installation takes part, when it posts and from which address, which a server sees of any request"
    ),
    "several_installations": (
        "an installation is one unit: a person with two profiles or devices, or after a reinstallation, is two"
    ),
    "other_studies": "what other studies of the same product learn; their guarantees add up",
    "counts_of_pings": (
        "that both servers see how many clients count in a round, and the number of each ping; the operator also sees "
        "whose"
    ),
    "servers_together": (
        "the two servers together: were they to put together what they have, they could read every vector that was sent"
    ),
}
"""The words of each statement, by its code; values in braces. A value may be statements itself."""


@dataclass(frozen=True)
class Statement:
    """A part of a card's sentence as data.

    Attributes:
        code: key of :data:`WORDS`.
        values: what it is about, by name; statements for a part of it, none for a part that it lacks.
    """

    code: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        values = {
            name: _joined(" and ", each) if isinstance(each, tuple) else each for name, each in self.values.items()
        }
        return WORDS[self.code].format(**values)


def state(code: str, **values: Any) -> Statement:
    """Return the statement of a code."""
    return Statement(code, values)


def _joined(separator: str, statements: Iterable[Statement]) -> str:
    return separator.join(map(str, statements))


NOT_COVERED = (state("taking_part"), state("several_installations"), state("other_studies"))

_ROWS = 300
"""Rows of the table that a guarantee is told of as an example."""

NOT_COVERED_BY_TWO_SERVERS = (state("counts_of_pings"), state("servers_together"))
"""In addition, where there are two servers."""


@dataclass(frozen=True, kw_only=True)
class LineCard:
    """The card of one line.

    Attributes:
        line: its name.
        private: whether it has a guarantee.
        trust: who trusts whom.
        contents: what a ping has.
        terms: when it is sent; None if as any other ping.
        reports: the outcomes of a choice that are sent, too.
        guarantees: what is guaranteed.
        epsilon, delta: the central guarantee; None where there is none.
        local_epsilon: that of each contribution by the client's own noise; None where there is none.
        uncovered: what is not covered.
        ancestors: the versions that its start weights were learned with; none if they are the spec's.
        ancestry: what follows from these.
    """

    line: str
    private: bool
    trust: tuple[Statement, ...]
    contents: tuple[Statement, ...]
    terms: Statement | None = None
    reports: tuple[Statement, ...] = ()
    guarantees: tuple[Statement, ...]
    epsilon: float | None = None
    delta: float | None = None
    local_epsilon: float | None = None
    uncovered: tuple[Statement, ...] = NOT_COVERED
    ancestors: tuple[Statement, ...] = ()
    ancestry: tuple[Statement, ...] = ()

    @property
    def trusts(self) -> str:
        """Who trusts whom, as part of a sentence."""
        return _joined("; ", self.trust)

    @property
    def leaves(self) -> str:
        """What leaves the device, as part of a sentence."""
        contents = _joined(", ", self.contents) + _joined("", self.reports)
        return contents if self.terms is None else f"{contents}; {self.terms}"

    @property
    def guarantee(self) -> str:
        """What is guaranteed, as part of a sentence."""
        return _joined("; and ", self.guarantees)

    @property
    def begins(self) -> str:
        """What the line begins with, as part of a sentence; empty if with the spec's start weights."""
        return f"{_joined('; ', self.ancestors)}. {_joined('; ', self.ancestry)}" if self.ancestors else ""

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What is not covered, each as part of a sentence."""
        return tuple(map(str, self.uncovered))


@dataclass(frozen=True, kw_only=True)
class Card:
    """The card of a study."""

    study: str
    lines: tuple[LineCard, ...]

    @property
    def text(self) -> str:
        """The card for the terminal."""
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


def as_document(card: Card) -> dict[str, Any]:
    """Return a card as data for JSON, with its sentences and numbers."""
    keys = (
        "line",
        "private",
        "trusts",
        "leaves",
        "guarantee",
        "epsilon",
        "delta",
        "local_epsilon",
        "not_covered",
        "begins",
    )
    return {"study": card.study, "lines": [{key: getattr(line, key) for key in keys} for line in card.lines]}


def card_of(study: Study, begun: Mapping[str, WarmStart] = MappingProxyType({})) -> Card:
    """Return the card of a study.

    Args:
        study: its settings.
        begun: by line where its version 0 took weights over from; without the lines that have the spec's.
    """
    return Card(study=study.name, lines=tuple(_line_card(line, study, begun.get(line.name)) for line in study.lines))


def _line_card(line: Line, study: Study, origin: WarmStart | None) -> LineCard:
    privacy = line.privacy
    ancestors = () if origin is None else (origin.taken, *origin.before)
    learned = tuple(map(_learned, ancestors))
    if privacy is None:
        return LineCard(
            line=line.name,
            private=False,
            trust=(state("trusts_everybody"),),
            contents=(state("sends_ping", ping=study.document.name),),
            reports=tuple(_reports(study)),
            guarantees=(state("no_guarantee"), *_of_rows(study, line)),
            ancestors=learned,
            ancestry=(state("promises_nothing"),),
        )
    return LineCard(
        line=line.name,
        private=True,
        trust=tuple(_trust(privacy)),
        contents=tuple(_contents(privacy, line.spec.m - len(set(privacy.left_out)))),
        terms=_terms(privacy),
        guarantees=tuple(_guarantees(privacy)),
        epsilon=privacy.central.epsilon if privacy.central else None,
        delta=privacy.central.delta if privacy.central else None,
        local_epsilon=privacy.local.epsilon if privacy.local else None,
        uncovered=NOT_COVERED + (NOT_COVERED_BY_TWO_SERVERS if privacy.shared else ()),
        ancestors=learned,
        ancestry=tuple(_ancestry(privacy, ancestors)),
    )


def _of_rows(study: Study, line: Line) -> Iterator[Statement]:
    """Yield what institutions with tables are promised, if they can take part."""
    if study.pings == MODEL_UPDATE.name and line.spec.model in TABLE_MODELS:
        why = why_unprotected(line.training)
        yield state("rows_protected", epsilon=EPSILON) if why is None else state("rows_unprotected", why=why)


def _reports(study: Study) -> Iterator[Statement]:
    """Yield what a study's clients report of a choice."""
    if chosen := at_choice(study.outcomes):
        yield state("reports_at_choice", outcomes=", ".join(outcome.in_words for outcome in chosen))
    for outcome in later(study.outcomes):
        named = (state("names_choice"),) if outcome.linked else ()
        yield state("reports_later", within=outcome.within, outcome=outcome.in_words, named=named)


def _trust(privacy: Privacy) -> Iterator[Statement]:
    if privacy.shared is not None:
        yield from _trust_in_two(privacy, privacy.shared)
    elif privacy.local is None:
        yield state("trusts_operator")
    elif privacy.central is None:
        yield state("trusts_nobody")
    else:
        yield state("trusts_nobody_for_local", nobody=(state("trusts_nobody"),))
        yield state("trusts_operator_for_central")


def _trust_in_two(privacy: Privacy, shared: Shared) -> Iterator[Statement]:
    yield state("trusts_one_of_two", key=shared.helper[:16], min_batch=shared.min_batch)
    if privacy.central is not None:
        yield state("each_server_adds_noise")
    if privacy.rows is not None:
        yield state("trusts_institutions", colluding=privacy.rows.colluding, min_batch=shared.min_batch)
    if privacy.local is not None:
        yield state("adds_local_noise")
    if not shared.proofs:
        yield state("operator_trusts_clients")


_CONTRIBUTIONS: Mapping[type, str] = {
    Signs: "sends_signs",
    ClippedFlat: "sends_clipped",
    ClippedByKind: "sends_clipped_by_kind",
    ClippedByBlock: "sends_clipped_by_block",
}


def _contents(privacy: Privacy, weights: int) -> Iterator[Statement]:
    if privacy.rows is not None:
        yield state("sends_row_sums", weights=weights)
    elif isinstance(privacy.local, OneSign):
        yield state("sends_one_sign", weights=weights)
    elif privacy.local is not None:
        yield state("sends_noisy_numbers", weights=weights)
    else:
        yield state(_CONTRIBUTIONS[type(privacy.contribution)], weights=weights)
        yield state("sends_metrics")
    if privacy.shared is not None:
        yield state("split_into_shares")


def _terms(privacy: Privacy) -> Statement:
    versions = privacy.contributions
    at_most = () if versions is None else (state("at_most_versions", versions=versions),)
    return state("sends_nothing_else", at_most=at_most, minutes=privacy.delay_minutes)


def guarantee_in_words(privacy: Privacy) -> str:
    """Return what a private line guarantees, as part of a sentence."""
    return _joined("; and ", _guarantees(privacy))


def _guarantees(privacy: Privacy) -> Iterator[Statement]:
    contributions, central, local = privacy.contributions, privacy.central, privacy.local
    if central is not None:
        each = []
        if central.sampling < 1:
            each.append(state("counted_by_coin", percent=100 * central.sampling))
        if contributions is not None:
            each.append(state("contributes_to_some", rounds=contributions))
        yield state(
            "central",
            epsilon=central.epsilon,
            delta=central.delta,
            rounds=central.rounds,
            each=tuple(each) or (state("contributes_to_all"),),
            times=_times(math.exp(central.epsilon)),
            sums=() if privacy.shared is None else (state("sums_of_a_server"),),
        )
    if local is not None:
        many = contributions is not None
        yield state(
            "local",
            epsilon=local.epsilon,
            delta=() if isinstance(local, OneSign) else (state("local_delta", delta=local.delta),),
            each=(state("each_of_contributions", contributions=contributions) if many else state("each_contribution"),),
        )
    if privacy.rows is not None and privacy.shared is not None:
        delta = usual_delta(_ROWS)
        epsilon = epsilon_of(composed([1 / privacy.rows.noise] * VERSIONS), delta)
        batch = privacy.shared.min_batch
        yield state("rows_in_sums", min_batch=batch, versions=VERSIONS, epsilon=epsilon, delta=delta)
    elif privacy.shared is not None and central is None and local is None:
        yield state("shares_alone", min_batch=privacy.shared.min_batch)


def _learned(version: Ancestor) -> Statement:
    """Return how the pings behind a version were protected."""
    if not version.private:
        return state("learned_openly", version=version.told)
    how = []
    if version.epsilon is not None:
        how.append(state("had_spent", epsilon=version.epsilon, delta=version.delta or 0.0))
    if version.local_epsilon is not None:
        how.append(state("had_local_noise", epsilon=version.local_epsilon))
    return state("learned_privately", version=version.told, how=tuple(how) or (state("had_shares"),))


def _ancestry(privacy: Privacy, ancestors: tuple[Ancestor, ...]) -> Iterator[Statement]:
    """Yield what the guarantees of the versions before mean for that of a private line."""
    yield state("begins_outside")
    spent = [each for each in ancestors if each.epsilon is not None]
    if spent and privacy.central is not None:
        yield state(
            "both_guarantees",
            lines=", ".join(f"{each.study}/{each.line}" for each in spent),
            epsilon=privacy.central.epsilon + sum(each.epsilon or 0.0 for each in spent),
            delta=privacy.central.delta + sum(each.delta or 0.0 for each in spent),
        )


def _times(number: float) -> str:
    """Return a factor of three digits, written out as long as that can be read."""
    return f"{number:.3g}" if not 100 <= number < 1e6 else f"{float(f'{number:.3g}'):,.0f}"
