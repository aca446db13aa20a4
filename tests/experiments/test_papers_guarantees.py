"""Figure 12 of Fritsch et al. 2018: the printed and drawn guarantees, which the page repeats."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.papers.scripts.guarantees import (
    OURS,
    SIGMA,
    THEIRS,
    C,
    answers_to,
    draw_guarantees,
    main,
    spent,
)

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "experiments" / "papers"


def test_what_the_papers_formulas_give_is_not_what_is_so() -> None:
    """Expected values are computed from the formulas alone: see Fritsch et al. 2018, 5.3.1 and 7.3."""
    for answers, paper, exact, strict in ((112, 670, 45.8, 71.1), (187, 1210, 72.9, 105.7), (989, 8248, 348, 423)):
        assert spent(answers, 0.1).by_the_paper == pytest.approx(paper, rel=2e-3)
        assert spent(answers, 0.1).exact == pytest.approx(exact, rel=2e-3)
        assert spent(answers, 1e-5).exact == pytest.approx(strict, rel=2e-3)
        assert spent(answers, 0.1).by_the_theorems > spent(answers, 0.1).by_the_paper


def test_the_page_has_the_table_that_is_printed() -> None:
    text = (
        (ROOT / "docs" / "experiments.md")
        .read_text(encoding="utf-8")
        .partition("**Figure 12** has")[2]
        .partition("###")[0]
    )
    rows = re.findall(r"^\| (?:theirs|ours).*?(\d[\d,]*) \| (.*) \|$", text, re.MULTILINE)
    assert {int(answers) for answers, _ in rows} > {number for numbers in THEIRS.values() for number in numbers}
    for answers, cells in rows:
        much, little = spent(int(answers), 0.1), spent(int(answers), 1e-5)
        told = [float(cell.replace(",", "")) for cell in cells.split(" | ")]
        assert told == pytest.approx([much.by_the_paper, much.by_the_theorems, much.exact, little.exact], rel=1e-2)


def test_the_noise_of_the_files_is_the_one_that_is_told_of() -> None:
    """Two answers clipped to C differ by up to 2 C: the files have the exact ε of one answer with that noise."""
    for name in OURS.values():
        experiment = experiment_from_toml(PAPERS / f"{name}.toml")
        privacy = experiment.variants[f"C = {C:g}"].privacy
        assert privacy is not None
        assert privacy.local is not None
        assert privacy.local.epsilon == pytest.approx(spent(1, 1e-5).exact, rel=1e-3)
    assert SIGMA == 0.5


@pytest.mark.long
def test_the_picture_and_the_table_are_of_finished_runs(tmp_path: Path) -> None:
    changes = ("rounds=10", "seeds=1", "evaluation.every=5", "model.l2=0.001")
    for name in OURS.values():
        run_experiment(experiment_from_toml(PAPERS / f"{name}.toml", changes), tmp_path / name, jobs=1)
    first = answers_to(tmp_path / OURS["logistic regression"], (0.6, 1.1))
    assert list(first) == [0.6]
    assert first[0.6] in (5, 10)
    picture = draw_guarantees(first)
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in picture.axes]
    assert labels == [["112 answers", "187 answers", "512 answers"], [f"AUC 0.6: {first[0.6]} answers"]]
    done = CliRunner().invoke(main, [str(tmp_path), "--figures", str(tmp_path / "figures")])
    assert done.exit_code == 0, done.output
    assert "| theirs (a), 112 | 669.9 |" in done.output
    assert (tmp_path / "figures" / "fritsch_2018_figure_12.svg").is_file()
