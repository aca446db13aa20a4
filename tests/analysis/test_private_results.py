"""Results for the arms of a private study: intervals cover the truth, including noise and sampling."""

import json
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from fedping.analysis.private import ArmResult, Sums, arm_result, difference, line_rounds, private_result
from fedping.main import main
from fedping.protocol.privacy import Central, OneSign, Privacy
from fedping.server_jobs.round import RoundOptions, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.dashboard import dashboard_client
from tests.support.private import private_study
from tests.support.private_rounds import land_private, private_crowd
from tests.support.rounds import WHEN, store_with

PRIVACY = Privacy(central=Central(epsilon=3, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0))
TIMES, ROUNDS, NOISE = 2_000, 4, 16.0


def seen(rng: np.random.Generator, rate: float, clients: int, again: bool) -> ArmResult:
    """Return the released values of an arm with the same clients in every round (``again``), or different ones."""
    drawn = rng.random((1 if again else ROUNDS, clients)) < rate
    tops = float(drawn.sum()) * (ROUNDS if again else 1)
    noise = NOISE * np.sqrt(ROUNDS)
    n, loss, top = np.array([clients * ROUNDS, tops, tops]) + rng.normal(0, noise, 3)
    sums = Sums(clients=n, loss=loss, top_choice=top, noise=noise, often=ROUNDS if again else 1)
    return arm_result("a", sums, PRIVACY, 0.95)


@pytest.mark.parametrize("again", [True, False])
def test_intervals_cover_the_truth_as_often_as_they_say(again: bool) -> None:
    """The coverage of 2,000 intervals of 95 % has a standard error of 0.5 %."""
    rng = np.random.default_rng(5)
    arms = [(seen(rng, 0.7, 400, again), seen(rng, 0.6, 300, again)) for _ in range(TIMES)]
    level = [a.top_choice.low <= 0.7 <= a.top_choice.high for a, _ in arms if a.top_choice]
    found = [each.difference for a, b in arms if (each := difference("top_choice", a, b, 0.95))]
    apart = [each.low <= 0.7 - 0.6 <= each.high for each in found]
    assert len(level) == len(apart) == TIMES
    assert abs(np.mean(level) - 0.95) < 0.02
    assert abs(np.mean(apart) - 0.95) < 0.02


def test_p_values_of_equal_arms_are_small_as_often_as_they_say() -> None:
    rng = np.random.default_rng(6)
    pairs = [(seen(rng, 0.7, 400, False), seen(rng, 0.7, 400, False)) for _ in range(TIMES)]
    p = [each.p for a, b in pairs if (each := difference("loss", a, b, 0.95))]
    assert abs(np.mean(np.array(p) < 0.05) - 0.05) < 0.02


def test_too_few_clients_tell_nothing_and_neither_do_those_with_noise_of_their_own() -> None:
    few = Sums(clients=4.9 * 32, loss=1.0, top_choice=1.0, noise=32.0, often=1)
    assert arm_result("a", few, PRIVACY, 0.95).loss is None
    local = Sums(clients=1000.0, loss=0.0, top_choice=0.0, noise=0.0, often=1)
    assert arm_result("a", local, Privacy(local=OneSign(epsilon=1)), 0.95).top_choice is None


def test_an_interval_ends_where_its_metric_does() -> None:
    nearly_all = Sums(clients=100.0, loss=1.0, top_choice=99.0, noise=16.0, often=1)
    result = arm_result("a", nearly_all, Privacy(central=PRIVACY.central, loss=(-5, 5)), 0.95)
    assert result.loss is not None
    assert result.top_choice is not None
    assert (result.loss.low, result.top_choice.high) == (-5, 1)
    assert result.loss.high > result.loss.value
    assert result.top_choice.low < result.top_choice.value


def test_terminal_json_and_page_tell_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = private_study(privacy=PRIVACY)
    store, landing = store_with(tmp_path / "store", study), tmp_path / "landing"
    for n in range(2):
        crowd = [*private_crowd(study, 200, seed=n, version=n)]
        crowd += private_crowd(study, 200, seed=10 + n, version=n, arm="control")
        land_private(landing, study, crowd, iteration=n)
        run_round(
            store, landing, "private", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
        )
    result = private_result(store, study)
    [line] = result.lines
    assert (line.rounds, [arm.arm for arm in line.arms]) == (2, ["treatment", "control"])
    for arm in line.arms:
        assert abs(arm.contributions.value - 400) < 5 * arm.contributions.error
        assert arm.loss is not None
        assert abs(arm.loss.value - 0.5) < 5 * arm.loss.error
    assert [each.metric for each in line.differences] == ["loss", "top_choice"]
    where = ["analyze", "private", "--store", str(tmp_path / "store"), "--landing", str(landing)]
    assert main(where) == 0
    text = capsys.readouterr().out
    assert main([*where, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    visitor = dashboard_client(tmp_path)
    page, served = visitor.get("/results/private/").text, visitor.get("/results/private/document.json").json
    assert document == served
    assert [each["sentence"] for each in document["lines"][0]["differences"]] == [e.sentence for e in line.differences]
    for each in line.differences:
        assert each.sentence in text
        assert each.sentence in unescape(page)
    assert main([*where, "--html", str(tmp_path / "report.html")]) == 0
    capsys.readouterr()
    report = unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    for each in line.differences:
        assert each.sentence in report
    assert " of 3 is spent, by 2 rounds, and 3 rounds are left." in report
    assert "(epsilon = 3, delta = 1e-06) differential privacy for an installation" in report
    assert report.count("<svg") == 2
    assert "simulation" not in report
    assert main([*where, "--figures", str(tmp_path / "figures")]) != 0
    assert "so --figures has no effect" in capsys.readouterr().err.replace("\n", " ")
    assert main([*where, "--settle", "7"]) != 0
    assert "so --settle has no effect" in capsys.readouterr().err.replace("\n", " ")


def test_a_round_by_itself_tells_of_the_version_that_its_clients_held(tmp_path: Path) -> None:
    study = private_study(privacy=PRIVACY)
    store, landing = store_with(tmp_path / "store", study), tmp_path / "landing"
    for n, clients in enumerate((300, 1)):
        land_private(landing, study, private_crowd(study, clients, seed=n, version=n), iteration=n)
        run_round(
            store, landing, "private", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
        )
    rounds = line_rounds(store, study, study.lines[0])
    assert rounds.iterations == (0, 1)
    first, second = rounds.arms["treatment"]
    assert abs(first.contributions.value - 300) < 5 * first.contributions.error
    assert first.loss is not None
    assert second.loss is None, "noise hides whether anybody was there"
    assert {each.loss for each in rounds.arms["control"]} == {None}
    together = private_result(store, study).lines[0].arms[0].contributions.value
    assert together == pytest.approx(first.contributions.value + second.contributions.value)
