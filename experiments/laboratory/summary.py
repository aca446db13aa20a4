"""The summary of an experiment: each variant's mean over seeds with a band, differences in pairs, and the best variant.

The best mean alone doesn't show that a variant is the best, because even among equal variants one has the best mean by
chance. A variant is *shown* to be the best if its difference from every other, seed by seed, is significant
(:func:`significant_pairs`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr, replace

from fedping.experiments.laboratory.results import BINNED, Outcome, RunFolder
from fedping.experiments.laboratory.tallies import better
from fedping.experiments.run_folder import read_whole
from fedping.protocol.notation import with_minus

CONFIDENCE = 0.95


class Band(Struct, frozen=True):
    """The mean over ``seeds`` repetitions, and half the width of its 95 % t interval.

    ``half`` is null with fewer than two repetitions. Runs whose value is undefined are left out and not counted.
    """

    mean: float | None
    half: float | None
    seeds: int


def band(values: Sequence[float]) -> Band:
    """Return the band of the values of independent repetitions; NaN stands for undefined."""
    known = np.array([value for value in values if not np.isnan(value)], dtype=np.float64)
    n = len(known)
    if n == 0:
        return Band(None, None, 0)
    mean = float(known.mean())
    return Band(mean, t_quantile(n - 1) * float(known.std(ddof=1)) / n**0.5 if n > 1 else None, n)


def t_quantile(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def paired_by_seed(
    ours: Iterable[Outcome], theirs: Iterable[Outcome], split: str, metric: str
) -> list[tuple[float, float]]:
    """Return a metric's pairs (ours, theirs), one per seed: the means over the folds in which both have it."""
    return paired(ours, theirs, lambda one: one.final.get(split, {}).get(metric))


def paired(
    ours: Iterable[Outcome], theirs: Iterable[Outcome], value: Callable[[Outcome], float | None]
) -> list[tuple[float, float]]:
    """Return a value's pairs (ours, theirs), one per seed: the means over the folds in which both have it."""
    others = {(other.seed, other.fold): other for other in theirs}
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for one in ours:
        other = others.get((one.seed, one.fold))
        x, y = (None if each is None else value(each) for each in (one, other))
        if x is not None and y is not None:
            by_seed.setdefault(one.seed, []).append((x, y))
    return [(_mean([x for x, _ in some]), _mean([y for _, y in some])) for some in by_seed.values()]


def difference(pairs: list[tuple[float, float]]) -> Band:
    """Return the mean of b - a over the pairs (a, b), with its 95 % t interval."""
    return band([b - a for a, b in pairs])


def p_value(apart: Band) -> float | None:
    """Return the two-sided p-value of the paired t test, given the mean difference with its interval.

    None for a single pair. Differences that are all the same number other than 0 have p = 0.
    """
    from scipy.special import stdtr

    if apart.mean is None or apart.half is None:
        return None
    if apart.half == 0:
        return 0.0 if apart.mean else 1.0
    degrees = apart.seeds - 1
    return float(2 * stdtr(degrees, -abs(apart.mean) * t_quantile(degrees) / apart.half))


def significant_pairs(apart: Band) -> bool:
    """Return whether the interval of a difference excludes 0; False for a single pair, which has no interval."""
    return apart.half is not None and apart.mean is not None and abs(apart.mean) > apart.half


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


MOST_NAMED = 3
"""Maximum number of variants that a note names; for more variants, it gives their number."""


class VariantSummary(Struct, frozen=True, kw_only=True):
    """One variant or baseline over its repetitions: by split and metric, the mean and its band.

    ``to_target`` is the number of rounds to the target, over the runs that reached it. With a [clock], simulated hours
    are added: of the runs, and until the target.
    """

    runs: int
    rounds: Band
    update_bytes: Band = Band(None, None, 0)
    metrics: dict[str, dict[str, Band]]
    to_target: Band = Band(None, None, 0)
    posted_bytes: Band = Band(None, None, 0)
    fetched_bytes: Band = Band(None, None, 0)
    uplink_bytes: Band | UnsetType = UNSET
    simulated_hours: Band | UnsetType = UNSET
    hours_to_target: Band | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.uplink_bytes is not UNSET:  # as an earlier fedping called them
            force_setattr(self, "update_bytes", self.uplink_bytes)
            force_setattr(self, "uplink_bytes", UNSET)


class Summary(Struct, frozen=True, kw_only=True):
    """The summary of a whole experiment.

    ``metric`` on the split ``chosen_on`` decides which variant is ``best``. That split is the validation examples if
    there are any, so that the metrics of ``split`` measure a choice made without them. A variant without any published
    version is never the best. ``shown`` are the metrics for a table. Bands are 95 % t intervals of the mean over seeds;
    the folds of a seed count as one repetition, by their mean. ``notes`` are what a reader should know about the
    variants.

    ``target`` is the value of ``metric`` that ends the count of rounds, if any. ``untrained`` are the variants whose
    rounds published no version.

    ``level`` has, by split and metric, the best variant and the variants that can't be distinguished from it: the 95 %
    t interval of their difference from the best over the common seeds contains 0, uncorrected for the number of
    variants. One seed cannot distinguish variants.
    """

    name: str
    digest: str
    seeds: tuple[int, ...]
    metric: str
    split: str
    shown: tuple[str, ...]
    best: str | None
    notes: tuple[str, ...]
    variants: dict[str, VariantSummary]
    baselines: dict[str, VariantSummary]
    level: dict[str, dict[str, tuple[str, ...]]]
    chosen_on: str = "test"
    target: float | None = None
    untrained: tuple[str, ...] = ()

    @property
    def all_diverged(self) -> bool:
        """Whether no variant has a metric because all runs diverged; False without variants."""
        return bool(self.variants) and not any(row.metrics for row in self.variants.values())

    @property
    def timed(self) -> bool:
        """Whether any variant has simulated time."""
        return any(row.simulated_hours for row in self.variants.values())


def read_summary(out: Path) -> Summary | None:
    """Return the summary of a finished experiment, with its runs' current notes; None if there is none.

    Raises:
        DamagedRun: a file has other contents.
    """
    summary = read_whole(out / "summary.json", Summary)
    if summary is None or any(BINNED in note for note in summary.notes):
        return summary
    binned = [name for name in summary.variants if any(one.has_binned_auc for one in _finished(out / "runs" / name))]
    if not binned:
        return summary
    return replace(summary, notes=(*summary.notes, f"{_together(binned, len(summary.variants))}: {BINNED}"))


def _finished(variant: Path) -> Iterator[Outcome]:
    yield from (outcome for path in variant.glob("*/") if (outcome := RunFolder(path).finished()) is not None)


def variant_summary(outcomes: Sequence[Outcome]) -> VariantSummary:
    """Return the summary of one variant's runs."""
    splits: dict[str, list[str]] = {}
    for outcome in outcomes:
        for split, metrics in outcome.final.items():
            known = splits.setdefault(split, [])
            known.extend(name for name in metrics if name not in known)
    timed = any(one.simulated_hours is not UNSET for one in outcomes)
    return VariantSummary(
        runs=len(outcomes),
        rounds=band(_by_seed(outcomes, lambda one: float(one.rounds))),
        update_bytes=band(_by_seed(outcomes, lambda one: float(one.update_bytes))),
        posted_bytes=band(_by_seed(outcomes, lambda one: _known(one.posted_bytes))),
        fetched_bytes=band(_by_seed(outcomes, lambda one: _known(one.fetched_bytes))),
        to_target=band(_by_seed(outcomes, lambda one: _known(one.to_target))),
        simulated_hours=band(_by_seed(outcomes, lambda one: _timed(one.simulated_hours))) if timed else UNSET,
        hours_to_target=band(_by_seed(outcomes, lambda one: _timed(one.hours_to_target))) if timed else UNSET,
        metrics={
            split: {name: band(_by_seed(outcomes, _final(split, name))) for name in names}
            for split, names in splits.items()
        },
    )


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """The criteria of a summary.

    Attributes:
        seeds: the seeds of the runs.
        shown: the metrics for a table; the first determines the best variant.
        split: the split on which variants are compared.
        target: the value of the deciding metric that ends the count of rounds; None without one.
    """

    seeds: Sequence[int]
    shown: Sequence[str]
    split: str
    target: float | None = None


def summarised(
    name: str,
    digest: str,
    criteria: Criteria,
    variants: Mapping[str, Sequence[Outcome]],
    baselines: Mapping[str, Sequence[Outcome]],
) -> Summary:
    """Return the summary of the finished runs of an experiment with this name and digest."""
    seeds, shown, split, target = criteria.seeds, criteria.shown, criteria.split, criteria.target
    rows = {variant: variant_summary(outcomes) for variant, outcomes in variants.items()}
    trained = {name: row for name, row in rows.items() if _made_versions(variants[name])}
    chosen_on = _split_to_choose_on(rows, split, shown[0])
    if not any(split in row.metrics for row in rows.values()):
        split = chosen_on  # nothing was tested; the notes say so
    best = best_of(trained, chosen_on, shown[0])
    return Summary(
        name=name,
        digest=digest,
        seeds=tuple(seeds),
        metric=shown[0],
        split=split,
        shown=tuple(shown),
        best=best,
        notes=(*_notes(variants), *_note_of_choice(best, len(trained), chosen_on, split)),
        variants=rows,
        baselines={baseline: variant_summary(outcomes) for baseline, outcomes in baselines.items()},
        level=_level(trained, {name: variants[name] for name in trained}),
        chosen_on=chosen_on,
        target=target,
        untrained=tuple(name for name in rows if name not in trained),
    )


def _made_versions(outcomes: Sequence[Outcome]) -> bool:
    return not outcomes or any(one.versions != 0 or one.rounds == 0 for one in outcomes)


def _split_to_choose_on(rows: Mapping[str, VariantSummary], split: str, metric: str) -> str:
    """Return the split of validation examples if every measured variant has the metric there, else ``split``."""
    measured = [row.metrics for row in rows.values() if row.metrics]
    validation = "personal_validation" if split == "personal" else "validation"
    known = [metrics.get(validation, {}).get(metric) for metrics in measured]
    return validation if known and all(splits and splits.mean is not None for splits in known) else split


def _note_of_choice(best: str | None, variants: int, chosen_on: str, split: str) -> Iterator[str]:
    if best is not None and variants > 1 and chosen_on == split:
        yield (
            f"the best of {variants} variants was chosen on {_EXAMPLES.get(split, f'the {split} examples')}, so its "
            "score there is optimistic; "
            "set validation in [data], such as validation = 0.1, to choose on others"
        )


_EXAMPLES = {"personal": "the examples of the evaluation of clients' own models"}


def _notes(variants: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """Yield each note once, with the variants and, unless it is the same in all, the seeds that it concerns.

    If notes of different seeds differ only in figures or in the list after a colon, only the first is given.
    """
    whose: dict[tuple[str, str], list[str]] = {}
    for name, outcomes in variants.items():
        for seeds_and_note in _notes_of(outcomes):
            whose.setdefault(seeds_and_note, []).append(name)
    for (seeds, note), names in whose.items():
        yield f"{_together(names, len(variants))}{seeds}: {note}"


_FIGURE = re.compile(r"\d[\d,.]*(?:e[+-]?\d+)?")


def _notes_of(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Yield (seeds, note) for each note of a variant; the seeds are a text such as " (seed 1)", empty for all runs."""
    alike: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for one in outcomes:
        nth: Counter[str] = Counter()  # two notes of one run stay two
        for note in dict.fromkeys(one.notes):
            head = _FIGURE.sub("#", note.partition(": ")[0])
            alike.setdefault((head, nth[head]), []).append((one.seed, note))
            nth[head] += 1
    for found in alike.values():
        note = found[0][1]
        same = list(dict.fromkeys(seed for seed, text in found if text == note))
        others = list(dict.fromkeys(seed for seed, text in found if text != note and seed not in same))
        if all(text == note for _, text in found):
            yield "" if len(found) == len(outcomes) else f" ({_seeds(same)})", note
        else:
            yield f" ({_seeds(same)}; similar with {_seeds(others) if others else 'other folds'})", note


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > _SEEDS_NAMED:
        return f"{len(seeds)} seeds"
    *others, last = map(str, seeds)
    return f"seeds {', '.join(others)} and {last}" if others else f"seed {last}"


_SEEDS_NAMED = 8
"""Maximum number of seeds that a note names; for more seeds, it gives their number."""


def _together(names: Sequence[str], of: int) -> str:
    if len(names) == of > 1:
        return "all variants"
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} of {of} variants"


def _level(
    rows: Mapping[str, VariantSummary], variants: Mapping[str, Sequence[Outcome]]
) -> dict[str, dict[str, tuple[str, ...]]]:
    columns = dict.fromkeys(
        (split, metric) for row in rows.values() for split, found in row.metrics.items() for metric in found
    )
    level: dict[str, dict[str, tuple[str, ...]]] = {}
    for split, metric in columns:
        best = best_of(rows, split, metric)
        if best is not None:
            level.setdefault(split, {})[metric] = tuple(
                name for name in variants if _is_level(variants[best], variants[name], split, metric)
            )
    return level


def _is_level(best: Sequence[Outcome], other: Sequence[Outcome], split: str, metric: str) -> bool:
    apart = difference(paired_by_seed(best, other, split, metric))
    return apart.mean is not None and not significant_pairs(apart)


def best_of(rows: Mapping[str, VariantSummary], split: str, metric: str) -> str | None:
    """Return the variant with the best mean of a metric, the first if tied; None if no variant has the metric."""
    means, value = None, math.nan
    for variant, row in rows.items():
        mean = row.metrics.get(split, {}).get(metric, Band(None, None, 0)).mean
        if mean is not None and better(metric, mean, value):
            means, value = variant, mean
    return means


def _final(split: str, metric: str) -> Callable[[Outcome], float]:
    def value(outcome: Outcome) -> float:
        metric_value = outcome.final.get(split, {}).get(metric)
        return math.nan if metric_value is None else metric_value

    return value


def _known(count: int | None) -> float:
    return math.nan if count is None else float(count)


def _timed(hours: float | UnsetType | None) -> float:
    return hours if isinstance(hours, float) else math.nan


def _by_seed(outcomes: Iterable[Outcome], value: Callable[[Outcome], float]) -> list[float]:
    """Return one value per seed, the mean over its folds."""
    by_seed: dict[int, list[float]] = {}
    for outcome in outcomes:
        by_seed.setdefault(outcome.seed, []).append(value(outcome))
    return [math.fsum(values) / len(values) for values in by_seed.values()]


SHOWN, LEADS, LEVEL = "★", "☆", "≈"
"""Marks: shown to be the best; best mean, but not shown to be the best; not distinguishable from the latter."""

MEANINGS = (
    f"{SHOWN} is shown to be the best, {LEADS} has the best mean without being shown to be the best, and {LEVEL} "
    f"can't be distinguished from {LEADS}: the 95 % t interval of their difference, seed by seed, includes 0"
)

LEGEND = (
    f"{SHOWN} shown to be the best, {LEADS} best mean but not shown to be the best, {LEVEL} can't be distinguished "
    f"from {LEADS}"
)
""":data:`MEANINGS` in a few words."""

NO_QUALITY = frozenset({"gain", "attack", "privacy", "graph"})
"""The splits that don't measure a model's quality, so no variant is the best by them. For example, a poor shared
model leaves more to gain."""

_WRITTEN = {"auc": "AUC", "f1": "F1", "mse": "MSE", "rmse": "RMSE", "mae": "MAE", "r2": "R²"}

NAMED_AT_MOST = 3
"""Maximum number of variants that are named; for more variants, their number is given."""


def shown_as(metric: str) -> str:
    """Return a metric's name for display, such as "AUC" or "F1 of 3"."""
    head, *rest = metric.split("_")
    return " ".join([_WRITTEN.get(head, head), *rest])


def of_split(split: str) -> str:
    """Return a phrase for the examples of a split, as part of a sentence."""
    if split == "personal":
        return "with the clients' own models"
    if split == "personal_validation":
        return "with the clients' own models on the validation examples"
    return f"on the {split.replace('_', ' ')} examples"


def told(band: Band | None) -> str:
    """Return a text of a mean with its interval."""
    if band is None or band.mean is None:
        return "–"
    return with_minus(f"{band.mean:.4f}") + ("" if band.half is None else f" ± {band.half:.4f}")


@dataclass(frozen=True)
class Standing:
    """The standing of the variants by one metric on one split.

    Attributes:
        split: the examples.
        metric: the metric.
        best: the variant with the best mean; None if no variant has a mean.
        mean: that mean, with its band.
        level: the remaining variants that can't be distinguished from it.
        worse: the variants that can be distinguished from the best.
        undefined: the variants without a value, as after training that diverged.
        repeated: whether there was more than one seed; one seed cannot distinguish variants.
        untrained: the variants whose rounds published no version; they are not compared.
        tested: the split of the test examples and the best variant's mean there, if it was chosen on other examples.
    """

    split: str
    metric: str
    best: str | None
    mean: Band | None
    level: tuple[str, ...]
    worse: tuple[str, ...]
    undefined: tuple[str, ...]
    repeated: bool
    untrained: tuple[str, ...] = ()
    tested: tuple[str, Band | None] | None = None

    @property
    def shown(self) -> bool:
        """Whether the best variant is shown to be the best: others exist, and it can be distinguished from each."""
        return self.best is not None and bool(self.worse) and not self.level

    def mark(self, variant: str) -> str:
        """Return a variant's mark; empty if the variant is worse, or if variants can't be compared."""
        if self.split in NO_QUALITY:
            return ""
        if variant == self.best and (self.worse or self.level):
            return SHOWN if self.shown else LEADS
        return LEVEL if variant in self.level and self.repeated else ""

    @property
    def sentence(self) -> str:
        """Return a sentence that names the best variant, or reports that none is shown to be the best."""
        text = self._judged()
        if self.best is not None and self.tested is not None:
            split, mean = self.tested
            of = of_split(split)
            text += f" {of[0].upper()}{of[1:]} {self.best} has {told(mean)}."
        if self.untrained:
            text += f" {_named(self.untrained)} published no version."
        return text

    def _judged(self) -> str:
        if self.best is None:
            return "No variant can be compared; the notes say why."
        metric, mean = shown_as(self.metric), f"{told(self.mean)} {of_split(self.split)}"
        diverged = f" {_counted(self.undefined)} diverged." if self.undefined else ""
        if not self.level and not self.worse:
            return f"{self.best} has {_article(metric)} {metric} of {mean}.{diverged}"
        if self.shown:
            others = f"the other {len(self.worse)} variants" if len(self.worse) > 1 else self.worse[0]
            each = "each of " if len(self.worse) > 1 else ""
            return (
                f"{self.best} has the best {metric}, {mean}, and differs significantly from {each}{others}.{diverged}"
            )
        if not self.repeated:
            return (
                f"{self.best} has the best {metric} in the only seed, {mean}. One seed can't show which variant is "
                f"the best.{diverged}"
            )
        rest = f"; {_named(self.worse)} {'is' if len(self.worse) == 1 else 'are'} worse" if self.worse else ""
        return (
            f"No variant is shown to be the best by {metric}: {self.best} has the best mean, {mean}, but "
            f"{_named(self.level)} can't be distinguished from it{rest}.{diverged}"
        )


def standing(summary: Summary, split: str | None = None, metric: str | None = None) -> Standing:
    """Return the standing of a summary's variants by a metric on a split; by default the deciding ones."""
    tested = None
    if split is None and summary.chosen_on != summary.split:
        tested = summary.split
    split, metric = split or summary.chosen_on or summary.split, metric or summary.metric
    rows = {name: row for name, row in summary.variants.items() if name not in summary.untrained}
    best = best_of(rows, split, metric)
    bands = {name: row.metrics.get(split, {}).get(metric) for name, row in rows.items()}
    level = summary.level.get(split, {}).get(metric, ())
    others = [name for name in bands if name != best]
    defined = [name for name in others if (band := bands[name]) is not None and band.mean is not None]
    mean = None if best is None else bands[best]
    repeated = mean is not None and mean.seeds > 1
    return Standing(
        split=split,
        metric=metric,
        best=best,
        mean=mean,
        level=tuple(name for name in defined if name in level or not repeated),
        worse=tuple(name for name in defined if name not in level and repeated),
        undefined=tuple(name for name in others if name not in defined),
        repeated=repeated,
        untrained=summary.untrained,
        tested=None if best is None or tested is None else (tested, rows[best].metrics.get(tested, {}).get(metric)),
    )


def _counted(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} others"


def _named(names: tuple[str, ...]) -> str:
    if len(names) > NAMED_AT_MOST:
        return f"{len(names)} others"
    if any("," in name for name in names):
        return "; and ".join(["; ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _article(word: str) -> str:
    return "an" if word[0] in "aeioAFMR" else "a"
