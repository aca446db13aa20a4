"""`fedping power` as used by a planner, and its rejections, in one sentence each."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.landing import partition, write_landed
from tests.support.landed import landed_table
from tests.support.versions import small_study, version_0

RANKS = ["--counts", "0:80,1:12,2:5,3:3", "--metric", "rank_selected"]
QUICK = ["--simulations", "300"]


def said_by(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> dict[str, object]:
    assert main(["power", *arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_sentence_comes_first_and_the_table_has_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "effect", *RANKS, "--change", "+6%", "--shares", "60/20/20", "--tests", "6", *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("110,575 users, 82,931 with the change and 27,644 without, show a mean rank_selected")
    heads = next(line for line in lines if "enrolled" in line and "formula" in line)
    assert "simulation" in heads
    assert sum(line.count("80.0 %") > 0 for line in lines) >= 2


def test_a_distribution_may_be_a_csv_a_toml_file_or_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "plain.csv": "0,80\n1,12\n2,5\n3,3\n",
        "headed.csv": "# ranks\nvalue,count\n3,0.03\n0,0.5\n1,0.12\n2,0.05\n0,0.3\n",
        "ranks.toml": "values = [0, 1, 2, 3]\ncounts = [80, 12, 5, 3]\n",
    }
    answers = [said_by(capsys, ["effect", *RANKS, "--change", "-3%", *QUICK])]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        answers.append(said_by(capsys, ["effect", "--values", str(tmp_path / name), "--change", "-3%", *QUICK]))
    assert len({json.dumps([one["sizes"], one["rows"], one["effect"]]) for one in answers}) <= 2  # 0.5 + 0.3 rounds
    assert len({one["sizes"]["formula"] for one in answers}) == 1  # type: ignore[index]


def test_users_instead_of_an_effect_ask_for_the_least_one(capsys: pytest.CaptureFixture[str]) -> None:
    least = said_by(capsys, ["effect", *RANKS, "--users", "20000", *QUICK])
    assert least["question"] == "effect"
    less, more = least["least"]  # type: ignore[misc]
    assert less["effect"]["percent"] < 0 < more["effect"]["percent"]
    assert main(["power", "effect", *RANKS, "--users", "20000", *QUICK]) == 0
    assert "The least that shows with a power of 80.0 %" in capsys.readouterr().out
    both = said_by(capsys, ["effect", *RANKS, "--users", "20000", "--superiority", "0.51", *QUICK])
    assert both["question"] == "power"
    assert [row["enrolled"] for row in both["rows"]] == [20000]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*RANKS], "give the effect with --change or --superiority"),
        ([*RANKS, "--change", "much"], "'much' is not a change of a mean"),
        ([*RANKS, "--change", "0"], "no number of users shows a change of 0"),
        ([*RANKS, "--change", "-200%"], r"the mean 0\.31 would become -0\.31, but it has to stay between"),
        ([*RANKS, "--superiority", "0.5"], r"0\.5 is no difference, which no number of users shows"),
        ([*RANKS, "--superiority", "0.3"], r"lies between 0\.4 and 0\.985, since ties count half"),
        ([*RANKS, "--superiority", "0.6", "--change", "1"], "use either --change or --superiority"),
        ([*RANKS, "--change", "1%", "--shares", "100"], "needs the shares of at least two arms"),
        ([*RANKS, "--change", "1%", "--shares", "60/-20"], "--shares '60/-20' must have only numbers above 0"),
        ([*RANKS, "--change", "1%", "--shares", "60:20"], "--shares '60:20' is not a list"),
        ([*RANKS, "--change", "1%", "--table", "few"], "--table 'few' is not a list"),
        ([*RANKS, "--change", "1%", "--exposed", "1.2"], r"lies between 0 and 1, not at 1\.2"),
        ([*RANKS, "--change", "1%", "--alpha", "5"], "the level alpha lies between 0 and 1, not at 5"),
        ([*RANKS, "--change", "1%", "--power", "80"], r"the power lies between the level 0\.05 and 1, not at 80"),
        ([*RANKS, "--users", "3"], "3 enrolled leave 3 that are compared, too few for any test"),
        ([*RANKS, "--users", "300", "--table", "10"], "a table of power needs an effect"),
        (["--counts", "3:5", "--change", "1"], "needs at least two different values"),
        (["--counts", "3:5,4", "--change", "1"], "'4' in --counts is not a value with its count"),
        (["--counts", "3:5,4:-1", "--change", "1"], "with the count -1 in --counts cannot be"),
        (["--counts", "3:5,nan:1", "--change", "1"], "the value nan"),
        (["--values", "none.csv", "--change", "1"], "cannot read the distribution file none.csv"),
        (["--values", "bad.toml", "--change", "1"], "is not valid TOML"),
        (["--values", "uneven.toml", "--change", "1"], r"has to give values = \[\.\.\.\] and counts"),
        (["--values", "bytes.csv", "--change", "1"], "is not UTF-8 text"),
        (["study", *RANKS, "--change", "1"], "give only one source of the distribution"),
        (["study", "--change", "1"], "one of treatment, control"),
        (["study", "--arm", "placebo", "--change", "1"], "has no arm 'placebo'"),
        (["study", "--arm", "control", "--metric", "speed", "--change", "1"], "unknown metric 'speed'"),
        (["study", "--arm", "control", "--from-iteration", "9", "--change", "1"], "but none from iteration 9"),
        (["other", "--arm", "control", "--change", "1"], "has no study 'other'"),
    ],
)
def test_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("values = [")
    Path("uneven.toml").write_text("values = [1, 2]\ncounts = [3]\n")
    Path("bytes.csv").write_bytes(b"\xff\xfe,1")
    study = small_study()
    open_store(tmp_path / "store", create=True).create_study(study, (version_0(study),))
    write_landed(partition(tmp_path / "landing", "study", "main", 3), landed_table(10, 1), 1)
    assert main(["power", "effect", *arguments]) in (1, 2)
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert re.search(sentence, said), said


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("warm_commands")
def test_a_landed_pilot_is_the_metric_that_the_verdict_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.dataset as ds

    from benchmarks.landing_data import StudyTraffic, land_study

    study, landing = small_study(), tmp_path / "landing"
    open_store(tmp_path / "store", create=True).create_study(study, (version_0(study),))
    land_study(
        landing, StudyTraffic(pings=6000, clients=900, arms={"treatment": 0.6, "control": 0.4}, study="study"), 3
    )
    places = ["--store", str(tmp_path / "store"), "--landing", str(landing)]
    report = said_by(capsys, ["effect", "study", "--arm", "control", "--change", "-5%", *places, *QUICK])
    columns = ["document_id", "client_id", "study_variation", "rank_selected", "num_chars_typed"]
    rows = ds.dataset(landing).to_table(columns=columns).to_pandas().drop_duplicates("document_id")
    chose = rows[(rows.study_variation == "control") & (rows.rank_selected >= 0)]
    means = chose.groupby("client_id").num_chars_typed.mean()
    assert report["observed"] == len(means)
    assert report["mean"] == pytest.approx(means.mean(), rel=1e-5)
    assert report["effect"]["changed_mean"] == pytest.approx(0.95 * means.mean(), rel=1e-4)
    assert report["sizes"]["simulated"] == pytest.approx(report["sizes"]["formula"], rel=0.2)
    assert "arm 'control' of study 'study', by client" in report["notes"][0]
