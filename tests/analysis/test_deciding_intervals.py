"""The drawn interval belongs to the deciding test: it leaves out 0.5 exactly if the test rejects."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedping.analysis.figures import draw_differences, draw_superiority
from fedping.analysis.statistics import (
    CORRECTIONS,
    Correction,
    ValueCounts,
    deciding_level,
    mann_whitney,
    rank_interval,
)
from fedping.analysis.study import METRICS
from fedping.analysis.verdict import Plan, Verdict, all_pairs, as_document, reach_verdict
from fedping.analysis.verdict.words import finding_sign
from tests.analysis.test_verdict_words import STUDY, tally
from tests.support.value_counts import TYPED

SAMPLES = st.lists(st.integers(0, 6), min_size=2, max_size=40)
CLOSE = 1e-9
"""Distance from the level within which two computations of the same number may round to different sides."""


@given(SAMPLES, SAMPLES, st.floats(0.001, 0.4))
def test_the_interval_leaves_out_one_half_exactly_if_the_test_rejects(x: list[int], y: list[int], alpha: float) -> None:
    test = mann_whitney(ValueCounts.of(x), ValueCounts.of(y))
    interval = rank_interval(test, 1 - alpha)
    assert interval.value == pytest.approx(test.u / (len(x) * len(y)))
    if abs(test.p - alpha) > CLOSE:
        assert interval.excludes(0.5) == (test.p < alpha)


@given(st.lists(st.floats(-9, 0), min_size=1, max_size=8), st.floats(0.001, 0.4), st.sampled_from(sorted(CORRECTIONS)))
def test_one_level_decides_every_test_as_the_correction_does(
    log10_p: list[float], alpha: float, correction: Correction
) -> None:
    level = math.log10(deciding_level(log10_p, alpha, correction))
    corrected = CORRECTIONS[correction](log10_p)
    for one, after in zip(log10_p, corrected, strict=True):
        if abs(one - level) > CLOSE and abs(after - math.log10(alpha)) > CLOSE:
            assert (one <= level) == (after <= math.log10(alpha))


def unlike(correction: Correction = "bonferroni", many: float = 1.1) -> Verdict:
    """Return a verdict in which ranks separate the arms but means don't: few clients typed very much."""
    values = np.arange(10.0)
    values[9] = 400.0
    fewer = TYPED * np.exp(-0.15 * np.arange(10))
    fewer[9] = many * TYPED[9] * fewer.sum()
    found = tally({"new": fewer}, {})
    for arm in found.arms.values():
        for one in arm.metrics.values():
            one.clients.values[:] = values
    plan = Plan(metrics=METRICS[:2], pairs=all_pairs(STUDY), correction=correction)
    return reach_verdict(STUDY, plan, found)


@pytest.mark.parametrize("correction", ["bonferroni", "holm"])
def test_a_filled_dot_never_has_an_interval_over_no_difference(correction: Correction) -> None:
    found = unlike(correction)
    shown = [one for one in found.comparisons if one.finding != "inconclusive"]
    assert shown
    assert any(not one.clients.difference.excludes(0) for one in shown), "else this is no test"
    for one in found.comparisons:
        assert one.deciding.excludes(one.null) == (one.finding != "inconclusive")
    dots = dots_of(draw_superiority(found.comparisons))
    filled = [line for line in dots if line.get_markerfacecolor() == line.get_color()]
    assert (len(dots), len(filled)) == (6, len(shown))
    assert not dots_of(draw_differences(found.comparisons))


def dots_of(figure: Figure) -> list[Line2D]:
    return [line for axes in figure.axes for line in axes.lines if line.get_marker() == "o"]


def test_means_that_say_the_opposite_of_the_ranks_are_told() -> None:
    found = unlike(many=1.5)
    one = found.comparisons[0]
    assert (one.finding, one.clients.difference.value > 0) == ("less", True)
    assert one.ranks_against_means
    assert "The means say the opposite" in found.sentences[0]


def test_every_effect_is_told_in_percent_and_its_finding_by_a_sign_of_its_own() -> None:
    found = reach_verdict(
        STUDY, Plan(metrics=METRICS[:1], pairs=all_pairs(STUDY)), tally({"new": TYPED ** np.linspace(1, 2, 10)}, {})
    )
    one, level = found.comparisons[0], found.comparisons[0].clients
    percent = 100 * level.difference.value / level.means[1]
    assert f"({percent:+.3g} %)".replace("-", "−") in found.sentences[0]
    said = as_document(found)["comparisons"][0]
    assert said["percent"] == pytest.approx(percent)
    assert said["decides"]["scale"] == "superiority"
    assert [finding_sign(each)[0] for each in found.comparisons] == ["▲", "▲", "○"]
    assert one.deciding.high < 0.5
