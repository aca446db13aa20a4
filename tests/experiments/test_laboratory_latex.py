"""Tables for papers: paired tests, and the LaTeX output."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedping.experiments.laboratory.comparing import chosen, compared
from fedping.experiments.laboratory.latex import escaped
from fedping.experiments.laboratory.latex_of_experiment import adjusted_p_values, experiment_table
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings.experiment import experiment_from_toml
from fedping.experiments.laboratory.summary import difference, p_value, read_summary
from fedping.main import main
from fedping.protocol.errors import FedpingError
from tests.support.laboratory import small_file


def test_p_is_that_of_the_paired_t_test() -> None:
    for seed in range(20):
        a, b = np.random.default_rng(seed).normal(size=(2, 2 + seed))
        assert p_value(difference([*zip(a, b, strict=True)])) == pytest.approx(ttest_rel(b, a).pvalue, rel=1e-9)
    assert p_value(difference([(1.0, 2.0)])) is None
    assert p_value(difference([(1.0, 1.0), (2.0, 2.0)])) == 1
    assert p_value(difference([(1.0, 2.0), (2.0, 3.0)])) == 0


def test_signs_that_latex_reads_are_escaped() -> None:
    assert escaped("50 % of_a&b\n{x} \\ ~^ <") == (
        r"50 \% of\_a\&b \{x\} \textbackslash{} \textasciitilde{}\textasciicircum{} \textless{}"
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latex")
    file = small_file(folder, '[[variants]]\nname = "slow_%"\nserver.optimizer.rate = 0.01\n')
    run_experiment(experiment_from_toml(file, ["rounds=3", "seeds=3"]), folder / "out")
    return folder / "out"


def test_the_table_has_a_row_for_each_variant_with_holms_p_values(results: Path) -> None:
    table = experiment_table(results)
    lines = [line[4:] for line in table.splitlines()]
    rows = {line.split(" & ")[0]: line.removesuffix(r" \\").split(" & ") for line in lines if line.endswith(r"\\")}
    assert {"gradient", "local, three", r"slow\_\%", "centralised", "start"} <= rows.keys()
    assert len({len(row) for row in rows.values()}) == 1
    assert "{l" + "r" * (len(rows["gradient"]) - 1) + "}" in table
    summary = read_summary(results)
    assert summary is not None
    assert summary.best is not None
    bold = [name for name, row in rows.items() if any(r"\textbf" in cell for cell in row)]
    assert bold == [summary.best]
    others = [name for name in summary.variants if name != summary.best]
    of = {name: {key[0]: run.final["test"][summary.metric] for key, run in chosen(f"{results}:{name}").outcomes.items()}
          for name in summary.variants}  # fmt: skip
    raw = {name: ttest_rel([*of[name].values()], [*of[summary.best].values()]).pvalue for name in others}
    first, second = sorted(others, key=raw.__getitem__)
    by_hand = {first: min(1, 2 * raw[first]), second: min(1, max(2 * raw[first], raw[second]))}
    assert adjusted_p_values(results, summary) == pytest.approx(by_hand)
    begins = table.count(r"\begin"), table.count(r"\end"), table.count("{") - table.count("}")
    assert begins[0] == begins[1]
    mean = summary.variants[summary.best].metrics["test"][summary.metric].mean
    assert f"{mean:.4f} \\pm" in table


def test_the_table_of_two_has_a_row_for_each_metric(results: Path, tmp_path: Path) -> None:
    pair = f"{results}:gradient", f"{results}:slow_%"
    comparison = compared(*map(chosen, pair))
    table = comparison.to_latex()
    assert table.count("test accuracy & ") == 1
    assert "slow\\_\\%" in table
    loss = next(each for each in comparison.differences if (each.split, each.metric) == ("test", "loss"))
    assert loss.p is not None
    assert (loss.p < 0.05) == (loss.better is not None)
    assert main(["compare", *pair, "--latex", str(tmp_path / "two.tex")]) == 0
    assert (tmp_path / "two.tex").read_text() == table
    assert main(["export", str(results), "--latex", str(tmp_path / "all.tex")]) == 0
    assert (tmp_path / "all.tex").read_text() == experiment_table(results)
    assert main(["export", str(results), "--latex", str(tmp_path / "none/all.tex")]) == 1


TIMED = """
rounds = 4
seeds = 2
model = { name = "logistic-regression" }
data = { name = "digits", most = 20, standardise = true }
partition = { partition = "labels", clients = 10, labels = 2 }
server = { optimizer = { optimizer = "gradient_descent", rate = 1.0 } }
evaluation = { local = true, baselines = ["start"], target = 2.2, metric = "loss" }
[[variants]]
name = "waits"
clock = { seconds_per_example = 1.0 }
[[variants]]
name = "no clock, too slow"
server.optimizer.rate = 1e-9
"""


def test_tables_have_time_and_no_single_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.toml").write_text(TIMED)
    out = tmp_path / "out"
    run_experiment(experiment_from_toml(tmp_path / "e.toml"), out)
    lines = [line[4:].removesuffix(r" \\").split(" & ") for line in experiment_table(out).splitlines() if " & " in line]
    rows = {name: dict(zip(lines[0], row, strict=True)) for row in lines for name in row[:1]}
    of = read_summary(out)
    assert of is not None
    hours = of.variants["waits"].simulated_hours
    assert hours
    assert hours.mean is not None
    assert rows["waits"]["hours"] == f"${hours.mean:,.4g}$"
    assert rows["waits"]["hours to loss 2.2"] != "never"
    assert rows["no clock, too slow"]["rounds to loss 2.2"] == "never"
    assert rows["start"]["rounds to loss 2.2"] == ""
    pair = f"{out}:waits", f"{out}:no clock, too slow"
    comparison = compared(*map(chosen, pair))
    assert {each.metric for each in comparison.differences} >= {"f1", "f1_of_7"}
    assert {each.metric for each in comparison.overall} >= {"f1", "loss"}
    assert "of\\_7" not in comparison.to_latex()
    capsys.readouterr()
    assert main(["compare", *pair]) == 0
    text = capsys.readouterr().out
    assert "recall_of_7" not in text
    assert f"{len(comparison.differences) - len(comparison.overall)} rows of single classes are not shown" in text


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match="has no finished experiment"):
        experiment_table(tmp_path)
