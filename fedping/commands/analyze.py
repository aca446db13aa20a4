"""`fedping analyze`: the outcome of a study, as a sentence, tables, JSON, an HTML file or figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedping.options import LocalPath, json_option, landing_option, store_option
from fedping.protocol.errors import InvalidSettings
from fedping.terminal import status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fedping.analysis.private import PrivateResult
    from fedping.analysis.rounds.history import LineHistory
    from fedping.analysis.statistics import Correction
    from fedping.analysis.study import StudyTally
    from fedping.analysis.verdict import Asked, Plan, Verdict
    from fedping.model_store.store import ModelStore
    from fedping.protocol.location import Place
    from fedping.protocol.study import Study


TIMES = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])


class _VersionNumber(click.ParamType[int]):
    """Option type of a version's number that fits 64 bits; the help does not show the bound."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = click.INT.convert(value, param, ctx)
        if abs(number) > MOST_ITERATION:
            self.fail(f"{value} is not a version's number.", param, ctx)
        return number


MOST_ITERATION = 10**15
ITERATION = _VersionNumber()
"""Option type of a version's number as the bound of a window, with the same maximum as on the Results page."""

SECOND_COMPILER = ("-XX:TieredStopAtLevel=4",)
"""Option for Java's second compiler: it speeds up counting, which runs in Java, but not rounds, which run in Python."""


@click.command()
@click.argument("study")
@click.option("--pairs", help="Pairs of arms, as treatment:control,treatment:other.  [default: all pairs]")
@click.option(
    "--metrics",
    help="Metrics to compare. Interactions have num_chars_typed, rank_selected and loss; model updates loss and "
    "examples; lists place and loss; a study can declare more.  [default: the first two (lists: the first) and "
    "the declared ones]",
)
@click.option("--guardrails", default="", help="Metrics that must not get worse (guardrails); the rest are goals.")
@click.option(
    "--alpha", type=float, default=0.05, show_default=True, help=("Probability of any false alarm among all tests.")
)
@click.option("--correction", type=click.Choice(["bonferroni", "holm"]), default="bonferroni", show_default=True)
@click.option("--from-iteration", type=ITERATION, help="First model version whose pings count.")
@click.option("--to-iteration", type=ITERATION, help="Last model version whose pings count.")
@click.option("--since", type=TIMES, help="Only pings received from this time on (UTC).")
@click.option("--until", type=TIMES, help="Only pings received before this time (UTC).")
@click.option(
    "--settle",
    type=click.IntRange(min=0),
    help="Ignore a client's pings of its first days in the study, counted from its first ping, in every arm.",
)
@click.option("--ratios", default="", help="Ratios of totals to compare, as paid/choices,returned/paid.")
@click.option("--adjust", is_flag=True, help="Adjust means and ratios by what clients did before version 1 (CUPED).")
@click.option(
    "--cap",
    type=click.FloatRange(0.5, 1, max_open=True),
    help="Cap values at this quantile of all clients before taking means, such as 0.999.",
)
@click.option(
    "--interim", is_flag=True, help="Analyze before the planned end, with intervals that stay valid at every look."
)
@click.option(
    "--planned-clients",
    type=click.IntRange(2, 10**15),
    help="For --interim: clients in two arms at the planned end. Choose it before the first look and keep it.  "
    "[default: 100000]",
)
@click.option(
    "--enrolled", type=click.IntRange(1, 10**15), help="Clients enrolled in all arms, if known; for the report."
)
@click.option("--html", type=LocalPath(dir_okay=False), help="Write a report to this file.")
@click.option(
    "--figures",
    type=LocalPath(file_okay=False),
    help="Write the report's figures to this folder, each as .png and .svg.",
)
@click.option(
    "--subsample",
    type=click.IntRange(1, 10**9),
    help="For --html and --figures: number of pings of an iteration in each subsample.  [default: 2000]",
)
@click.option("--verbose", is_flag=True, help="Print all tables, sentences and notes before the verdict.")
@click.option("--master", help="Spark's master URL; without one, what spark-submit says, or local[*].")
@store_option
@landing_option
@json_option
def analyze(study: str, store_path: Place, landing: Place, as_json: bool, **options: Any) -> None:
    """Show the outcome of STUDY: a verdict in one sentence and a table of effects. --verbose adds the rest.

    The verdict counts every client once, because the pings of one client depend on each other.
    """
    from fedping.analysis.report import table_notes, training_note
    from fedping.analysis.rounds import round_traffic
    from fedping.analysis.verdict import plan_of, reach_verdict
    from fedping.model_store.store import open_store

    given = AnalyzeOptions(**options)
    given.refuse_idle_options()
    store = open_store(store_path)
    the_study = store.study(study)
    if the_study.is_private:
        _show_private(store, the_study, given.alpha, given.html, as_json)
        return
    question = given.question(the_study)
    plan = plan_of(the_study, question)
    caution = training_note(plan, {line.name: round_traffic(store, study, line.name) for line in the_study.lines})
    _warn_of_other_shares(store, study, question.since)
    verdict = reach_verdict(the_study, plan, _count(the_study, plan, landing, given.master), given.enrolled)
    written = _write(verdict, given, lambda: _histories(store, landing, the_study, given.subsample))
    if as_json:
        import json

        from fedping.analysis.verdict import as_document

        click.echo(json.dumps(as_document(verdict, caution, table_notes(verdict)), allow_nan=False))
        return
    from fedping.analysis.report import print_verdict
    from fedping.terminal import console

    for line in written:
        click.echo(line)
    print_verdict(verdict, console(), caution, verbose=given.verbose)


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions:
    """The options of the command by their names in Python."""

    pairs: str | None
    metrics: str | None
    guardrails: str
    alpha: float
    correction: Correction
    from_iteration: int | None
    to_iteration: int | None
    since: datetime | None
    until: datetime | None
    settle: int | None
    ratios: str
    adjust: bool
    cap: float | None
    interim: bool
    planned_clients: int | None
    enrolled: int | None
    html: Path | None
    figures: Path | None
    subsample: int | None
    verbose: bool
    master: str | None

    def question(self, study: Study) -> Asked:
        """Return the question that the options ask about a study."""
        from fedping.analysis.verdict import Asked, default_metrics, words_of

        return Asked(
            metrics=default_metrics(study) if self.metrics is None else words_of(self.metrics),
            guardrails=words_of(self.guardrails),
            pairs=None if self.pairs is None else words_of(self.pairs),
            alpha=self.alpha,
            correction=self.correction,
            from_iteration=self.from_iteration,
            to_iteration=self.to_iteration,
            since=milliseconds(self.since),
            until=milliseconds(self.until),
            interim=self.interim,
            planned_clients=self.planned_clients,
            enrolled=self.enrolled,
            settle=self.settle,
            ratios=words_of(self.ratios),
            adjust=self.adjust,
            cap=self.cap,
        )

    def refuse_idle_options(self) -> None:
        """Raise InvalidSettings for options without effect and for a missing report folder, before counting."""
        html = self.html
        if self.subsample is not None and html is None and self.figures is None:
            raise InvalidSettings("--subsample is only for figures; give --html or --figures with it")
        if html is not None and not html.absolute().parent.is_dir():
            raise InvalidSettings(f"--html: the folder {html.parent} does not exist; create it or give another path")


def _warn_of_other_shares(store: ModelStore, study: str, since_ms: int | None) -> None:
    """Warn if the arms' shares changed in the window, because the arms' sizes then don't follow from today's shares."""
    from fedping.protocol.notation import milliseconds_of

    for entry in reversed(store.studies.history(study)):
        changes_shares = any(change.startswith("arms.") for change in entry.told) and entry.kind == "changed"
        if changes_shares and (since_ms is None or since_ms < milliseconds_of(entry.at) // 1000 * 1000):
            click.echo(
                f"fedping: warning: study '{study}' changed the shares of its arms at {entry.at[:19]}, but the arms' "
                f"sizes are compared with today's shares; give --since {entry.at[:19]} to count from then",
                err=True,
            )
            return


def _show_private(store: ModelStore, study: Study, alpha: float, html: Path | None, as_json: bool) -> None:
    """Show the rounds' releases of a private study, whose pings are deleted, and write its report.

    Raises:
        InvalidSettings: an option about pings was given.
    """
    from click.core import ParameterSource
    from msgspec.json import encode

    from fedping.analysis.private import in_words, private_result
    from fedping.analysis.statistics.looks import LEAST_LEVEL
    from fedping.server_jobs.privacy.budget import SIMULATED

    context = click.get_current_context()
    about_pings = sorted(
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name not in ("study", "store_path", "landing", "alpha", "html", "as_json", "verbose")
        and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    if about_pings:
        raise InvalidSettings(
            f"study '{study.name}' is private, and its pings are deleted after each round, so {about_pings[0]} has "
            "no effect; remove it"
        )
    if not LEAST_LEVEL <= alpha < 1:
        raise InvalidSettings(f"--alpha is {alpha:g}; give a probability from {LEAST_LEVEL:g} to below 1, such as 0.05")
    result = private_result(store, study, 1 - alpha)
    caution = SIMULATED if store.studies.declared(study.name).simulated else ""
    written = None if html is None else _private_report(store, study, result, html, caution)
    if as_json:
        click.echo(encode(result).decode())
        return
    if written is not None:
        click.echo(f"report: {written}")
    if caution:
        click.echo(f"{caution}\n")
    click.echo(in_words(result))


def _private_report(store: ModelStore, study: Study, result: PrivateResult, path: Path, caution: str) -> Path:
    """Write the report of a private study."""
    from fedping.analysis.private import line_rounds
    from fedping.analysis.report import Promised, write_private_page
    from fedping.server_jobs.privacy.budget import spent_by
    from fedping.server_jobs.privacy.card import card_of

    promised = {
        line.name: Promised(card.guarantee, spent_by(store, study, line).sentence)
        for line, card in zip(study.lines, card_of(study).lines, strict=True)
    }
    rounds = [line_rounds(store, study, line, result.confidence) for line in study.lines]
    return write_private_page(result, rounds, promised, path, caution=caution)


def _count(study: Study, plan: Plan, landing: Place, master: str | None) -> StudyTally:
    from fedping.analysis.study import count_study
    from fedping.analysis.study.metrics import window_folders

    window_folders(landing, study, plan.window)  # reports missing pings before seconds go into starting Spark
    with status("starting Spark") as set_status, analysis_session("fedping-analyze", master) as session:
        set_status("counting the landed pings")
        return count_study(
            session,
            landing,
            study,
            plan.metrics,
            plan.window,
            first_values=plan.interim,
            parts=True,
            means=plan.means,
        )


def _histories(store: ModelStore, landing: Place, study: Study, subsample: int | None) -> list[LineHistory]:
    from fedping.analysis.rounds.history import line_history
    from fedping.analysis.rounds.subsamples import SIZE

    with status("reading the rounds again") as set_status:
        histories = []
        for line in study.lines:
            set_status(f"reading the rounds of line {line.name} again")
            histories.append(line_history(store, landing, study.name, line.name, size=subsample or SIZE))
        return histories


def _write(verdict: Verdict, given: AnalyzeOptions, read: Callable[[], list[LineHistory]]) -> list[str]:
    """Write report and figures, and return a line for each; the rounds are read only if they are needed."""
    if given.html is None and given.figures is None:
        return []
    from fedping.analysis.report import write_figures, write_page

    histories, lines = read(), []
    if given.html is not None:
        lines.append(f"report: {write_page(verdict, histories, given.html)}")
    if given.figures is not None:
        files, gaps = write_figures(verdict, histories, given.figures)
        lines.append(f"figures: {len(files)} files in {given.figures}")
        lines += [f"figure left out ({gap.key}): {gap.reason}" for gap in gaps]
    return lines


@contextmanager
def analysis_session(name: str, master: str | None) -> Iterator[SparkSession]:
    """Start Spark for counting, and stop it.

    Spark's log with its stack traces is off: errors are raised, and reported in a sentence.
    """
    from fedping.server_jobs.spark.session import spark_session
    from fedping.server_jobs.spark.settings import SparkSettings

    with spark_session(SparkSettings(master=master, app_name=name, driver_java_options=SECOND_COMPILER)) as session:
        session.sparkContext.setLogLevel("OFF")
        yield session


def milliseconds(time: datetime | None) -> int | None:
    """Return a time given in UTC as milliseconds since 1970."""
    return None if time is None else int(time.replace(tzinfo=UTC).timestamp() * 1000)
