"""Plans of private lines, spent budgets and the privacy card: their figures equal independent ones; their sentences."""

import json
import math
from pathlib import Path

import pytest

from fedping.main import main
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import Central, ClippedFlat, LocalGaussian, OneSign, Privacy
from fedping.server_jobs.privacy.accounting import Schedule, epsilon
from fedping.server_jobs.privacy.budget import LineSpent, epsilon_after, together, with_noise
from fedping.server_jobs.privacy.card import card_of
from fedping.server_jobs.privacy.planning import planned, refuse_lost, usual_delta
from tests.support.private import private_study


@pytest.mark.long
def test_the_third_of_rounds_epsilon_and_noise_follows_from_two() -> None:
    settings = {"population": 100_000, "weights": 15, "sampling": 0.01, "delta": 1e-6}
    by_noise = planned(**settings, noise_multiplier=1.0, epsilon_=2.0)
    assert by_noise.rounds == 874  # by PLD; McMahan et al.'s moments accountant would allow 531
    assert planned(**settings, rounds=137, epsilon_=1.0).noise_multiplier == pytest.approx(1.0106, abs=1e-4)
    assert planned(**settings, rounds=1000, noise_multiplier=1.0).epsilon == pytest.approx(2.1245, abs=1e-3)
    with pytest.raises(InvalidSettings, match="give two of"):
        planned(**settings, rounds=3)
    with pytest.raises(InvalidSettings, match="a single round"):
        planned(**settings, noise_multiplier=0.5, epsilon_=0.01)


def test_the_third_follows_from_two_without_sampling() -> None:
    """Tests the fast cases of :func:`test_the_third_of_rounds_epsilon_and_noise_follows_from_two`."""
    settings = {"population": 100_000, "weights": 15, "delta": 1e-6}
    found = planned(**settings, noise_multiplier=40.0, epsilon_=2.0)
    assert found.rounds > 1
    assert planned(**settings, noise_multiplier=40.0, rounds=found.rounds).epsilon <= 2.0
    assert planned(**settings, noise_multiplier=40.0, rounds=found.rounds + 1).epsilon > 2.0
    assert planned(**settings, rounds=found.rounds, epsilon_=2.0).noise_multiplier == pytest.approx(40.0, rel=0.01)
    with pytest.raises(InvalidSettings, match="give two of"):
        planned(**settings, rounds=3)
    with pytest.raises(InvalidSettings, match="a single round"):
        planned(**settings, noise_multiplier=0.5, epsilon_=0.01)


def test_contributions_bound_what_is_spent_whatever_the_number_of_rounds() -> None:
    one = planned(population=48_000, weights=15, rounds=48, contributions=1, epsilon_=1.0, delta=1e-6)
    assert one.noise_multiplier == pytest.approx(4.224679, abs=1e-5)  # Balle and Wang's analytic Gaussian
    assert one.per_round == 1000
    more = planned(population=48_000, weights=15, rounds=480, contributions=1, epsilon_=1.0, delta=1e-6)
    assert more.noise_multiplier == one.noise_multiplier
    with pytest.raises(InvalidSettings, match="any number of rounds"):
        planned(population=48_000, weights=15, contributions=1, epsilon_=1.0, delta=1e-6, noise_multiplier=5.0)


def test_a_plan_that_noise_would_win_is_refused_and_says_what_would_do() -> None:
    lost = planned(population=1000, weights=22, rounds=480, epsilon_=1.0, delta=1e-6)
    with pytest.raises(InvalidSettings, match=f"About {lost.clients_needed:,} clients"):
        refuse_lost(lost)
    enough = planned(population=lost.clients_needed, weights=22, rounds=480, epsilon_=1.0, delta=1e-6)
    assert enough.outlook.startswith("at least 95 %")
    refuse_lost(enough)
    with pytest.raises(InvalidSettings, match="no guarantee for 1,000 clients"):
        planned(population=1000, weights=22, rounds=1, epsilon_=1.0, delta=0.001)
    assert usual_delta(100_000) < 1 / 100_000


def test_what_lines_spend_adds_up() -> None:
    def line(study: str, name: str, epsilon: float) -> LineSpent:
        return LineSpent(study=study, line=name, releases=1, rounds_left=1, epsilon=epsilon, most=9.0, delta=1e-6)

    lines = [line("a", "x", 1.0), line("a", "y", 0.5), line("b", "x", 0.25)]
    assert together(lines).epsilon == 1.75
    assert together(lines).delta == pytest.approx(3e-6)
    assert together([]).epsilon == 0


@pytest.mark.parametrize(
    ("privacy", "sentences"),
    [
        (
            Privacy(central=Central(epsilon=1, delta=1e-6, rounds=48, population=1000, sampling=0.25)),
            (
                "trust the operator",
                "the signs of 4 weights",
                "(epsilon = 1, delta = 1e-06)",
                "samples 25 %",
                "2.72 times",
            ),
        ),
        (
            Privacy(
                central=Central(epsilon=2, delta=1e-6, rounds=48, population=1000),
                contribution=ClippedFlat(norm=1.0),
                contributions=3,
            ),
            ("clipped to a fixed norm", "for 3 versions at most", "contributes to at most 3 of them"),
        ),
        (
            Privacy(
                central=Central(epsilon=2, delta=1e-6, rounds=48, population=1000, sampling=0.25),
                local=OneSign(epsilon=1),
                contributions=3,
            ),
            (
                "for the local guarantee clients need not trust anyone",
                "trust the operator",
                "at most 3 of them",
                "each samples 25 %",
            ),
        ),
        (
            Privacy(local=OneSign(epsilon=1), contributions=2),
            (
                "need not trust anyone",
                "the sign of one randomly drawn weight of 4",
                "local differential privacy of epsilon = 1 for each of 2",
            ),
        ),
        (
            Privacy(
                central=Central(epsilon=1, delta=1e-6, rounds=5, population=1000, sampling=0.1, noise_multiplier=4),
                local=OneSign(epsilon=8),
                contributions=3,
                left_out=("w1",),
            ),
            (
                "for the central guarantee they also trust the operator",
                "the sign of one randomly drawn weight of 3",
                "samples 10 % of the clients in secret and a client contributes to at most 3 of them",
            ),
        ),
        (Privacy(local=LocalGaussian(epsilon=1, delta=1e-5)), ("noise on each", "delta = 1e-05 for each contribution")),
    ],
)
def test_the_card_says_who_trusts_whom_and_what_is_guaranteed(privacy: Privacy, sentences: tuple[str, ...]) -> None:
    text = card_of(private_study(privacy=privacy)).text
    for sentence in (*sentences, "Not covered"):
        assert sentence in text


def test_the_commands_tell_people_and_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["privacy", "plan", "--clients", "48000", "--contributions", "1", "--rounds", "48", "--delta", "1e-6"]
    assert main([*command, "--epsilon", "1", "--weights", "15"]) == 0
    assert "epsilon = 1, delta = 1e-06" in capsys.readouterr().out
    assert main([*command, "--epsilon", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["noise_multiplier"] == pytest.approx(4.224679, abs=1e-5)
    assert main([*command, "--epsilon", "0.001"]) == 2
    assert "too much noise to learn" in capsys.readouterr().err
    store = str(tmp_path / "store")
    assert main(["study", "create", "experiments/firefox_2018.toml", "--store", store]) == 0
    capsys.readouterr()
    assert main(["privacy", "spent", "--store", store]) == 0
    assert capsys.readouterr().out == "this store has no private line\n"
    assert main(["privacy", "card", "experiments/firefox_2018.toml"]) == 0
    assert "none" in capsys.readouterr().out


def test_no_more_is_said_to_be_spent_than_was_promised() -> None:
    """A coarse grid of losses costs most for tiny samples: here 0.10037 instead of 0.1."""
    central = Central(epsilon=0.1, delta=1e-6, rounds=48, population=1000, sampling=0.003)
    [line] = with_noise(private_study(privacy=Privacy(central=central))).lines
    assert line.privacy is not None
    assert line.privacy.central is not None
    for releases in (1, 47, 48):
        found, name = epsilon_after(line.privacy, releases)
        assert (found or math.inf) <= 0.1
        assert "PLD" in name
    schedule = Schedule(central.sampling, line.privacy.central.noise_multiplier or 0.0, 48)
    assert (found or 0.0) >= epsilon(schedule, central.delta)  # and no less than was derived
