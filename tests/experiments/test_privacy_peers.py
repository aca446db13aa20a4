"""The comparison with another library's private training: the scores, and an error in a Python without the library."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.private import HELD_OUT, held_out
from benchmarks.peers.work import make_data, one_client_step, start_weights

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("model", ["logistic", "network"])
def test_weights_are_scored_by_the_model_that_the_clients_train(model: str, tmp_path: Path) -> None:
    """The gradient of the reported loss, by differences, equals a client's step."""
    make_data(tmp_path, model, 2)  # type: ignore[arg-type]
    x, y = np.load(tmp_path / "x.npy")[0], np.load(tmp_path / "y.npy")[0]
    start = [array + 0.01 for array in start_weights(model)]  # type: ignore[arg-type]
    flat = np.concatenate([array.ravel() for array in start])
    moved = one_client_step(model, start, x, y)  # type: ignore[arg-type]
    gradient = (flat - np.concatenate([array.ravel() for array in moved])) / 0.1
    for place in (0, len(flat) // 2, len(flat) - 1):
        up, down = flat.copy(), flat.copy()
        up[place] += 1e-5
        down[place] -= 1e-5
        slope = (held_out(model, up, x, y)[1] - held_out(model, down, x, y)[1]) / 2e-5  # type: ignore[arg-type]
        assert slope == pytest.approx(gradient[place], abs=1e-6)
    assert 0 <= held_out(model, flat, x, y)[0] <= 1  # type: ignore[arg-type]


@pytest.mark.parametrize("python", [sys.executable, "/no/such/python"])
def test_an_interpreter_without_the_peer_is_refused_with_a_sentence(python: str) -> None:
    command = [sys.executable, "-m", "benchmarks.peers.private", "--python", python]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert line.startswith(f"{python} has no pfl-research: install pfl==")


def test_examples_that_are_held_out_are_of_clients_who_do_not_train(tmp_path: Path) -> None:
    from benchmarks.peers.private import _split

    x, y = _split(tmp_path, "logistic", 3)
    assert len(np.load(tmp_path / "x.npy")) == len(np.load(tmp_path / "y.npy")) == 3
    assert len(x) == len(y) == HELD_OUT * 50
    assert not np.isin(x, np.load(tmp_path / "x.npy")).any()
