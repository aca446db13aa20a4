"""Every file of a paper's experiment runs unchanged, here for two rounds."""

import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from fedping.analysis.figures import LIGHT
from fedping.analysis.figures.canvas import panels
from fedping.experiments.laboratory.results import MetricLog
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import Experiment, experiment_from_toml, experiment_of
from fedping.experiments.laboratory.summary import Band
from fedping.experiments.papers.scripts.curves import POSITIVE, SHARE, Style, draw_band, noted
from fedping.experiments.papers.scripts.hartmann_pictures import PICTURES as HARTMANN
from fedping.experiments.papers.scripts.pictures import PICTURES

PAPERS = Path(__file__).parents[2] / "experiments" / "papers"
FILES = sorted(file for file in PAPERS.glob("*.toml") if not file.stem.startswith("hartmann"))
NOTED = (
    "was chosen on the test examples",
    "was chosen on the examples of the evaluation of clients' own models",
    "it ended worse than it began",
    "the target 'diagnosis' is a class",
    "is a biased estimate",
    "by randomised response",
    "of private-k-means does not cover min_max",
    "lack the module",
    "by means over the clients (CHK_ACCT",
)
"""Expected notes. The papers choose on the test examples, and weight a uniform sample by examples, as FedAvg does;
two rounds may end worse; the principal axis is of features alone; a private run states its guarantee and its
omissions; lenders lack a module."""

QUICKLY = ("rounds=2", "seeds=1", "data.most=100", "evaluation.every=2", "evaluation.baseline_iterations=2")


def ends(experiment: Experiment) -> Experiment:
    """Return an experiment with only the first and last variant of each model, and at most two rounds."""
    names: dict[str, list[str]] = {}
    for name, setup in experiment.variants.items():
        names.setdefault(setup.model["name"], []).append(name)
    kept = {name for own in names.values() for name in (own[0], own[-1])}
    left = {name: setup for name, setup in experiment.variants.items() if name in kept}
    short = {name: replace(setup, rounds=min(setup.rounds, 2)) for name, setup in left.items()}
    return replace(experiment, variants=short)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_of_a_paper_runs(file: Path, tmp_path: Path) -> None:
    experiment = experiment_from_toml(file, QUICKLY)
    summary = run_experiment(ends(experiment), tmp_path / "out", jobs=1)
    assert summary.best in experiment.variants
    assert [note for note in summary.notes if not any(words in note for words in NOTED)] == []
    for variant in summary.variants.values():
        assert 1 <= (variant.rounds.mean or 0) <= 2
        assert variant.metrics["test"][summary.metric].mean is not None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_name_is_that_of_its_file(file: Path) -> None:
    assert experiment_from_toml(file).name == file.stem.replace("_", "-")


def test_a_picture_is_of_a_file() -> None:
    assert set(PICTURES) <= {file.stem for file in (*FILES, *PAPERS.parent.glob("*.toml"))}


def test_pictures_are_drawn_of_what_runs_leave(tmp_path: Path) -> None:
    changes = ("rounds=2", "seeds=2", "data.most=20", "evaluation.baseline_iterations=2", "evaluation.every=1")
    name = "fritsch_2018_figure_8"
    run_experiment(experiment_from_toml(PAPERS / f"{name}.toml", changes), tmp_path / name, jobs=1)
    picture = PICTURES[name](tmp_path)
    (axes,) = picture.axes
    assert picture.get_supxlabel() == "Lines: means over 2 seeds. Bands: the 95 % t interval of that mean."
    assert axes.lines[0].get_label() == "each alone"
    assert [len(line.get_xdata()) for line in axes.lines] == [8, 8, 8]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "5", "10", "20", "50", "100", "200"]


def test_all_methods_that_personalize_are_of_the_same_data_and_drawn_beside_one_model_for_all(tmp_path: Path) -> None:
    name = "personal_methods"
    file = PAPERS.parent / f"{name}.toml"
    methods: dict[str, list[str]] = {}
    for variant in experiment_from_toml(file).variants:
        where, _, method = variant.partition(": ")
        methods.setdefault(where, []).append(method)
    assert list(methods) == [f"{data}, {most}" for data in ("genres", "topics") for most in (10, 50, 200)]
    [same] = {tuple(each) for each in methods.values()}

    tables = tomllib.loads(file.read_text())
    tables |= {"rounds": 2, "seeds": 1, "evaluation": {**tables["evaluation"], "every": 2}}
    tables["variants"] = [variant for variant in tables["variants"] if ", 10: " in variant["name"]]
    for variant in tables["variants"]:
        if "from_version" in variant.get("training", {}).get("personal", {}):
            variant["training"]["personal"]["from_version"] = 1  # of the last of the two
    experiment = experiment_of(tables, name="tiny", folder=PAPERS.parent)
    summary = run_experiment(experiment, tmp_path / name, jobs=1)
    left, right = PICTURES[name](tmp_path).axes
    assert [label.get_text() for label in left.get_yticklabels()] == list(same[1:])
    for axes, data in zip((left, right), ("genres", "topics"), strict=True):
        found = {
            method: summary.variants[f"{data}, 10: {method}"].metrics["personal"]["accuracy"].mean for method in same
        }
        apart = [found[method] - found[same[0]] for method in same[1:]]  # type: ignore[operator]
        [points] = (line for line in axes.lines if line.get_marker() == "o")
        assert list(points.get_xdata()) == pytest.approx(apart)  # type: ignore[arg-type]
        assert any(apart)


def test_a_band_ends_where_the_metric_does() -> None:
    _, (axes,) = panels(LIGHT)
    near = [Band(0.99, 0.05, 5), Band(0.02, 0.05, 5), Band(None, None, 0), Band(0.5, None, 1)]
    draw_band(axes, range(4), near, "accuracy", Style(0, SHARE))
    draw_band(axes, range(2), [Band(3.0, 1.0, 5), Band(0.5, 1.0, 5)], "loss", Style(1, POSITIVE))
    share, loss = (band.get_paths()[0].get_extents() for band in axes.collections)
    assert (share.y0, share.y1) == (0.0, 1.0)
    assert (loss.y0, loss.y1) == (0.0, 4.0)


def test_a_picture_of_one_seed_has_no_bands_and_says_of_none() -> None:
    figure, _ = panels(LIGHT)
    assert noted(figure, [Band(0.5, None, 1)]).get_supxlabel() == ""
    assert "means over 4 to 5 seeds" in noted(figure, [Band(0.5, 0.1, 4), Band(0.5, 0.1, 5)]).get_supxlabel()


def test_all_six_lines_of_the_thesis_users_have_bands(tmp_path: Path) -> None:
    name = "hartmann_2018_frecency"
    changes = ("rounds=1", "seeds=2", "data.users=400", "data.judges=50", "evaluation.baselines=[]")
    run_experiment(experiment_from_toml(PAPERS / f"{name}.toml", changes), tmp_path / name, jobs=1)
    (axes,) = HARTMANN[name](tmp_path).axes
    assert len(axes.collections) == 6


@pytest.mark.long
def test_encodings_are_drawn_over_the_megabytes_that_clients_posted(tmp_path: Path) -> None:
    name = "hartmann_2018_compression"
    changes = ("rounds=2", "seeds=2", "data.most=300", "partition.clients=10", "sampling.clients=3")
    experiment = experiment_from_toml(PAPERS / f"{name}.toml", changes)
    drawn = ("dense", "EDEN, 1 bit", "steps 2", "levels, 1 bit, rotated", "mask, a tenth", "mask, a fiftieth")
    variants = {each: experiment.variants[each] for each in drawn}
    run_experiment(replace(experiment, variants=variants), tmp_path / name, jobs=1)
    rows = pq.read_table(tmp_path / name / "metrics.parquet").to_pylist()
    of_rounds, of_bytes = HARTMANN[name](tmp_path).axes
    for variant, by_round, by_bytes in zip(drawn, of_rounds.lines, of_bytes.lines, strict=True):
        posted = [row["value"] for row in rows if (row["variant"], row["metric"]) == (variant, "posted_bytes")]
        assert by_round.get_label() == by_bytes.get_label() == variant
        assert len(posted) == 4
        assert by_bytes.get_xdata()[-1] == pytest.approx(sum(posted) / 2 / 1e6)
        assert list(by_bytes.get_ydata()) == list(by_round.get_ydata())[1:]


def test_the_shared_model_and_the_users_own_are_drawn_in_one_panel_a_figure(tmp_path: Path) -> None:
    name = "hartmann_2018_personalization"
    variants = experiment_from_toml(PAPERS / f"{name}.toml").variants
    tables = []
    for place, variant in enumerate(variants):
        for seed in (1, 2):
            log = MetricLog(variant, seed, None)
            for round_ in (0, 30):
                for split, better in (("central", 0.0), ("personal", 0.02)):
                    log.add(round_, split, {"top_choice": 0.9 + better + place / 1000 + seed / 500})  # type: ignore[arg-type]
            tables.append(log.table())
    (tmp_path / name).mkdir()
    pq.write_table(pa.concat_tables(tables), tmp_path / name / "metrics.parquet")
    left, right = HARTMANN[name](tmp_path).axes
    assert list(variants) == ["transfer", "transfer, slow drift", "vector", "vector, slow drift"]
    for axes, first in ((left, 0.0), (right, 0.002)):
        lines = {str(line.get_label()): list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) == 2}
        assert lines["central, fast drift"] == pytest.approx([0.903 + first] * 2)
        assert lines["personal, slow drift"] == pytest.approx([0.924 + first] * 2)
