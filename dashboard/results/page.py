"""The contents of a study's Results page: a question, its newest count by metric, and the number of looks so far.

With two, five and ten looks at evenly spaced times, each tested at 5 %, the chance of a false alarm is 8, 14 and 19 %
(Armitage, McPherson and Rowe, "Repeated significance tests on accumulating data", 1969).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
from markupsafe import Markup
from msgspec.structs import replace as with_fields

from fedping.analysis.report.rows import Titled, interval_notes, lift_cells
from fedping.analysis.statistics import Estimate
from fedping.analysis.study import metrics_of
from fedping.analysis.study.tally import HOUR_MS
from fedping.analysis.verdict import Asked, against, all_pairs, control_of, effect_of
from fedping.analysis.verdict.words import LEFT_OUT, interval_text, p_text, percent_text, share_text
from fedping.dashboard.results.counts import Count, Counts
from fedping.dashboard.results.effects import (
    FEW,
    SCALES,
    Effects,
    Lift,
    Scale,
    Selection,
    disagreements,
    effects_of,
    headline,
    lifts_that_matter,
    tag_of,
)
from fedping.dashboard.results.power import EFFECT, Needed, needs, outlook
from fedping.dashboard.results.question import (
    Subject,
    asked_by,
    expanded,
    fields_of,
    key_of,
    query_of,
    subject_of,
)
from fedping.protocol.study import Study


@dataclass(frozen=True)
class Looks:
    """The number of looks at a study, without interim looks.

    Attributes:
        number: the number of a count among the looks at its subject, from 1; counts of the same pings are one look.
        total: the number of looks at its subject.
        others: the number of other questions about the study.
    """

    number: int
    total: int
    others: int

    @property
    def sentences(self) -> list[str]:
        """Warnings about repeated looks; empty after a single look at a single question."""
        texts = []
        if self.total > 1:
            texts.append(
                f"This is look {self.number} of {self.total} at these comparisons, each on different pings, and none "
                "was an interim look. P-values and intervals are valid for a single look at the planned end: "
                "repeated looks raise the probability of a false alarm (from 5 % to 8 % with two looks, to 14 % with "
                "five). Rely on this look only if it is the planned one; before the end, count interim looks."
            )
        if self.others:
            questions = "another question was" if self.others == 1 else f"{self.others} other questions were"
            texts.append(
                f"In addition, {questions} asked about this study, with other metrics, pairs, windows or levels. "
                "Alpha is valid only for the question that was written down before the first look."
            )
        return texts


def looks_at(count: Count, counts: Sequence[Count], study: Study) -> Looks:
    """Return the numbers of looks at a count's subject, from all counts of its study."""
    done = [one for one in counts if one.state == "finished" and not one.asked.interim]
    subject = subject_of(count.asked, study)
    landed = [one.landed.digest for one in sorted(done, key=lambda one: one.id) if _is_about(one, subject, study)]
    order = list(dict.fromkeys(landed))
    mine = count.landed.digest
    number = 1 if count.asked.interim or mine not in order else order.index(mine) + 1
    others = {_question(one) for one in done} - {_question(count)}
    return Looks(number, 1 if count.asked.interim else len(order), len(others))


def _question(count: Count) -> Asked:
    """Return the count's question without the parts that don't affect a test."""
    return with_fields(count.asked, enrolled=None, planned_clients=None, interim=False)


def _is_about(count: Count, subject: Subject, study: Study) -> bool:
    return subject_of(count.asked, study) == subject


@dataclass(frozen=True)
class View:
    """The view of a count on a page; part of the page's address, so that a link reopens the same view.

    Attributes:
        scale: the scale of the effects; None for the first available one.
        find: only pairs with this text in an arm's name.
        arms: the pair, as ``first:second``, whose effects are shown by segment; empty for the first pair shown.
        effect: the smallest effect of interest, in percent.
    """

    scale: Scale | None = None
    find: str = ""
    arms: str = ""
    effect: float = EFFECT

    @classmethod
    def of(cls, values: Mapping[str, str]) -> View:
        """Return the view in an address; an invalid scale or effect is replaced by the default."""
        named = next((scale for scale in SCALES if scale == values.get("scale")), None)
        find, arms = (values.get(name, "")[:MOST_LETTERS] for name in ("find", "arms"))
        return cls(named, find, arms, _effect(values.get("effect", "")))


def _effect(given: str) -> float:
    try:
        effect = float(given)
    except ValueError:
        return EFFECT
    return effect if LEAST_EFFECT <= effect <= MOST_EFFECT else EFFECT


LEAST_EFFECT, MOST_EFFECT = 0.01, 1000.0
"""Range of the smallest effect of interest, in percent."""

MOST_LETTERS = 200
"""Maximum characters of a search or a pair in an address; further ones are ignored."""

MOST_LINES = 6
"""Maximum number of lines in a figure over time, so that it stays readable."""

MOST_ARMS = 8
"""Maximum number of arms in the figures of traffic."""


@dataclass(frozen=True)
class Page:
    """A study's Results page.

    Attributes:
        study: the study.
        fields: the contents of the form.
        asked: the question; None if the fields are invalid.
        view: the view of the count.
        count: the count shown; None if the question has not been counted.
        latest: the newest count of the question, whatever its state.
        history: all finished counts of the study, newest first.
        document: the document of the count.
        effects: the effects shown.
        looks: warnings about repeated looks.
        usual: duration of the last count in seconds.
    """

    study: Study
    fields: Mapping[str, str]
    asked: Asked | None
    view: View = View()
    count: Count | None = None
    latest: Count | None = None
    history: tuple[Count, ...] = ()
    document: Mapping[str, Any] | None = None
    effects: tuple[Effects, ...] = ()
    looks: tuple[str, ...] = ()
    usual: float | None = None

    @property
    def query(self) -> str:
        """The query of this page's address, without the count."""
        return "" if self.asked is None else query_of(self.asked, self.study)

    @property
    def interim_query(self) -> str:
        """The query of the same question as an interim look; empty if it is one or if none is possible."""
        asked = self.asked
        if asked is None or asked.interim or asked.ratios or asked.adjust or asked.cap is not None:
            return ""
        return query_of(with_fields(asked, interim=True), self.study)

    @property
    def goals(self) -> list[Effects]:
        """The effects on goals."""
        return [one for one in self.effects if one.role == "goal"]

    @property
    def guardrails(self) -> list[Effects]:
        """The effects on guardrails."""
        return [one for one in self.effects if one.role == "guardrail"]

    @property
    def scales(self) -> list[Scale]:
        """All scales that occur in the effects."""
        return [scale for scale in SCALES if any(scale in one.scales for one in self.effects)]

    @property
    def scale(self) -> Scale | None:
        """The scale shown."""
        return self.view.scale if self.view.scale in self.scales else next(iter(self.scales), None)

    @property
    def has_more(self) -> bool:
        """Whether a metric has more rows than are shown at first."""
        return any(one.total > FEW for one in self.effects)

    @property
    def answer(self) -> tuple[list[Lift], int]:
        """The most important lifts, and the number of further lifts."""
        return lifts_that_matter(self.effects)

    @property
    def headline(self) -> str:
        """The verdict, shortened if it names many findings."""
        return headline(self.document) if self.document else ""

    @cached_property
    def few(self) -> Mapping[str, Any] | None:
        """The document with only the comparisons that are shown."""
        if self.document is None:
            return None
        shown = {(one.key, row.pair) for one in self.effects for row in one.rows}
        kept = [
            (one, said)
            for one, said in zip(self.document["comparisons"], self.document["sentences"], strict=True)
            if (one["metric"], tuple(one["pair"])) in shown
        ]
        ratios = [one for one in self.document.get("ratios", ()) if (one["ratio"], tuple(one["pair"])) in shown]
        comparisons, sentences = ([each[i] for each in kept] for i in (0, 1))
        return {**self.document, "comparisons": comparisons, "sentences": sentences, "ratios": ratios}

    @property
    def blocks(self) -> list[Block]:
        """The tests of the comparisons shown, goals before guardrails."""
        return [block for role in ("goal", "guardrail") for block in blocks_of(self.few or {}, role)]

    @property
    def disagreements(self) -> list[str]:
        """Sentences about comparisons in which the lift and the rank test disagree."""
        return list(disagreements(self.document)) if self.document else []

    @property
    def counted_range(self) -> str:
        """The period in which the counted pings were received, in hours; empty without any."""
        arms = (self.document or {}).get("arms", {}).values()
        hours = [at for arm in arms for at in (arm["by_hour"]["from_ms"] or ())]
        if not hours:
            return ""
        first, last = (datetime.fromtimestamp(at / 1000, UTC) for at in (min(hours), max(hours) + HOUR_MS))
        same_day = f"{first:%Y-%m-%d}" == f"{last:%Y-%m-%d}"
        return f"{first:%Y-%m-%d %H:%M} to {last:{'%H:%M' if same_day else '%Y-%m-%d %H:%M'}} UTC"

    @property
    def trimmed(self) -> str:
        """A description of the winsorising of clients' values; empty if they are not winsorised."""
        comparisons = self.document["comparisons"] if self.document else []
        tails = comparisons[0]["per_client"].get("tails") if comparisons else 0
        return f"winsorised at {100 * tails:.3g} % of the clients at either end" if tails else ""

    @property
    def excluded(self) -> str:
        """A sentence about landed pings that were not compared."""
        document = self.document or {}
        pings, clients = document.get("duplicates", 0), document.get("clients_in_several_arms", 0)
        parts = [
            f"{pings:,} {'copy' if pings == 1 else 'copies'} of documents",
            f"{clients:,} {'client' if clients == 1 else 'clients'} with pings of several arms",
        ]
        left_out = (document.get("left_out") or {}).get("pings", {})
        parts += [
            f"{number:,} {'ping' if number == 1 else 'pings'} that {LEFT_OUT[why]}" for why, number in left_out.items()
        ]
        return f"Not compared: {', '.join(parts)}."

    @property
    def sizes_sentence(self) -> str:
        """The result of the check of the arms' sizes; arms are not listed if there are many."""
        ratio = (self.document or {})["sample_ratio"]
        sentence = str(ratio["sentence"])
        if len((self.document or {})["arms"]) <= FEW:
            return sentence
        begin = sentence.partition(": ")[0]
        if not ratio["mismatch"]:
            return f"{begin}."
        observed = {name: arm["clients"] for name, arm in (self.document or {})["arms"].items()}
        expected = ratio["expected"]
        apart = sorted(expected, key=lambda name: -((observed[name] - expected[name]) ** 2) / max(expected[name], 1e-9))
        worst = ", ".join(f"{name} {observed[name]:,} (expected {expected[name]:,.0f})" for name in apart[:3])
        return (
            f"{begin}, most of all {worst}. Clients of one arm are lost or moved more often than clients of another; "
            "find the cause before you compare arms."
        )

    @property
    def parts_pairs(self) -> list[str]:
        """The pairs whose effects by segment can be shown, most important first."""
        document = self.document or {}
        parts = [*document.get("segments", ()), *(document.get("in_study") or {}).get("effects", ())]
        there = dict.fromkeys(":".join(one["pair"]) for one in parts)
        first = [":".join(row.pair) for one in self.effects for row in one.rows]
        return [pair for pair in dict.fromkeys([*first, *there]) if pair in there]

    @property
    def parts_pair(self) -> str:
        """The pair whose effects by segment are shown."""
        pairs = self.parts_pairs
        return self.view.arms if self.view.arms in pairs else next(iter(pairs), "")

    @property
    def segments(self) -> list[Mapping[str, Any]]:
        """The effects by segment of the pair :attr:`parts_pair`."""
        return [one for one in (self.document or {}).get("segments", ()) if ":".join(one["pair"]) == self.parts_pair]

    @property
    def in_study(self) -> list[Mapping[str, Any]]:
        """The effects of the pair :attr:`parts_pair` by the clients' time in the study."""
        parts = (self.document or {}).get("in_study") or {}
        return [one for one in parts.get("effects", ()) if ":".join(one["pair"]) == self.parts_pair]

    @property
    def embedded(self) -> Markup:
        """Data for the page's charts: arms in order, escaped for embedding in a script."""
        if self.document is None:
            return Markup("null")
        text = msgspec.json.encode(self._drawn(self.document)).decode()
        return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))

    def _drawn(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        lines = {(one.key, row.pair) for one in self.effects for row in one.rows[:MOST_LINES]}
        over_time = document.get("over_time") or {"hours": 1, "effects": ()}
        shown = dict.fromkeys(arm for one in self.effects for row in one.rows for arm in reversed(row.pair))
        arms = sorted(list(shown)[:MOST_ARMS], key=list(document["arms"]).index)
        return {
            "interim": document["interim"],
            "pings": document["pings"],
            "scale": self.scale,
            "few": FEW,
            "effects": self.effects,
            "over_time": {
                "hours": over_time["hours"],
                **{
                    kind: [one for one in over_time.get(kind, ()) if (one["metric"], tuple(one["pair"])) in lines]
                    for kind in ("effects", "so_far")
                },
            },
            "metrics": document["metrics"],
            "segments": self.segments,
            "in_study": self.in_study,
            "arms": {name: document["arms"][name] for name in arms},
            "all_arms": len(document["arms"]),
            "trimmed": self.trimmed,
            "reliable": not document["sample_ratio"]["mismatch"],
        }

    @property
    def clients_so_far(self) -> tuple[int, int]:
        """The smallest and the largest number of clients in a comparison, both arms together."""
        comparisons = self.document["comparisons"] if self.document else ()
        numbers = [sum(one["per_client"]["n"]) for one in comparisons] or [0]
        return min(numbers), max(numbers)

    @property
    def outlook(self) -> list[str]:
        """The power of the count, and the time left to the planned end."""
        return outlook(self.few) if self.few else []

    @property
    def needs(self) -> list[Needed]:
        """Clients and time that the shown comparisons need for the smallest effect of interest."""
        return needs(self.few, self.view.effect) if self.few else []

    @property
    def lifts(self) -> list[tuple[str, ...]]:
        """The rows of the table of lifts; empty if the study has no outcomes and no means were requested."""
        return [lift_cells(*one) for one in self._effects()]

    @property
    def lift_notes(self) -> list[str]:
        """Explanations of the table of lifts."""
        return [*interval_notes(self._effects()), *(self.document or {}).get("means", {}).get("notes", ())]

    def _effects(self) -> list[Titled]:
        asked, document = self.asked, self.few
        if document is None or asked is None or "lifts" not in document:  # of an older version
            return []
        if not (self.study.outcomes or asked.ratios or asked.adjust or asked.cap is not None):
            return []
        titles = {name: metric["title"] for name, metric in document["metrics"].items()}
        named = [(titles[one["metric"]], one) for one in document["comparisons"]]
        named += [(one["title"], one) for one in document["ratios"]]
        return [(title, tuple(one["pair"]), effect_of(one["means"])) for title, one in named if one["means"]]

    @property
    def is_newest(self) -> bool:
        """Whether this is the newest finished count of the question."""
        later = [one for one in self.history if self.count and one.key == self.count.key]
        return not later or later[0] == self.count

    @property
    def metrics(self) -> list[tuple[str, str, bool, bool | None]]:
        """Every metric for the form: name, title, whether it is compared, and whether it is a guardrail.

        The last value is None for a metric that cannot be a guardrail.
        """
        chosen, guardrails = (self.fields.get(name, "").split(",") for name in ("metrics", "guardrails"))
        return [
            (one.name, one.title, one.name in chosen, None if one.better is None else one.name in guardrails)
            for one in metrics_of(self.study)
        ]

    @cached_property
    def pairs(self) -> Pairs:
        """The choice of pairs for the form."""
        return pairs_of(self.study, self.fields.get("pairs"))


MOST_PAIRS = 15
"""Maximum number of pairs with a box each in the form; if there are more, each arm against the control has a box."""


@dataclass(frozen=True)
class Pairs:
    """The choice of pairs in the form.

    Attributes:
        mode: "against" one arm, "all" pairs, or "chosen" ones.
        control: the arm that others are compared with.
        arms: all arms.
        boxes: the pairs that have a box, and whether the box is ticked.
        number: the number of all pairs.
    """

    mode: str
    control: str
    arms: tuple[str, ...]
    boxes: tuple[tuple[str, str, bool], ...]
    number: int


def pairs_of(study: Study, given: str | None) -> Pairs:
    """Return the form's choice of pairs for the pairs of a question; None means all pairs."""
    arms = tuple(arm.name for arm in study.arms)
    everything = all_pairs(study)
    chosen = None if given is None else list(expanded([pair for pair in given.split(",") if pair], study))
    second = {pair.partition(":")[2] for pair in chosen or ()}
    control = next(iter(second)) if len(second) == 1 and second <= set(arms) else control_of(study)
    default = [":".join(pair) for pair in against(study, control)]
    mode = "all" if chosen is None else "against" if sorted(chosen) == sorted(default) else "chosen"
    if len(everything) == 1 and mode == "all":
        mode = "against" if [":".join(everything[0])] == default else "all"
    boxes = list(everything) if len(everything) <= MOST_PAIRS else list(against(study, control))
    for pair in chosen or ():
        first, _, other = pair.partition(":")
        if (other, first) in boxes:
            boxes[boxes.index((other, first))] = (first, other)
        elif (first, other) not in boxes and {first, other} <= set(arms):
            boxes.append((first, other))
    ticked = tuple((first, other, chosen is None or f"{first}:{other}" in chosen) for first, other in boxes)
    return Pairs(mode, control, arms, ticked, len(everything))


def page_of(
    counts: Counts, study: Study, fields: Mapping[str, str], id: str | None = None, view: View | None = None
) -> Page:
    """Return the page of a question, or of one of its counts.

    Args:
        counts: the stored counts.
        study: the study.
        fields: the question; empty for the question of the count ``id``.
        id: the count to show; the newest finished one if None.
        view: the view of the count; the default view if None.

    Raises:
        InvalidSettings: a field is invalid.
        UnknownCount: there is no count ``id``.
    """
    everything = counts.of(study.name)
    chosen = counts.count(study.name, id) if id else None
    asked = chosen.asked if chosen else asked_by(fields, study)
    mine = [one for one in everything if one.key == key_of(asked)]
    history = tuple(one for one in everything if one.state == "finished")
    count = chosen or next((one for one in mine if one.state == "finished"), None)
    latest = mine[0] if mine else None
    page = Page(study, fields_of(asked, study), asked, view or View(), latest=latest, history=history)
    if history:
        page = replace(page, usual=history[0].seconds)
    return page if count is None or count.state != "finished" else _with_document(page, count)


def _with_document(page: Page, count: Count) -> Page:
    document = count.document
    return replace(
        page,
        count=count,
        document=document,
        effects=tuple(effects_of(document, Selection(page.view.find))),
        looks=tuple(looks_at(count, page.history, page.study).sentences),
    )


Document: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A comparison for display: the finding in words, and its numbers as text.

    ``tag`` is the finding in a word or two, ``tone`` the tag's colour: better, worse, or none.
    """

    first: str
    second: str
    sentence: str
    tag: str
    tone: str
    decides: str
    difference: str
    untrimmed: str
    fragility: str
    p: str
    p_bonferroni: str
    p_holm: str
    superiority: str
    shift: str
    pings: str


@dataclass(frozen=True)
class Block:
    """A metric with all its comparisons."""

    name: str
    title: str
    rows: tuple[Row, ...]


def blocks_of(document: Document, role: str) -> list[Block]:
    """Return the blocks of the metrics with a role, ``goal`` or ``guardrail``."""
    rows_by_metric: dict[str, list[Row]] = {}
    for one, sentence in zip(document["comparisons"], document["sentences"], strict=True):
        if one["role"] == role:
            rows_by_metric.setdefault(one["metric"], []).append(
                _row(one, sentence, document["metrics"][one["metric"]]["better"])
            )
    return [Block(name, document["metrics"][name]["title"], tuple(rows)) for name, rows in rows_by_metric.items()]


def _row(one: Document, sentence: str, better: str | None) -> Row:
    clients, tag = one["per_client"], tag_of(one["finding"], better, one["role"])
    superiority = _estimate(clients["superiority"])
    return Row(
        first=one["pair"][0],
        second=one["pair"][1],
        sentence=sentence,
        tag=tag[0],
        tone=tag[1],
        decides=_decides(one),
        difference=_with_percent(clients),
        untrimmed=interval_text(_estimate(raw)) if (raw := clients.get("untrimmed_difference")) else "-",
        fragility=f"{few:,} of {sum(clients['n']):,}" if (few := one.get("fragility")) is not None else "-",
        p=p_text(clients["log10_p"]),
        p_bonferroni=p_text(clients["log10_p_bonferroni"]),
        p_holm=p_text(clients["log10_p_holm"]),
        superiority=f"{superiority.value:.4f} [{superiority.low:.4f}, {superiority.high:.4f}]",
        shift=interval_text(_estimate(clients["hodges_lehmann"])),
        pings=_with_percent(one["per_ping"]) if one["per_ping"] else "-",
    )


def _with_percent(level: Document) -> str:
    """Return the difference of means by client or by ping, with its interval and in percent."""
    difference = _estimate(level["difference"])
    return interval_text(difference) + percent_text(difference.value, level["means"][1] or 0.0)


def _decides(one: Document) -> str:
    """Return the rank test's effect, which decides, with its interval; older documents lack this interval."""
    if one["anytime_valid"]:
        value = one["anytime_valid"]["value"]
        percent = one.get("percent")
        base = 100 * value / percent if percent else 0.0
        return interval_text(_estimate(one["anytime_valid"])) + percent_text(value, base)
    return share_text(_estimate(one.get("decides") or one["per_client"]["superiority"]))


def _estimate(given: Document) -> Estimate:
    low, high = given["low"], given["high"]
    return Estimate(
        given["value"],
        float("-inf") if low is None else low,
        float("inf") if high is None else high,
        given["confidence"],
    )
