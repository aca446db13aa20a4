"""Notes on results that a table alone would misrepresent, and the examples that choose the best variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.analysis.figures import LIGHT
from fedping.client_sim.data import Target, table
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.report_curves import Curve, draw_curves, draw_finals
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_of
from fedping.experiments.laboratory.settings.merging import with_grid
from fedping.experiments.laboratory.summary import Band, Criteria, Summary, VariantSummary, summarised
from fedping.experiments.laboratory.units import Unit
from fedping.laboratory import open_results
from fedping.main import main
from fedping.protocol import extensions
from fedping.protocol.errors import FedpingError
from tests.support.laboratory import small, small_file


def run_one(folder: Path, **changes: Any) -> Outcome:
    [setup] = small(**changes).variants.values()
    return run_unit(Unit("only", None, setup, 1, None), folder)


def test_a_round_that_too_few_take_part_in_is_told_and_no_start_model_is_the_best(tmp_path: Path) -> None:
    tables = small(rounds=2, server__min_clients=5, sampling={"sampling": "uniform", "clients": 3})
    summary = run_experiment(tables, tmp_path, jobs=1)
    assert summary.best is None
    assert (
        "rounds published no version: fewer than min_clients = 5 clients with examples took part in" in summary.notes[1]
    )
    assert run_one(tmp_path / "other", rounds=2).versions == 2


def test_rounds_now_and_then_without_a_version_are_counted(tmp_path: Path) -> None:
    outcome = run_one(tmp_path, rounds=20, server__min_clients=4, sampling={"sampling": "bernoulli", "share": 0.5})
    assert outcome.versions is not None
    assert 0 < outcome.versions < 20
    assert outcome.notes[-1].startswith(f"{20 - outcome.versions} of 20 rounds published no version")


def test_clients_without_data_are_counted(tmp_path: Path) -> None:
    outcome = run_one(tmp_path, rounds=1, partition={"partition": "dirichlet", "clients": 300, "alpha": 0.05})
    assert 0 < outcome.clients < 300
    assert outcome.notes[0].startswith(f"{300 - outcome.clients} of 300 clients have no training examples and take no")


@pytest.mark.parametrize(
    ("rows", "changes", "said"),
    [
        (3000, {}, ["1 of 2 clients have more than 1,000", "limits = { examples = 2400 }"]),
        (3000, {"limits": {"examples": 500}}, ["1 of 2 clients have more than 500", "count for 500"]),
        (3000, {"limits": {"examples": 2400}}, []),
        (3000, {"server__weighting": "client"}, []),
        (1000, {}, []),
    ],
)
def test_clients_with_more_examples_than_a_ping_counts_for_are_told(
    tmp_path: Path, rows: int, changes: dict[str, Any], said: list[str]
) -> None:
    file = tmp_path / "rows.csv"
    x = np.random.default_rng(1).normal(size=rows + 100)
    owners = np.where(np.arange(len(x)) < rows, "large", "small")
    file.write_text("x,y,who\n" + "\n".join(f"{v},{2 * v},{who}" for v, who in zip(x, owners, strict=True)))
    data = {"file": str(file), "target": "y", "client": "who"}
    tables = {"model": {"name": "linear-regression"}, "data": data, "partition": {"partition": "key"}, **changes}
    outcome = run_one(tmp_path / "run", rounds=1, **tables)
    notes = [note for note in outcome.notes if "training examples" in note]
    assert len(notes) == bool(said)
    assert all(part in notes[0] for part in said)


def test_the_limit_on_examples_changes_what_is_learned_as_in_a_study(tmp_path: Path) -> None:
    """One client has 300 rows of slope 2, another 30 of slope -1; a limit of 10 gives them equal weight."""
    file = tmp_path / "rows.csv"
    rng = np.random.default_rng(1)
    rows = [f"{x},{slope * x},{slope}" for slope, k in ((2, 300), (-1, 30)) for x in rng.normal(size=k)]
    file.write_text("x,y,who\n" + "\n".join(rows))
    slopes = {}
    for most in (None, 10):
        out = tmp_path / str(most)
        run_experiment(
            small(
                model={"name": "linear-regression"},
                data={"file": str(file), "target": "y", "client": "who", "test": 0.0},
                partition={"partition": "key"},
                training={"algorithm": "local", "steps": 200, "rate": 0.1},
                server={"weighting": "examples", "optimizer": {"optimizer": "gradient_descent", "rate": 1.0}},
                rounds=1,
                seeds=1,
                evaluation={"baselines": []},
                **({} if most is None else {"limits": {"examples": most}}),
            ),
            out,
            jobs=1,
        )
        slopes[most] = open_results(out).weights(last=True)[0]
    assert slopes[None] == pytest.approx((300 * 2 - 30) / 330, abs=0.02)
    assert slopes[10] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("other", [{"gossip": {"graph": "ring"}}, {"co_op": {}}])
def test_limits_where_no_round_counts_examples_are_refused(other: dict[str, Any]) -> None:
    training = {"algorithm": "local", "steps": 1, "rate": 0.1}
    with pytest.raises(FedpingError, match="limits"):
        small(limits={"examples": 5}, training=training, **other)


def test_that_nothing_is_tested_is_told(tmp_path: Path) -> None:
    outcome = run_one(tmp_path, rounds=1, data={"name": "breast-cancer", "test": 0.0})
    assert "no client has test examples, so nothing is tested; set 'test' in [data]" in outcome.notes[0]
    assert "test" not in outcome.final


def test_that_clients_of_one_example_leave_none_to_test_is_told_as_that(tmp_path: Path) -> None:
    outcome = run_one(tmp_path, rounds=1, partition={"partition": "fixed_size", "examples": 1})
    assert outcome.notes[0].endswith("each client keeps one example to learn from, so give clients more of them")


def test_a_class_for_nearly_every_example_is_told(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    rows = "\n".join(f"{x},{2 * x}" for x in random.normal(size=40))
    (tmp_path / "numbers.csv").write_text(f"x,y\n{rows}\n")
    data = {"file": str(tmp_path / "numbers.csv"), "target": "y", "kind": "class"}
    outcome = run_one(tmp_path / "run", rounds=1, data=data, partition={"partition": "iid", "clients": 4})
    assert "has 40 classes for 32 training examples, too many to learn" in outcome.notes[0]


def test_classes_taken_for_numbers_and_an_end_worse_than_the_start_are_told(tmp_path: Path) -> None:
    outcome = run_one(tmp_path, rounds=2, model={"name": "linear-regression"}, data__standardise=False)
    assert "is a class, malignant, benign, which 'linear-regression' takes for the numbers 0 to 1" in outcome.notes[0]
    assert "it ended worse than it began (rmse " in outcome.notes[-1]


def test_a_loss_that_diverges_is_told_though_the_accuracy_rises(tmp_path: Path) -> None:
    """With features in the hundreds, most classes become right, but the loss grows a thousandfold."""
    outcome = run_one(tmp_path, rounds=4, data__standardise=False, server__optimizer__rate=0.1)
    start, end = 0.6, outcome.final["test"]
    assert end["accuracy"] > start
    assert end["loss"] > 10
    assert "it ended worse than it began (loss 0.693" in outcome.notes[-1]
    assert sum("ended worse" in note for note in outcome.notes) == 1


@pytest.mark.parametrize(
    ("said", "drawn", "told"), [(None, 2, True), (0.25, 2, False), (0.3, 2, False), (0.8, 2, True)]
)
def test_a_participation_that_is_not_the_sampling_s_is_told(
    tmp_path: Path, said: float | None, drawn: int, told: bool
) -> None:
    """With 8 clients, a difference of less than one client isn't reported."""
    training = {"algorithm": "scaffold", "rate": 0.1, "steps": 2} | ({"participation": said} if said else {})
    outcome = run_one(
        tmp_path,
        rounds=1,
        training=training,
        sampling={"sampling": "uniform", "clients": 2},
        server__weighting="client",
    )
    found = [note for note in outcome.notes if "participation" in note]
    assert len(found) == told
    assert all("25 % of the clients" in note and "participation = 0.25" in note for note in found)


def test_a_participation_of_all_is_that_of_all(tmp_path: Path) -> None:
    training = {"algorithm": "feddyn", "rate": 0.1, "steps": 2}
    assert not any("participation" in note for note in run_one(tmp_path, rounds=1, training=training).notes)


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Return a file whose classes are whole numbers."""
    random = np.random.default_rng(1)
    rows = "\n".join(f"{x},{int(x > 0) + 1}" for x in random.normal(size=40))
    (tmp_path / "labels.csv").write_text(f"x,y\n{rows}\n")
    return tmp_path / "labels.csv"


def test_labels_that_are_whole_numbers_are_told_how_to_become_classes(tmp_path: Path, labels: Path) -> None:
    changes = {"rounds": 1, "data": {"file": str(labels), "target": "y"}}
    with pytest.raises(
        FedpingError, match=r"are whole numbers; if these are classes, set kind = \"class\" in \[data\]"
    ):
        run_one(tmp_path / "run", **changes)
    changes["data"] = {"file": str(labels), "target": "y", "kind": "class"}
    assert run_one(tmp_path / "run", **changes).final["test"]["accuracy"] is not None


def test_a_data_set_whose_labels_are_whole_numbers_cannot_be_told_so_in_the_file(tmp_path: Path) -> None:
    def whole() -> Any:
        return table(np.arange(20.0)[:, None], np.arange(20) % 2, target=Target("side"))

    extension = extensions.register("data_set", "whole-sides", whole)
    try:
        with pytest.raises(FedpingError, match="set a target with classes in the data set"):
            run_one(tmp_path, data={"name": extension.name})
    finally:
        extensions._registered.pop(("data_set", "whole-sides"))


# --- the best variant ---


def outcome(variant: str, test: float, validation: float | None, notes: tuple[str, ...] = (), seed: int = 1) -> Outcome:
    final: dict[str, dict[str, float | None]] = {"test": {"accuracy": test}}
    if validation is not None:
        final["validation"] = {"accuracy": validation}
    return Outcome(
        variant=variant,
        seed=seed,
        fold=None,
        rounds=3,
        best_round=3,
        final=final,
        updates=1,
        update_bytes=4,
        clients=2,
        shown=("accuracy",),
        notes=notes,
        seconds=1.0,
        versions=3,
    )


def summary_of(*outcomes: Outcome) -> Summary:
    variants: dict[str, list[Outcome]] = {}
    for one in outcomes:
        variants.setdefault(one.variant, []).append(one)
    return summarised("some", "digest", Criteria(seeds=[1], shown=["accuracy"], split="test"), variants, {})


def test_the_best_is_chosen_on_validation_examples_where_there_are_any() -> None:
    found = summary_of(outcome("a", test=0.9, validation=0.7), outcome("b", test=0.8, validation=0.75))
    assert (found.best, found.chosen_on, found.split, found.notes) == ("b", "validation", "test", ())


def test_a_note_of_several_seeds_is_one_and_names_them() -> None:
    def runs(name: str, *notes: tuple[str, ...]) -> list[Outcome]:
        return [outcome(name, 0.9, 0.9, each, seed) for seed, each in enumerate(notes, 1)]

    worse = [(f"it ended worse than it began (loss 0.69 at first, {end} in the end); lower it",) for end in (1.2, 3e9)]
    listed = [(f"kept 2 of 30 features by their χ²: {names}",) for names in ("area 7.1, size 3", "size 7, texture 1")]
    found = summary_of(
        *runs("krum", *worse, ()),
        *runs("mean", *listed, listed[0]),
        *runs("median", *listed, listed[0]),
        *runs("some", (), ("diverged",), ("diverged",)),
        *runs("two", *3 * [("filled 1 value", "filled 2 values")]),
    )
    assert found.notes == (
        f"krum (seed 1; similar with seed 2): {worse[0][0]}",
        f"mean, median (seeds 1 and 3; similar with seed 2): {listed[0][0]}",
        "some (seeds 2 and 3): diverged",
        "two: filled 1 value",
        "two: filled 2 values",
    )


def test_that_the_best_is_chosen_on_the_test_examples_is_noted() -> None:
    found = summary_of(outcome("a", test=0.9, validation=None), outcome("b", test=0.8, validation=0.75))
    assert (found.best, found.chosen_on) == ("a", "test")
    [note] = found.notes
    assert note.startswith("the best of 2 variants was chosen on the test examples, so its score there is optimistic")
    assert summary_of(outcome("a", test=0.9, validation=None)).notes == (), "one alone is not chosen"


def test_a_note_of_several_variants_is_said_once() -> None:
    names = [f"v{number}" for number in range(12)]
    biased = [outcome(name, 0.5, 0.5, ("biased",), seed) for name in names for seed in (1, 2)]
    assert summary_of(*biased).notes == ("all variants: biased",)
    assert summary_of(*biased, outcome("other", 0.5, 0.5)).notes == ("12 of 13 variants: biased",)
    assert summary_of(*biased[:4], outcome("other", 0.5, 0.5)).notes == ("v0, v1: biased",)


# --- rounds to a target, and results by client ---


def test_rounds_to_a_target_are_counted_on_the_validation_examples(tmp_path: Path) -> None:
    changes = {"rounds": 12, "evaluation": {"target": 0.93, "baselines": []}}
    summary = run_experiment(small(**changes), tmp_path, jobs=1)
    table = pq.read_table(tmp_path / "metrics.parquet", partitioning=None).to_pylist()
    reached = [
        row["round"]
        for row in table
        if (row["split"], row["metric"]) == ("validation", "accuracy") and row["value"] >= 0.93
    ]
    assert reached
    assert summary.variants["federated"].to_target.mean == min(reached) > 0
    assert summary.target == 0.93
    never = run_one(tmp_path / "never", rounds=1, evaluation={"target": 1.5})
    assert never.to_target is None


def test_a_target_is_shown_in_the_table_and_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "evaluation.baselines=['start']", "--set", "seeds=1", "--set", "rounds=2", "--jobs", "1"]
    options += ["--set", "evaluation.target=0.5", "--out", str(tmp_path / "out")]
    assert main(["simulate", str(small_file(tmp_path)), *options]) == 0
    assert "accuracy 0.5" in capsys.readouterr().out
    assert "rounds to<br>accuracy 0.5" in (tmp_path / "out/report.html").read_text()


def test_results_by_client_are_those_of_the_version_that_is_tested(tmp_path: Path) -> None:
    outcome = run_one(tmp_path, rounds=2, evaluation={"local": True})
    [file] = tmp_path.rglob("clients.parquet")
    table = pq.read_table(file, partitioning=None)
    assert table["client"].to_pylist() == list(range(8))
    accuracy, examples = table["accuracy"].to_numpy(), table["examples"].to_numpy()
    assert outcome.final["local"]["accuracy"] == pytest.approx(accuracy.mean())
    assert outcome.final["test"]["accuracy"] == pytest.approx((accuracy * examples).sum() / examples.sum())
    assert "newcomer" not in table.column_names
    without = run_one(tmp_path / "without", rounds=1, evaluation={"local": False})
    assert without.rounds == 1
    assert not list((tmp_path / "without").rglob("clients.parquet"))


# --- names and pictures ---


def test_a_sweep_over_tables_has_names_that_folders_can_have(tmp_path: Path) -> None:
    adams = ",".join(f'{{ optimizer = "adam", rate = {rate}, beta1 = 0.9, beta2 = 0.999 }}' for rate in (0.1, 0.3))
    plain = 'server.optimizer={ optimizer = "gradient_descent", rate = 1.0 },' + adams
    tables = {
        "rounds": 1,
        "model": {"name": "logistic-regression"},
        "data": {"name": "breast-cancer"},
        "variants": [{"name": "the variant of this file that has by far the longest of all names"[:64]}],
    }
    long = experiment_of(with_grid(tables, [plain]), name="swept", folder=tmp_path).variants
    assert len(long) == 3
    assert all(len(name) <= 64 for name in long)
    short = experiment_of(with_grid({**tables, "variants": []}, [plain]), name="swept", folder=tmp_path).variants
    assert list(short)[:2] == [
        "optimizer=gradient_descent rate=1",
        "optimizer=adam rate=0.1 beta1=0.9 beta2=0.999",
    ]


@pytest.mark.parametrize(
    ("metric", "mean", "ends", "axis"),
    [
        ("accuracy", 0.99, (0.94, 1.0), (0.93, 1.001)),
        ("recall_of_3", 0.02, (0.0, 0.07), (-0.001, 0.08)),
        ("rmse", 0.02, (0.0, 0.07), (-0.001, 0.08)),
        ("r2", 0.99, (0.94, 1.0), (0.93, 1.001)),
        ("loss", 0.02, (-0.03, 0.07), (-0.04, 0.08)),
    ],
)
def test_bands_end_where_the_metric_does_and_axes_hardly_later(
    metric: str, mean: float, ends: tuple[float, float], axis: tuple[float, float]
) -> None:
    line = Curve("a", np.arange(5.0), np.full(5, mean), np.full(5, 0.05))
    row = VariantSummary(runs=3, rounds=Band(1, 0, 3), metrics={"test": {metric: Band(mean, 0.05, 3)}})
    [curves] = draw_curves([line], {}, {"a": 0}, metric, theme=LIGHT).axes
    [finals] = draw_finals({"a": row}, {}, "test", metric, {"a": 0}, theme=LIGHT).axes
    band = curves.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx(ends)
    assert list(finals.lines[0].get_xdata()) == pytest.approx(ends)
    for low, high in (curves.get_ylim(), finals.get_xlim()):
        assert axis[0] <= low <= ends[0]
        assert ends[1] <= high <= axis[1]


def test_where_colours_repeat_the_final_models_have_the_lines_of_their_curves() -> None:
    row = VariantSummary(runs=3, rounds=Band(1, 0, 3), metrics={"test": {"loss": Band(1.0, 0.1, 3)}})
    names = [f"v{number}" for number in range(9)]
    places = {name: place for place, name in enumerate(names)}
    [axes] = draw_finals(dict.fromkeys(names, row), {}, "test", "loss", places, theme=LIGHT).axes
    intervals, means = axes.lines[::2], axes.lines[1::2]
    looks = [(each.get_color(), str(each.get_linestyle())) for each in intervals]
    assert len(set(looks)) == 9
    assert [mean.get_markerfacecolor() == LIGHT.paper for mean in means] == [False] * 6 + [True] * 3


def test_the_start_stays_in_the_picture_without_flattening_it() -> None:
    line = Curve("a $b$ [c]", np.arange(5.0), np.array([0.5, 0.9, 0.91, 0.92, 0.93]), np.full(5, 0.01))
    figure = draw_curves([line], {"start": 0.1, "centralised": 0.94}, {line.name: 0}, "accuracy", theme=LIGHT)
    figure.canvas.draw()
    [axes] = figure.axes
    assert axes.get_ylim()[0] > 0.4
    said = [text.get_text() for text in axes.texts]
    assert "start 0.1 ↓" in said
    assert "centralised" in said
    assert r"a \$b\$ [c]" in said, "no formula"
