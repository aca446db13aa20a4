"""Choices among candidates stay whole for every client and split, and are restored in order."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.data import ByKey, Split, Table, Target, load_table, partition, split, standardising
from fedping.client_sim.data.choice_sets import candidates_of
from fedping.client_sim.learning import ChoiceData
from fedping.protocol.errors import FedpingError

Choice = tuple[tuple[float, ...], int]
"""The candidates of a choice, in order and each identified by its only feature, and the position of the chosen one."""


def made(seed: int, rows: int) -> Table:
    """Return rows of choices in any order; several clients use the same choice numbers."""
    rng = np.random.default_rng(seed)
    key, choice = rng.choice(["u", "v", "w"], rows), rng.integers(0, 4, rows)
    y = np.zeros(rows, np.int64)
    for client in "uvw":
        for number in range(4):
            of_it = np.flatnonzero((key == client) & (choice == number))
            if len(of_it) and rng.random() < 0.8:
                y[rng.choice(of_it)] = 1
    x = np.arange(rows, dtype=np.float64)[:, None]
    return Table(x, y, ("x",), Target("chosen", ("no", "yes")), key=key, choice=choice)


def by_hand(table: Table) -> dict[Any, Choice]:
    assert table.key is not None
    assert table.choice is not None
    found: dict[Any, list[int]] = {}
    for row, name in enumerate(zip(table.key.tolist(), table.choice.tolist(), strict=True)):
        found.setdefault(name, []).append(row)
    return {
        name: (
            tuple(table.x[rows, 0].tolist()),
            next((at for at, row in enumerate(rows) if table.y[row]), -1),
        )
        for name, rows in found.items()
    }


def told(data: ChoiceData) -> list[list[Choice]]:
    """Return each client's choices."""
    assert data.shown is not None
    each = [
        (tuple(x[:shown, 0].tolist()), int(y)) for x, y, shown in zip(data.x, data.y, data.shown.tolist(), strict=True)
    ]
    ends = np.cumsum(data.sizes).tolist()
    return [each[end - size : end] for end, size in zip(ends, data.sizes.tolist(), strict=True)]


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 40))
@settings(max_examples=50)
def test_every_choice_comes_back_whole_with_its_client(seed: int, rows: int) -> None:
    table = made(seed, rows)
    candidates, wanted = candidates_of(table), by_hand(table)
    clients = partition(candidates.choices, ByKey(), seed).of(candidates.choices)
    data = candidates.choice_data(clients, candidates.of(clients))
    assert clients.natural_keys is not None
    for client, found in zip(clients.natural_keys, told(data), strict=True):
        assert sorted(found) == sorted(choice for (key, _), choice in wanted.items() if key == client)
    [pooled] = told(data.pooled())
    assert sorted(pooled) == sorted(wanted.values())


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_parts_share_no_choice_and_features_are_those_of_the_candidates_that_are_learnt_from(seed: int) -> None:
    candidates = candidates_of(made(seed, 40))
    clients = partition(candidates.choices, ByKey(), seed).of(candidates.choices)
    choices = split(clients, seed, test=0.3, validation=0.2)
    rows = Split(*(candidates.of(part) for part in (choices.train, choices.validation, choices.test)))
    assert sorted(np.concatenate([part.x[:, 0] for part in (rows.train, rows.validation, rows.test)])) == sorted(
        candidates.rows.x[:, 0]
    )
    step = standardising(rows.train)
    ready = candidates.choice_data(choices.train, step.of(rows.train))
    assert ready.shown is not None
    features = np.concatenate([x[:shown, 0] for x, shown in zip(ready.x, ready.shown, strict=True)])
    assert features.mean() == pytest.approx(0.0, abs=1e-12)
    assert features.std() == pytest.approx(float(len(features) > 1))


def test_a_file_says_which_choice_a_row_is_a_candidate_of(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,search,length,clicked\nu,1,7,0\nu,2,3,1\nu,1,4,1\nv,1,9,0\n")
    table = load_table(tmp_path / "t.csv", "clicked", client="user", choice="search")
    assert table.features == ("length",)
    assert by_hand(table) == {("u", 1): ((7.0, 4.0), 1), ("u", 2): ((3.0,), 0), ("v", 1): ((9.0,), -1)}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1,7,2\n", "row 1 of the column 'clicked' is 2; where rows are the candidates"),
        ("1,7,yes\n", "'clicked' is of type string"),
        ("1,7,1\n1,8,1\n", "2 candidates of the choice '1' were chosen"),
        ("1,7,1\n,8,1\n", "row 2 of the column 'search' is missing"),
    ],
)
def test_what_is_wrong_with_choices_is_told_in_a_sentence(tmp_path: Path, rows: str, said: str) -> None:
    (tmp_path / "t.csv").write_text("search,length,clicked\n" + rows)
    with pytest.raises(FedpingError, match=said):
        candidates_of(load_table(tmp_path / "t.csv", "clicked", choice="search"))
