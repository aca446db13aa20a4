"""An experiment's results as one HTML file: curves with bands, final models side by side, segments, and the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fedping.analysis.figures import PAGE, to_svg
from fedping.experiments.laboratory.report_curves import Curve, curve, draw_curves, draw_finals, over_bytes, over_hours
from fedping.experiments.laboratory.results import SPLITS, read_units
from fedping.experiments.laboratory.summary import (
    MEANINGS,
    Band,
    Summary,
    VariantSummary,
    band,
    read_summary,
    shown_as,
    standing,
    told,
)
from fedping.experiments.laboratory.tallies import better
from fedping.experiments.run_folder import write_whole
from fedping.protocol.errors import FedpingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TEMPLATE = """{% extends "base.html" %}
{% block title %}{{ summary.name }}: a laboratory experiment{% endblock %}

{% block style %}
td.best { font-weight: 650; color: var(--better); }
.mark { color: var(--soft); font-weight: 400; }
.scrolls { display: none; }
@media (max-width: 40rem) { .scrolls { display: inline; } }
tr.baseline th, tr.baseline td { color: var(--soft); }
tr th:first-child { position: sticky; left: 0; background: var(--paper); }
{% endblock %}

{% block main %}
<header>
  <p class="study">Experiment <strong>{{ summary.name }}</strong> · {{ summary.variants | counted("variant") }} ·
  {{ summary.seeds | counted("seed") }}</p>
  <h1>{{ standing.sentence }}</h1>
</header>

{% for title, svg, note in figures %}
<section aria-labelledby="figure-{{ loop.index }}">
<h2 id="figure-{{ loop.index }}">{{ title }}</h2>
<figure>
<div class="wide" tabindex="0" role="group" aria-label="{{ title }}">{{ svg }}</div>
<figcaption>{{ note }}
<span class="scrolls">The picture is wider than this screen and scrolls sideways.</span></figcaption>
</figure>
</section>
{% endfor %}

<section aria-labelledby="numbers">
<h2 id="numbers">The numbers</h2>
<div class="wide" tabindex="0" role="group" aria-label="The numbers">
<table>
<thead><tr><th scope="col"></th>
{% for split, metric in columns %}
<th scope="col" class="number">{{ metric | shown_as }}<br>{{ split.replace("_", " ") }}</th>
{% endfor %}
<th scope="col" class="number">rounds</th><th scope="col" class="number">MB of<br>updates</th>
<th scope="col" class="number">MB<br>posted</th><th scope="col" class="number">MB<br>fetched</th>
{% if summary.timed %}<th scope="col" class="number">simulated<br>hours</th>{% endif %}
{% if summary.target is not none %}
<th scope="col" class="number">rounds to<br>{{ summary.metric | shown_as }} {{ "%g" % summary.target }}</th>
{% if summary.timed %}
<th scope="col" class="number">hours to<br>{{ summary.metric | shown_as }} {{ "%g" % summary.target }}</th>
{% endif %}
{% endif %}
</tr></thead>
<tbody>
{% for name, row in summary.variants.items() %}
<tr><th scope="row">{{ standing.mark(name) }} {{ name }}</th>
{% for split, metric in columns %}
{% set mark = marks[split, metric].mark(name) %}
<td class="number{{ " best" if mark == "★" }}">
{{ mark }} {{ row.metrics.get(split, {}).get(metric) | told }}</td>
{% endfor %}
<td class="number">{{ "%.4g" % row.rounds.mean }}</td>
{% for sum in (row.update_bytes, row.posted_bytes, row.fetched_bytes) %}
<td class="number">{{ "–" if sum.mean is none else "%.4g" % (sum.mean / 1e6) }}</td>
{% endfor %}
{% if summary.timed %}
<td class="number">{{ "%.4g" % row.simulated_hours.mean if row.simulated_hours else "–" }}</td>
{% endif %}
{% if summary.target is not none %}
{% for reached in [row.to_target] + ([row.hours_to_target] if summary.timed else []) %}
<td class="number">{{ "–" if not reached else "never" if reached.mean is none else "%.4g" % reached.mean }}
{%- if reached and reached.mean is not none and reached.seeds < summary.seeds | length %} ({{ reached.seeds }} of
{{ summary.seeds | counted("seed") }}){% endif %}</td>
{% endfor %}
{% endif %}
</tr>
{% endfor %}
{% for name, row in summary.baselines.items() %}
<tr class="baseline"><th scope="row">{{ name }}</th>
{% for split, metric in columns %}
<td class="number">{{ row.metrics.get(split, {}).get(metric) | told }}</td>
{% endfor %}
<td></td><td></td><td></td><td></td>
{%- if summary.timed %}<td></td>{% endif %}
{%- if summary.target is not none %}<td></td>{% endif %}
{%- if summary.timed and summary.target is not none %}<td></td>{% endif %}</tr>
{% endfor %}
</tbody>
</table>
</div>
</section>

{% if segments is not none %}
<section aria-labelledby="segments">
<h2 id="segments">By segment</h2>
<p>The mean over the clients of a segment, each on its own test examples: {{ summary.metric | shown_as }}. A segment is
  those of one natural key, or a group of synthetic users; it is shown from {{ fewest }} clients on.</p>
<div class="wide" tabindex="0" role="group" aria-label="By segment">
<table>
<thead><tr><th scope="col"></th>
{% for name, clients in segments.clients.items() %}
<th scope="col" class="number">{{ name }}<br>{{ "%.0f" % clients }} clients</th>
{% endfor %}
</tr></thead>
<tbody>
{% for name, bands in segments.rows.items() %}
<tr{{ ' class="baseline"' | safe if name in summary.baselines }}><th scope="row">{{ name }}</th>
{% for band in bands %}
<td class="number">{{ band | told }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
</section>
{% endif %}

<section aria-labelledby="reading">
<h2 id="reading">How to read this</h2>
<ul class="notes">
  <li>Metrics are worked out from counts that clients could send: test, validation and their like are of all clients'
  examples together; local is the mean over the clients, each on its own test examples, and local worst the mean over
  the worst tenth of them.</li>
  {% if columns | selectattr(0, "equalto", "personal") | list %}
  <li>Central is the shared model, personal what each client predicts with, both the mean over the same clients, each on
  its own examples: the test examples, or of users that search anew in every round the searches that they are about to
  learn from. Gain is personal less central, and personal worst the mean over the worst tenth of the clients. In the
  column personal, the baseline local is what each client learns alone.</li>
  {% endif %}
  {% if columns | selectattr(0, "equalto", "newcomers") | list %}
  <li>Newcomers: the mean over the clients that never take part in training, each on its own test examples, by the
  shared model, beside which blocks that a method fits anew each time are fitted on their own training examples.</li>
  {% endif %}
  <li>± is half the 95 % t interval of the mean over seeds; the folds of a seed count as one repetition.</li>
  {% if summary.variants | length > 1 %}
  <li>In each column {{ meanings }}. One seed tells nothing apart. Nothing is corrected for the number of variants,
    among which the best has been chosen{% if summary.chosen_on != summary.split %}, on the validation
    examples, so that others judge what was chosen without them{% endif %};
    <code>fedping compare</code> compares any two of them.</li>
  {% endif %}
  {% if columns | selectattr(0, "equalto", "attack") | list %}
  <li>Attack: its own figures, of the version that is tested.</li>
  {% endif %}
  {% if columns | selectattr(0, "equalto", "privacy") | list %}
  <li>Privacy: ε that the rounds up to the version that is tested have spent of a client's guarantee; what a researcher
  sees here of clients, and choosing a variant by it, is not covered.</li>
  {% endif %}
  {% if columns | selectattr(0, "equalto", "graph") | list %}
  <li>Nodes: each node's own model on everybody's test examples, the mean over the nodes, and over the worst tenth; what
  stands under "test" is of the mean of all models, which nobody has. Graph: the spectral gap of one exchange, the root
  of the mean squared distance of a node's model from their mean, and the kilobytes that a node sends in a round.</li>
  {% endif %}
  <li>MB: the updates that all rounds used, as they are encoded; the bodies of all pings in which they were posted
  (compressed batches where rounds run over HTTP, else the JSON of each ping); and the versions that clients fetched,
  once a round each.</li>
  {% if summary.timed %}
  <li>Simulated hours: those that runs took by their [clock], and until they reached the target.</li>
  {% endif %}
  <li>Centralised: one learner with everybody's examples. Local: each client alone. Start: nobody learns.</li>
  {% for note in summary.notes %}
  <li>{{ note }}</li>
  {% endfor %}
</ul>
</section>
{% endblock %}
"""


MOST_CURVES = 8
"""Maximum number of lines in a picture; if there are more variants, the best are drawn."""


def write_report(out: Path, path: Path) -> Path:
    """Write the report of a finished experiment in folder ``out`` to ``path`` atomically; return the path.

    Raises:
        FedpingError: the folder has no finished experiment, or the file cannot be written.
    """
    import pyarrow.parquet as pq

    try:
        summary = read_summary(out)
        metrics = pq.read_table(out / "metrics.parquet", partitioning=None)
    except OSError as error:
        raise FedpingError(
            f"{out} has no finished experiment: {error.strerror}; run 'fedping simulate' first"
        ) from error
    if summary is None:
        raise FedpingError(f"{out} has no finished experiment: it has no summary.json; run 'fedping simulate' first")
    text = render_report(summary, metrics, segments_of(out, summary.metric))
    try:
        write_whole(path, lambda hidden: hidden.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise FedpingError(f"cannot write the report {path}: {error.strerror}; give another --html") from error
    return path


def render_report(summary: Summary, metrics: pa.Table, segments: Segments | None = None) -> str:
    """Return the report as HTML."""
    from markupsafe import Markup

    from fedping.analysis.report import report_templates

    templates = report_templates()
    templates.filters |= {"told": told, "shown_as": shown_as, "counted": counted}
    return templates.from_string(TEMPLATE).render(
        summary=summary,
        figures=[
            (title, Markup(to_svg(figure, f"f{number}", title, note)), note)
            for number, (title, figure, note) in enumerate(_figures(summary, metrics))
        ],
        columns=columns_of(summary),
        segments=segments,
        fewest=FEWEST_CLIENTS,
        standing=standing(summary),
        meanings=MEANINGS,
        marks={column: standing(summary, *column) for column in columns_of(summary)},
    )


_OWN = ("central", "personal", "newcomers", "gain", "personal_worst")
"""Splits for runs with clients' own models; tables show only the deciding metric of the last two."""

_BESIDE = ("attack", "privacy", "graph")
"""The splits whose columns follow the metrics of models."""

_VALIDATED = ("personal_validation", "validation")
"""The splits of validation examples, whose columns follow the test examples'."""


def columns_of(summary: Summary) -> list[tuple[str, str]]:
    """Return the table's columns as (split, metric): the shown metrics and the loss, on every measured split.

    They are followed by the figures of attacks, spent privacy budgets, and graphs of nodes. If clients have their own
    models, the columns of these and of the shared model come first, grouped by metric, and replace "local".
    """
    columns = [*summary.shown, *(["loss"] if "loss" not in summary.shown else [])]
    measured = {split for row in summary.variants.values() for split in row.metrics}
    own = [
        (split, metric)
        for metric in columns
        for split in (_OWN if metric == summary.metric else _OWN[:3])
        if split in measured and "personal" in measured
    ]
    elsewhere = {*_OWN, *_BESIDE, *_VALIDATED} - {"newcomers"}
    if own:
        elsewhere |= {"local", "local_worst", "newcomers"}
    tested = [split for split in SPLITS if split not in elsewhere]
    splits = [split for split in (*tested, *_VALIDATED) if split in measured]
    return [*own, *((split, metric) for split in splits for metric in columns), *columns_beside(summary)]


def columns_beside(summary: Summary) -> list[tuple[str, str]]:
    """Return the columns of attacks, spent guarantees and graphs, (split, metric), in the order of variants."""
    rows = summary.variants.values()
    return list(
        dict.fromkeys((split, metric) for split in _BESIDE for row in rows for metric in row.metrics.get(split, {}))
    )


def _has_no_gain(row: VariantSummary, metric: str) -> bool:
    """Return whether a variant's gain is exactly 0, because its clients have nothing personal."""
    gain = row.metrics["gain"][metric]
    return gain.mean == 0 and not gain.half


def counted(things: Sized, name: str) -> str:
    """Return a number of things in words, as in "1 seed" or "5 seeds"."""
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")


def _figures(summary: Summary, metrics: pa.Table) -> Iterator[tuple[str, Figure, str]]:
    names = list(summary.variants)
    best = sorted(names, key=lambda name: _order(summary, name))
    figures = [names[0], *(name for name in best if name != names[0])][:MOST_CURVES]
    first = sorted(names, key=lambda name: name not in figures)  # these variants get the colours before colours repeat
    places = {name: place for place, name in enumerate(first)}
    split = summary.split
    repeated = f"mean and 95 % t interval over {len(summary.seeds)} seeds" if len(summary.seeds) > 1 else "one seed"
    whose = "The clients' own models" if split == "personal" else f"On the {split} examples of all clients"
    note = f"{whose}; {repeated}." + (" Dashed: the baselines." if summary.baselines else "")
    if len(figures) < len(names):
        note += f" The first variant and the {len(figures) - 1} best of the others, {len(names)} in all."
    for metric in dict.fromkeys((*summary.shown, "loss")):
        curves = [curve(metrics, name, split, metric) for name in names if name in figures]
        known = [each for each in curves if each is not None and np.isfinite(each.mean).any()]
        if any(len(each.rounds) > 1 for each in known):
            lines = {name: _mean(row, split, metric) for name, row in summary.baselines.items()}
            levels = {name: value for name, value in lines.items() if value is not None}
            title = f"{shown_as(metric)} over the rounds"
            yield title, draw_curves(known, levels, places, metric, theme=PAGE), note
            if at_bytes := over_bytes(known, metrics):
                title = f"{shown_as(metric)} over the megabytes posted"
                yield title, draw_curves(at_bytes, levels, places, metric, theme=PAGE), f"{note} {_OF_BYTES}"
            if at_hours := over_hours(known, metrics):
                title = f"{shown_as(metric)} over simulated hours"
                yield title, draw_curves(at_hours, levels, places, metric, theme=PAGE), f"{note} {_OF_HOURS}"
    yield from _own(summary, metrics, figures, repeated)
    finals = draw_finals(summary.variants, summary.baselines, split, summary.metric, places, theme=PAGE)
    note = f"{whose.removesuffix(' of all clients')}; {repeated}."
    yield f"{shown_as(summary.metric)} of the final models", finals, note


_SIDE_BY_SIDE = ("personal", "central", "newcomers")
"""The splits in one picture of variants whose clients have their own models."""

MOST_SIDE_BY_SIDE = 3
"""Maximum number of variants in that picture."""


def _own(summary: Summary, metrics: pa.Table, drawn: Sequence[str], repeated: str) -> Iterator[tuple[str, Figure, str]]:
    """Yield the picture that compares the shared model with clients' and newcomers' own, and with local baselines."""
    metric = summary.metric
    with_own = [name for name in drawn if metric in summary.variants[name].metrics.get("personal", {})]
    curves: list[Curve] = []
    for split in _SIDE_BY_SIDE:
        figures = [
            each
            for name in with_own[:MOST_SIDE_BY_SIDE]
            if (each := curve(metrics, name, split, metric)) is not None
            and np.isfinite(each.mean).any()
            and not (split == "personal" and _has_no_gain(summary.variants[name], metric))
        ]
        same = all(np.array_equal(each.mean, figures[0].mean, equal_nan=True) for each in figures)
        if figures and same and (split != "personal" or len(summary.variants) == 1):
            figures = [replace(figures[0], name=split)]  # of all variants
        else:
            figures = [replace(each, name=f"{each.name}, {split}") for each in figures]
        curves += figures
    if not any(len(each.rounds) > 1 for each in curves):
        return
    alone = {name: _mean(row, "personal", metric) for name, row in summary.baselines.items()}
    levels = {f"alone{name.removeprefix('local')}": value for name, value in alone.items() if value is not None}
    places = {each.name: place for place, each in enumerate(curves)}
    title = f"{shown_as(metric)} of the shared model and of the clients' own"
    note = (
        f"Means over the clients, each on its own examples; {repeated}. Central: the shared model. Personal: what each "
        "client predicts with."
    ) + (" Dashed: what each learns alone." if levels else "")
    yield title, draw_curves(curves, levels, places, metric, theme=PAGE), note


_OF_HOURS = "Hours are simulated by the runs' [clock], the mean over the seeds."

_OF_BYTES = "Posted: the bodies of the pings of all clients, from the first round on."


def _order(summary: Summary, name: str) -> tuple[bool, int]:
    """Return a key that sorts variants by quality, the best first."""
    mean = _mean(summary.variants[name], summary.chosen_on, summary.metric)
    means = [_mean(row, summary.chosen_on, summary.metric) for row in summary.variants.values()]
    if mean is None:
        return True, 0
    return False, sum(1 for other in means if other is not None and better(summary.metric, other, mean))


def _mean(row: VariantSummary, split: str, metric: str) -> float | None:
    return row.metrics.get(split, {}).get(metric, Band(None, None, 0)).mean


FEWEST_CLIENTS = 20
"""Minimum number of clients of a shown segment; figures of fewer clients would describe single persons."""

MOST_SEGMENTS = 12
"""Maximum number of segments in the table; if there are more, those with the most clients are shown."""


@dataclass(frozen=True)
class Segments:
    """The segments of an experiment's clients, and the models' metric on the test examples of each segment.

    Attributes:
        clients: the number of clients with test examples by segment, as the mean over the runs, the largest first.
        rows: by variant or baseline, the band of the mean over the clients, one for each segment.
    """

    clients: dict[str, float]
    rows: dict[str, list[Band]]


def segments_of(out: Path, metric: str) -> Segments | None:
    """Return a metric by segment from the runs in a folder; None if clients have no natural keys in common."""
    import pyarrow.parquet as pq

    counts: dict[str, list[int]] = defaultdict(list)
    segments: dict[str, dict[int, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for unit in read_units(out) or ():
        file = out / unit.folder / "clients.parquet"
        if not file.is_file() or not {"key", metric} <= set(pq.read_schema(file).names):
            continue
        table = pq.read_table(file, columns=["key", metric], partitioning=None).group_by("key")
        each = table.aggregate([(metric, "mean"), ("key", "count")]).to_pylist()
        segments[unit.name][unit.seed].append(
            {one["key"]: np.nan if one[f"{metric}_mean"] is None else one[f"{metric}_mean"] for one in each}
        )
        for one in each:
            counts[one["key"]].append(one["key_count"])
    large = [key for key, numbers in counts.items() if min(numbers) >= FEWEST_CLIENTS]
    if not large:
        return None
    clients = {key: float(np.mean(counts[key])) for key in sorted(large, key=lambda key: (-np.mean(counts[key]), key))}
    shown = dict(list(clients.items())[:MOST_SEGMENTS])
    return Segments(shown, {name: [_band(seeds, key) for key in shown] for name, seeds in segments.items()})


def _band(seeds: dict[int, list[dict[str, float]]], key: str) -> Band:
    """Return the band over the seeds; the folds of a seed count as one."""
    return band([float(np.mean([fold.get(key, np.nan) for fold in folds])) for folds in seeds.values()])
