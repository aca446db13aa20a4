"""The privacy card of a study: trust, data that leaves the device, guarantees, and their limits.

It is derived from the study's settings and the origins of its lines' start weights. A card is data: statements, each
a code with values. :data:`WORDS` has the texts of statements, for the terminal, the page and JSON.
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
    "trusts_everybody": ("clients trust the operator with every ping, and everyone who sees the published versions"),
    "trusts_operator": (
        "clients trust the operator to bound, sample and sum their vectors, to add the noise, and to delete them; "
        "they need not trust readers of models, pages or reports"
    ),
    "trusts_nobody": "clients need not trust anyone: they add the noise themselves, before sending",
    "trusts_nobody_for_local": "for the local guarantee {nobody}",
    "trusts_operator_for_central": "for the central guarantee they also trust the operator to add noise to the sum",
    "trusts_one_of_two": (
        "updates go to two servers, the operator's and a helper's, which another party runs with the key {key}…; "
        "clients trust that at least one of them keeps its data secret. Alone, neither can read a client's update, "
        "only sums of {min_batch:,} clients or more"
    ),
    "each_server_adds_noise": (
        "each of the two servers adds the full noise of the guarantee, so it holds against the other server, and "
        "against readers of models, pages or reports"
    ),
    "trusts_institutions": (
        "an institution trusts that at most {colluding:,} of {min_batch:,} in a sum reveal their noise to the "
        "operator, including institutions that the operator has invented; it can assume more such institutions, and "
        "then adds more noise"
    ),
    "adds_local_noise": (
        "for the local guarantee they need not trust anyone, because they add its noise before sending"
    ),
    "operator_trusts_clients": (
        "the operator trusts the clients with the model: updates that can't be read can't be bounded, so a single "
        "client could move the model at will"
    ),
    # data that leaves the device
    "sends_ping": (
        "every {ping} ping without protection: an update, the loss, and the other fields of the type, under one id "
        "for the whole study. An update reveals much of its sender's behaviour"
    ),
    "reports_at_choice": ". With a choice it reports {outcomes}",
    "reports_later": (
        ". Up to {within} after a choice it reports {outcome}, in a separate ping under the same id{named}"
    ),
    "names_choice": " that names the choice",
    "sends_one_sign": (
        "the sign of one randomly drawn weight of {weights:,}, which is wrong often enough to be plausibly denied"
    ),
    "sends_noisy_numbers": "{weights:,} whole numbers, bounded, with noise on each",
    "sends_signs": "the signs of {weights:,} weights",
    "sends_clipped": "an update of {weights:,} weights, clipped to a fixed norm",
    "sends_clipped_by_kind": "an update of {weights:,} weights, each kind clipped to a fixed norm",
    "sends_clipped_by_block": "an update of {weights:,} weights, each layer clipped to a fixed norm",
    "sends_row_sums": (
        "the sum of the gradients of a table's rows, each clipped to a fixed norm, in {weights:,} whole numbers with "
        "noise, the sum of their losses, and their number"
    ),
    "sends_metrics": "the loss, and whether the first suggestion was chosen",
    "split_into_shares": ("split into two shares; each share alone is noise, and one is encrypted for the helper"),
    "sends_nothing_else": (
        "in addition only the version and the arm. One ping a version{at_most}, after a delay of up to {minutes:g} "
        "minutes, under an id that changes with every version"
    ),
    "at_most_versions": ", for {versions:,} versions at most",
    # guarantees
    "no_guarantee": "none",
    "rows_protected": (
        "an institution that joins with a table protects each row itself, also against the operator: epsilon = "
        "{epsilon:g} over all versions and all its studies, unless it chooses another"
    ),
    "rows_unprotected": (
        "an institution that joins with a table must accept that its rows can be reconstructed: {why}"
    ),
    "central": (
        "(epsilon = {epsilon:g}, delta = {delta:.2g}) differential privacy for an installation, all {rounds:,} "
        "rounds together, {each}: any published result is at most e^epsilon = {times} times as likely with it as "
        "without it, except with probability delta{sums}"
    ),
    "counted_by_coin": "each samples {percent:.3g} % of the clients in secret",
    "contributes_to_some": "a client contributes to at most {rounds:,} of them, and keeps the count itself",
    "contributes_to_all": "a client may contribute to all of them",
    "sums_of_a_server": ", and so is any sum that one of the two servers learns",
    "local": ("local differential privacy of epsilon = {epsilon:g}{delta} for {each}, also against the operator"),
    "local_delta": ", delta = {delta:.2g}",
    "each_contribution": "each contribution",
    "each_of_contributions": "each of {contributions:,} contributions",
    "shares_alone": (
        "no figure: neither of the two servers can read a client's update, and both learn the exact sums of "
        "{min_batch:,} clients or more"
    ),
    "rows_in_sums": (
        "each row of an institution's table is protected in sums of {min_batch:,} institutions or more: with 300 "
        "rows, {versions:,} versions reveal at most (epsilon = {epsilon:.3g}, delta = {delta:.2g}), and each "
        "institution stops when its own budget is spent"
    ),
    # start weights of the line
    "learned_openly": "{version} was learned from pings without a guarantee",
    "learned_privately": "{version} was learned privately: {how}",
    "had_spent": "by then (epsilon = {epsilon:.4g}, delta = {delta:.2g}) was spent",
    "had_local_noise": "each contribution had epsilon = {epsilon:g} with its own noise",
    "had_shares": "no server could read a client's update",
    "promises_nothing": "Its own pings have no guarantee",
    "begins_outside": ("The guarantee above does not include this; it covers the releases of this line's rounds"),
    "both_guarantees": (
        "an installation that also took part in {lines} has (epsilon = {epsilon:.4g}, delta = {delta:.2g}) for all "
        "of these together"
    ),
    # limits of the guarantees
    "taking_part": (
        "the fact that an installation takes part, and the time and address of its requests, which every server sees"
    ),
    "several_installations": (
        "the unit is an installation: a person with two profiles or devices, or after a reinstallation, counts as two"
    ),
    "other_studies": "the results of other studies of the same product; their guarantees add up",
    "counts_of_pings": (
        "the number of clients in a round and the number of each ping, which both servers see; the operator also "
        "sees the sender"
    ),
    "servers_together": ("collusion of the two servers: together they could read every vector"),
}
"""The text of each statement, by its code, with values in braces. A value may consist of statements."""


@dataclass(frozen=True)
class Statement:
    """A part of a card's sentence as data.

    Attributes:
        code: key of :data:`WORDS`.
        values: values for the placeholders of its text, by name; a value may be a sequence of statements, possibly
            empty.
    """

    code: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        values = {
            name: _joined(" and ", each) if isinstance(each, tuple) else each for name, each in self.values.items()
        }
        return WORDS[self.code].format(**values)


def state(code: str, **values: Any) -> Statement:
    """Return the statement with a code and values."""
    return Statement(code, values)


def _joined(separator: str, statements: Iterable[Statement]) -> str:
    return separator.join(map(str, statements))


NOT_COVERED = (state("taking_part"), state("several_installations"), state("other_studies"))

_ROWS = 300
"""Number of rows of the example table in the text of a guarantee."""

NOT_COVERED_BY_TWO_SERVERS = (state("counts_of_pings"), state("servers_together"))
"""Additional limits of the guarantee for lines with two servers."""


@dataclass(frozen=True, kw_only=True)
class LineCard:
    """The card of one line.

    Attributes:
        line: name of the line.
        private: whether the line has a guarantee.
        trust: who trusts whom.
        contents: contents of a ping.
        terms: conditions for sending a ping; None if there are no special ones.
        reports: outcomes of a choice, which are sent as well.
        guarantees: the guarantees, as sentences.
        epsilon, delta: the central guarantee; None without one.
        local_epsilon: epsilon of each contribution with the client's own noise; None without a local guarantee.
        uncovered: limits of the guarantee.
        ancestors: the versions from which its start weights were learned; empty for the spec's start weights.
        ancestry: consequences of the ancestors for the guarantee.
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
        """Data that leaves the device, as part of a sentence."""
        contents = _joined(", ", self.contents) + _joined("", self.reports)
        return contents if self.terms is None else f"{contents}; {self.terms}"

    @property
    def guarantee(self) -> str:
        """The guarantee, as part of a sentence."""
        return _joined("; and ", self.guarantees)

    @property
    def begins(self) -> str:
        """The line's start weights, as part of a sentence; empty for the spec's start weights."""
        return f"{_joined('; ', self.ancestors)}. {_joined('; ', self.ancestry)}" if self.ancestors else ""

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Limits of the guarantee, each as part of a sentence."""
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
                *([f"  Start weights: {each.begins}"] if each.begins else []),
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
        study: the study's settings.
        begun: origin of the start weights by line; lines with the spec's start weights are left out.
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
    """Yield the guarantees for institutions with tables, if the line accepts them."""
    if study.pings == MODEL_UPDATE.name and line.spec.model in TABLE_MODELS:
        why = why_unprotected(line.training)
        yield state("rows_protected", epsilon=EPSILON) if why is None else state("rows_unprotected", why=why)


def _reports(study: Study) -> Iterator[Statement]:
    """Yield the outcomes that a study's clients report about a choice."""
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
    """Return the guarantee of a private line, as part of a sentence."""
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
    """Return a statement about the protection of the pings from which a version was learned."""
    if not version.private:
        return state("learned_openly", version=version.told)
    how = []
    if version.epsilon is not None:
        how.append(state("had_spent", epsilon=version.epsilon, delta=version.delta or 0.0))
    if version.local_epsilon is not None:
        how.append(state("had_local_noise", epsilon=version.local_epsilon))
    return state("learned_privately", version=version.told, how=tuple(how) or (state("had_shares"),))


def _ancestry(privacy: Privacy, ancestors: tuple[Ancestor, ...]) -> Iterator[Statement]:
    """Yield statements about the effect of ancestors' guarantees on a private line's guarantee."""
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
    """Return a factor with three significant digits, without an exponent if it is readable that way."""
    return f"{number:.3g}" if not 100 <= number < 1e6 else f"{float(f'{number:.3g}'):,.0f}"
