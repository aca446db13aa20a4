"""The report of a private study: what was promised and spent, and what its rounds have released, as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedping.analysis.figures import PAGE, draw_private_rounds, to_svg
from fedping.analysis.private import ArmResult, Difference, Estimated, LineResult, LineRounds, PrivateResult
from fedping.analysis.report.page import rendered, write_report
from fedping.analysis.tables import Table, to_html
from fedping.protocol.notation import with_minus

if TYPE_CHECKING:
    from markupsafe import Markup

_METRICS = (("loss", "Loss", "mean loss"), ("top_choice", "Top choices", "share of choices that were on top"))


class Promised(NamedTuple):
    """What the clients of a line were promised, and what is spent of it; sentences."""

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
        result: what is known of the study.
        rounds: of each of its lines, round by round.
        promised: by line.
        path: the file; replaced if it exists.
        caution: what else to know before believing it.

    Raises:
        FedpingError: the file cannot be written.
    """
    from markupsafe import Markup

    found = [each for line in result.lines for each in line.differences]
    page = rendered(
        "private_page.html",
        study=result.study,
        headline=found[0].sentence if found else "No two arms can be compared yet.",
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
    """Return a figure of each metric of which any round has told something: its title and its drawing."""
    from markupsafe import Markup

    made = []
    for name, title, label in _METRICS:
        if any(getattr(each, name) is not None for results in rounds.arms.values() for each in results):
            figure = draw_private_rounds(rounds, "loss" if name == "loss" else "top_choice", label, theme=PAGE)
            said = f"{label} of each arm of line {rounds.line}, by round, with intervals"
            made.append((title, Markup(to_svg(figure, f"{rounds.line}-{name}", title, said))))
    return made
