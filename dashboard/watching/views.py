"""The addresses of a run's page, of comparisons, and of files with all metrics of a run."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from flask import Blueprint, Response, jsonify, redirect, render_template, request, send_file
from pyarrow import csv
from werkzeug.wrappers import Response as AnyResponse

from fedping.dashboard.answers import NotThere
from fedping.dashboard.runs.entries import moment_text
from fedping.dashboard.runs.flat import Flat
from fedping.dashboard.runs.index import Condition, index_of
from fedping.dashboard.runs.judging import preset, presets
from fedping.dashboard.runs.listing import PATIENCE
from fedping.dashboard.runs.places import Place, labels_of, place
from fedping.dashboard.runs.registry import UnknownRun
from fedping.dashboard.settings import Services
from fedping.dashboard.watching.comparing import (
    ABSENT,
    MOST,
    Finals,
    One,
    Sweep,
    best_among,
    common,
    compared_runs,
    differing,
    drawn,
    finals,
    pairs,
    settings_apart,
    settings_of,
    settings_of_file,
    sweep_of,
)
from fedping.dashboard.watching.curves import Measured, default_curve, measured, read_measurements
from fedping.dashboard.watching.differing import differences
from fedping.dashboard.watching.feed import LogFeed, RunFeed, quantiles
from fedping.dashboard.watching.units import Unit, units_in
from fedping.experiments.laboratory.results import METRICS_SCHEMA, MetricLog, read_progress
from fedping.experiments.laboratory.summary import MEANINGS, NO_QUALITY, shown_as
from fedping.experiments.laboratory.summary import told as told_band
from fedping.experiments.run_folder import DamagedRun, read_whole
from fedping.experiments.simulate.summary import PrivateSummary
from fedping.experiments.simulate.summary import Summary as StudySummary

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
"""Content security policy for a report, a single file with its own styles, which loads nothing and runs no script."""


def blueprint(services: Services) -> Blueprint:
    """Return the views of a run's pages, below /runs/, and of comparisons, below /compare/."""
    runs = services.settings.runs
    page = Blueprint(
        "watching",
        __name__,
        template_folder="templates",
        static_folder="static",
        static_url_path="/watching/static",
    )
    page.add_app_template_filter(shown_as, "metric_name")
    page.add_app_template_filter(told_band, "band")
    _watching(page, services)
    _files(page, runs)
    _comparing(page, runs)
    return page


def _watching(page: Blueprint, services: Services) -> None:
    runs = services.settings.runs

    @page.get("/runs/<id>/")
    def run(id: str) -> str:
        return _run_page(runs, place(runs, id))

    @page.get("/runs/<id>/feed")
    def feed(id: str) -> Response:
        where = place(runs, id)
        return services.streams.answer(RunFeed(runs, where.id, _wanted(units_in(where.out))))

    @page.get("/runs/<id>/log")
    def log(id: str) -> Response:
        return services.streams.answer(LogFeed(runs, place(runs, id).id))

    @page.get("/runs/<id>/results")
    def results(id: str) -> str:
        where = place(runs, id)
        known = finals(where.out)
        sweep = _sweep(where.out, known)
        return render_template("watching/_results.html", finals=known, sweep=sweep, over=where.over, meanings=MEANINGS)


def _files(page: Blueprint, runs: Path) -> None:
    @page.get("/runs/<id>/report.html")
    def report(id: str) -> Response:
        response = _file(place(runs, id).out / "report.html", "text/html; charset=utf-8")
        response.headers["Content-Security-Policy"] = REPORT_POLICY
        return response

    @page.get("/runs/<id>/summary.json")
    def summary(id: str) -> Response:
        return _file(place(runs, id).out / "summary.json", "application/json", f"{id}.json")

    @page.get("/runs/<id>/metrics.<kind>")
    def metrics(id: str, kind: str) -> Response:
        table = all_metrics(place(runs, id).out)
        if kind == "csv":
            return _download(metrics_as_csv(table), "text/csv; charset=utf-8", f"{id}.csv")
        return _download(metrics_as_parquet(table), "application/vnd.apache.parquet", f"{id}.parquet")


def _comparing(page: Blueprint, runs: Path) -> None:
    @page.get("/compare/")
    def compare() -> str | AnyResponse:
        if ticked := request.args.getlist("run"):
            keys = [*request.args.getlist("of"), *_variants_of(runs, ticked)]
            return redirect(f"/compare/?{urlencode([('of', key) for key in keys])}")
        return _compare_page(runs, compared_runs(runs, request.args.getlist("of")))

    @page.get("/compare/differences")
    def differing_runs() -> str:
        of_variants = [key.partition(":")[0] for key in request.args.getlist("of")]
        found = differences(runs, [*request.args.getlist("run"), *of_variants])
        return render_template("watching/differences.html", found=found, absent=ABSENT)

    @page.get("/compare/curves.json")
    def curves() -> Response:
        ones = compared_runs(runs, request.args.getlist("of"))
        of = _wanted([unit for one in ones for unit in one.units])
        return jsonify(curves=drawn(ones, of), differences=_differences(ones, of), best=best_among(ones, of))


def _variants_of(runs: Path, ids: list[str]) -> list[str]:
    """Return the keys of runs' variants, as used in addresses: all if they are few, else each run's best one."""
    wheres = [place(runs, id) for id in dict.fromkeys(ids)]
    names = {
        where.id: list(dict.fromkeys(unit.note.name for unit in units_in(where.out) if not unit.note.baseline))
        for where in wheres
    }
    if sum(map(len, names.values())) > MOST:
        known = {where.id: finals(where.out) for where in wheres}
        names = {id: [one.summary.best] if one and one.summary.best else names[id][:1] for id, one in known.items()}
    return [f"{id}:{name}" for id, each in names.items() for name in each]


def _wanted(units: list[Unit]) -> Measured:
    """Return the metric that the address requests, or the default one."""
    split, metric = request.args.get("split"), request.args.get("metric")
    return Measured(split, metric) if split and metric else default_curve(units)


def _run_page(runs: Path, where: Place) -> str:
    units = units_in(where.out)
    known = finals(where.out) if where.kind == "laboratory" else None
    variants = settings_of(where.out, [unit.note.name for unit in units])
    other = _other(runs, request.args.get("than"))
    return render_template(
        "watching/run.html",
        place=where,
        begun=moment_text(where.run.started) if where.run else None,
        ended=moment_text(where.run.ended) if where.run else None,
        of=_wanted(units),
        description=_text(where.run.description) if where.run else None,
        note=_text(where.out / "experiment.json") if where.run is None else None,
        finals=known,
        sweep=_sweep(where.out, known),
        study=_study_summary(where.out) if where.kind == "study" else None,
        labels=labels_of(runs, where.id),
        over=where.over,
        meanings=MEANINGS,
        variants=list(variants),
        apart=differing(list(variants.values())),
        other=other,
        others=_others(runs, where.id, request.args.get("than")),
        presets=[each.id for each in presets() if each.kind == "laboratory"],
        changes=differing([common(variants), other.settings]) if other else [],
        known=len(units),
        has={name: (where.out / name).is_file() for name in ("summary.json", "report.html")},
        absent=ABSENT,
    )


def _sweep(out: Path, known: Finals | None) -> Sweep | None:
    return sweep_of(settings_of(out, list(known.summary.variants)), known.summary) if known else None


def _study_summary(out: Path) -> StudySummary | PrivateSummary | None:
    file = out / "summary.json"
    with suppress(DamagedRun):  # it may be the other kind; if it is neither, the pages of the study do not need it
        return read_whole(file, StudySummary)
    with suppress(DamagedRun):
        return read_whole(file, PrivateSummary)
    return None


class _Other(NamedTuple):
    """A run to compare with: its key in the address, its title, and its variants' common settings."""

    key: str
    title: str
    settings: Flat


def _other(runs: Path, key: str | None) -> _Other | None:
    """Return the run to compare with, by its id, or a shipped experiment, by "shipped:name"; None without a key.

    Raises:
        FedpingError: there is no such run.
    """
    if not key:
        return None
    kind, _, name = key.partition(":")
    if name and kind == "shipped":
        return _Other(key, name, common(settings_of_file(preset(name).path)))
    where = place(runs, key)
    return _Other(key, where.title, common(settings_of(where.out)))


def _compare_page(runs: Path, ones: list[One]) -> str:
    units = [unit for one in ones for unit in one.units]
    return render_template(
        "watching/compare.html",
        ones=ones,
        of=_wanted(units),
        kinds=measured(units),
        pairs=pairs(ones) if len(ones) > 1 else [],
        best=best_among(ones, _wanted(units)) if ones else None,
        apart=settings_apart(ones),
        choices=_choices(runs),
        runs_at_most=MOST_RUNS,
        names_at_most=MOST_NAMES,
        asked=request.args.get("q", ""),
        most=MOST,
        quantiles=quantiles(max((len(one.units) for one in ones), default=1)),
        no_quality=NO_QUALITY,
    )


MOST_RUNS, MOST_NAMES = 20, 30
"""Maximum numbers of runs to choose from on the page of comparisons, and of variants of each."""

MOST_OTHERS = 100
"""Number of newest runs that a run's page offers for comparison."""


class _Choice(NamedTuple):
    """A run to choose from: its variants and baselines, each with whether it is a baseline; the error if it is damaged.

    ``more`` is the number of omitted variants and baselines.
    """

    where: Place
    names: list[tuple[str, bool]]
    more: int
    damage: str | None


class _Choices(NamedTuple):
    """The runs to choose from, the number of runs found, and the number of all runs."""

    runs: list[_Choice]
    found: int
    all: int


def _choices(runs: Path) -> _Choices:
    index = index_of(runs)
    index.look(PATIENCE)
    laboratory = [Condition("kind", "=", "laboratory")]
    rows = index.choose(request.args.get("q", "").split(), laboratory)
    found = [_choice(where) for row in rows[:MOST_RUNS] if (where := _where(runs, row.id)) is not None]
    return _Choices(found, len(rows), len(index.choose((), laboratory)))


def _where(runs: Path, id: str) -> Place | None:
    try:
        return place(runs, id)
    except UnknownRun:  # it was deleted in this moment
        return None


def _choice(where: Place) -> _Choice:
    try:
        units = units_in(where.out)
    except DamagedRun as error:  # the others can still be compared
        return _Choice(where, [], 0, str(error))
    names = list(dict.fromkeys((unit.note.name, unit.note.baseline) for unit in units))
    return _Choice(where, names[:MOST_NAMES], max(0, len(names) - MOST_NAMES), None)


def _others(runs: Path, id: str, chosen: str | None) -> list[tuple[str, str]]:
    """Return the ids and titles of other runs that a run can be compared with, including the chosen one."""
    index = index_of(runs)
    index.look(PATIENCE)
    rows = index.choose((), [Condition("kind", "=", "laboratory")], MOST_OTHERS)
    known = {row.id: row.title for row in rows if row.id != id}
    if chosen and ":" not in chosen and chosen not in known:
        known[chosen] = place(runs, chosen).title
    return list(known.items())


def _differences(ones: list[One], of: Measured) -> list[dict[str, Any]]:
    """Return the difference of each variant from the first one in a metric, if their runs can be paired."""
    rows = []
    for pair in pairs(ones) if len(ones) > 1 else []:
        for each in pair.comparison.differences if pair.comparison else ():
            if (each.split, each.metric) == of:
                apart = each.difference
                rows.append(
                    {
                        "name": pair.one.label,
                        "mean": apart.mean,
                        "half": apart.half,
                        "seeds": apart.seeds,
                        "better": each.better,
                    }
                )
    return rows


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _file(file: Path, kind: str, name: str | None = None) -> Response:
    if not file.is_file():
        raise NotThere(f"this run has no {file.name} yet; it is written when the run is finished")
    return send_file(file.resolve(), mimetype=kind, as_attachment=name is not None, download_name=name)


def _download(data: bytes, kind: str, name: str) -> Response:
    return Response(data, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


_FORMULA = r"^[=+\-@\t\r]"
"""Pattern of texts that a spreadsheet takes for formulas, unless they are numbers."""

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def all_metrics(out: Path) -> pa.Table:
    """Return all metrics of the experiment in a folder, including the progress of unfinished runs.

    Raises:
        DamagedRun: a file of metrics cannot be read.
    """
    whole = out / "metrics.parquet"
    if whole.is_file():
        return read_measurements(whole)
    return pa.concat_tables([METRICS_SCHEMA.empty_table(), *(_of(unit) for unit in units_in(out))])


def _of(unit: Unit) -> pa.Table:
    if unit.outcome is not None:
        return read_measurements(unit.path / "metrics.parquet")
    progress = read_progress(unit.path)
    log = MetricLog(unit.note.name, unit.note.seed, unit.note.fold)
    log.rows.extend(
        (*row[:3], float("nan") if row[3] is None else row[3]) for row in (progress.rows if progress else ())
    )
    return log.table()


def metrics_as_parquet(table: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def metrics_as_csv(table: pa.Table) -> bytes:
    """Return a table as CSV; null is empty.

    A text that a spreadsheet would evaluate gets a leading apostrophe, as in files written by the pages (csv.js).
    """
    sink = io.BytesIO()
    csv.write_csv(_harmless(table), sink)
    return sink.getvalue()


def _harmless(table: pa.Table) -> pa.Table:
    columns = [_guarded(column) if pa.types.is_string(column.type) else column for column in table.columns]
    return pa.table(columns, names=table.column_names)


def _guarded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    computed = pc.and_(pc.match_substring_regex(column, _FORMULA), pc.invert(pc.match_substring_regex(column, _NUMBER)))
    return pc.if_else(computed, pc.binary_join_element_wise("'", column, ""), column)
