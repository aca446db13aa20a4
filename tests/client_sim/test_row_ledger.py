"""The ledger of a table: charged before each draw, once for each version, also after a kill, loss or restore."""

import json
import math
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import norm

from fedping.client_sim.joining.ledger import (
    AlreadyAnswered,
    BudgetEnded,
    Ledger,
    LedgerTrouble,
    OtherWeights,
    Release,
    ledger_of,
)
from fedping.protocol.discrete_gaussian import discrete_gaussian
from fedping.protocol.errors import FedpingError, InvalidSettings

EPSILON, DELTA = 3.0, 150**-1.1
ROWS = [f"{number},malignant".encode() for number in range(150)]


def release(version: int, cost: float = 0.01, **other: object) -> Release:
    first = Release(
        study="tumours", line="main", role="training", version=version, weights="a" * 64, terms="t", cost=cost
    )
    return replace(first, **other)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = ledger_of(tmp_path / "patients.csv")
    ledger.open(EPSILON, DELTA, 150)
    return ledger


def noise(ledger: Ledger, of: Release) -> list[int]:
    return discrete_gaussian(ledger.read().bits(of), 100.0, 20).tolist()


def test_it_lies_beside_the_table_in_two_copies_that_its_owner_alone_may_read(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.path == tmp_path / "patients.csv.ledger"
    assert ledger.path.read_bytes() == ledger.copy.read_bytes()
    assert ledger.path.stat().st_mode & 0o77 == ledger.copy.stat().st_mode & 0o77 == 0
    ledger.path.chmod(0o644)
    with pytest.raises(InvalidSettings, match="chmod 600"):
        ledger.read()


def test_charges_add_up_over_studies_roles_and_versions_until_the_budget_ends(ledger: Ledger) -> None:
    for version in range(5):
        ledger.charge(release(version, cost=0.04))
        ledger.charge(release(version, cost=0.01, role="evaluation"))
        ledger.charge(release(version, cost=0.02, study="other"))
    book = ledger.read()
    assert book.spent == pytest.approx(5 * 0.07)
    assert [(each.study, each.versions, round(each.cost, 9)) for each in book.by_study()] == [
        ("tumours", 10, 0.25),
        ("other", 5, 0.1),
    ]
    mu, epsilon = math.sqrt(0.35), book.spent_epsilon
    second = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert second == pytest.approx(DELTA, rel=1e-6)
    left = book.versions_left(0.04)
    for version in range(left):
        ledger.charge(release(100 + version, cost=0.04))
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetEnded, match=r"the table's budget is spent.* of 3, .*it sends nothing more"):
        ledger.charge(release(1000, cost=0.04))
    assert ledger.path.read_bytes() == before
    assert ledger.read().spent_epsilon <= EPSILON


def test_rows_that_are_either_learned_from_or_held_out_pay_for_one_of_the_two(ledger: Ledger) -> None:
    for version in range(3):
        ledger.charge(release(version, cost=0.04, division="half"))
        ledger.charge(release(version, cost=0.05, division="half", role="evaluation"))
    assert ledger.read().spent == pytest.approx(0.15)
    ledger.charge(release(0, cost=0.02, division="third", study="other"))  # another division may move a row
    ledger.charge(release(0, cost=0.01, study="plain"))
    assert ledger.read().spent == pytest.approx(0.15 + 0.02 + 0.01)


def test_a_budget_of_exactly_so_many_versions_has_so_many(ledger: Ledger) -> None:
    cost = ledger.read().allowed / 50
    for version in range(50):
        ledger.charge(release(version, cost=cost))
    assert ledger.read().spent_epsilon == pytest.approx(EPSILON, rel=1e-6)
    with pytest.raises(BudgetEnded):
        ledger.charge(release(50, cost=cost))


def test_the_same_weights_are_charged_once_and_have_the_same_noise(ledger: Ledger) -> None:
    ledger.charge(release(3))
    drawn, before = noise(ledger, release(3)), ledger.path.read_bytes()
    ledger.charge(release(3))
    assert ledger.path.read_bytes() == before
    assert noise(ledger, release(3)) == drawn
    for other in (release(4), release(3, terms="u"), release(3, study="other"), release(3, weights="b" * 64)):
        assert noise(ledger, other) != drawn


def test_other_weights_under_a_known_version_are_refused_and_logged_once(ledger: Ledger) -> None:
    ledger.charge(release(3))
    for _ in range(3):
        with pytest.raises(OtherWeights, match="version 3 of study 'tumours' has other weights") as refused:
            ledger.charge(release(3, weights="b" * 64))
        assert refused.value.exit_code == 6
    book = ledger.read()
    assert [entry.what for entry in book.entries] == ["opened", "release", "refused"]
    assert book.spent == 0.01


def test_another_table_or_other_terms_get_no_second_answer_to_a_version(ledger: Ledger) -> None:
    ledger.charge(release(3))
    with pytest.raises(AlreadyAnswered, match="a version is answered only once"):
        ledger.charge(release(3, terms="another table"))
    ledger.charge(release(4, terms="another table"))


def test_a_process_killed_at_any_byte_of_a_line_is_charged_once_and_never_draws_again(ledger: Ledger) -> None:
    """Tests each file system state after a kill: the line is whole, cut or missing in either copy."""
    before = ledger.path.read_bytes()
    ledger.charge(release(0))
    drawn, after = noise(ledger, release(0)), ledger.path.read_bytes()
    for cut in range(len(before), len(after) + 1):
        copies = [before] if cut < len(after) else [before, after[:-5], after]
        for copy in copies:
            ledger.path.write_bytes(after[:cut])
            ledger.copy.write_bytes(copy)
            ledger.charge(release(0))
            book = ledger.read()
            assert [entry.what for entry in book.entries] == ["opened", "release"]
            assert book.spent == 0.01
            assert noise(ledger, release(0)) == drawn
            assert ledger.path.read_bytes() == ledger.copy.read_bytes()


def test_a_process_killed_at_its_first_line_begins_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.path.write_bytes(b'{"number":0,')
    ledger.path.chmod(0o600)
    assert ledger.open(EPSILON, DELTA, 150).spent == 0
    assert len(ledger.read().entries) == 1


def test_of_two_copies_the_longer_counts(ledger: Ledger) -> None:
    ledger.charge(release(0))
    old = ledger.path.read_bytes()
    ledger.charge(release(1))
    for path in (ledger.path, ledger.copy):
        new = path.read_bytes()
        path.write_bytes(old)
        assert ledger.read().spent == pytest.approx(0.02)
        path.unlink()
        assert ledger.read().spent == pytest.approx(0.02)
        ledger.charge(release(1))
        assert path.read_bytes() == new


def test_copies_that_tell_different_histories_are_refused(ledger: Ledger) -> None:
    old = ledger.path.read_bytes()
    ledger.charge(release(0))
    ledger.copy.write_bytes(old)
    other = ledger.path.read_bytes()
    ledger.path.write_bytes(old)
    ledger.charge(release(7))
    ledger.path.write_bytes(other)
    with pytest.raises(LedgerTrouble, match="different histories"):
        ledger.charge(release(8))


def test_a_line_that_was_changed_or_taken_out_breaks_the_chain(ledger: Ledger) -> None:
    for version in range(3):
        ledger.charge(release(version))
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    cheaper = lines[1].replace(b'"cost":0.01', b'"cost":0.00')
    for changed in ([lines[0], cheaper, *lines[2:]], [lines[0], *lines[2:]], [*lines[:2], b"no entry\n", lines[3]]):
        ledger.path.write_bytes(b"".join(changed))
        assert ledger.read().spent == pytest.approx(0.03)  # by the copy
        ledger.copy.write_bytes(b"".join(changed))
        with pytest.raises(LedgerTrouble, match=r"both copies of the ledger .* are damaged"):
            ledger.charge(release(9))
        ledger.path.write_bytes(b"".join(lines))
        ledger.copy.write_bytes(b"".join(lines))


def test_a_restored_ledger_charges_each_study_for_what_may_have_been_answered(ledger: Ledger, tmp_path: Path) -> None:
    for version in range(4):
        ledger.charge(release(version))
    backup = tmp_path / "backup"
    shutil.copy(ledger.path, backup)
    for version in range(4, 9):
        ledger.charge(release(version))
    truth = ledger.read().spent
    for path in (ledger.path, ledger.copy):
        shutil.copy(backup, path)
    ledger.restored()
    book = ledger.charge(release(9))
    assert book.spent == pytest.approx(truth + 0.01)
    assert [(entry.what, entry.versions) for entry in book.entries[-2:]] == [("lost", 5), ("release", 0)]
    ledger.charge(release(12))  # only once: later, unanswered versions cost nothing
    assert ledger.read().spent == pytest.approx(truth + 0.02)
    ledger.charge(release(2, study="other"))
    assert ledger.read().by_study()[-1].versions == 1 + 2


def test_a_folder_that_knows_of_more_than_the_ledger_charges_it(ledger: Ledger) -> None:
    ledger.charge(release(2))
    assert ledger.charge(release(7), known=5).spent == pytest.approx(0.01 * (1 + 3 + 1))
    assert ledger.charge(release(8), known=7).spent == pytest.approx(0.01 * (1 + 3 + 1 + 1))
    assert ledger.charge(release(10**9), known=10**8, most=10).spent == pytest.approx(0.01 * (6 + 10 + 1))


def test_what_was_sent_before_there_was_protection_is_not_charged(ledger: Ledger) -> None:
    assert ledger.charge(release(7), known=6, since=6).spent == pytest.approx(0.01)
    assert ledger.charge(release(9), known=8, since=6).spent == pytest.approx(0.03)


def test_a_lost_ledger_begins_with_what_a_person_says_was_spent(ledger: Ledger) -> None:
    ledger.charge(release(0))
    for path in (ledger.path, ledger.copy):
        path.write_bytes(b"no ledger\n")
    with pytest.raises(LedgerTrouble):
        ledger.open(EPSILON, DELTA, 150)
    book = ledger.state(EPSILON, DELTA, 1.0)
    assert book.spent_epsilon == pytest.approx(1.0, rel=1e-6)
    assert ledger.path.with_name("patients.csv.ledger.damaged-1").read_bytes() == b"no ledger\n"
    assert ledger.charge(release(3, cost=0.001)).entries[-2].versions == 3


@pytest.mark.parametrize("changed", [1, 9])
def test_a_change_of_fewer_than_ten_rows_is_refused(ledger: Ledger, changed: int) -> None:
    digest = ledger.take_table(ROWS)
    assert ledger.take_table(ROWS[::-1]) == digest
    other = [b"%d,benign" % number for number in range(changed)]
    for rows in (ROWS[changed:], [*ROWS, *other], [*other, *ROWS[changed:]]):
        with pytest.raises(InvalidSettings, match=f"^{changed} row"):
            ledger.take_table(rows)
    enough = [*ROWS[10:], *(b"%d,benign" % number for number in range(9))]
    assert ledger.take_table(enough) != digest
    assert [entry.what for entry in ledger.read().entries] == ["opened", "table", "table"]


def test_marks_say_nothing_of_rows_without_the_secret(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take_table(ROWS)
    other = Ledger(tmp_path / "other")
    other.open(EPSILON, DELTA, 150)
    other.take_table(ROWS)
    mine, theirs = ledger.read().marks, other.read().marks
    assert mine is not None
    assert theirs is not None
    assert not np.intersect1d(mine, theirs).size


def test_another_budget_is_written_and_holds_from_then_on(ledger: Ledger) -> None:
    ledger.charge(release(0))
    book = ledger.open(8.0, DELTA, 150)
    assert (book.budget, book.spent) == ((8.0, DELTA), 0.01)
    assert ledger.open(8.0, DELTA, 150) == book


def test_an_entry_is_a_line_of_json(ledger: Ledger) -> None:
    ledger.charge(release(0))
    line = json.loads(ledger.path.read_bytes().splitlines()[1])
    assert line["release"] == msgspec.to_builtins(release(0))
    assert set(line) == {"number", "before", "time", "what", "release"}


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match="--ledger"):
        Ledger(tmp_path / "missing" / "ledger").open(EPSILON, DELTA, 150)
