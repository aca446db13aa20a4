"""The fragility of a finding: the smallest number of clients whose absence or other values would overturn it."""

import math

import numpy as np
import pytest
from rich.console import Console

from fedping.analysis.report.page import print_verdict, render_page
from fedping.analysis.report.rows import table_notes
from fedping.analysis.statistics import ValueCounts, mann_whitney, mean_difference, mean_fragility, rank_fragility
from fedping.analysis.verdict import as_document
from tests.support.verdicts import made_verdict

LEVEL = math.log10(0.05)


@pytest.mark.parametrize("swapped", [False, True])
def test_so_many_clients_with_the_worst_values_overturn_a_rank_test_and_no_fewer_do(swapped: bool) -> None:
    rng = np.random.default_rng(3)
    small, large = rng.integers(0, 10, 30), rng.integers(4, 16, 20)
    arms = [ValueCounts.of(small), ValueCounts.of(large)]
    found = rank_fragility(*(arms[::-1] if swapped else arms), LEVEL)
    assert found is not None
    # by hand, for every way of dividing clients between the arms: the smallest up, or the largest down
    least = min(
        moved_a + moved_b
        for moved_a in range(20)
        for moved_b in range(20)
        if mann_whitney(
            ValueCounts.of(np.concatenate([np.sort(small)[moved_a:], np.full(moved_a, 99)])),
            ValueCounts.of(np.concatenate([np.sort(large)[: 20 - moved_b], np.full(moved_b, -99)])),
        ).log10_p
        > LEVEL
    )
    assert least <= found <= least + 1


def test_what_a_test_does_not_show_has_nothing_to_overturn() -> None:
    same = ValueCounts.of(np.arange(50))
    assert rank_fragility(same, same, LEVEL) is None
    assert mean_fragility(same, same, lambda a, b: mean_difference(a, b).excludes(0)) is None


def test_so_many_clients_less_overturn_a_difference_of_means() -> None:
    rng = np.random.default_rng(4)
    a = np.sort(np.concatenate([rng.normal(0, 1, 200), np.full(9, 8.0)]))
    b = np.sort(rng.normal(0, 1, 200))

    def shown(ours: ValueCounts, theirs: ValueCounts) -> bool:
        return mean_difference(ours, theirs).low > 0

    found = mean_fragility(ValueCounts.of(a), ValueCounts.of(b), shown)
    assert found is not None
    assert 1 <= found <= 9
    assert not shown(ValueCounts.of(a[: len(a) - found]), ValueCounts.of(b))
    assert shown(ValueCounts.of(a[: len(a) - found + 1]), ValueCounts.of(b))


def test_a_verdict_that_forged_clients_made_says_that_few_clients_would_overturn_it() -> None:
    """With 400 clients in each arm and no effect, up to 150 forged ones claim the maximum; the mean of 20 studies."""
    rng = np.random.default_rng(5)
    told: dict[int, list[int]] = {40: [], 150: []}
    for _ in range(20):
        arms = rng.integers(1, 12, (2, 400))
        for forged, found in told.items():
            control = ValueCounts.of(np.concatenate([arms[1], np.full(forged, 60)]))
            few = rank_fragility(ValueCounts.of(arms[0]), control, LEVEL)
            found.append(0 if few is None else few)
    for forged, found in told.items():
        assert max(found) <= forged
    assert np.mean(told[40]) < np.mean(told[150])


def test_every_verdict_says_how_few_clients_would_overturn_it_and_names_the_remedy() -> None:
    verdict = made_verdict({"new": 3.0, "old": 4.0})
    one = verdict.comparisons[0]
    assert one.fragility is not None
    said = f"{one.fragility:,} of 1,200 clients with other values would overturn this finding"
    document = as_document(verdict)
    assert document["comparisons"][0]["fragility"] == one.fragility
    assert document["comparisons"][1]["fragility"] is None
    assert said in document["fragility"]
    assert said in verdict.sentences[0]
    assert "would overturn" not in verdict.sentences[1]
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_verdict(verdict, console)
    text = " ".join(console.export_text().split())
    for shown in (text, render_page(verdict, []), " ".join(table_notes(verdict))):
        assert "tickets" in shown
        assert "overturn" in shown
    assert f"{one.fragility:,} of 1,200" in text
    assert as_document(made_verdict({"new": 3.0, "old": 3.0}))["fragility"] is None
