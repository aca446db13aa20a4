"""Two finished runs side by side: differences over paired repetitions, with a band around their mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType

from fedping.experiments.laboratory.latex import banded, escaped, mean_of, number, p_cell, table
from fedping.experiments.laboratory.results import BINNED, ESTIMATED, Outcome, RunFolder
from fedping.experiments.laboratory.summary import (
    NO_QUALITY,
    Band,
    difference,
    p_value,
    paired,
    paired_by_seed,
    significant_pairs,
)
from fedping.experiments.laboratory.tallies import higher_is_better, is_of_class
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import local_path

_ROUNDING = 1e-12
"""Maximum relative difference that a different order of summation can cause."""


class Difference(Struct, frozen=True, kw_only=True):
    """One metric of one split: the mean of each run, and of b - a over the paired seeds with its 95 % t interval.

    ``better`` is "a" or "b" if the interval excludes 0, else null; it is also null for a metric that does not say which
    model is better, such as ``gain``: a poor shared model leaves more to gain. ``percent`` is the mean difference in
    percent of the mean of a; null if that mean is 0, if the difference is only rounding, and for ``gain``, which is a
    difference itself. ``p`` is the two-sided p-value of the paired t test, for this metric by itself; null for a single
    seed. The split "bytes" has the bytes transferred in all rounds: `update`, `posted` and `fetched`
    (:class:`Outcome`); "time" has the simulated hours of runs with a [clock].

    ``estimated`` is true for bytes that at least one of the runs estimates. ``better`` and ``p`` are then null, because
    the difference may come from the estimates.
    """

    split: str
    metric: str
    a: float
    b: float
    difference: Band
    better: str | None
    percent: float | None = None
    p: float | None = None
    estimated: bool | UnsetType = UNSET


class Comparison(Struct, frozen=True, kw_only=True):
    """Two variants compared over their common seeds; ``notes`` are warnings about the figures, if any."""

    a: str
    b: str
    seeds: tuple[int, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] | UnsetType = UNSET

    @property
    def overall(self) -> tuple[Difference, ...]:
        """The differences for a table: all but those of single classes' metrics, such as ``recall_of_7``."""
        return tuple(each for each in self.differences if not is_of_class(each.metric))

    def to_latex(self) -> str:
        """Return the table for a paper, in LaTeX, as ``fedping compare --latex`` writes it.

        Each metric but those of single classes has a row: the mean difference, its interval and its p-value.
        """
        rows = []
        for each in self.overall:
            digits = 0 if each.split == "bytes" else 4
            apart = banded(each.difference, digits, signed=True)
            cells = [f"{each.split} {each.metric}", number(each.a, digits), number(each.b, digits), apart]
            p = "" if each.split in NO_QUALITY or not isinstance(each.p, float) else p_cell(each.p)
            rows.append([escaped(cells[0]), *cells[1:], p])
        words = (
            f"$a$: {escaped(self.a)}; $b$: {escaped(self.b)}; {mean_of(len(self.seeds))}. $p$: paired "
            "$t$ test over the seeds, not adjusted for the number of metrics."
        )
        words += "".join(f" {escaped(note)}." for note in self.notes or ())
        heads = ["", "$a$", "$b$", "$b - a$", "$p$"]
        return table(heads, [rows], words, f"{self.a} {self.b}", "")


def compared(a: Chosen, b: Chosen) -> Comparison:
    """Return the differences of b from a in all common metrics; the folds of a seed count as one, by their mean.

    Repetitions in which either variant has no final metrics, as after diverged training, are left out.

    Raises:
        InvalidSettings: they have no seed and fold in common, or no common one has metrics of both.
    """
    pairs = sorted(key for key in a.outcomes if key in b.outcomes)
    if not pairs:
        raise InvalidSettings(
            f"'{a.label}' and '{b.label}' have no seed in common, or other folds of it; run both with the same seeds "
            "and folds"
        )
    pairs = [key for key in pairs if a.outcomes[key].final and b.outcomes[key].final]
    if not pairs:
        diverged = [f"'{each.label}'" for each in (a, b) if not any(run.final for run in each.outcomes.values())]
        raise InvalidSettings(
            f"{' and '.join(diverged)} diverged with every seed, so there are no final metrics to compare; lower the "
            "clients' or the server's rate there"
            if diverged
            else f"with every seed either '{a.label}' or '{b.label}' diverged, so there is no seed with final metrics "
            "of both. Lower their rates"
        )
    ours, theirs = [a.outcomes[key] for key in pairs], [b.outcomes[key] for key in pairs]
    binned = {one.has_binned_auc for one in (*ours, *theirs)}
    names = [
        (split, metric)
        for split, metrics in ours[0].final.items()
        for metric in metrics
        if metric in theirs[0].final.get(split, {}) and (metric != "auc" or len(binned) == 1)
    ]
    differing = [_difference(split, metric, paired_by_seed(ours, theirs, split, metric)) for split, metric in names]
    estimated = any(one.has_estimated_traffic for one in (*ours, *theirs))
    differing += [
        _difference("bytes", name, paired(ours, theirs, attrgetter(f"{name}_bytes")), estimated and name != "update")
        for name in ("update", "posted", "fetched")
    ]
    differing += [
        _difference("time", name, paired(ours, theirs, _known(name))) for name in ("simulated_hours", "hours_to_target")
    ]
    seeds = tuple(dict.fromkeys(seed for seed, _ in pairs))
    differences = tuple(each for each in differing if each is not None)
    notes = _notes(a.label, ours, b.label, theirs, left_out=len(binned) > 1)
    return Comparison(a=a.label, b=b.label, seeds=seeds, differences=differences, notes=notes or UNSET)


def _known(name: str) -> Callable[[Outcome], float | None]:
    """Return a function that reads the figure ``name`` of an outcome's clock; None if it is missing."""
    return lambda one: None if (value := getattr(one, name)) is UNSET else value


def _notes(a: str, ours: Sequence[Outcome], b: str, theirs: Sequence[Outcome], left_out: bool) -> tuple[str, ...]:
    consequence = "; the AUC is left out" if left_out else ""
    both = ((a, ours), (b, theirs))
    binned = (
        f"{label}: {BINNED}{consequence}" for label, outcomes in both if any(one.has_binned_auc for one in outcomes)
    )
    estimated = [label for label, outcomes in both if any(one.has_estimated_traffic for one in outcomes)]
    return (*binned, *([f"{' and '.join(dict.fromkeys(estimated))}: {ESTIMATED}"] if estimated else []))


def _difference(
    split: str, metric: str, pairs: list[tuple[float, float]], estimated: bool = False
) -> Difference | None:
    """Return the difference of one metric; None without pairs, or if either variant's bytes or hours are all 0."""
    if not pairs or (split in ("bytes", "time") and not all(map(any, zip(*pairs, strict=True)))):
        return None
    apart = difference(pairs)
    a = sum(x for x, _ in pairs) / len(pairs)
    return Difference(
        split=split,
        metric=metric,
        a=a,
        b=sum(y for _, y in pairs) / len(pairs),
        difference=apart,
        better=None
        if split in NO_QUALITY or estimated
        else _better(split not in ("bytes", "time") and higher_is_better(metric), apart),
        percent=None if split == "gain" else _percent(a, apart.mean),
        p=None if estimated else p_value(apart),
        estimated=estimated or UNSET,
    )


def _percent(a: float, apart: float | None) -> float | None:
    if a == 0 or apart is None or 0 < abs(apart) < _ROUNDING * abs(a):
        return None
    return 100 * apart / abs(a)


def _better(higher: bool, apart: Band) -> str | None:
    if apart.mean is None or not significant_pairs(apart):
        return None
    return "b" if (apart.mean > 0) == higher else "a"


@dataclass(frozen=True)
class Chosen:
    """The finished runs of one variant, by seed and fold."""

    label: str
    outcomes: dict[tuple[int, int | None], Outcome]


def chosen(text: str) -> Chosen:
    """Return the runs that ``text`` names: a results folder, or ``folder:variant`` for one variant or baseline in it.

    Raises:
        InvalidSettings: there are no results, no such variant, or several to choose from; or it is not a path.
    """
    local_path(text)
    folder, variant = (Path(text), None) if Path(text).is_dir() else _parts(text)
    there = variants_in(folder)
    if not there:
        raise InvalidSettings(
            f"there are no results of a laboratory experiment in {folder}; run 'fedping simulate' first"
        )
    if variant is None:
        trained = _names(folder, "runs")
        if len(trained) != 1:
            raise InvalidSettings(f"{folder} has several variants; name one, as in '{folder}:{next(iter(there))}'")
        variant = trained[0]
    if variant not in there:
        raise InvalidSettings(f"{folder} has no variant '{variant}'; it has {', '.join(map(repr, there))}")
    runs = [RunFolder(path).finished() for path in sorted(there[variant].glob("seed-*"))]
    outcomes = {(run.seed, run.fold): run for run in runs if run is not None}
    if not outcomes:
        raise InvalidSettings(f"no run of '{variant}' in {folder} is finished. Continue it with 'fedping simulate'")
    return Chosen(f"{folder.name}: {variant}", outcomes)


def variants_in(folder: Path) -> dict[str, Path]:
    """Return the folders of the variants and the baselines, by name."""
    return {name: folder / kind / name for kind in ("runs", "baselines") for name in _names(folder, kind)}


def _names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (folder / kind).glob("*/"))


def _parts(text: str) -> tuple[Path, str | None]:
    colons = [at for at, letter in enumerate(text) if letter == ":" and Path(text[:at]).is_dir()]
    if colons:  # a variant's name may contain colons
        return Path(text[: colons[0]]), text[colons[0] + 1 :]
    folder, colon, variant = text.rpartition(":")
    return (Path(folder), variant) if colon else (Path(text), None)
