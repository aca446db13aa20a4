"""Tables 21 and 22 contain the numbers of a direct computation, in every rendering."""

from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import mannwhitneyu

from fedping.analysis.study import METRICS, StudyTally
from fedping.analysis.tables import (
    Table,
    arm_means,
    means_table,
    p_value_table,
    pair_p_values,
    to_html,
    to_markdown,
    to_terminal,
)
from tests.support.verdicts import arm_tally, made_verdict

VERDICT = made_verdict({"treatment": 3.0, "control": 4.0, "control-no-decay": 4.0})
TABLE = Table("Means | <all>", ("arm", "rank, by ping"), (("a|b", "1.5"), ("[red]c&d", "2 [1, 3]")))


def test_means_by_ping_and_by_client_are_those_of_the_values() -> None:
    rng = np.random.default_rng(3)
    typed, ranks = rng.poisson(4, (50, 3)), rng.poisson(1, (50, 3))
    (one,) = arm_means(StudyTally({"a": arm_tally(typed, ranks)}, duplicates=0, mixed=0), METRICS[:2])
    assert (one.arm, one.pings, one.clients) == ("a", 150, 50)
    assert one.by_ping == pytest.approx((typed.mean(), ranks.mean()))
    assert one.by_client == pytest.approx((typed.mean(axis=1).mean(), ranks.mean(axis=1).mean()))


def test_an_arm_without_selections_has_no_mean_in_the_table() -> None:
    empty = arm_tally(np.zeros((0, 3)), np.zeros((0, 3)))
    table = means_table(StudyTally({"a": empty}, duplicates=0, mixed=0), METRICS[:2])
    assert table.rows == (("a", "-", "-", "-", "-"),)


def test_p_values_by_ping_and_by_client_are_scipys() -> None:
    arms = VERDICT.tally.arms
    first = pair_p_values(VERDICT.comparisons)[0]
    assert first.pair == ("treatment", "control")
    assert first.metrics == ("num_chars_typed", "rank_selected")
    for i, metric in enumerate(first.metrics):
        for level, ours in (("pings", first.by_ping[i]), ("clients", first.by_client[i])):
            counts = [getattr(arms[arm].metrics[metric], level) for arm in first.pair]
            values = [np.repeat(one.values, one.counts) for one in counts]
            assert ours == pytest.approx(np.log10(mannwhitneyu(*values, method="asymptotic").pvalue), rel=1e-9)


def test_every_pair_is_a_row_and_every_metric_two_columns() -> None:
    table = p_value_table(VERDICT.comparisons)
    assert [row[0] for row in table.rows] == [
        "treatment vs. control",
        "treatment vs. control-no-decay",
        "control vs. control-no-decay",
    ]
    assert table.heads[1:3] == ("characters typed, by ping", "characters typed, by client")


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("th", "td", "caption"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and data.strip():
            self.cells[-1] += data


def test_html_holds_every_cell_escaped() -> None:
    cells = _Cells()
    cells.feed(to_html(TABLE))
    assert cells.cells == ["Means | <all>", "arm", "rank, by ping", "a|b", "1.5", "[red]c&d", "2 [1, 3]"]


def test_markdown_is_a_table_whatever_is_in_a_cell() -> None:
    assert to_markdown(TABLE).splitlines()[2:] == [
        "| arm | rank, by ping |",
        "| --- | ---: |",
        "| a\\|b | 1.5 |",
        "| [red]c&d | 2 [1, 3] |",
    ]


def test_the_terminal_shows_every_cell_as_it_is() -> None:
    console = Console(width=60)
    with console.capture() as shown:
        console.print(to_terminal(TABLE))
    assert all(cell in shown.get() for cell in ("a|b", "1.5", "[red]c&d", "[1, 3]", "Means | <all>"))


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="another number of cells"):
        Table("t", ("a", "b"), (("1",),))
