"""The ideas on the page of papers: the code of each block is taken from the page and run."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedping
from fedping.client_sim.data.table import Target
from fedping.client_sim.models import Onward, Page, Visit, page_table
from fedping.client_sim.models.pages import age_in_days, newest
from fedping.client_sim.sampling import NEVER, Past
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.settings import experiment_of
from fedping.experiments.laboratory.units import Unit
from fedping.main import main
from tests.support.registry import registry_of_its_own

PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
"""The page's code by file name."""

SMALL: dict[str, Any] = {
    "model": {"name": "logistic-regression", "l2": 1e-2},
    "data": {"name": "breast-cancer"},
    "partition": {"partition": "iid", "clients": 8},
    "evaluation": {"baselines": []},
}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that imports a block of the page as a module, and removes it after the test."""
    registry_of_its_own(monkeypatch)
    fedping.data_set("two-hands")(two_hands)
    fedping.data_set("a-normal")(a_normal)
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(name: str) -> Any:
        (tmp_path / f"{name}.py").write_text(BLOCKS[name])
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def ended(folder: Path, raw: dict[str, Any]) -> tuple[np.ndarray, Problem, Outcome]:
    [setup] = experiment_of({**SMALL, **raw}, name="idea", folder=folder).variants.values()
    unit = Unit("only", None, setup, 1, None)
    outcome = run_unit(unit, folder)
    return np.load(unit.folder(folder).path / "last.npy"), prepare(setup, 1, None), outcome


def two_hands(*, spoilt: bool = False) -> Any:
    """Return rows of six clients; client 2 has different ones if ``spoilt``."""
    random = np.random.default_rng(1)
    x, key = random.normal(size=(240, 3)), np.arange(240) % 6
    y = x.sum(axis=1) > 0
    x[key == 2] += 50 * spoilt
    return fedping.table(x, y, target=Target(classes=("no", "yes")), key=key.astype(str))


LOCAL = {"algorithm": "local", "epochs": 2, "batch": 8, "rate": 0.3}


def test_a_client_that_is_left_out_leaves_no_trace(tmp_path: Path, written: Any) -> None:
    """The weights don't depend on that client's rows, to the bit; they do if it takes part."""
    written("forgotten")
    raw = {"rounds": 4, "training": LOCAL, "partition": {"partition": "key"}, "model": {"name": "logistic-regression"}}

    def weights(spoilt: bool, **more: Any) -> np.ndarray:
        data = {"name": "two-hands", "settings": {"spoilt": spoilt}, "test": 0.2}
        return ended(tmp_path / f"{spoilt}{len(more)}", {**raw, "data": data, **more})[0]

    without = {"sampling": {"sampling": "all-but", "client": 2}}
    np.testing.assert_array_equal(weights(False, **without), weights(True, **without))
    assert np.abs(weights(False) - weights(True)).max() > 0.01


def test_a_tier_has_clients_of_like_speed(written: Any) -> None:
    draw = written("tiers").tiers
    random, sizes = np.random.default_rng(1), np.ones(12, np.int64)

    def past(seconds: np.ndarray) -> Past:
        there = ~np.isnan(seconds)
        times = there.astype(np.int64)
        last = np.where(there, 0, NEVER)
        return Past(1, 1, sizes, None, np.zeros(12), times, last, lambda some: np.zeros(len(some)), 0.0, seconds)

    seconds = random.permutation(12).astype(float)
    for _ in range(20):
        drawn = draw(sizes, None, random, past(seconds), clients=3)
        assert len(set(seconds[drawn] // 3)) == 1, "one of four tiers of three"
        assert len(set(drawn)) == 3
    seconds[[4, 7]] = np.nan
    assert sorted(draw(sizes, None, random, past(seconds), clients=3)) == [4, 7]


def test_tiers_need_fewer_hours_for_their_rounds(tmp_path: Path, written: Any) -> None:
    written("tiers")
    clock = {"seconds_per_example": {"median": 1.0, "sigma": 1.5}}
    raw = {"rounds": 24, "training": LOCAL, "partition": {"partition": "iid", "clients": 24}, "clock": clock}
    hours = {}
    for name in ("uniform", "tiers"):
        *_, outcome = ended(tmp_path / name, {**raw, "sampling": {"sampling": name, "clients": 3}})
        hours[name] = outcome.simulated_hours
    assert hours["tiers"] < hours["uniform"]


def a_normal() -> Any:
    return fedping.table(np.random.default_rng(3).normal(2.0, 0.5, size=(600, 1)), np.zeros(600))


def test_a_generator_comes_to_the_clients_numbers(tmp_path: Path, written: Any) -> None:
    """Clients' numbers are N(2, 0.25); the generator starts at N(0, 1), and approaches them."""
    pytest.importorskip("jax")
    written("gan")
    raw = {
        "rounds": 150,
        "model": {"name": "line-gan"},
        "data": {"name": "a-normal"},
        "partition": {"partition": "iid", "clients": 6},
        "training": {"algorithm": "local", "epochs": 1, "batch": 20, "rate": 0.1},
        "evaluation": {"baselines": [], "every": 150},
    }
    weights, problem, _ = ended(tmp_path, raw)
    a, b = weights[[name.startswith("generator") for name in problem.model.weight_names]]
    assert abs(a - 2) < 0.1
    assert abs(abs(b) - 0.5) < 0.1


@pytest.mark.parametrize(("trees", "depth"), [(10, 1), (4, 3)])
def test_boosted_trees_are_those_of_all_rows_in_one_place(tmp_path: Path, written: Any, trees: int, depth: int) -> None:
    pytest.importorskip("jax")
    module = written("trees")
    size = {"trees": trees, "depth": depth}
    raw = {
        "rounds": trees * depth + 1,  # the last round has nothing to do
        "model": {"name": "trees", **size},
        "data": {"name": "breast-cancer", "test": 0.2, "min_max": True},
        "training": {"algorithm": "histograms", "features": 30, **size},
        "server": {"optimizer": {"optimizer": "best-splits", **size}},
        "evaluation": {"baselines": [], "every": trees * depth + 1},
    }
    weights, problem, _ = ended(tmp_path, raw)
    x, y = pooled(problem)
    leaves, splits, levels = module.parts(weights, trees, depth)
    assert levels.tolist() == [trees * depth]
    score = np.zeros(len(y))
    for tree in range(trees):
        moved = np.zeros(len(y))
        whole = {0: np.ones(len(y), bool)}
        for node in range(2**depth - 1):  # a node's children are 2 node + 1 and + 2
            rows = whole[node]
            low = x[:, int(splits[tree, node, 0])] < splits[tree, node, 1]
            gain, below, above = gain_of(rows & low, rows & ~low, y, score)
            assert gain >= 0.9999 * best_gain(x, y, score, rows), "of equal gains any is right"
            whole |= {2 * node + 1: rows & low, 2 * node + 2: rows & ~low}
            leaf = 2 * node + 1 - (2**depth - 1)
            if leaf >= 0:
                np.testing.assert_allclose(leaves[tree, leaf : leaf + 2], [below, above], rtol=2e-3, atol=1e-6)
                moved += np.where(rows, np.where(low, below, above), 0.0)
        score += moved
    assert np.mean((score > 0) == y) > 0.93


def pooled(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return all clients' training rows and labels."""
    parts = [problem.train.batch(np.array([client])) for client in range(8)]
    there = [part.weight[0] > 0 for part in parts]
    rows = [(part.x[0][kept], part.y[0][kept]) for part, kept in zip(parts, there, strict=True)]
    return np.concatenate([x for x, _ in rows]), np.concatenate([y for _, y in rows])


def test_two_servers_take_the_histograms(tmp_path: Path, written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    written("trees")
    [study] = re.findall(r"^```toml\n# file: trees_study.toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "study.toml").write_text(study)
    assert main(["study", "check", str(tmp_path / "study.toml")]) == 0
    assert "the extension 'best-splits' on the mean of the updates, one vote a client" in capsys.readouterr().out


def gain_of(low: np.ndarray, high: np.ndarray, y: np.ndarray, score: np.ndarray) -> tuple[float, float, float]:
    """Return the gain of a split into two groups of rows, and the values of both groups."""
    p = 1 / (1 + np.exp(-score))
    g, h = (p - y) / len(y), p * (1 - p) / len(y)
    sides = [(g[side].sum(), h[side].sum() + 0.01) for side in (low, high)]
    below, above = (float(-0.5 * first / second) for first, second in sides)
    return float(sum(first**2 / second for first, second in sides)), below, above


def best_gain(x: np.ndarray, y: np.ndarray, score: np.ndarray, rows: np.ndarray) -> float:
    """Return the largest gain of a split of some rows, trying one split at a time."""
    splits = [rows & (x[:, column] < cut / 16) for column in range(x.shape[1]) for cut in range(1, 16)]
    return max(gain_of(low, rows & ~low, y, score)[0] for low in splits)


def test_the_implicit_step_of_fedprox_is_the_explicit_one_of_a_smaller_rate(tmp_path: Path) -> None:
    """With rate 0.3 and mu 2, the explicit step has the rate 0.3 / 1.6."""
    prox = {"algorithm": "local", "steps": 5, "batch": 8, "proximal": 2.0}
    plain = {"optimizer": "momentum", "beta": 0.0}
    implicit = ended(tmp_path / "implicit", {"rounds": 3, "training": {**prox, "rate": 0.3}})[0]
    smaller = {**prox, "rate": 0.3 / 1.6, "optimizer": plain}
    np.testing.assert_allclose(ended(tmp_path / "explicit", {"rounds": 3, "training": smaller})[0], implicit, rtol=1e-4)
    same = {**prox, "rate": 0.3, "optimizer": plain}
    assert np.abs(ended(tmp_path / "same", {"rounds": 3, "training": same})[0] - implicit).max() > 1e-3


def lines_of(code: str) -> int:
    """Return the number of lines of code, without imports, docstrings, comments and blank lines."""
    kept = ast.parse(code)
    for node in ast.walk(kept):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    kept.body = [node for node in kept.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    return len([line for line in ast.unparse(kept).splitlines() if line.strip()])


@pytest.mark.parametrize("name", ["forgotten", "tiers", "gan", "trees"])
def test_the_table_of_ideas_has_the_lines_of_each_block(name: str) -> None:
    found = re.search(rf"^\| [^|]+ \| \[{name}\.py\]\([^|]+ \| (\d+) \|", PAGE, re.MULTILINE)
    assert found is not None
    assert int(found[1]) == lines_of(BLOCKS[name])


FLOWER = Path(__file__).parents[2] / "benchmarks" / "peers" / "flower_ideas.py"


def test_the_table_of_ideas_has_the_lines_in_flower() -> None:
    parts = dict(re.findall(r"^# --- ([^\n]+)\n(.*?)(?=^# --- )", FLOWER.read_text(), re.MULTILINE | re.DOTALL))
    found = re.findall(r"^\| ([^|]+) \|[^|]+\|[^|]+\| run[^|]+\| (\d+) \|$", PAGE, re.MULTILINE)
    counts = {name.partition(",")[0]: int(count) for name, count in found}
    assert counts == {name.partition(",")[0]: lines_of(code) for name, code in parts.items()}


DAY = 86_400 * 1_000_000
NOW = 20_000 * DAY


def day_of_one_point(page: Page) -> float:
    """Return the days from now until a page's score has fallen to 1, as in Firefox's documentation.

    Computed visit by visit, relative to the sample's newest, with the half-life 30 and the weights 20, 50 and 100.
    """
    sample = [visit for visit in newest(page.visits) if visit.type not in (7, 8, 9)]
    ages = [age_in_days(visit, NOW) for visit in sample]
    total = 0.0
    for visit, age in zip(sample, ages, strict=True):
        kind = visit.origin_type if visit.type in (5, 6) and visit.origin_type is not None else visit.type
        redirects = visit.onward != Onward.NO
        if kind == 3 or (kind == 2 and not redirects):
            weight = 100
        elif not redirects and kind not in (4, 8, 9):
            weight = 50
        else:
            weight = 20
        total += weight * np.exp(-np.log(2) / 30 * (age - min(ages)))
    score = total / len(sample) * max(page.visit_count, len(sample))
    return -min(ages) + np.log(score) * 30 / np.log(2)


def a_page(random: np.random.Generator) -> Page:
    """Return a page with one to twelve visits of any type, one by a link."""
    visits = [Visit(NOW - int(random.integers(200) * DAY), 1)]
    for _ in range(random.integers(12)):
        kind, origin = int(random.integers(1, 10)), int(random.integers(1, 5))
        onward = Onward(int(random.integers(3)))
        visits.append(Visit(NOW - int(random.integers(200) * DAY), kind, origin if kind in (5, 6) else None, onward))
    return Page(tuple(visits), visit_count=int(random.integers(1, 40)))


def test_frecency_147_is_the_day_that_firefox_stores(written: Any) -> None:
    model, random = written("frecency_147").Frecency147(), np.random.default_rng(1)
    pages = [page for page in (a_page(random) for _ in range(300)) if any(v.type < 7 for v in newest(page.visits))]
    scores = model.scores(model.reference, page_table(pages, NOW))
    np.testing.assert_allclose(np.log2(scores) * 30, [day_of_one_point(page) for page in pages], atol=1e-9)


def test_frecency_147_by_hand_and_its_gradient(written: Any) -> None:
    """For a page typed today and 30 days ago, with four visits in all: (100 + 50) * 4 / 2."""
    model = written("frecency_147").Frecency147()
    twice = Page((Visit(NOW, 2), Visit(NOW - 30 * DAY, 2)), visit_count=4)
    table = page_table([twice, *(a_page(np.random.default_rng(seed)) for seed in range(20))], NOW)
    assert model.scores(model.reference, table)[0] == pytest.approx(300)
    slopes = model.gradients(model.reference, table)
    for number, step in enumerate(1e-4 * np.eye(4)):
        ends = [model.scores(model.reference + side * step, table) for side in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-4, slopes[:, number], rtol=1e-6, atol=1e-6)


STEP = {"start": 2.0, "min": 0.1, "max": 3.0}


def test_frecency_147_learns_from_searches(tmp_path: Path, written: Any) -> None:
    """The weight "medium" starts equal to "high", and falls below it, because users choose by Firefox's own weights."""
    written("frecency_147")
    raw: dict[str, Any] = {
        "rounds": 15,
        "model": {"name": "frecency-147", "gradient": "analytic", "margin": 10.0, "step": STEP},
        "data": {"users": 200},
        "server": {"optimizer": {"optimizer": "rprop"}},
        "sampling": {"sampling": "all"},
        "evaluation": {"baselines": [], "every": 15},
    }
    [setup] = experiment_of(raw, name="idea", folder=tmp_path).variants.values()
    unit = Unit("only", None, setup, 1, None)
    run_unit(unit, tmp_path)
    weights = np.load(unit.folder(tmp_path).path / "last.npy")
    assert weights[3] > weights[2] + 5
