"""Descriptions of clients' data: counts and sums equal the pooled examples'; the figures and their command."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.patches import Rectangle

from fedping.analysis.figures import save_figure
from fedping.client_sim.data import ExampleData, Target, of_clients, table
from fedping.client_sim.data.scores import correlations, pooled
from fedping.commands.describe import describe as command
from fedping.experiments.laboratory.describing import BINS, MOST_DRAWN, describe, examples_of, present
from fedping.experiments.laboratory.describing_figures import figures
from fedping.experiments.laboratory.settings.experiment import experiment_from_toml
from fedping.protocol.errors import FedpingError, InvalidSettings

CREDIT = """
rounds = 1
model = { name = "logistic-regression" }
partition = { partition = "key" }
[data]
name = "credit"
"""
LACKING = CREDIT + 'missing = "mean"\n[[data.modules]]\nfeatures = ["CHK_ACCT", "HISTORY"]\nmissing = 0.46\n'


def examples(folder: Path, text: str = CREDIT) -> ExampleData:
    file = folder / "e.toml"
    file.write_text(text)
    return examples_of(experiment_from_toml(file).variants["federated"], 1)[0]


def numbers(sizes: tuple[int, ...] = (30, 20, 50)) -> ExampleData:
    random = np.random.default_rng(3)
    x = random.normal(size=(sum(sizes), 3))
    x[:, 2] = 7.0
    x[::3, 1] = np.nan
    return of_clients(table(x, random.normal(size=len(x)), gaps=True), np.array(sizes))


def test_sizes_and_targets_are_those_of_the_clients(tmp_path: Path) -> None:
    of = describe(examples(tmp_path))
    assert of.names == ("EDUCATION", "FURNITURE", "NEW_CAR", "OTHER", "RADIO/TV", "RETRAINING", "USED_CAR")
    assert of.sizes.tolist() == [50, 181, 234, 55, 280, 97, 103]
    assert of.targets.sum(axis=1) == pytest.approx(np.ones(7))
    assert of.sizes @ of.targets[:, 1] == pytest.approx(300)
    assert len(of.distributions) == MOST_DRAWN
    assert of.correlation.shape == (30, 30)


def test_correlations_and_moments_are_those_of_the_pooled_examples(tmp_path: Path) -> None:
    data = examples(tmp_path)
    np.testing.assert_allclose(correlations(data.x), np.corrcoef(data.x.T), atol=1e-12)
    of = pooled(present(data, 1))
    assert of.count == 1000
    assert of.mean == pytest.approx(data.x[:, 1].mean())
    assert of.deviation == pytest.approx(data.x[:, 1].std())
    means = np.array([data.x[data.client_of == client, 1].mean() for client in range(7)])
    between = (data.sizes * (means - of.mean) ** 2).sum() / 1000 / data.x[:, 1].var()
    assert of.between == pytest.approx(between)
    assert pooled(present(data, data.features.index("NEW_CAR"))).between == pytest.approx(1)


def test_gaps_are_counted_and_left_out_of_the_rest() -> None:
    data = numbers()
    of = describe(data)
    one, two, three = of.distributions
    assert (one.missing, two.missing, three.missing) == (0, 34, 0)
    there = ~np.isnan(data.x[:, 1])
    assert two.mean == pytest.approx(data.x[there, 1].mean())
    assert two.counts.sum() == there.sum()
    assert of.correlation[0, 1] == pytest.approx(np.corrcoef(data.x[there, 0], data.x[there, 1])[0, 1])
    assert np.isnan(of.correlation[2]).all()
    assert three.edges.tolist() == [6.5, 7.5]


def test_bins_are_whole_numbers_or_cut_far_tails() -> None:
    random = np.random.default_rng(4)
    x = np.column_stack([random.integers(1, 11, 2000), random.standard_cauchy(2000), random.uniform(size=2000)])
    grades, tails, even = describe(of_clients(table(x, np.zeros(2000)), np.array([1500, 0, 500]))).distributions
    assert grades.whole
    assert grades.edges.tolist() == [number + 0.5 for number in range(11)]
    assert grades.counts.sum(axis=0).tolist() == np.bincount(x[:, 0].astype(int))[1:].tolist()
    assert len(tails.edges) == BINS + 1
    assert tails.edges[-1] < x[:, 1].max()
    assert tails.counts.sum(axis=1).tolist() == [1500, 0, 500]
    assert [even.edges[0], even.edges[-1]] == pytest.approx([x[:, 2].min(), x[:, 2].max()])


@pytest.mark.parametrize("clients", [3, 30, 90])
@pytest.mark.parametrize("target", ["number", "two", "many"])
def test_every_picture_is_drawn_for_few_and_for_many_clients(clients: int, target: str) -> None:
    random = np.random.default_rng(6)
    what = {"number": Target(), "two": Target("y", ("no", "yes")), "many": Target("y", tuple("abcde"))}[target]
    y = random.normal(size=clients * 4) if target == "number" else random.integers(0, len(what.classes), clients * 4)
    sizes = np.full(clients, 4)
    sizes[0], sizes[-1] = 8, 0
    data = of_clients(table(random.normal(size=(clients * 4, 4)), y, target=what), sizes)
    of = describe(data)
    drawn = {name: draw(of) for name, draw in figures().items()}
    for figure in drawn.values():
        figure.canvas.draw()
    left, right = drawn["sizes"].axes[:2]
    if clients <= 40:
        assert [bar.get_width() for bar in left.patches if isinstance(bar, Rectangle)] == sorted(
            sizes.tolist(), reverse=True
        )
    else:
        assert "largest first" in left.get_xlabel()
    assert right.get_xlabel()
    assert [axes.get_title(loc="left") for axes in drawn["distributions"].axes][:4] == ["x0", "x1", "x2", "x3"]
    assert np.asarray(drawn["correlations"].axes[0].images[0].get_array()).shape == (4, 4)


def test_the_command_writes_pictures_and_their_numbers(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(LACKING)
    out = tmp_path / "out"
    done = CliRunner().invoke(command, [str(file), "--out", str(out), "--feature", "HISTORY", "--feature", "AGE"])
    assert done.exit_code == 0, done.output
    assert "7 clients with 50 to 280 examples, 1,000 in all; 30 features" in done.output
    assert "note: 460 of 1,000 records lack the module CHK_ACCT, HISTORY, drawn by the seed" in done.output
    names = {f"{name}.{kind}" for name in ("sizes", "distributions", "correlations") for kind in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == {*names, "description.json"}
    assert "46 % missing" in (out / "distributions.svg").read_text()
    document = json.loads((out / "description.json").read_text())
    assert [each["feature"] for each in document["distributions"]] == ["HISTORY", "AGE"]
    assert document["distributions"][0]["missing"] == 460
    assert document["clients"][0] == {"name": "EDUCATION", "examples": 50, "target": [0.56, 0.44]}


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (CREDIT, ["--feature", "HEIGHT"], "no feature is 'HEIGHT'"),
        (CREDIT, ["--variant", "b"], "--variant b: it does not exist. Choose federated"),
        ('rounds = 1\nmodel = { name = "frecency-2018" }\ndata = { users = 5 }\n', [], "synthetic users have new"),
    ],
)
def test_what_cannot_be_described_is_refused(text: str, options: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(text)
    done = CliRunner().invoke(command, [str(file), "--out", str(tmp_path / "out"), *options])
    assert isinstance(done.exception, (FedpingError, InvalidSettings))
    assert said in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_file_with_gaps_and_without_a_rule_can_be_described(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b,y\n1,,0\n2,3,1\n3,4,0\n4,,1\n")
    data = examples(
        tmp_path,
        'rounds = 1\nmodel = { name = "linear-regression" }\ndata = { file = "rows.csv", target = "y" }\n'
        'partition = { partition = "iid", clients = 2 }\n',
    )
    assert describe(data).distributions[1].missing == 2


def test_names_that_are_no_formulas_and_no_text_of_an_svg_are_drawn(tmp_path: Path) -> None:
    names = ("$x^{$", "\x1b[2Jred\x07", "<b>bold</b>")
    x = np.random.default_rng(1).normal(size=(12, 3))
    rows = table(x, np.arange(12) % 2, features=names, target=Target("$\\frac{", ("$a_{$", "\x00")))
    of = describe(of_clients(rows, np.array([6, 6]), np.array(["$_{$", "\x1b"])))
    for name, draw in figures().items():
        drawn = ElementTree.parse(save_figure(draw(of), tmp_path / f"{name}.svg"))
        if name == "correlations":
            assert {"$x^{$", "<b>bold</b>"} <= {each.text for each in drawn.iter()}
