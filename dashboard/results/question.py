"""A question about a study, as fields of a form, as an address query, and as options of `fedping analyze`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec

from fedping.analysis.statistics.looks import CORRECTIONS
from fedping.analysis.verdict import Asked, against, all_pairs, control_of, default_metrics, words_of
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import Study

FIELDS = (
    "metrics",
    "guardrails",
    "pairs",
    "alpha",
    "correction",
    "from-iteration",
    "to-iteration",
    "since",
    "until",
    "interim",
    "planned-clients",
    "enrolled",
    "settle",
    "ratios",
    "adjust",
    "cap",
)
"""Names of a question's fields: the command's options without the leading dashes."""

_LISTS = frozenset({"metrics", "guardrails", "pairs", "ratios"})
_FLAGS = ("interim", "adjust")
_LEAST = {"planned-clients": 2, "enrolled": 1}
_TIMES = ("%Y-%m-%d", *(f"%Y-%m-%d{between}{time}" for between in "T " for time in ("%H:%M", "%H:%M:%S")))
"""Formats of times in addresses and text fields, with 24 hours; a browser's own time field may show 12."""


COMPARED = "compared"
"""The form's field for the pairs to compare: each arm against one, all pairs, or the ticked ones."""

AGAINST = "against"
"""The form's field for the arm that others are compared with."""


def given_fields(values: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the fields in a form or an address; values of a repeated field (ticked boxes) are joined by commas."""
    return {name: ",".join(values[name]).strip() for name in FIELDS if name in values}


def chosen_pairs(values: Mapping[str, Sequence[str]], study: Study) -> dict[str, str]:
    """Return the fields of a form, with its choice of pairs replaced by the pairs themselves.

    Raises:
        InvalidSettings: the study lacks the arm that others are to be compared with.
    """
    fields, compared = given_fields(values), values.get(COMPARED, [""])[0]
    if compared == "all":
        fields.pop("pairs", None)
    elif compared == AGAINST:
        control = next(iter(values.get(AGAINST, ())), "") or control_of(study)
        fields["pairs"] = ",".join(map(":".join, against(study, control)))
    return fields


def first_question(study: Study) -> Asked:
    """Return the default question about a study: its own metrics, every arm against the control."""
    pairs = tuple(map(":".join, against(study, control_of(study))))
    return Asked(metrics=default_metrics(study), pairs=None if len(study.arms) < 2 else _unless_all(pairs, study))


def _unless_all(pairs: tuple[str, ...], study: Study) -> tuple[str, ...] | None:
    return None if pairs == tuple(map(":".join, all_pairs(study))) else pairs


def asked_by(fields: Mapping[str, str], study: Study) -> Asked:
    """Return the question in the fields of a form or an address.

    Raises:
        InvalidSettings: a field has the wrong type. The meaning of the question is checked by
            :func:`fedping.analysis.verdict.plan_of`.
    """
    asked = Asked(**{"metrics": default_metrics(study), **dict(_read(fields))})
    pairs = None if asked.pairs is None else _unless_all(tuple(expanded(asked.pairs, study)), study)
    return msgspec.structs.replace(asked, pairs=pairs)


EVERY = "*:"
"""Prefix of a pair that stands for every arm against the arm behind the prefix, so that addresses stay short."""


def expanded(pairs: Sequence[str], study: Study) -> Iterator[str]:
    """Yield pairs; a pair that begins with `EVERY` is replaced by one pair per arm.

    Raises:
        InvalidSettings: the study does not have the arm.
    """
    for pair in pairs:
        if pair.startswith(EVERY):
            yield from map(":".join, against(study, pair.removeprefix(EVERY).strip()))
        else:
            yield pair


def fields_of(asked: Asked, study: Study | None = None) -> dict[str, str]:
    """Return the fields of a question: always the metrics, the others only if they differ from the default.

    Args:
        asked: the question.
        study: the question's study, to shorten "every arm against one"; None to write every pair.
    """
    fields = {"metrics": ",".join(asked.metrics)}
    for name in FIELDS[1:]:
        value = getattr(asked, name.replace("-", "_"))
        if value != _DEFAULTS[name]:
            fields[name] = _written(name, value)
    if study is not None and asked.pairs is not None and len(asked.pairs) > 1:
        every = EVERY + asked.pairs[0].partition(":")[2].strip()
        if every.removeprefix(EVERY) in {arm.name for arm in study.arms}:
            short = tuple(expanded([every], study)) == asked.pairs
            fields["pairs"] = every if short else fields["pairs"]
    return fields


def query_of(asked: Asked, study: Study | None = None) -> str:
    """Return a question as the query of an address; for ``study`` see :func:`fields_of`."""
    return urlencode(fields_of(asked, study), safe=",:*")


def options_of(asked: Asked) -> list[str]:
    """Return the options of `fedping analyze` for a question."""
    given = fields_of(asked)
    flags = [f"--{name}" for name in _FLAGS if given.pop(name, None)]
    return [f"--{name}={value}" for name, value in given.items()] + flags


def key_of(asked: Asked) -> str:
    """Return a short key of a question; equal questions have equal keys."""
    return digest_of(asked)[:12]


@dataclass(frozen=True)
class Subject:
    """The subject of a question: the question without levels and corrections.

    Looks at the same subject are counted together.
    """

    metrics: frozenset[str]
    pairs: frozenset[frozenset[str]]
    window: tuple[int | None, ...]
    means: tuple[object, ...] = ()


def subject_of(asked: Asked, study: Study) -> Subject:
    """Return the subject of a question."""
    pairs = asked.pairs or [":".join(pair) for pair in all_pairs(study)]
    return Subject(
        frozenset(asked.metrics),
        frozenset(frozenset(name.strip() for name in pair.split(":")) for pair in pairs),
        (asked.from_iteration, asked.to_iteration, asked.since, asked.until, asked.settle or None),
        (frozenset(asked.ratios), asked.adjust, asked.cap),
    )


_DEFAULTS: dict[str, Any] = {name: getattr(Asked(), name.replace("-", "_")) for name in FIELDS}


def _read(fields: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name in FIELDS:
        given = fields.get(name)
        if name in _LISTS and given is not None:
            yield name, words_of(given)
        elif given:
            yield name.replace("-", "_"), _value(name, given)


def _value(name: str, given: str) -> Any:
    match name:
        case "alpha":
            return _number(given)
        case "correction":
            return _correction(given)
        case "since" | "until":
            return _time(name, given)
        case "cap":
            return _share(given)
        case "interim" | "adjust":
            return given not in ("0", "no", "false")
        case _:
            return _integer(name, given)


def _number(given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidSettings(f"'{given}' is not a level alpha; give a number such as 0.05")
    return number


def _share(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise InvalidSettings(f"'{given}' is not a cap; give a share of clients such as 0.999") from None


def _integer(name: str, given: str) -> int:
    words = name.replace("-", " ")
    least = _LEAST.get(name, 0)
    digits = given.replace(",", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) >= least):
        raise InvalidSettings(f"'{words}' must be a whole number of at least {least}, not '{given}'")
    return int(digits)


def _correction(given: str) -> str:
    if given not in CORRECTIONS:
        raise InvalidSettings(f"unknown correction '{given}'; choose one of {', '.join(CORRECTIONS)}")
    return given


def _time(name: str, given: str) -> int:
    for form in _TIMES:
        try:
            return round(datetime.strptime(given, form).replace(tzinfo=UTC).timestamp() * 1000)
        except ValueError:
            continue
    raise InvalidSettings(f"'{name}' must be a time such as 2018-06-20 13:00 (UTC, 24 hours), not '{given}'")


def _written(name: str, value: Any) -> str:
    if name in _LISTS:
        return ",".join(value)
    if name in ("since", "until"):
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%dT%H:%M:%S}"
    return "1" if value is True else str(value)


LABELS = {
    "metrics": "Metrics",
    "guardrails": "guardrail",
    "pairs": "Pairs of arms",
    "alpha": "Alpha",
    "correction": "Correction",
    "from-iteration": "From iteration",
    "to-iteration": "To iteration",
    "since": "Since",
    "until": "Until",
    "interim": "Interim",
    "planned-clients": "Planned clients",
    "enrolled": "Enrolled",
    "settle": "Days to settle",
    "ratios": "Ratios",
    "adjust": "Adjust",
    "cap": "Cap",
}
"""Labels of the form's fields."""

_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


def by_fields(sentence: str) -> str:
    """Return a sentence of the analysis, with the command's options replaced by the form's fields."""
    named = _OPTION.sub(lambda found: f"'{LABELS[found[1]]}'" if found[1] in LABELS else found[0], sentence)
    return named.replace(
        "('fedping docs operators#who-may-be-counted')", "(see “Who may be counted” in the guide for operators)"
    )
