"""The benchmarks of secure aggregation measure correct work: sums, published rounds, valid proofs."""

import subprocess
import sys
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from benchmarks.peers.secure import Shares
from benchmarks.shared_rounds import BOTH, HELPER, LEADER, PLAIN, proofs, rounds, shares
from fedping.protocol.sharing.keys import Seal

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seal", ["x25519", "mlkem768-x25519"])
def test_our_side_comes_to_the_sum_and_counts_what_is_posted(seal: Seal) -> None:
    d, updates = 9, np.random.default_rng(1).normal(size=(7, 6)).astype(np.float32)
    ours = Shares(d, len(updates), seal)
    taken = ours.a_round(updates)
    assert taken.total.tolist() == ours.vectors(updates).sum(axis=0).tolist()
    assert taken.up == len(ours.posted(updates[0], UUID(int=1)))
    assert 0 <= taken.helper <= taken.servers


@pytest.mark.parametrize("python", [sys.executable, "/no/such/python"])
def test_an_interpreter_without_flower_is_refused_with_a_sentence(python: str) -> None:
    command = [sys.executable, "-m", "benchmarks.peers.secure", "--python", python]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert line.startswith(f"{python} has no Flower: install flwr[simulation]==")


@pytest.mark.parametrize("proofs", [False, True])
def test_rounds_are_measured_to_their_published_versions_and_divided_among_the_servers(
    tmp_path: Path, proofs: bool
) -> None:
    rows = {row.what: row.seconds for row in rounds(tmp_path, clients=600, repeats=1, seed=1, proofs=proofs)}
    assert list(rows) == [PLAIN, LEADER, HELPER, BOTH]
    assert rows[BOTH] == pytest.approx(rows[LEADER] + rows[HELPER])
    assert min(rows.values()) > 0


def test_shares_and_proofs_are_measured_on_payloads_of_their_real_sizes(tmp_path: Path) -> None:
    assert {row.seal: row.payload for row in shares(tmp_path, 100, 1, 1)} == {
        "x25519": 8 + 8 * 25 + 80,
        "mlkem768-x25519": 8 + 8 * 25 + 1168,
    }
    made, *_ = proofs(3, 1, 1)
    assert made.bytes > 8 * 52
