"""Reports for people: a self-contained HTML page of a verdict or of a private study, figure files, the terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.text import Text

from fedping.analysis.figures import DARK, LIGHT, PAGE, Theme, draw_private_rounds, save_figure, titled, to_svg
from fedping.analysis.figures.canvas import css_variables
from fedping.analysis.private import ArmResult, Difference, Estimated, LineResult, LineRounds, PrivateResult
from fedping.analysis.report.plates import OVER_TIME, Gap, Plate, plates
from fedping.analysis.report.rows import (
    about_outcomes,
    in_study_tables,
    lift_notes,
    lift_table,
    personal_note,
    report_tables,
    segment_sentences,
    segment_tables,
    table_notes,
    training_note,
    verdict_table,
)
from fedping.analysis.rounds.history import LineHistory
from fedping.analysis.tables import Table, to_html, to_terminal
from fedping.analysis.verdict import Verdict
from fedping.analysis.verdict.words import (
    SURVIVORS,
    finding_sign,
    fragility_sentence,
    left_out_sentence,
    shortage_sentence,
)
from fedping.protocol.errors import FedpingError
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


KINDS = ("png", "svg")


def write_figures(
    verdict: Verdict, histories: Sequence[LineHistory], folder: Path, theme: Theme = LIGHT
) -> tuple[list[Path], list[Gap]]:
    """Write every figure of a report as .png and as .svg, named by its key.

    Args:
        verdict: the verdict to report.
        histories: the study's lines over their rounds.
        folder: the folder, which is created if necessary; files of the same name are replaced.
        theme: the colours.

    Returns:
        The files, and the figures whose data are missing.

    Raises:
        FedpingError: a file cannot be written.
    """
    drawn = plates(verdict, histories)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [path for plate in drawn if isinstance(plate, Plate) for path in _written(plate, folder, theme)]
    except OSError as error:
        raise FedpingError(f"cannot write figures to {folder}: {error.strerror}; give another --figures") from error
    return written, [plate for plate in drawn if isinstance(plate, Gap)]


def _written(plate: Plate, folder: Path, theme: Theme) -> list[Path]:
    figure = titled(plate.draw(theme=theme), plate.title, theme=theme)
    return [save_figure(figure, folder / f"{plate.key}.{kind}") for kind in KINDS]


def write_page(verdict: Verdict, histories: Sequence[LineHistory], path: Path) -> Path:
    """Write the report atomically and return its path.

    Args:
        verdict: the verdict to report.
        histories: the study's lines over their rounds; empty if there is none.
        path: the file; replaced if it exists.

    Raises:
        FedpingError: the file cannot be written.
    """
    return write_report(render_page(verdict, histories), path)


def write_report(page: str, path: Path) -> Path:
    """Write a page atomically and return its path; raises :class:`FedpingError` if it cannot be written."""
    hidden = path.with_name(f".{path.name}.tmp")
    try:
        hidden.write_text(page, encoding="utf-8")
        os.replace(hidden, path)
    except OSError as error:
        raise FedpingError(f"cannot write the report {path}: {error.strerror}; give another --html") from error
    finally:
        hidden.unlink(missing_ok=True)
    return path


def render_page(verdict: Verdict, histories: Sequence[LineHistory]) -> str:
    """Return the report as HTML."""
    from markupsafe import Markup

    drawn = plates(verdict, histories)
    return rendered(
        "page.html",
        verdict=verdict,
        findings=list(zip(verdict.comparisons, verdict.sentences, strict=True)),
        sign=finding_sign,
        verdict_table=Markup(to_html(verdict_table(verdict))),
        lift_table=Markup(to_html(lift_table(verdict))) if about_outcomes(verdict) else None,
        lift_notes=lift_notes(verdict),
        figures=[_figure(plate) for plate in drawn if not plate.key.startswith(OVER_TIME)],
        over_time=[_figure(plate) for plate in drawn if plate.key.startswith(OVER_TIME)],
        segments=[(table.title, Markup(to_html(table))) for table in segment_tables(verdict)],
        segment_sentences=segment_sentences(verdict),
        in_study=[(table.title, Markup(to_html(table))) for table in in_study_tables(verdict)],
        survivors=SURVIVORS,
        tables=[(table.title, Markup(to_html(table))) for table in report_tables(verdict)],
        caution=training_note(verdict.plan, {history.line: history.traffic for history in histories}),
        left_out=left_out_sentence(verdict.tally),
        fragility=fragility_sentence(verdict.comparisons),
        notes=table_notes(verdict),
    )


def rendered(template: str, **given: Any) -> str:
    """Return a page rendered from a template of this folder."""
    return report_templates().get_template(template).render(**given)


def report_templates() -> Environment:
    """Return the templates of this folder; those that extend ``base.html`` have the colours and style of reports."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    templates = Environment(
        loader=PackageLoader("fedping.analysis", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals |= {"light": Markup(css_variables(LIGHT)), "dark": Markup(css_variables(DARK))}
    return templates


def _figure(plate: Plate | Gap) -> tuple[str, Markup | None, str]:
    """Return a figure's title, its drawing (None for a gap), and the text below or instead of the drawing."""
    from markupsafe import Markup

    if isinstance(plate, Gap):
        return plate.title, None, plate.reason
    return plate.title, Markup(to_svg(plate.draw(theme=PAGE), plate.key, plate.title, plate.said)), plate.caption


def print_verdict(verdict: Verdict, console: Console, caution: str | None = None, *, verbose: bool = False) -> None:
    """Print a verdict; its sentence and its table come last.

    A warning about the arms' sizes directly precedes the sentence. Between the sentence and the table are ``caution``,
    a further reservation (:func:`fedping.analysis.report.rows.training_note`), and the note on the loss of personal
    arms. With ``verbose``, all other tables, sentences and notes come first.
    """
    if verbose:
        _print_rest(verdict, console)
    if verdict.ratio.mismatch:
        console.print(Text(verdict.ratio_sentence, style="bold red"))
        console.print()
    console.print(Text(verdict.headline, style="bold"))
    few = list(dict.fromkeys(f"{shortage_sentence(one)}." for one in verdict.comparisons if one.shortage is not None))
    fragile = fragility_sentence(verdict.comparisons)
    for note in (caution, personal_note(verdict), left_out_sentence(verdict.tally), *few, fragile):
        if note:
            console.print(Text(note, style="yellow"))
    console.print()
    console.print(to_terminal(verdict_table(verdict)))
    if about_outcomes(verdict):
        console.print()
        console.print(to_terminal(lift_table(verdict)))
        for note in lift_notes(verdict):
            console.print(Text(note, style="dim"))


def _print_rest(verdict: Verdict, console: Console) -> None:
    for table in report_tables(verdict):
        console.print(to_terminal(table))
        console.print()
    for text in segment_sentences(verdict):
        console.print(Text(f" - {text}"))
    for text, one in zip(verdict.sentences, verdict.comparisons, strict=True):
        mark = Text(" - ", style="dim" if one.finding == "inconclusive" else "bold")
        console.print(mark + Text(text))
    console.print()
    beside = personal_note(verdict)  # it is next to the verdict
    for note in [*table_notes(verdict), *([] if verdict.ratio.mismatch else [verdict.ratio_sentence])]:
        if note != beside:
            console.print(Text(note, style="dim"))
    console.print()


_METRICS = (("loss", "Loss", "mean loss"), ("top_choice", "Top choices", "share of choices that were on top"))


class Promised(NamedTuple):
    """The guarantee given to a line's clients, and the spent part of the line's budget, each as a sentence."""

    guarantee: str
    spent: str


def write_private_page(
    result: PrivateResult,
    rounds: Sequence[LineRounds],
    promised: Mapping[str, Promised],
    path: Path,
    *,
    caution: str = "",
) -> Path:
    """Write the report atomically and return its path.

    Args:
        result: the study's released results.
        rounds: the results of each line, round by round.
        promised: the guarantees, by line.
        path: the file; replaced if it exists.
        caution: a further reservation about the results.

    Raises:
        FedpingError: the file cannot be written.
    """
    from markupsafe import Markup

    differences = [each for line in result.lines for each in line.differences]
    page = rendered(
        "private_page.html",
        study=result.study,
        headline=differences[0].sentence if differences else "No two arms can be compared yet.",
        caution=caution,
        lines=[
            {
                "name": line.line,
                "promised": promised[line.line],
                "sentences": [each.sentence for each in line.differences],
                "tables": [Markup(to_html(table)) for table in _tables(line, result.confidence)],
                "figures": list(_figures(of_line)),
            }
            for line, of_line in zip(result.lines, rounds, strict=True)
        ],
        note=f"{result.note} Intervals are of {100 * result.confidence:g} %.",
    )
    return write_report(page, path)


def _tables(line: LineResult, confidence: float) -> list[Table]:
    within = f"[{100 * confidence:g} %]"
    arms = Table(
        f"Line {line.line}: its arms, over {line.rounds:,} {'round' if line.rounds == 1 else 'rounds'} together",
        ("arm", "contributions, about", f"loss {within}", f"top-choice rate {within}"),
        tuple(_row(arm) for arm in line.arms),
    )
    if not line.differences:
        return [arms]
    differences = Table(
        f"Line {line.line}: arms that apply the model against those that do not",
        ("metric", "arms", f"difference {within}", "p"),
        tuple(_difference(each) for each in line.differences),
        words=2,
    )
    return [arms, differences]


def _row(arm: ArmResult) -> tuple[str, ...]:
    about = f"{max(0.0, arm.contributions.value):,.0f} ± {arm.contributions.error:,.0f}"
    return arm.arm, about, _cell(arm.loss), _cell(arm.top_choice)


def _difference(each: Difference) -> tuple[str, ...]:
    metric = "top-choice rate" if each.metric == "top_choice" else each.metric
    return metric, f"{each.arm} - {each.against}", _cell(each.difference), f"{each.p:.2g}"


def _cell(found: Estimated | None) -> str:
    return "–" if found is None else with_minus(f"{found.value:.4g} [{found.low:.4g}, {found.high:.4g}]")


def _figures(rounds: LineRounds) -> list[tuple[str, Markup]]:
    """Return the title and the drawing of a figure for each metric that any round has released."""
    from markupsafe import Markup

    figures = []
    for name, title, label in _METRICS:
        if any(getattr(each, name) is not None for results in rounds.arms.values() for each in results):
            figure = draw_private_rounds(rounds, "loss" if name == "loss" else "top_choice", label, theme=PAGE)
            description = f"{label} of each arm of line {rounds.line}, by round, with intervals"
            figures.append((title, Markup(to_svg(figure, f"{rounds.line}-{name}", title, description))))
    return figures
