"""The report as one HTML file: no script, no font, no address outside of itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

from analysis.curves import ArmCurve
from analysis.report.figures import effects_svg, loss_svg, superiority_svg, traffic_svg
from analysis.report.rows import arm_rows, effect_rows, p_rows, ping_rows, table_notes
from analysis.verdict import Verdict
from analysis.verdict.words import is_worse
from protocol.errors import FedpingError


def write_page(verdict: Verdict, curves: Mapping[str, Mapping[str, ArmCurve]], path: Path) -> Path:
    """Write the report and return its path; the file appears whole or not at all.

    Args:
        verdict: what to report.
        curves: by model line, the curve of every arm (`analysis.curves`); lines without rounds may be left out.
        path: the file; replaced if it is there.

    Raises:
        FedpingError: the file cannot be written.
    """
    hidden = path.with_name(f".{path.name}.tmp")
    try:
        hidden.write_text(render_page(verdict, curves), encoding="utf-8")
        os.replace(hidden, path)
    except OSError as error:
        raise FedpingError(f"cannot write the report {path}: {error.strerror}; give another --html") from error
    finally:
        hidden.unlink(missing_ok=True)
    return path


def render_page(verdict: Verdict, curves: Mapping[str, Mapping[str, ArmCurve]]) -> str:
    """Return the report as HTML."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("analysis.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    figures = [(title, note, Markup(svg)) for title, note, svg in _figures(verdict, curves)]
    return template.render(
        verdict=verdict,
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),
        findings=list(zip(verdict.comparisons, verdict.sentences, strict=True)),
        is_worse=is_worse,
        figures=figures,
        tables=[
            ("Arms (means over clients)", arm_rows(verdict)),
            ("One client, one value: the verdict", p_rows(verdict)),
            ("How large, by client", effect_rows(verdict)),
            ("One ping, one value: for comparison only", ping_rows(verdict)),
        ],
        notes=table_notes(verdict),
    )


def _figures(verdict: Verdict, curves: Mapping[str, Mapping[str, ArmCurve]]) -> Iterator[tuple[str, str, str]]:
    intervals = (
        f"Intervals are {100 * verdict.plan.confidence:.4g} % each; a filled dot is a difference that the test shows."
    )
    note = f"The first arm minus the second, in units of the metric, means over clients. {intervals}"
    yield "How large are the differences?", note, effects_svg(verdict)
    note = f"How often a random client of the first arm has the larger value. At 0.5 neither does. {intervals}"
    yield "How often is one arm above the other?", note, superiority_svg(verdict)
    for i, (line, arms) in enumerate(curves.items()):
        if arms:
            title = "Loss over the iterations" + (f", line {line}" if len(curves) > 1 else "")
            note = "Thin: the mean of an iteration, measured before its pings train. Thick: the mean of the last five."
            yield title, note, loss_svg(arms, f"loss-{i}", title)
    yield "Pings over time", "By the time of receipt, UTC, each document once.", traffic_svg(verdict)
