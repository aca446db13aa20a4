"""Secure aggregation beside a peer's: our side comes to the sum, and an interpreter without the peer is refused."""

import subprocess
import sys
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from benchmarks.peers.secure import Shares
from fedping.protocol.sharing.offer import Seal

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
