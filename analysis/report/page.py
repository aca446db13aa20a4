"""A verdict for people: one self-contained HTML file, files of figures, and the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fedping.analysis.figures import DARK, LIGHT, PAGE, Theme, save_figure, titled, to_svg
from fedping.analysis.figures.canvas import css_variables
from fedping.analysis.report.plates import OVER_TIME, Gap, Plate, plates
from fedping.analysis.report.rows import (
    in_study_tables,
    personal_note,
    report_tables,
    segment_sentences,
    segment_tables,
    table_notes,
    training_note,
    verdict_table,
)
from fedping.analysis.rounds.history import LineHistory
from fedping.analysis.tables import to_html, to_terminal
from fedping.analysis.verdict import Verdict
from fedping.analysis.verdict.words import (
    SURVIVORS,
    finding_sign,
    fragility_sentence,
    left_out_sentence,
    shortage_sentence,
)
from fedping.protocol.errors import FedpingError

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


KINDS = ("png", "svg")


def write_figures(
    verdict: Verdict, histories: Sequence[LineHistory], folder: Path, theme: Theme = LIGHT
) -> tuple[list[Path], list[Gap]]:
    """Write every figure of a report as .png and as .svg, named by its key.

    Args:
        verdict: what to report.
        histories: the study's lines over their rounds.
        folder: created if necessary; files of the same name are replaced.
        theme: the colours.

    Returns:
        The files, and the figures whose data are missing.

    Raises:
        FedpingError: a file cannot be written.
    """
    found = plates(verdict, histories)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [path for plate in found if isinstance(plate, Plate) for path in _written(plate, folder, theme)]
    except OSError as error:
        raise FedpingError(f"cannot write figures to {folder}: {error.strerror}; give another --figures") from error
    return written, [plate for plate in found if isinstance(plate, Gap)]


def _written(plate: Plate, folder: Path, theme: Theme) -> list[Path]:
    figure = titled(plate.draw(theme=theme), plate.title, theme=theme)
    return [save_figure(figure, folder / f"{plate.key}.{kind}") for kind in KINDS]


def write_page(verdict: Verdict, histories: Sequence[LineHistory], path: Path) -> Path:
    """Write the report atomically and return its path.

    Args:
        verdict: what to report.
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
    """Return a page of this folder."""
    return report_templates().get_template(template).render(**given)


def report_templates() -> Environment:
    """Return the templates of this folder; what extends ``base.html`` has the colours and the style of reports."""
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
    """Return a figure's title, its drawing if there is one, and the text below it or in its place."""
    from markupsafe import Markup

    if isinstance(plate, Gap):
        return plate.title, None, plate.reason
    return plate.title, Markup(to_svg(plate.draw(theme=PAGE), plate.key, plate.title, plate.said)), plate.caption


def print_verdict(verdict: Verdict, console: Console, caution: str | None = None, *, verbose: bool = False) -> None:
    """Print a verdict as one sentence and one table, which come last.

    A warning about the arms' sizes comes right before them; ``caution``, what else to know before believing the verdict
    (:func:`fedping.analysis.report.rows.training_note`), between sentence and table, as does what the loss of personal
    arms is. With ``verbose``, all other tables, sentences and notes come first.
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


def _print_rest(verdict: Verdict, console: Console) -> None:
    for table in report_tables(verdict):
        console.print(to_terminal(table))
        console.print()
    for said in segment_sentences(verdict):
        console.print(Text(f" - {said}"))
    for said, one in zip(verdict.sentences, verdict.comparisons, strict=True):
        mark = Text(" - ", style="dim" if one.finding == "inconclusive" else "bold")
        console.print(mark + Text(said))
    console.print()
    beside = personal_note(verdict)  # it stands beside the verdict
    for note in [*table_notes(verdict), *([] if verdict.ratio.mismatch else [verdict.ratio_sentence])]:
        if note != beside:
            console.print(Text(note, style="dim"))
    console.print()
