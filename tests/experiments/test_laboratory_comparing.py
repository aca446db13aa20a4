"""Two runs side by side: which repetitions count, and which folder stands for what."""

from pathlib import Path

import pytest

from experiments.laboratory.comparing import Chosen, chosen, compared
from experiments.laboratory.results import Outcome
from experiments.laboratory.results.outcome import SplitMetrics
from experiments.laboratory.run import run_experiment
from protocol.errors import InvalidSettings
from tests.support.laboratory import small


def outcome(seed: int, fold: int | None, loss: float | None) -> Outcome:
    final: SplitMetrics = {} if loss is None else {"test": {"loss": loss}}
    return Outcome(
        variant="v", seed=seed, fold=fold, rounds=1, best_round=1, final=final, updates=1, uplink_bytes=4, clients=1,
        shown=("loss",), notes=(), seconds=0.0,
    )  # fmt: skip


def runs(name: str, losses: dict[tuple[int, int | None], float | None]) -> Chosen:
    return Chosen(name, {key: outcome(*key, loss) for key, loss in losses.items()})


def test_a_repetition_that_diverged_in_either_counts_in_none() -> None:
    a = runs("a", {(1, None): None, (2, None): 5.0, (3, None): 4.0, (4, None): 1.0})
    b = runs("b", {(1, None): 2.0, (2, None): 3.0, (3, None): 3.0, (4, None): None})
    found = compared(a, b)
    assert found.seeds == (2, 3)
    [loss] = found.differences
    assert (loss.a, loss.b, loss.difference.mean) == (4.5, 3.0, -1.5)


@pytest.mark.parametrize(
    ("b", "said"),
    [
        ({(2, None): 1.0}, "no seed in common, or other folds"),
        ({(1, 0): 1.0, (1, 1): 1.0}, "no seed in common, or other folds"),
        ({(1, None): None}, "it has diverged with every seed"),
    ],
)
def test_what_has_nothing_in_common_is_told(b: dict[tuple[int, int | None], float | None], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        compared(runs("a", {(1, None): 1.0}), runs("b", b))


def test_a_folder_with_one_variant_stands_for_it_and_its_baselines_have_to_be_named(tmp_path: Path) -> None:
    run_experiment(small(rounds=1, evaluation={"baselines": ["start"]}), tmp_path / "out", jobs=1)
    assert chosen(str(tmp_path / "out")).label == "out: federated"
    assert chosen(f"{tmp_path / 'out'}:start").label == "out: start"
