"""All runs together: each variant's mean and band, and the best variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr, replace

from fedping.experiments.laboratory.evaluation import better
from fedping.experiments.laboratory.results.folder import BINNED, Outcome, RunFolder
from fedping.experiments.laboratory.results.paired import Band, band, difference, paired_by_seed, significant_pairs
from fedping.experiments.run_folder import read_whole

MOST_NAMED = 3
"""The most variants that a note names; of more, it gives the number."""


class VariantSummary(Struct, frozen=True, kw_only=True):
    """One variant or baseline over its repetitions: by split and metric, the mean and its band.

    ``to_target`` is the number of rounds to the target, over the runs that reached it.
    """

    runs: int
    rounds: Band
    update_bytes: Band = Band(None, None, 0)
    metrics: dict[str, dict[str, Band]]
    to_target: Band = Band(None, None, 0)
    posted_bytes: Band = Band(None, None, 0)
    fetched_bytes: Band = Band(None, None, 0)
    uplink_bytes: Band | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.uplink_bytes is not UNSET:  # as an earlier fedping called them
            force_setattr(self, "update_bytes", self.uplink_bytes)
            force_setattr(self, "uplink_bytes", UNSET)


class Summary(Struct, frozen=True, kw_only=True):
    """A whole experiment.

    ``metric`` on the split ``chosen_on`` decides which variant is ``best``. That split is the validation examples if
    there are any, so that those of ``split`` judge a choice made without them. A variant whose rounds made no version
    is never the best. ``shown`` are the metrics for a table. Bands are 95 % t intervals of the mean over seeds; the
    folds of a seed count as one repetition, by their mean. ``notes`` are what a reader should know about the variants.

    ``target`` is the value of ``metric`` up to which rounds are counted, if any. ``untrained`` are the variants whose
    rounds made no version.

    ``level`` is, by split and metric, the best variant and those that cannot be told apart from it: the 95 % t interval
    of the difference over the seeds of both contains 0, for each separately, uncorrected for the number of variants.
    One seed cannot tell variants apart.
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


def read_summary(out: Path) -> Summary | None:
    """Return the summary of a finished experiment, with the notes that its runs have by now; None if there is none.

    Raises:
        DamagedRun: a file holds something else.
    """
    summary = read_whole(out / "summary.json", Summary)
    if summary is None or any(BINNED in note for note in summary.notes):
        return summary
    binned = [name for name in summary.variants if any(one.has_binned_auc for one in _finished(out / "runs" / name))]
    if not binned:
        return summary
    return replace(summary, notes=(*summary.notes, f"{_together(binned, len(summary.variants))}: {BINNED}"))


def _finished(variant: Path) -> Iterator[Outcome]:
    yield from (found for path in variant.glob("*/") if (found := RunFolder(path).finished()) is not None)


def variant_summary(outcomes: Sequence[Outcome]) -> VariantSummary:
    """Return the summary of one variant's runs."""
    splits: dict[str, list[str]] = {}
    for outcome in outcomes:
        for split, metrics in outcome.final.items():
            known = splits.setdefault(split, [])
            known.extend(name for name in metrics if name not in known)
    return VariantSummary(
        runs=len(outcomes),
        rounds=band(_by_seed(outcomes, lambda one: float(one.rounds))),
        update_bytes=band(_by_seed(outcomes, lambda one: float(one.update_bytes))),
        posted_bytes=band(_by_seed(outcomes, lambda one: _known(one.posted_bytes))),
        fetched_bytes=band(_by_seed(outcomes, lambda one: _known(one.fetched_bytes))),
        to_target=band(_by_seed(outcomes, lambda one: _known(one.to_target))),
        metrics={
            split: {name: band(_by_seed(outcomes, _final(split, name))) for name in names}
            for split, names in splits.items()
        },
    )


def summarised(
    name: str,
    digest: str,
    seeds: Sequence[int],
    shown: Sequence[str],
    split: str,
    variants: Mapping[str, Sequence[Outcome]],
    baselines: Mapping[str, Sequence[Outcome]],
    target: float | None = None,
) -> Summary:
    """Return the summary of finished runs, judged on ``split``; the first metric shown decides which is the best."""
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
    """Return the validation examples if every measured variant has the metric there, else the split itself."""
    measured = [row.metrics for row in rows.values() if row.metrics]
    validation = "personal_validation" if split == "personal" else "validation"
    known = [metrics.get(validation, {}).get(metric) for metrics in measured]
    return validation if known and all(found and found.mean is not None for found in known) else split


def _note_of_choice(best: str | None, variants: int, chosen_on: str, split: str) -> Iterator[str]:
    if best is not None and variants > 1 and chosen_on == split:
        yield (
            f"the best of {variants} variants was chosen on {_EXAMPLES.get(split, f'the {split} examples')}, so its "
            "score there is optimistic; "
            "set validation in [data], such as validation = 0.1, to choose on others"
        )


_EXAMPLES = {"personal": "the examples by which clients' own models are judged"}


def _notes(variants: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """Yield each note once, with the variants that it concerns."""
    whose: dict[str, list[str]] = {}
    for name, outcomes in variants.items():
        for said in dict.fromkeys(said for one in outcomes for said in one.notes):
            whose.setdefault(said, []).append(name)
    for said, names in whose.items():
        yield f"{_together(names, len(variants))}: {said}"


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
    """Return the variant with the best mean of a metric, the first of ties; None if none has any."""
    found, value = None, math.nan
    for variant, row in rows.items():
        mean = row.metrics.get(split, {}).get(metric, Band(None, None, 0)).mean
        if mean is not None and better(metric, mean, value):
            found, value = variant, mean
    return found


def _final(split: str, metric: str) -> Callable[[Outcome], float]:
    def value(outcome: Outcome) -> float:
        found = outcome.final.get(split, {}).get(metric)
        return math.nan if found is None else found

    return value


def _known(count: int | None) -> float:
    return math.nan if count is None else float(count)


def _by_seed(outcomes: Iterable[Outcome], value: Callable[[Outcome], float]) -> list[float]:
    """Return one value per seed, the mean over its folds."""
    found: dict[int, list[float]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.seed, []).append(value(outcome))
    return [math.fsum(values) / len(values) for values in found.values()]
