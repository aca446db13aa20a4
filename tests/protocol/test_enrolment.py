"""Hash enrolment: stable, independent between studies, and true to the shares."""

import uuid

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedping.protocol.enrolment import enrol, hash_assignment, hash_fraction
from fedping.protocol.study import Arm, Study, protected


def study_of(*shares: float, name: str = "study") -> Study:
    return Study(name=name, arms=tuple(Arm(name=f"arm{i}", share=s) for i, s in enumerate(shares)))


def client_ids(n: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in range(n)]


def test_shared_vectors_that_every_language_must_reproduce() -> None:
    assert hash_fraction("firefox-2018", "00000000-0000-4000-8000-000000000000").hex() == "0x1.d3681fa9fb260p-1"
    assert hash_fraction("firefox-2018", "7d1a9a50-24e5-4cde-8be5-3e6a7a3e7e4c").hex() == "0x1.69316b257f500p-1"


@given(st.uuids().map(str), st.text(min_size=1, max_size=20))
def test_a_position_is_in_the_unit_interval_and_never_changes(client: str, study: str) -> None:
    assert 0 <= hash_fraction(study, client) < 1
    assert hash_fraction(study, client) == hash_fraction(study, client)


@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.2), (0.1, 0.1, 0.05), (1.0,)])
def test_arms_get_their_shares(shares: tuple[float, ...]) -> None:
    """A chi-squared test of 40,000 seeded clients, with false alarms of at most 1e-3 for each case."""
    study = study_of(*shares)
    enrolled = [enrol(study, c) for c in client_ids(40_000, seed=1)]
    observed = [sum(a is not None and a.name == arm.name for a in enrolled) for arm in study.arms]
    expected = [share * len(enrolled) for share in shares]
    if sum(shares) < 1:
        observed.append(sum(a is None for a in enrolled))
        expected.append((1 - sum(shares)) * len(enrolled))
    if len(expected) > 1:
        assert stats.chisquare(observed, expected).pvalue > 1e-3
    else:
        assert observed == expected


def test_two_studies_enrol_independently() -> None:
    """Tests a 2 x 2 table of 20,000 clients, with false alarms of at most 1e-3."""
    one, two = study_of(0.5, 0.5, name="one"), study_of(0.5, 0.5, name="two")
    table = np.zeros((2, 2))
    for client in client_ids(20_000, seed=2):
        first, second = enrol(one, client), enrol(two, client)
        assert first is not None
        assert second is not None
        table[first.name == "arm0", second.name == "arm0"] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_adding_an_arm_at_the_end_moves_nobody_who_was_enrolled() -> None:
    before, after = study_of(0.3, 0.3), study_of(0.3, 0.3, 0.2)
    for client in client_ids(2_000, seed=3):
        was = enrol(before, client)
        if was is not None:
            assert enrol(after, client) == was


def test_the_server_deals_the_same_arms() -> None:
    """Compared for single clients and arrays, with shares that end between two fractions, on one, and at 1."""
    ids = client_ids(5_000, seed=3)
    raw = np.frombuffer(b"".join(uuid.UUID(i).bytes for i in ids), np.uint8).reshape(-1, 16)
    for shares in ((0.6, 0.2, 0.1), (0.5, 0.5), (1 / 3, 1 / 3, 1 / 3), (hash_fraction("study", ids[0]), 0.1)):
        study = msgspec.structs.replace(study_of(*shares), enrolment="hash")
        dealt = hash_assignment(study)
        assert dealt is not None
        expected = [arm.name if (arm := enrol(study, client)) else None for client in ids]
        assert [dealt.arm_of(uuid.UUID(client)) for client in ids] == expected
        assert [dealt.arms[i] if i >= 0 else None for i in dealt.places(raw).tolist()] == expected
    assert hash_assignment(study_of(1.0)) is None


def test_a_new_study_deals_by_hash_unless_it_says_otherwise_or_takes_telemetry() -> None:
    study = study_of(0.5)
    assert protected(study).enrolment == "hash"
    assert protected(msgspec.structs.replace(study, telemetry=True)).enrolment == "elsewhere"
    assert protected(msgspec.structs.replace(study, enrolment="elsewhere")).enrolment == "elsewhere"
