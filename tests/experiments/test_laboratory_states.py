"""Clients' state is in a file of the run's folder, and after a kill it is restored from the checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedping.client_sim.learning import MemoryStates
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.resuming import STATES, CannotGoOn, MappedStates
from fedping.protocol.errors import FedpingError, InvalidSettings

FILE = f"{STATES}.bin"

FIRST = {"vector": np.array([1.0, -2.0], np.float32), "trained": np.zeros((), np.int64), "sign": np.array(True)}
CLIENTS = 50


def states(folder: Path, clients: int = CLIENTS) -> MappedStates:
    return MappedStates(folder, FIRST, clients)


def some(clients: NDArray[Any], by: int) -> dict[str, NDArray[Any]]:
    return {
        "vector": np.stack([clients * 1.5, clients - by / 3], axis=1).astype(np.float32),
        "trained": clients + by,
        "sign": clients % 2 == by % 2,
    }


def everything(kept: Any) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in kept.load(np.arange(CLIENTS)).items()}


def test_it_gives_back_what_was_saved_and_the_first_state_of_whoever_saved_nothing(tmp_path: Path) -> None:
    mapped, memory = states(tmp_path), MemoryStates(FIRST)
    rng = np.random.default_rng(1)
    for round_ in range(20):
        clients = rng.permutation(CLIENTS)[: rng.integers(0, 20)]
        for kept in (mapped, memory):
            kept.save(clients, some(clients, round_))
        if round_ == 7:
            mapped.snapshot()
        asked = rng.integers(0, CLIENTS, 30)
        found, wanted = mapped.load(asked), memory.load(asked)
        assert {name: value.dtype for name, value in found.items()} == {k: v.dtype for k, v in wanted.items()}
        assert all((found[name] == wanted[name]).all() for name in FIRST)


def test_a_run_goes_on_with_the_states_of_its_checkpoint_wherever_it_was_killed(tmp_path: Path) -> None:
    """A copy of the folder at each moment is what a kill would leave."""
    running = tmp_path / "running"
    running.mkdir()
    kept, rng = states(running), np.random.default_rng(2)
    moments: list[tuple[Path, dict[str, Any], dict[str, list[Any]]]] = []
    checkpoint: dict[str, Any] | None = None
    then: dict[str, list[Any]] = {}

    def killed() -> None:
        if checkpoint is not None:
            moments.append((shutil.copytree(running, tmp_path / f"{len(moments)}"), checkpoint, then))

    def save(clients: NDArray[Any], by: int) -> None:
        kept.save(clients, some(clients, by))
        killed()

    for round_ in range(6):
        for _ in range(3):
            save(rng.permutation(CLIENTS)[:10], round_)
        now, state = kept.snapshot(), everything(kept)
        killed()  # the new checkpoint is not yet in its place
        checkpoint, then = now, state
        killed()
    for folder, saved, state in moments:
        for _ in range(2):  # it may be killed again
            resumed = states(folder)
            resumed.restore(saved)
            assert everything(resumed) == state
            clients = np.arange(20)
            resumed.save(clients, some(clients, 77))
    assert len(moments) > 20


def test_of_a_journal_that_ends_in_the_middle_the_whole_part_counts(tmp_path: Path) -> None:
    kept, clients = states(tmp_path), np.arange(10)
    kept.save(clients, some(clients, 1))
    saved, state = kept.snapshot(), everything(kept)
    kept.save(clients[:5], some(clients[:5], 2))
    [journal] = tmp_path.glob("states.*.undo")
    whole = journal.read_bytes()
    for torn in (1, 12, 40, len(whole) - 1):
        journal.write_bytes(whole + whole[:torn])  # as if killed while writing more clients
        resumed = states(tmp_path)
        resumed.restore(saved)
        assert everything(resumed) == state
        resumed.save(clients[:5], some(clients[:5], 2))
    journal.write_bytes(whole + whole[:30] + bytes(len(whole) - 30))  # with the right length, but without the content
    resumed = states(tmp_path)
    resumed.restore(saved)
    assert everything(resumed) == state


def test_without_its_file_or_journal_it_cannot_go_on(tmp_path: Path) -> None:
    kept, clients = states(tmp_path), np.arange(3)
    kept.save(clients, some(clients, 1))
    saved = kept.snapshot()
    with pytest.raises(CannotGoOn):
        states(tmp_path).restore({"generation": np.array(9)})
    with pytest.raises(CannotGoOn):
        states(tmp_path, CLIENTS + 1).restore(saved)
    (tmp_path / FILE).unlink()
    with pytest.raises(CannotGoOn):
        states(tmp_path).restore(saved)
    new = states(tmp_path)
    assert everything(new)["trained"] == [0] * CLIENTS


@pytest.mark.parametrize("what", ["rows", "journal", "another run's"])
def test_from_rows_that_are_not_those_of_the_checkpoint_it_cannot_go_on(tmp_path: Path, what: str) -> None:
    """Starting again gives the right bits; unknown rows don't."""
    saved, folders = {}, [tmp_path / "one", tmp_path / "other"]
    for by, folder in enumerate(folders):
        folder.mkdir()
        kept = states(folder)
        kept.save(np.arange(10), some(np.arange(10), by))
        saved[folder] = kept.snapshot()
        kept.save(np.arange(5), some(np.arange(5), by + 1))
    one, other = folders
    if what == "another run's":
        (one / FILE).write_bytes((other / FILE).read_bytes())
    else:
        [damaged] = one.glob(FILE if what == "rows" else "states.*.undo")
        content = bytearray(damaged.read_bytes())
        content[7 * states(one).bytes_each if what == "rows" else -3] ^= 1
        damaged.write_bytes(content)
    with pytest.raises(CannotGoOn):
        states(one).restore(saved[one])
    states(other).restore(saved[other])


def test_a_million_clients_with_a_vector_of_eight_take_32_bytes_each(tmp_path: Path) -> None:
    kept = MappedStates(tmp_path, {"vector": np.zeros(8, np.float32)}, 1_000_000)
    clients = np.arange(0, 1_000_000, 1000)
    kept.save(clients, {"vector": np.ones((1000, 8), np.float32)})
    assert (tmp_path / FILE).stat().st_size == 32_000_000
    assert kept.load(np.array([999_000]))["vector"].tolist() == [[1.0] * 8]
    kept.check_size(1_000_000)


def test_clients_without_state_have_no_file(tmp_path: Path) -> None:
    kept = MappedStates(tmp_path, {}, 10)
    kept.save(np.arange(3), {})
    assert kept.load(np.arange(3)) == {}
    kept.restore({**kept.snapshot()})
    assert not list(tmp_path.iterdir())


def test_what_would_not_fit_is_refused_with_how_much_and_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = MappedStates(tmp_path, {"weights": np.zeros(10_345, np.float32)}, 200_000)
    with pytest.raises(InvalidSettings, match=r"200,000 clients that keep 41,380 bytes each need 8\.3 GB.*lower"):
        large.check_size(200_000)
    large.check_size(1000)
    monkeypatch.setattr(resuming.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 9))  # type: ignore[attr-defined]
    with pytest.raises(InvalidSettings, match="free some space"):
        large.check_size(1000)


def test_a_state_of_another_form_or_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    kept, clients = states(tmp_path), np.arange(2)
    with pytest.raises(FedpingError, match="shape"):
        kept.save(clients, some(clients, 1) | {"vector": np.zeros((2, 3), np.float32)})
    with pytest.raises(FedpingError, match="not finite"):
        kept.save(clients, some(clients, 1) | {"vector": np.full((2, 2), np.nan, np.float32)})
    assert everything(kept)["trained"] == [0] * CLIENTS
