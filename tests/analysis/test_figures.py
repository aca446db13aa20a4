"""Figures show the given numbers, in the arms' colours, in light and dark."""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import combinations
from math import dist
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedping.analysis import figures
from fedping.analysis.figures import DARK, LIGHT, PAGE, Theme
from fedping.analysis.figures.canvas import spread
from fedping.analysis.rounds import RoundTraffic, Series
from tests.support.histories import ARMS, CURVES, DAY_MS, QUALITY, TRAFFIC
from tests.support.verdicts import HOUR, made_tally, made_verdict

DRAWN: dict[str, Callable[[Theme], Figure]] = {
    "loss": lambda theme: figures.draw_loss(CURVES, arms=ARMS, theme=theme),
    "smooth loss": lambda theme: figures.draw_smooth_loss(CURVES, arms=ARMS, theme=theme),
    "rank": lambda theme: figures.draw_rank(CURVES, arms=ARMS, theme=theme),
    "typed": lambda theme: figures.draw_typed({"control": Series((0, 1), (4.0, 4.5))}, arms=ARMS, theme=theme),
    "traffic": lambda theme: figures.draw_round_traffic(TRAFFIC, arms=ARMS, theme=theme),
    "updates": lambda theme: figures.draw_update_quality(QUALITY, theme=theme),
    "signs": lambda theme: figures.draw_sign_quality(QUALITY, theme=theme),
    "loss of subsamples": lambda theme: figures.draw_loss_quality(QUALITY, theme=theme),
    "hours": lambda theme: figures.draw_hours({"treatment": {HOUR: 5}}, arms=ARMS, theme=theme),
    "differences": lambda theme: figures.draw_differences(VERDICT.comparisons, theme=theme),
    "superiority": lambda theme: figures.draw_superiority(VERDICT.comparisons, theme=theme),
}
VERDICT = made_verdict({"treatment": 3.0, "control": 4.0})


def lines_of(figure: Figure) -> dict[str, Line2D]:
    """Return the lines of a figure by their colour."""
    return {to_hex(line.get_color()): line for line in figure.axes[0].lines if len(line.get_xdata()) > 2}  # type: ignore[arg-type]


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_loss_is_drawn_as_it_is_and_the_smooth_one_as_the_mean_of_five() -> None:
    raw = lines_of(figures.draw_loss(CURVES, arms=ARMS))[LIGHT.arms[0]]
    smooth = lines_of(figures.draw_smooth_loss(CURVES, arms=ARMS))[LIGHT.arms[0]]
    assert list(raw.get_ydata()) == list(CURVES["treatment"].loss)  # type: ignore[arg-type]
    assert list(smooth.get_ydata()) == [80, 75, 70, 65, 60, 50, 40, 30]  # type: ignore[arg-type]


def test_a_missing_iteration_is_a_gap_and_the_mean_begins_anew_after_it() -> None:
    series = {"treatment": Series((0, 1, 2, 4, 5, 7), (8.0, 6.0, 4.0, 90.0, 70.0, 5.0))}
    line, alone = figures.draw_series(series, "loss", over=5).axes[0].lines
    assert list(line.get_xdata()) == [0, 1, 2, 3, 4, 5, 6, 7]  # type: ignore[arg-type]
    assert list(line.get_ydata()) == pytest.approx([8, 7, 6, math.nan, 90, 80, math.nan, 5], nan_ok=True)  # type: ignore[arg-type]
    assert (list(alone.get_xdata()), alone.get_marker()) == ([7], "o")  # type: ignore[arg-type]


def test_more_names_than_have_room_stand_in_a_legend_each_once() -> None:
    many = {f"variant-{i}": Series((0, 1), (1.0 + i / 100, 2.0)) for i in range(30)}
    figure = figures.draw_typed(many)
    assert texts_of(figure) == []
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(many)


def test_an_arm_keeps_its_colour_where_others_are_missing() -> None:
    alone = {"control": CURVES["control"]}
    assert set(lines_of(figures.draw_rank(CURVES, arms=ARMS))) == {LIGHT.arms[0], LIGHT.arms[1]}
    assert set(lines_of(figures.draw_rank(alone, arms=ARMS))) == {LIGHT.arms[1]}
    assert set(lines_of(figures.draw_rank(alone))) == {LIGHT.arms[0]}


def test_more_arms_than_colours_have_lines_of_their_own() -> None:
    many = {f"arm-{i}": Series((0, 1, 2), (1.0 * i, 2.0, 3.0)) for i in range(14)}
    drawn = figures.draw_typed(many).axes[0].lines
    looks = {str((to_hex(line.get_color()), line._dash_pattern)) for line in drawn}  # type: ignore[arg-type, attr-defined]
    assert len(drawn) == len(looks) == 14


def test_traffic_shows_all_arms_together_and_marks_midnight() -> None:
    drawn = figures.draw_round_traffic(TRAFFIC, arms=ARMS)
    assert list(lines_of(drawn)[LIGHT.ink].get_ydata()) == [8, 9, 10, 12, 13, 15]  # type: ignore[arg-type]
    day = datetime.fromtimestamp(17_001 * DAY_MS / 1000, UTC)
    assert f"{day:%-d %b}" in texts_of(drawn)
    (midnight,) = [line for line in drawn.axes[0].lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
    assert midnight.get_xdata()[0] == pytest.approx(2.5)  # type: ignore[index]
    assert "all arms" in texts_of(drawn)


def test_one_arm_needs_no_sum() -> None:
    alone = RoundTraffic(TRAFFIC.iterations, TRAFFIC.ended_ms, {"treatment": TRAFFIC.arms["treatment"]})
    assert "all arms" not in texts_of(figures.draw_round_traffic(alone))


def test_hours_are_filled_with_zeros_and_added_up_to_days_when_there_are_many() -> None:
    hours = lines_of(figures.draw_hours({"treatment": {HOUR: 5, HOUR + 3: 2}}))[LIGHT.arms[0]]
    assert list(hours.get_ydata()) == [5, 0, 0, 2]  # type: ignore[arg-type]
    first = HOUR // 24 * 24
    days = figures.draw_hours({"treatment": {first: 5, first + 5: 1, first + 24 * 30: 2}})
    assert list(lines_of(days)[LIGHT.arms[0]].get_ydata()) == [6, *[0] * 29, 2]  # type: ignore[arg-type]
    assert days.axes[0].get_ylabel() == "pings a day"


def test_dots_are_means_bars_are_standard_deviations_and_large_subsamples_are_hollow() -> None:
    axes = figures.draw_update_quality(QUALITY).axes[0]
    dots = {
        float(x): (float(y), to_hex(line.get_markerfacecolor()))  # type: ignore[arg-type]
        for line in axes.lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)  # type: ignore[arg-type]
    }
    colour = LIGHT.arms[0]
    assert dots == {3.0: (2.0, colour), 4.0: (4.0, LIGHT.paper), 9.0: (4.0, colour)}
    bars = [segment[:, 1].tolist() for segment in axes.collections[0].get_segments()]  # type: ignore[attr-defined]
    deviations = np.std(QUALITY.update, axis=1, ddof=1)
    assert bars == [pytest.approx([mean - s, mean + s]) for mean, s in zip((2.0, 4.0, 4.0), deviations, strict=True)]


def test_intervals_are_those_of_the_comparisons() -> None:
    axes = figures.draw_differences(VERDICT.comparisons).axes[0]
    estimate = VERDICT.comparisons[0].clients.difference
    assert any(list(line.get_xdata()) == [estimate.low, estimate.high] for line in axes.lines)  # type: ignore[arg-type]
    base = VERDICT.comparisons[0].clients.means[1]
    said = f"{estimate.value:+.3f} ({100 * estimate.value / base:+.3g} %)".replace("-", "−")
    assert said in texts_of(figures.draw_differences(VERDICT.comparisons))
    assert any(text.endswith("▲ better") for text in texts_of(figures.draw_superiority(VERDICT.comparisons)))
    assert [axes.get_title(loc="left") for axes in figures.draw_superiority(VERDICT.comparisons).axes] == [
        "characters typed",
        "selected rank",
    ]


@pytest.mark.parametrize("name", DRAWN)
def test_a_page_gets_every_figure_without_a_colour_of_its_own(name: str) -> None:
    svg = figures.to_svg(DRAWN[name](PAGE), "key", "A title", "a < b")
    assert svg.startswith("<svg")
    assert svg.endswith("</svg>")
    assert "a &lt; b</desc>" in svg
    assert set(re.findall(r"#[0-9a-f]{6}", svg)) <= {"#000000"}
    assert not re.search(r"stroke: #|fill: #", svg)
    assert "http" not in svg
    assert all(found.startswith("key-") for found in re.findall(r'\bid="([^"]*)"', svg))


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize("name", DRAWN)
def test_a_file_is_whole_repeatable_and_in_the_themes_colours(name: str, theme: Theme, tmp_path: Path) -> None:
    files = [figures.save_figure(DRAWN[name](theme), tmp_path / f"{i}.svg") for i in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert theme.paper in files[0].read_text()
    assert theme.ink in files[0].read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.svg", "1.svg"]


def test_arms_are_named_in_the_drawing(tmp_path: Path) -> None:
    text = figures.save_figure(figures.draw_loss(CURVES), tmp_path / "loss.svg").read_text()
    assert all(f">{name}</text>" in text for name in CURVES)


def test_a_figure_without_style_of_its_own_leaves_matplotlibs_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.to_svg(figures.draw_loss(CURVES, theme=PAGE), "key", "", "")
    assert dict(matplotlib.rcParams) == before


def luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_in_every_colour_can_be_read(theme: Theme) -> None:
    paper = luminance(theme.paper)
    for colour in (theme.ink, theme.soft, *theme.arms):
        bright, dim = sorted((luminance(colour), paper), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5
    assert len(set(theme.arms)) == len(theme.arms)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12))
def test_names_never_overlap_and_stay_in_order(heights: list[float]) -> None:
    found = spread(heights, 0.0, 10.0)
    for (a, moved_a), (b, moved_b) in combinations(zip(heights, found, strict=True), 2):
        assert abs(moved_a - moved_b) >= 0.75 - 1e-9
        assert (moved_a < moved_b) or a >= b
    assert max(found) <= 10.0 + 1e-9


def test_names_that_have_room_stay_where_they_are() -> None:
    assert spread([1.0, 9.0, 5.0], 0.0, 10.0) == pytest.approx([1.0, 9.0, 5.0])


def test_the_tally_of_the_tests_is_one_of_three_pings_a_client() -> None:
    tally = made_tally({"a": 2.0}).arms["a"]
    assert (tally.clients, tally.pings) == (600, 1800)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_no_two_arms_have_nearly_the_same_colour(theme: Theme) -> None:
    """At least 25 apart in CIELAB: a distance of 2 is just visible between adjacent areas, thin lines need far more."""
    pairs = {(a, b): dist(lab(a), lab(b)) for a, b in combinations(theme.arms, 2)}
    assert min(pairs.values()) > 25, min(pairs, key=pairs.__getitem__)


def lab(colour: str) -> tuple[float, float, float]:
    """Return the CIELAB coordinates (white point D65) of an sRGB colour such as #0067a3."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
