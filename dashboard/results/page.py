"""The contents of a study's page: a question, its newest count, and how often the study has been looked at.

With two, five and ten looks at evenly spaced times, each tested at 5 %, the chance of a false alarm is 8, 14 and 19 %
(Armitage, McPherson and Rowe, "Repeated significance tests on accumulating data", 1969).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup
from msgspec.structs import replace as with_fields

from fedping.analysis.study import metrics_of
from fedping.analysis.verdict import Asked, all_pairs
from fedping.dashboard.results.blocks import Block, blocks_of
from fedping.dashboard.results.counts import Count, Counts
from fedping.dashboard.results.question import Subject, asked_by, fields_of, key_of, query_of, subject_of
from fedping.dashboard.results.time_left import outlook
from fedping.protocol.study import Study


@dataclass(frozen=True)
class Looks:
    """The looks at a study other than interim ones.

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
        """What to know about them; empty after a single look at a single question."""
        said = []
        if self.total > 1:
            said.append(
                f"This is look {self.number} of {self.total} at these comparisons, on other pings each time, and none "
                "was counted as an interim look. P-values and intervals are right for one look, at an end that was "
                "planned: looking again as pings come in raises the chance of a false alarm (at 5 %, two looks make it "
                "8 %, five 14 %). Rely on this look only if it is the planned one; before the end, count an interim "
                "look."
            )
        if self.others:
            questions = "another question was" if self.others == 1 else f"{self.others} other questions were"
            said.append(
                f"In addition, {questions} asked of this study, with other metrics, pairs, windows or levels. Alpha "
                "holds for the one that was written down before anybody looked."
            )
        return said


def looks_at(count: Count, counts: Sequence[Count], study: Study) -> Looks:
    """Return how often the subject of a count was looked at, according to all counts of its study."""
    done = [one for one in counts if one.state == "finished" and not one.asked.interim]
    subject = subject_of(count.asked, study)
    landed = [one.landed.digest for one in sorted(done, key=lambda one: one.id) if _is_about(one, subject, study)]
    order = list(dict.fromkeys(landed))
    mine = count.landed.digest
    number = 1 if count.asked.interim or mine not in order else order.index(mine) + 1
    others = {_question(one) for one in done} - {_question(count)}
    return Looks(number, 1 if count.asked.interim else len(order), len(others))


def _question(count: Count) -> Asked:
    """Return the question without what does not affect any test."""
    return with_fields(count.asked, enrolled=None, planned_clients=None, interim=False)


def _is_about(count: Count, subject: Subject, study: Study) -> bool:
    return subject_of(count.asked, study) == subject


@dataclass(frozen=True)
class Page:
    """See the module.

    Attributes:
        study: the study.
        fields: the contents of the form.
        asked: the question; None if the fields are invalid.
        count: the count shown; None if the question has not been counted.
        latest: the newest count of the question, whatever its state.
        history: all finished counts of the study, newest first.
        document: the document of the count.
        goals: its blocks of goals.
        guardrails: its blocks of guardrails.
        looks: sentences about how often the study was looked at.
        usual: how many seconds the last count took.
    """

    study: Study
    fields: Mapping[str, str]
    asked: Asked | None
    count: Count | None = None
    latest: Count | None = None
    history: tuple[Count, ...] = ()
    document: Mapping[str, Any] | None = None
    goals: tuple[Block, ...] = ()
    guardrails: tuple[Block, ...] = ()
    looks: tuple[str, ...] = ()
    usual: float | None = None

    @property
    def query(self) -> str:
        """The query of this page's address, without the count."""
        return "" if self.asked is None else query_of(self.asked)

    @property
    def embedded(self) -> Markup:
        """The document for embedding in a page: as printed, arms in order, without signs that could end a script."""
        text = self.count.printed.decode() if self.count else "null"
        return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))

    @property
    def clients_so_far(self) -> tuple[int, int]:
        """The smallest and the largest number of compared clients in two arms together."""
        comparisons = self.document["comparisons"] if self.document else ()
        found = [sum(one["per_client"]["n"]) for one in comparisons] or [0]
        return min(found), max(found)

    @property
    def outlook(self) -> list[str]:
        """What the count can show, and the time left to the planned end."""
        return outlook(self.document) if self.document else []

    @property
    def is_newest(self) -> bool:
        """Whether there is no later finished count of the question."""
        later = [one for one in self.history if self.count and one.key == self.count.key]
        return not later or later[0] == self.count

    @property
    def metrics(self) -> list[tuple[str, str, bool, bool | None]]:
        """For the form: every metric's name and title, whether it is compared, and whether it is a guardrail.

        None means that it cannot be a guardrail.
        """
        chosen, guardrails = (self.fields.get(name, "").split(",") for name in ("metrics", "guardrails"))
        return [
            (one.name, one.title, one.name in chosen, None if one.better is None else one.name in guardrails)
            for one in metrics_of(self.study)
        ]

    @property
    def pairs(self) -> list[tuple[str, str, bool]]:
        """For the form: the arms of every pair, in the requested direction, and whether it is requested."""
        given = self.fields.get("pairs")
        chosen = None if given is None else given.split(",")
        found = []
        for first, second in all_pairs(self.study):
            turned = chosen is not None and f"{second}:{first}" in chosen
            pair = (second, first) if turned else (first, second)
            found.append((*pair, chosen is None or ":".join(pair) in chosen))
        return found


def page_of(counts: Counts, study: Study, fields: Mapping[str, str], id: str | None = None) -> Page:
    """Return the page of a question, or of one of its counts.

    Args:
        counts: the kept counts.
        study: the study.
        fields: the question; empty for that of ``id``.
        id: the count to show; the newest finished one if None.

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
    made = Page(study, fields_of(asked), asked, latest=mine[0] if mine else None, history=history)
    if history:
        made = replace(made, usual=history[0].seconds)
    return made if count is None or count.state != "finished" else _shown(made, count)


def _shown(page: Page, count: Count) -> Page:
    document = count.document
    return replace(
        page,
        count=count,
        document=document,
        goals=tuple(blocks_of(document, "goal")),
        guardrails=tuple(blocks_of(document, "guardrail")),
        looks=tuple(looks_at(count, page.history, page.study).sentences),
    )
