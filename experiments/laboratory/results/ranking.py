"""Which variant is the best by a metric, in one sentence and with one set of marks, wherever results are shown.

The best mean does not make the best variant: among variants that differ only by chance, one always has it. A variant is
*shown* to be the best if it can be told apart from every other, seed by seed (`told_apart` in `paired.py` beside this
file).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedping.experiments.laboratory.results.paired import Band
from fedping.experiments.laboratory.results.summary import Summary, best_of
from fedping.protocol.notation import with_minus

SHOWN, LEADS, LEVEL = "★", "☆", "≈"
"""Shown to be the best; has the best mean without being shown to be the best; cannot be told apart from that one."""

MEANINGS = (
    f"{SHOWN} is shown to be the best, {LEADS} has the best mean without being shown to be the best, and {LEVEL} "
    f"cannot be told from {LEADS}: the 95 % t interval of their difference, seed by seed, includes 0"
)

LEGEND = (
    f"{SHOWN} shown to be the best, {LEADS} best mean but not shown to be the best, {LEVEL} cannot be told from {LEADS}"
)
"""The same in a few words."""

NO_QUALITY = frozenset({"gain", "attack", "privacy", "graph"})
"""The splits that say nothing of how good a model is, so that none is the best by them: a poor shared model leaves more
to gain."""

_WRITTEN = {"auc": "AUC", "f1": "F1", "mse": "MSE", "rmse": "RMSE", "mae": "MAE", "r2": "R²"}

NAMED_AT_MOST = 3
"""Up to this many variants are named; of more, their number is given."""


def shown_as(metric: str) -> str:
    """Return a metric's name as people write it, as in "AUC" or "F1 of 3"."""
    head, *rest = metric.split("_")
    return " ".join([_WRITTEN.get(head, head), *rest])


def of_split(split: str) -> str:
    """Return what is measured on a split, as part of a sentence."""
    if split == "personal":
        return "with the clients' own models"
    if split == "personal_validation":
        return "with the clients' own models on the validation examples"
    return f"on the {split.replace('_', ' ')} examples"


def told(band: Band | None) -> str:
    """Return a mean with its interval as a text."""
    if band is None or band.mean is None:
        return "–"
    return with_minus(f"{band.mean:.4f}") + ("" if band.half is None else f" ± {band.half:.4f}")


@dataclass(frozen=True)
class Standing:
    """The standing of the variants by one metric on one split.

    Attributes:
        split: the examples.
        metric: the metric.
        best: the variant with the best mean; None if none has any.
        mean: that mean, with its band.
        level: the other variants that cannot be told apart from it.
        worse: those that can.
        undefined: those without a value, as after training that diverged.
        repeated: whether there was more than one seed; one cannot tell variants apart.
        untrained: those whose rounds made no version, which are not judged.
        tested: if the best was chosen on other examples than it is judged by, those and its mean on them.
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
        """Whether the best is shown to be the best: there are others, and it can be told apart from each."""
        return self.best is not None and bool(self.worse) and not self.level

    def mark(self, variant: str) -> str:
        """Return the mark of a variant; empty for one that is worse, and if there is nothing to compare or to mark."""
        if self.split in NO_QUALITY:
            return ""
        if variant == self.best and (self.worse or self.level):
            return SHOWN if self.shown else LEADS
        return LEVEL if variant in self.level and self.repeated else ""

    @property
    def sentence(self) -> str:
        """Return which variant is the best, or that none is shown to be."""
        said = self._judged()
        if self.best is not None and self.tested is not None:
            split, mean = self.tested
            of = of_split(split)
            said += f" {of[0].upper()}{of[1:]} {self.best} has {told(mean)}."
        if self.untrained:
            said += f" {_named(self.untrained)} made no version."
        return said

    def _judged(self) -> str:
        if self.best is None:
            return "No variant can be judged; the notes say why."
        metric, mean = shown_as(self.metric), f"{told(self.mean)} {of_split(self.split)}"
        diverged = f" {_counted(self.undefined)} diverged." if self.undefined else ""
        if not self.level and not self.worse:
            return f"{self.best} has {_article(metric)} {metric} of {mean}.{diverged}"
        if self.shown:
            others = f"the other {len(self.worse)} variants" if len(self.worse) > 1 else self.worse[0]
            each = "each of " if len(self.worse) > 1 else ""
            return f"{self.best} has the best {metric}, {mean}, and can be told from {each}{others}.{diverged}"
        if not self.repeated:
            return (
                f"{self.best} has the best {metric} in the one seed that was run, {mean}; one seed cannot show which "
                f"variant is the best.{diverged}"
            )
        rest = f"; {_named(self.worse)} {'is' if len(self.worse) == 1 else 'are'} worse" if self.worse else ""
        return (
            f"No variant is shown to be the best by {metric}: {self.best} has the best mean, {mean}, but "
            f"{_named(self.level)} cannot be told from it{rest}.{diverged}"
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
