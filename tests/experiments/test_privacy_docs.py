"""The pages on the privacy toolbox show the real results: the example and the paper's table."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedping.experiments.papers.scripts.rodriguez_barroso_2020_table_6 import table_6
from fedping.experiments.simulate import experiment_from_toml
from fedping.server_jobs.privacy.budget import epsilon_after, with_noise

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_guides_example_prints_what_the_guide_says(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "researchers.md").read_text(encoding="utf-8").partition("### Try out privacy\n")[2]
    name, example, printed = re.findall(
        r"```python\n# file: (\S+)\n(.*?)```\n\nIt prints:\n\n```text\n(.*?)```", text, re.DOTALL
    )[0]
    (tmp_path / name).write_text(example, encoding="utf-8")
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, name], cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr


def test_the_papers_table_comes_out_as_the_page_says() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").partition("other three rows have privacy")[2]
    cells = [re.split(r" ?\| ?", line)[1:] for line in text.splitlines() if line.startswith(("| centr", "| federated"))]
    rows, sensitivity = table_6(seed=1234)
    assert [row.approach for row in rows] == [each[0] for each in cells]
    assert [row.rmse for row in rows] == pytest.approx([float(each[3]) for each in cells], abs=1e-3)
    assert [row.r_squared for row in rows] == pytest.approx([float(each[4]) for each in cells], abs=1e-4)
    assert [(str(row.runs), str(row.by_advanced)) for row in rows[2:]] == [(each[5], each[6]) for each in cells[2:]]
    assert (sensitivity.largest, sensitivity.mean, sensitivity.pairs) == (
        pytest.approx(4.18, abs=0.005),
        pytest.approx(0.22, abs=0.005),
        1305,
    )


@pytest.mark.long
def test_the_simulated_study_spends_what_the_pages_say() -> None:
    experiment, study = experiment_from_toml(ROOT / "experiments" / "private_users.toml")
    privacy = with_noise(study).line("main").privacy
    assert privacy is not None
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").partition("private_users.toml`")[2]
    cells = [re.findall(r"[^|]+", line) for line in text.splitlines()[3:8] if "|" in line]
    rows = {name.strip(): numbers for name, *numbers in cells}
    rounds = [int(each) for each in rows["rounds"]]
    assert rounds[-1] == experiment.optimization.iterations
    for count, told in zip(rounds, rows["ε so far"], strict=True):
        assert epsilon_after(privacy, count)[0] == pytest.approx(float(told), abs=5e-4)
    guide = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert f"Epsilon {float(rows['ε so far'][-1]):.3g} of 1 is spent, by {rounds[-1]} rounds" in guide
