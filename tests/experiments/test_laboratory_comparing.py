"""Two runs side by side: the repetitions that count, and the names of the folders."""

from collections.abc import Sequence
from html import unescape
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.commands.laboratory import print_summary
from fedping.experiments.laboratory.comparing import Chosen, chosen, compared
from fedping.experiments.laboratory.report import render_report
from fedping.experiments.laboratory.results import METRICS_SCHEMA, Outcome, SplitMetrics
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.summary import Criteria, Summary, standing, summarised
from fedping.main import main
from fedping.protocol.errors import InvalidSettings
from tests.support.laboratory import small, small_file


def judged(seeds: Sequence[int]) -> Criteria:
    return Criteria(seeds=seeds, shown=("loss",), split="test")


def outcome(seed: int, fold: int | None, loss: float | None) -> Outcome:
    final: SplitMetrics = {} if loss is None else {"test": {"loss": loss}}
    return Outcome(
        variant="v", seed=seed, fold=fold, rounds=1, best_round=1, final=final, updates=1, update_bytes=4, clients=1,
        shown=("loss",), notes=(), seconds=0.0,
    )  # fmt: skip


def runs(name: str, losses: dict[tuple[int, int | None], float | None]) -> Chosen:
    return Chosen(name, {key: outcome(*key, loss) for key, loss in losses.items()})


def test_a_repetition_that_diverged_in_either_counts_in_none() -> None:
    a = runs("a", {(1, None): None, (2, None): 5.0, (3, None): 4.0, (4, None): 1.0})
    b = runs("b", {(1, None): 2.0, (2, None): 3.0, (3, None): 3.0, (4, None): None})
    found = compared(a, b)
    assert found.seeds == (2, 3)
    loss, update = found.differences
    assert (update.split, update.metric, update.difference.mean) == ("bytes", "update", 0)
    assert (loss.a, loss.b, loss.difference.mean) == (4.5, 3.0, -1.5)
    assert loss.percent == pytest.approx(-100 / 3)


def test_percents_are_told_neither_of_what_is_gained_nor_of_rounding() -> None:
    a, b = (
        Chosen(name, {(1, None): msgspec.structs.replace(outcome(1, None, 1.0), final=final)})
        for name, final in (
            ("a", {"test": {"loss": 0.3, "accuracy": 0.5, "auc": 0.5}, "gain": {"loss": -0.001}}),
            ("b", {"test": {"loss": 0.1 + 0.2, "accuracy": 0.6, "auc": 0.5}, "gain": {"loss": -0.1}}),
        )
    )
    found = {(each.split, each.metric): each.percent for each in compared(a, b).differences}
    assert found["gain", "loss"] is None
    assert found["test", "loss"] is None
    assert found["test", "accuracy"] == pytest.approx(20)
    assert found["test", "auc"] == 0


@pytest.mark.parametrize("split", ["gain", "attack", "privacy", "graph", "test"])
def test_no_variant_is_the_best_by_what_it_gains(split: str) -> None:
    def two(loss: float) -> list[Outcome]:
        finals = [{"test": {"loss": 1.0}, split: {"loss": loss + seed / 100}} for seed in (1, 2)]
        return [msgspec.structs.replace(outcome(seed, None, 1.0), final=each) for seed, each in enumerate(finals, 1)]

    found = summarised("x", "", judged((1, 2)), {"a": two(1.0), "b": two(2.0)}, {})
    assert bool(standing(found, split, "loss").mark("a")) == (split == "test")


@pytest.mark.parametrize("split", ["gain", "attack", "privacy", "graph", "test"])
def test_neither_of_two_is_better_by_what_it_gains(split: str) -> None:
    def runs(name: str, loss: float) -> Chosen:
        finals = {seed: {split: {"loss": loss + seed / 100}} for seed in (1, 2, 3)}
        each = {seed: msgspec.structs.replace(outcome(seed, None, 1.0), final=final) for seed, final in finals.items()}
        return Chosen(name, {(seed, None): one for seed, one in each.items()})

    found = compared(runs("a", 2.0), runs("b", 1.0))
    assert [each.better for each in found.differences if each.split == split] == ["b" if split == "test" else None]


@pytest.mark.parametrize(
    ("b", "said"),
    [
        ({(2, None): 1.0}, "no seed in common, or other folds"),
        ({(1, 0): 1.0, (1, 1): 1.0}, "no seed in common, or other folds"),
        ({(1, None): None}, "^'b' diverged with every seed"),
        ({(1, None): None, (2, None): 1.0}, "with every seed either 'a' or 'b' diverged"),
    ],
)
def test_what_has_nothing_in_common_is_told(b: dict[tuple[int, int | None], float | None], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        compared(runs("a", {(1, None): 1.0}), runs("b", b))


def summary_of(**variants: list[float | None]) -> Summary:
    """Return the summary of variants with a loss for each seed."""
    runs = {name: [outcome(seed, None, loss) for seed, loss in enumerate(losses)] for name, losses in variants.items()}
    return summarised("x", "", judged(range(3)), runs, {})


def test_variants_are_told_from_the_best_by_their_differences_and_not_by_their_bands() -> None:
    found = summary_of(best=[1.0, 5.0, 9.0], worse=[1.1, 5.12, 9.1], unsure=[0.5, 6.0, 9.4], same=[1.0, 5.0, 9.0])
    assert found.best == "best"
    bands = [found.variants[name].metrics["test"]["loss"] for name in ("best", "worse")]
    assert bands[1].mean - bands[0].mean < bands[0].half  # type: ignore[operator]
    assert found.level == {"test": {"loss": ("best", "unsure", "same")}}
    marks = {name: standing(found).mark(name) for name in found.variants}
    assert marks == {"best": "☆", "worse": "", "unsure": "≈", "same": "≈"}
    assert "has the best loss" not in page_of(found)


@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=2, max_size=5))
def test_what_is_level_with_the_best_is_what_compare_cannot_tell_from_it(losses: list[list[float]]) -> None:
    variants = {f"v{number}": each for number, each in enumerate(losses)}
    found = summary_of(**variants)
    assert found.best is not None
    chosen = {
        name: runs(name, {(seed, None): loss for seed, loss in enumerate(each)}) for name, each in variants.items()
    }
    untold = [name for name in variants if compared(chosen[found.best], chosen[name]).differences[0].better is None]
    assert list(found.level["test"]["loss"]) == untold


def test_one_seed_tells_nothing_apart_and_a_variant_that_diverged_is_not_level() -> None:
    alone = summary_of(a=[2.0], b=[1.0], c=[1.0])
    assert alone.level == {"test": {"loss": ("a", "b", "c")}}
    assert "One seed can't show which variant is the best" in page_of(msgspec.structs.replace(alone, seeds=(1,)))
    assert "★" not in rows_of(alone)
    assert summary_of(a=[2.0, 2.0, 2.1], b=[None, None, None]).level == {"test": {"loss": ("a",)}}


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (
            {"a": [1.0, 5.0, 9.0], "b": [1.1, 5.12, 9.1], "c": [2.0, 6.0, 10.1]},
            "a has the best loss, 5.0000 ± 9.9366 on the test examples, "
            "and differs significantly from each of the other 2 "
            "variants.",
        ),
        (
            {"a": [1.0, 5.0, 9.0], "b": [1.1, 5.12, 9.1], "c": [0.5, 6.0, 9.4], "d": [None] * 3},
            "No variant is shown to be the best by loss: a has the best mean, 5.0000 ± 9.9366 on the test examples, "
            "but c can't be distinguished from it; b is worse. d diverged.",
        ),
        (
            {"a": [1.0, 5.0, 9.0], "c": [0.5, 6.0, 9.4], "c, 2": [0.5, 6.0, 9.4]},
            "No variant is shown to be the best by loss: a has the best mean, 5.0000 ± 9.9366 on the test examples, "
            "but c; and c, 2 can't be distinguished from it.",
        ),
        ({"a": [1.0, 5.0, 9.0]}, "a has a loss of 5.0000 ± 9.9366 on the test examples."),
        (
            {"a": [2.0], "b": [1.0]},
            "b has the best loss in the only seed, 1.0000 on the test",
        ),
        ({"a": [None], "b": [None]}, "No variant can be compared; the notes say why."),
    ],
)
def test_the_report_the_terminal_and_the_dashboard_say_which_variant_is_best_by_one_sentence(
    losses: dict[str, list[float | None]], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary_of(**losses)
    assert standing(found).sentence.startswith(said)
    assert f"<h1>{standing(found).sentence}</h1>" in page_of(found)
    print_summary(found, tmp_path)
    assert standing(found).sentence in " ".join(capsys.readouterr().out.split())
    assert page_of(found).count('class="number best"') == standing(found).shown * len(found.shown)


def rows_of(summary: Summary) -> str:
    """Return the body of the report's table."""
    return page_of(summary).partition("<tbody>")[2].partition("</tbody>")[0]


def page_of(summary: Summary) -> str:
    return " ".join(unescape(render_report(summary, METRICS_SCHEMA.empty_table())).split())


def test_a_folder_with_one_variant_stands_for_it_and_its_baselines_have_to_be_named(tmp_path: Path) -> None:
    run_experiment(small(rounds=1, evaluation={"baselines": ["start"]}), tmp_path / "out", jobs=1)
    assert chosen(str(tmp_path / "out")).label == "out: federated"
    assert chosen(f"{tmp_path / 'out'}:start").label == "out: start"


def test_the_table_leaves_single_classes_out_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"name": "digits", "test": 0.3}
    run_experiment(small(rounds=1, data=data, evaluation={"baselines": ["start"]}), tmp_path / "out", jobs=1)
    command = ["compare", f"{tmp_path / 'out'}:federated", f"{tmp_path / 'out'}:start"]
    assert main(command) == 0
    short = capsys.readouterr().out
    assert "precision_of_" not in short
    assert "f1" in short
    assert "of single classes are not shown; add --all" in short
    assert main([*command, "--all"]) == 0
    assert "precision_of_2" in (everything := capsys.readouterr().out)
    assert "--all" not in everything
    assert main([*command, "--json"]) == 0
    assert '"precision_of_2"' in capsys.readouterr().out


@pytest.mark.parametrize(("rate", "code"), [(1e30, 1), (0.01, 0)])
def test_an_experiment_of_which_every_run_diverges_ends_with_code_1_and_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: float, code: int
) -> None:
    command = ["simulate", str(small_file(tmp_path)), "--out", str(tmp_path / "out"), "--json", "--set", "rounds=2"]
    assert main([*command, "--set", f"server.optimizer.rate={rate}"]) == code
    found = capsys.readouterr()
    assert '"variants"' in found.out
    assert (tmp_path / "out/report.html").is_file()
    assert ("every run in" in found.err) == bool(code)
