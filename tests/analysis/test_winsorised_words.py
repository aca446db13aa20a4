"""Every output with a winsorised mean calls it so, and shows the untrimmed difference and its interval."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedping.analysis.report.page import print_verdict, render_page
from fedping.analysis.report.plates import plates
from fedping.analysis.report.rows import effects_table, table_notes, verdict_table
from fedping.analysis.statistics import ValueCounts, mean_difference
from fedping.analysis.tables import means_table
from fedping.analysis.verdict import Verdict, as_document, reach_verdict
from fedping.dashboard.results.page import blocks_of
from fedping.dashboard.results.views import comparisons_csv, sizes_csv
from tests.support.verdicts import made_verdict


def winsorised(tails: float) -> Verdict:
    plain = made_verdict({"new": 3.0, "old": 4.0})
    return reach_verdict(plain.study, plain.plan, plain.tally.winsorised(tails))


def test_the_document_has_the_untrimmed_means_and_their_difference_beside_the_winsorised_ones() -> None:
    plain, found = made_verdict({"new": 3.0, "old": 4.0}), winsorised(0.05)
    document = as_document(found)
    one, before = document["comparisons"][0]["per_client"], as_document(plain)["comparisons"][0]["per_client"]
    assert one["tails"] == 0.05
    assert one["untrimmed_means"] == before["means"] != one["means"]
    assert one["untrimmed_difference"] == before["difference"] != one["difference"]
    assert (before["tails"], before["untrimmed_means"], before["untrimmed_difference"]) == (0, None, None)
    means = document["arms"]["new"]["means"]["num_chars_typed"]
    assert means["per_client_untrimmed"] == before["means"][0] != means["per_client"]


def test_tables_sentences_figures_and_the_page_say_it_and_not_of_a_study_without_tails() -> None:
    for verdict, said in ((winsorised(0.005), True), (made_verdict({"new": 3.0, "old": 4.0}), False)):
        console = Console(width=220, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        print_verdict(verdict, console)
        document = as_document(verdict, notes=table_notes(verdict))
        captions = [plate.caption for plate in plates(verdict, []) if plate.key == "differences"]  # type: ignore[union-attr]
        shown = {
            "terminal": console.export_text(),
            "verdict": verdict_table(verdict).title,
            "effects": " ".join(effects_table(verdict).heads),
            "means": " ".join(means_table(verdict.tally, verdict.plan.metrics).heads),
            "sentences": verdict.sentences[0],
            "notes": " ".join(document["notes"]),
            "figure": " ".join(captions),
            "page": render_page(verdict, []),
        }
        assert {where for where, text in shown.items() if "winsorised" in text} == (set(shown) if said else set())
        assert ("untrimmed" in verdict.sentences[0]) == said
        row = blocks_of(document, "goal")[0].rows[0]
        assert (row.untrimmed != "-") == said
        heads, values, *_ = (line.split(",") for line in comparisons_csv(document).splitlines())
        assert (dict(zip(heads, values, strict=False))["untrimmed_difference"] != "") == said
        assert "num_chars_typed_per_client_untrimmed" in sizes_csv(document)


@pytest.mark.parametrize("seed", [1])
def test_the_untrimmed_interval_covers_the_mean_of_heavy_tails_and_the_winsorised_one_another_number(seed: int) -> None:
    """300 studies of lognormal values with different means, 1,000 clients in each arm: 95 % are promised for means."""
    rng, covered = np.random.default_rng(seed), [0, 0]
    true = np.exp(0.1 + 1.5**2 / 2) - np.exp(1.5**2 / 2)
    for _ in range(300):
        a, b = (ValueCounts.of(rng.lognormal(mean, 1.5, 1000)) for mean in (0.1, 0.0))
        for i, tails in enumerate((0.0, 0.02)):
            covered[i] += not mean_difference(a.winsorised(tails), b.winsorised(tails)).excludes(float(true))
    assert covered[0] >= 0.92 * 300
    assert covered[1] < covered[0]


def test_nothing_is_untrimmed_where_nothing_was_trimmed() -> None:
    plain = made_verdict({"new": 3.0, "old": 4.0}).tally
    assert replace(plain.winsorised(0.0), arms=plain.arms) == plain
    assert plain.winsorised(0.01).arms["new"].metrics["num_chars_typed"].untrimmed is not None
