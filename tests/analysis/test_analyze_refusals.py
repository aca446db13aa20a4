"""`fedping analyze` rejects impossible requests in one sentence, before Spark starts."""

from pathlib import Path

import pytest

from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.study import Arm, Study
from tests.support.landed import landed_table
from tests.support.model_updates import model_study
from tests.support.versions import small_study, version_0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with a store of four studies, and some landed pings of the first."""
    import fedping.server_jobs.spark.session

    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(fedping.server_jobs.spark.session, "spark_session", no_spark)
    store, study = open_store(tmp_path / "store", create=True), small_study()
    store.create_study(study, (version_0(study),))
    store.create_study(Study(name="alone", arms=(Arm(name="only", share=1),)), ())
    store.create_study(Study(name="bare", arms=(Arm(name="a", share=0.5), Arm(name="b", share=0.5))), ())
    learned = model_study()
    store.create_study(learned, (version_0(learned),))
    write_landed(partition(tmp_path / "landing", "study", "main", 3), landed_table(10, 1), 1)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["other"], 1, "has no study 'other'; it has alone, bare, models, study"),
        (["alone"], 2, "study 'alone' has one arm, 'only', and nothing to compare it with"),
        (["models"], 1, "study 'models' has landed nothing in"),
        (
            ["models", "--metrics", "rank_selected"],
            2,
            "model-update pings have no metric 'rank_selected'; they have loss",
        ),
        (["study", "--metrics", "examples"], 2, "frecency-update pings have no metric 'examples'; they have num_chars"),
        (["models", "--metrics", "speed"], 2, "unknown metric 'speed'. Metrics: loss, examples"),
        (["models", "--metrics", "los"], 2, r"unknown metric 'los'; did you mean 'loss'\? Metrics: loss, examples"),
        (["models", "--guardrails", "examples"], 2, "the metric 'examples' cannot be a guardrail"),
        (["bare"], 1, "study 'bare' has landed nothing in"),
        (["bare", "--from-iteration", "3"], 2, "arm 'a' follows no model line, so its pings belong to no iteration"),
        (["study", "--from-iteration", "4"], 1, "study 'study' has landed pings in .*, but none from iteration 4"),
        (
            ["study", "--from-iteration", "4", "--to-iteration", "3"],
            2,
            "ends with iteration 3, before it begins with 4",
        ),
        (["study", "--since", "2020-01-02", "--until", "2020-01-01"], 2, "the window ends before it begins"),
        (["study", "--pairs", "treatment:placebo"], 2, "study 'study' has no arm 'placebo'; it has treatment, control"),
        (["study", "--pairs", "treatment"], 2, "'treatment' is not a pair of arms. Write it as treatment:control"),
        (["study", "--pairs", "control:control"], 2, "arm 'control' cannot be compared with itself"),
        (["study", "--pairs", "treatment:control,control:treatment"], 2, "is named twice"),
        (
            ["study", "--metrics", "speed"],
            2,
            "unknown metric 'speed'. Metrics: num_chars_typed, rank_selected, loss",
        ),
        (["study", "--metrics", "loss,loss"], 2, "the metric 'loss' is named twice"),
        (["study", "--metrics", ""], 2, "name at least one metric"),
        (["study", "--guardrails", "loss"], 2, "the guardrail 'loss' is not among the metrics"),
        (["study", "--alpha", "5"], 2, "the level alpha lies between 0 and 1, not at 5"),
        (["study", "--planned-clients", "500"], 2, "Add --interim"),
        (["study", "--subsample", "500"], 2, "give --html or --figures with it"),
        (["study", "--html", "nowhere/report.html"], 2, "--html: the folder nowhere does not exist"),
        (["study", "--landing", "nowhere"], 1, "no landing folder exists at nowhere. Start 'fedping ingest' with it"),
    ],
)
def test_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    places = ["--store", str(folder / "store")]
    if "--landing" not in arguments:
        places += ["--landing", str(folder / "landing")]
    assert main(["analyze", *arguments, *places]) == code
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    import re

    assert re.search(sentence, said)
