"""The view of the list of runs, as given in the address: selection, columns, order, groups and page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import ge, gt, le, lt
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

from werkzeug.datastructures import MultiDict

from fedping.dashboard.runs.index import OWN, SETTINGS, Condition, Row, RunIndex, Value, number_in
from fedping.experiments.laboratory.summary import t_quantile
from fedping.protocol.errors import InvalidSettings

ON_A_PAGE = 50
"""Number of rows per page."""

MOST_CHOSEN, MOST_CONDITIONS, MOST_WORDS = 24, 20, 20
"""Maximum number of chosen columns, of conditions, and of words of a search."""

BY_SEED, NO_GROUPS, BY_VARIANT = "", "none", "variant"
"""Groupings: by all settings but the seeds (the usual one); each run on its own; each variant of each run."""

_CONDITION = re.compile(r"\s*(.+?)\s*(<=|>=|!=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class View:
    """The view of the list that an address requests.

    Attributes:
        words: the words to search for.
        tag: the tag that runs must have.
        alike: the group whose runs are shown; all if empty.
        where: conditions, such as "settings.training.rate >= 0.1".
        columns: the settings and metrics that are shown; the usual ones if empty.
        sort: the column that decides the order; the time of description if empty.
        backwards: whether the order is reversed.
        group: the grouping: :data:`BY_SEED`, :data:`NO_GROUPS`, :data:`BY_VARIANT` or a column.
        page: the number of the page, from 1 on.
    """

    words: str = ""
    tag: str = ""
    alike: str = ""
    where: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    sort: str = ""
    backwards: bool = False
    group: str = BY_SEED
    page: int = 1

    @property
    def conditions(self) -> list[Condition]:
        """All conditions of the view, including its tag and its group.

        Raises:
            InvalidSettings: one is not a condition.
        """
        of_tag = [Condition("tag", "=", self.tag)] if self.tag else []
        of_group = [Condition("alike", "=", self.alike)] if self.alike else []
        return [*of_tag, *of_group, *map(condition, self.where)]

    @property
    def query(self) -> str:
        """The view as the query of an address; empty for the usual view."""
        given: list[tuple[str, str]] = [
            *(("q", self.words),) * bool(self.words),
            *(("tag", self.tag),) * bool(self.tag),
            *(("alike", self.alike),) * bool(self.alike),
            *(("where", each) for each in self.where),
            *(("column", each) for each in self.columns),
            *(("sort", self.sort),) * bool(self.sort),
            *(("backwards", "1"),) * self.backwards,
            *(("group", self.group),) * (self.group != BY_SEED),
            *(("page", str(self.page)),) * (self.page > 1),
        ]
        return urlencode(given)

    def with_columns(self, columns: Sequence[str]) -> View:
        """Return this view with other columns, for rows that the page requests later."""
        return replace(self, columns=tuple(columns))

    def but(self, **changes: Any) -> str:
        """Return the address of this view with changes; it is the first page unless ``page`` is changed."""
        query = replace(self, **{"page": 1, **changes}).query
        return f"/runs/?{query}" if query else "/runs/"


def view_of(args: MultiDict[str, str]) -> View:
    """Return the view that an address requests.

    Raises:
        InvalidSettings: there are too many columns, or the page is no number.
    """
    columns = tuple(dict.fromkeys(filter(None, args.getlist("column"))))
    if len(columns) > MOST_CHOSEN:
        raise InvalidSettings(f"column: {len(columns)} columns are too many; choose at most {MOST_CHOSEN}")
    where = tuple(dict.fromkeys(filter(None, map(str.strip, args.getlist("where")))))
    if len(where) > MOST_CONDITIONS:
        raise InvalidSettings(f"where: {len(where)} conditions are too many; give at most {MOST_CONDITIONS}")
    if len(args.get("q", "").split()) > MOST_WORDS:
        raise InvalidSettings(f"q: {len(args['q'].split())} words are too many; search for at most {MOST_WORDS}")
    page = args.get("page", "1")
    if not page.isascii() or not page.isdigit() or not int(page[:9]) > 0:
        raise InvalidSettings(f"page: '{page[:80]}' is not a page; give a number from 1 on")
    return View(
        words=args.get("q", "").strip(),
        tag=args.get("tag", ""),
        alike=args.get("alike", ""),
        where=where,
        columns=columns,
        sort=args.get("sort", ""),
        backwards=bool(args.get("backwards")),
        group=args.get("group", BY_SEED),
        page=int(page[:9]),
    )


def condition(text: str) -> Condition:
    """Return the condition in a text.

    Raises:
        InvalidSettings: the text is not a condition.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InvalidSettings(
            f"where: '{text[:80]}' is not a condition; write a column, one of = != < <= > >= ~, and a value, such as "
            "'settings.rounds >= 10'"
        )
    return Condition(*match.groups())


class Cell(NamedTuple):
    """A row's value of a column.

    Attributes:
        text: the value or values of a setting; None for a metric.
        mean: the mean of a metric.
        half: half its 95 % t interval over seeds; None for one seed.
        number: the number of seeds or runs behind the mean, or of different values of a setting.
    """

    text: str | None
    mean: float | None = None
    half: float | None = None
    number: int = 0


@dataclass(frozen=True)
class Group:
    """Runs that make one row of the list; ``key`` identifies the group.

    ``over`` is the sample of a metric's mean and spread: the seeds of runs that differ only by seed, or the runs. If
    the row describes a single variant of a run, ``variant`` is the variant's place, from 1 on; else 0.
    """

    key: str
    rows: tuple[Row, ...]
    over: Literal["seeds", "runs"]
    variant: int = 0

    @property
    def one(self) -> Row | None:
        """The only run, if the group is a single run with all its variants; else None."""
        return self.rows[0] if len(self.rows) == 1 and self.over == "seeds" and not self.variant else None

    @property
    def name(self) -> str:
        """The name of the group's only variant; empty for all variants."""
        return self.rows[0].names[self.variant - 1] if self.variant else ""

    @property
    def newest(self) -> Row:
        """The newest run."""
        return self.rows[0]

    @property
    def seeds(self) -> list[int]:
        """All seeds of the group's runs."""
        return sorted({seed for row in self.rows for seed in seeds_of(row)})

    @property
    def seeds_text(self) -> str:
        """The seeds as a text, such as "1 to 4, 9"."""
        return _ranges(self.seeds)


def seeds_of(row: Row) -> list[int]:
    """Return the seeds of a run."""
    return [int(seed) for seed in row.seeds.split(",") if seed]


def grouped(rows: Sequence[Row], by: str, index: RunIndex) -> list[Group]:
    """Return runs, which are given newest first, in groups, ordered by each group's newest run."""
    if by == NO_GROUPS:
        return [Group(row.id, (row,), "seeds") for row in rows]
    if by == BY_VARIANT:
        return [group for row in rows for group in _variants_of(row)]
    found: dict[str, list[Row]] = {}
    if by == BY_SEED:
        for row in rows:
            found.setdefault(row.alike or f":{row.id}", []).append(row)
        return [Group(key if len(of) > 1 else of[0].id, tuple(of), "seeds") for key, of in found.items()]
    values = {} if by in OWN else index.values(by)
    for row in rows:
        found.setdefault(_text(row, by, values.get(row.key, {})), []).append(row)
    return [Group(key, tuple(of), "runs") for key, of in found.items()]


def _variants_of(row: Row) -> list[Group]:
    if not row.names:
        return [Group(row.id, (row,), "seeds")]
    return [Group(f"{row.id}:{place}", (row,), "seeds", place) for place in range(1, len(row.names) + 1)]


def chosen(view: View, index: RunIndex) -> list[Group]:
    """Return the rows of a view on all its pages, in the view's order."""
    conditions = view.conditions
    if view.group != BY_VARIANT:
        return in_order(grouped(index.choose(view.words.split(), conditions), view.group, index), view, index)
    # here each variant, and not only its run, must meet the conditions
    of_values = [each for each in conditions if each.column not in (*OWN, "tag", "alike")]
    of_runs = [each for each in conditions if each not in of_values]
    groups = grouped(index.choose(view.words.split(), of_runs), view.group, index)
    for each in of_values:
        values = index.values(each.column)
        groups = [group for group in groups if _meets(cell_of(group, each.column, values, {}), each)]
    return in_order(groups, view, index)


def _meets(cell: Cell, of: Condition) -> bool:
    """Return whether a cell meets a condition, by the same rules as in the index."""
    number = cell.mean if cell.text is None else number_in(cell.text)
    wanted = number_in(of.value)
    if of.is_ == "~":
        return cell.text is not None and of.value.lower() in cell.text.lower()
    if of.is_ in ("=", "!="):
        equal = cell.text == of.value or (wanted is not None and number == wanted)
        return equal == (of.is_ == "=")
    return number is not None and wanted is not None and _ORDERS[of.is_](number, wanted)


_ORDERS: Mapping[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


def _text(row: Row, column: str, values: Mapping[int, Value]) -> str:
    if column in OWN:
        return str(getattr(row, column) or "")
    cell = _own_cell(values)
    return cell.text if cell.text is not None else "" if cell.mean is None else f"{cell.mean:.6g}"


Values: TypeAlias = Mapping[int, Mapping[int, Value]]
"""The values of a column, by run and variant."""


def cell_of(group: Group, column: str, values: Values, deciding: Mapping[str, Values]) -> Cell:
    """Return a group's value of a setting or metric.

    Args:
        group: the group.
        column: the column.
        values: its values.
        deciding: the values of the columns that decide which variant is the best.
    """
    if group.one is not None:
        return _own_cell(values.get(group.one.key, {}))
    if group.variant:
        of_run = values.get(group.newest.key, {})
        value = of_run.get(group.variant) or (of_run.get(0) if column.startswith(SETTINGS) else None)
        return _own_cell({} if value is None else {0: value})
    if column.startswith(SETTINGS):
        texts = dict.fromkeys(text for row in group.rows for text in _texts(values.get(row.key, {})))
        return Cell(_several(list(texts)), number=len(texts))
    if group.over == "runs":
        means = [own.number for row in group.rows if (own := values.get(row.key, {}).get(0)) and own.number is not None]
        return _pooled([(mean, None, 1) for mean in means], interval=False)
    counted = _disjoint(group.rows)
    variant = _best_variant(group, counted, deciding)
    return _pooled([part for row in counted if (part := _part(values.get(row.key, {}).get(variant)))])


def best_of(group: Group, deciding: Mapping[str, Values]) -> int:
    """Return the place, from 1 on, of a group's best or selected variant; 0 if its runs have a single variant."""
    return group.variant or _best_variant(group, _disjoint(group.rows), deciding)


Part: TypeAlias = tuple[float, float | None, int]
"""A mean over seeds, the standard deviation between seeds, and the number of seeds."""


def _part(value: Value | None) -> Part | None:
    return None if value is None or value.number is None else (value.number, value.deviation, value.seeds or 1)


def _disjoint(rows: Iterable[Row]) -> list[Row]:
    """Return the runs that share no seed with an earlier one, because a repeated seed only repeats its result."""
    seen: set[int] = set()
    found = []
    for row in rows:
        seeds = seeds_of(row)
        if seen.isdisjoint(seeds):
            seen.update(seeds)
            found.append(row)
    return found


def _best_variant(group: Group, rows: Sequence[Row], deciding: Mapping[str, Values]) -> int:
    values = deciding.get(group.newest.decides or "", {})
    variants = sorted({variant for row in rows for variant in values.get(row.key, {})} - {0})
    means = {
        variant: mean
        for variant in variants
        if (mean := _pooled([p for row in rows if (p := _part(values.get(row.key, {}).get(variant)))]).mean) is not None
    }
    if not means:
        return 0
    return (max if group.newest.upwards else min)(means, key=lambda variant: means[variant])


def _pooled(parts: Sequence[Part], interval: bool = True) -> Cell:
    """Return the mean over all seeds of several runs, and half its 95 % t interval, from each run's mean and deviation.

    Without ``interval`` the spread is the standard deviation.
    """
    number = sum(n for _, _, n in parts)
    if not number:
        return Cell(None)
    mean = sum(n * m for m, _, n in parts) / number
    if number == 1 or any(n > 1 and deviation is None for _, deviation, n in parts):
        return Cell(None, mean, None, number)
    squares = sum((n - 1) * (deviation or 0.0) ** 2 + n * (m - mean) ** 2 for m, deviation, n in parts)
    deviation = math.sqrt(squares / (number - 1))
    return Cell(None, mean, t_quantile(number - 1) * deviation / math.sqrt(number) if interval else deviation, number)


def _own_cell(values: Mapping[int, Value]) -> Cell:
    own = values.get(0)
    if own is None:
        texts = list(dict.fromkeys(_texts(values)))
        return Cell(_several(texts), number=len(texts))
    if own.text is not None:
        return Cell(own.text, number=1)
    part = _part(own)
    return _pooled([part]) if part else Cell(None)


def _texts(values: Mapping[int, Value]) -> list[str]:
    return [value.text for value in values.values() if value.text is not None]


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending integers as a text, with three or more consecutive ones as a range."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    texts = [f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows]
    return ", ".join(texts[:_MOST_RANGES]) + (" …" if len(texts) > _MOST_RANGES else "")


_MOST_RANGES = 8

_NAMED = 3
"""Maximum number of values that a cell names; further values are only counted."""


def _several(texts: Sequence[str]) -> str | None:
    if not texts:
        return None
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more


def in_order(groups: Sequence[Group], view: View, index: RunIndex) -> list[Group]:
    """Return groups in the order of a view; those without a value come last."""
    if not view.sort:
        return list(reversed(groups)) if view.backwards else list(groups)
    if view.sort in OWN:
        keys = {group.key: getattr(group.newest, view.sort) for group in groups}
        keys = {key: value.lower() if isinstance(value, str) else value for key, value in keys.items()}
    else:
        values, deciding = index.values(view.sort), deciding_of(groups, index)
        keys = {group.key: _sort_key(cell_of(group, view.sort, values, deciding)) for group in groups}
    having = [group for group in groups if keys[group.key] is not None]
    having.sort(key=lambda group: _comparable(keys[group.key]), reverse=view.backwards)
    return having + [group for group in groups if keys[group.key] is None]


def deciding_of(groups: Sequence[Group], index: RunIndex) -> dict[str, Values]:
    """Return, for the groups of several runs, the values of the metrics by which the best variants are selected."""
    several = [group for group in groups if group.one is None and group.over == "seeds" and not group.variant]
    names = {group.newest.decides for group in several if group.newest.decides}
    keys = [row.key for group in several for row in group.rows]
    return {name: index.values(name, keys) for name in names}


def _sort_key(cell: Cell) -> float | str | None:
    return cell.mean if cell.text is None else cell.text


def _comparable(value: Any) -> tuple[int, Any]:
    """Return a key that sorts numbers, also those in texts, before other texts."""
    try:
        return 0, float(value)
    except ValueError:
        return 1, str(value).lower()
