"""The charts' script in Node.js: gaps between points stay gaps, and no two lines look alike."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.analysis.figures.canvas import LIGHT
from fedping.analysis.rounds import smoothed
from tests.browser.tools import node

SCRIPTS = Path("dashboard/static/js")

CALLED = """
import { readFileSync } from "node:fs";
const calls = JSON.parse(readFileSync(0, "utf8"));
const found = [];
for (const [file, name, ...given] of calls) found.push((await import(`./${file}.mjs`))[name](...given));
console.log(JSON.stringify(found));
"""


def called(folder: Path, *calls: list[Any]) -> list[Any]:
    """Return the results of the scripts' functions; each call has the file, the function and its arguments."""
    for name in {call[0] for call in calls}:
        (folder / f"{name}.mjs").write_text((SCRIPTS / f"{name}.js").read_text())
    (folder / "called.mjs").write_text(CALLED)
    given = json.dumps(calls).encode()
    run = subprocess.run([node(), str(folder / "called.mjs")], input=given, capture_output=True, timeout=240)
    assert run.returncode == 0, run.stderr.decode()
    found: list[Any] = json.loads(run.stdout)
    return found


def test_no_line_leads_over_a_missing_iteration_and_the_mean_begins_anew_after_it(tmp_path: Path) -> None:
    values = np.random.default_rng(2).normal(size=12).tolist()
    points = [[i, value] for i, value in enumerate(values) if i != 7]
    [gaps] = called(tmp_path, ["points", "gapped", points])
    assert gaps == [[i, None if i == 7 else value] for i, value in enumerate(values)]
    after = [*gaps[:8], [8, 1.0], [9, None]]
    [means, lonely] = called(tmp_path, ["points", "smoothed", gaps, 5], ["points", "alone", after])
    expected = [*smoothed(values[:7]), None, *smoothed(values[8:])]
    assert [y for _, y in means] == pytest.approx(expected)
    assert lonely == [[8, 1.0]], "a point without a neighbour has no line, and needs a dot"


def test_a_long_line_is_drawn_with_fewer_points_that_keep_its_ends_its_spikes_and_its_gaps(tmp_path: Path) -> None:
    points: list[list[float | None]] = [[at, float(np.sin(at / 300))] for at in range(10_000)]
    points[4321][1], points[777][1] = 50.0, -50.0
    for at in (*range(5000, 7000), 9001):
        points[at][1] = None
    short, thin, picked = called(
        tmp_path,
        ["points", "thinned", points[:5], 5],
        ["points", "thinned", points, 500],
        ["points", "picked", 9999, 50],
    )
    assert short == points[:5]
    assert len(thin) <= 500
    for kept in ([4321, 50.0], [777, -50.0], [9001, None], points[0], points[-1]):
        assert kept in thin
    assert all(a[0] < b[0] for a, b in zip(thin, thin[1:], strict=False))
    assert all(value == points[at][1] for at, value in thin)
    assert (len(picked), picked[0], picked[-1]) == (50, 0, 9998)


def test_what_is_seen_of_a_line_leads_to_the_points_just_outside(tmp_path: Path) -> None:
    points = [[at, 1.0] for at in range(0, 100, 10)]
    inside, beyond, nearest = called(
        tmp_path,
        ["points", "within", points, [25, 41]],
        ["points", "within", points, [200, 300]],
        ["points", "nearest", [0, 10, 20, 30], 16],
    )
    assert [at for at, _ in inside] == [20, 30, 40, 50]
    assert [at for at, _ in beyond] == [90]
    assert nearest == 2


def test_of_hundreds_of_lines_no_two_look_alike_on_pages_and_of_a_hundred_in_reports(tmp_path: Path) -> None:
    looks = ("armColour", "armDashes", "armSymbol")
    found = called(tmp_path, *(["colours", what, place] for place in range(320) for what in looks))
    assert len({str(found[k : k + 3]) for k in range(0, len(found), 3)}) == 320
    places = range(100)
    assert len({(LIGHT.of_arm(place), str(LIGHT.dashes_of_arm(place))) for place in places}) == 100


def test_names_that_are_cut_still_differ(tmp_path: Path) -> None:
    names = [f"server.optimizer.rate = 0.{i:02d}, partition.alpha = 0.5" for i in range(30)] + ["short"]
    [found] = called(tmp_path, ["points", "shortened", names, 26])
    assert len(set(found)) == len(names)
    assert found[-1] == "short"
    assert all(len(name) <= 26 for name in found)
