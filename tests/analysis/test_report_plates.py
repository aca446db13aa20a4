"""A report draws the available data, and names missing data; its page loads nothing from outside."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from fedping.analysis.curves import ArmCurve
from fedping.analysis.report import write_figures, write_page
from fedping.analysis.report.page import print_verdict, render_page
from fedping.analysis.report.plates import Gap, Plate, plates
from fedping.analysis.report.rows import report_tables, table_notes, training_note
from fedping.analysis.rounds import RoundTraffic, Series
from fedping.analysis.rounds.history import LineHistory, Missing
from fedping.analysis.study import METRICS, Metric, Window
from fedping.analysis.verdict import reach_verdict
from fedping.protocol.errors import FedpingError
from fedping.protocol.personalization import FineTune
from fedping.protocol.training import OneGradient
from tests.support.histories import CURVES, QUALITY, TRAFFIC
from tests.support.verdicts import made_verdict

VERDICT = made_verdict({"treatment": 3.0, "control": 4.0})
WHOLE = LineHistory("main", CURVES, TRAFFIC, {"treatment": Series((0, 1), (4.0, 3.5))}, QUALITY)
EMPTY = LineHistory("main", {}, RoundTraffic((), (), {}), Missing("No selection."), Missing("No pings."))
KEYS = [
    "superiority",
    "differences",
    "loss",
    "loss-smoothed",
    "characters-typed",
    "selected-rank",
    "pings-by-iteration",
    "subsamples-updates",
    "subsamples-signs",
    "subsamples-loss",
    "pings-over-time",
]


def test_a_whole_study_has_every_figure_by_a_name_of_its_own() -> None:
    found = plates(VERDICT, [WHOLE])
    assert [plate.key for plate in found] == KEYS
    assert all(isinstance(plate, Plate) for plate in found)
    several = plates(VERDICT, [WHOLE, replace(WHOLE, line="other")])
    assert len({plate.key for plate in several}) == len(several) == 19
    assert {"loss-main", "loss-other"} <= {plate.key for plate in several}
    titles = {plate.key: plate.title for plate in several}
    assert titles["loss-other"] == "Loss over the iterations, line other"
    assert titles["subsamples-loss-other"].endswith(" estimate the loss, line other?")


def test_what_is_missing_is_a_gap_that_says_why() -> None:
    missing = replace(WHOLE, typed=Missing("A file is gone."), quality=Missing("Too few pings."))
    gaps = {plate.key: plate.reason for plate in plates(VERDICT, [missing]) if isinstance(plate, Gap)}
    assert gaps == {"characters-typed": "A file is gone.", "subsamples": "Too few pings."}
    (gap,) = [plate for plate in plates(VERDICT, [EMPTY]) if isinstance(plate, Gap)]
    assert gap.reason.startswith("Line 'main' has no rounds yet")


def test_pings_without_a_rank_leave_its_figure_out() -> None:
    curves = {"treatment": ArmCurve((0, 1), (2.0, 1.0), (float("nan"),) * 2, (9, 9))}
    found = {plate.key: plate for plate in plates(VERDICT, [replace(WHOLE, curves=curves)])}
    assert isinstance(found["selected-rank"], Gap)
    assert isinstance(found["loss"], Plate)


def test_rounds_without_any_selection_leave_the_loss_out() -> None:
    found = {plate.key: plate for plate in plates(VERDICT, [replace(WHOLE, curves={})])}
    assert isinstance(found["loss"], Gap)
    assert isinstance(found["pings-by-iteration"], Plate)


def test_a_plate_says_its_numbers() -> None:
    said = {plate.key: plate.said for plate in plates(VERDICT, [WHOLE]) if isinstance(plate, Plate)}
    assert said["loss"] == "treatment: from 80 to 10; control: from 81 to 81"
    assert (
        said["pings-by-iteration"]
        == "The busiest iteration has 15 pings, 1.9 times as many as the quietest, which has 8."
    )
    assert said["subsamples-updates"].endswith("from 2 in the first iteration drawn to 4 in the last.")


def test_the_page_draws_every_figure_and_nothing_from_elsewhere() -> None:
    page = render_page(VERDICT, [WHOLE])
    assert page.count("<svg") == 11
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert "http" not in page
    assert not re.search(r"<(script|link|img|iframe)", page)
    assert "Not drawn." not in page
    assert all(re.search(rf"--arm-{i}: #", page) for i in range(6))


def test_the_page_says_what_it_does_not_draw(tmp_path: Path) -> None:
    page = render_page(VERDICT, [EMPTY])
    assert page.count("<svg") == 3
    assert "Not drawn. Line &#39;main&#39; has no rounds yet" in page
    assert write_page(VERDICT, [], tmp_path / "r.html").read_text().count("<svg") == 3


def test_the_tables_of_2018_are_among_the_reports() -> None:
    titles = [table.title for table in report_tables(VERDICT)]
    assert titles[:2] == ["Arms", "Means"]
    assert "p-values, not corrected" in titles


def test_a_window_with_training_in_it_is_told_and_an_evaluation_is_not() -> None:
    def note(**window: int) -> str | None:
        return training_note(replace(VERDICT.plan, window=Window(**window)), {"main": TRAFFIC})

    everything = note()
    assert everything is not None
    assert "(--from-iteration 6, if pings of it have landed)" in everything
    assert everything in render_page(VERDICT, [WHOLE]).replace("&#39;", "'")
    assert note(first=5) is not None
    assert note(first=6) is None
    assert note(since=TRAFFIC.ended_ms[-1]) is None
    assert note(since=TRAFFIC.ended_ms[-1] - 1) is not None
    assert training_note(VERDICT.plan, {"main": EMPTY.traffic}) is None


def test_unknown_enrolment_is_told() -> None:
    assert any("show the number of enrolled clients" in note for note in table_notes(VERDICT))
    known = replace(VERDICT, enrolled={"treatment": 10.0, "control": 10.0})
    assert not any("Pings do not show" in note for note in table_notes(known))
    assert report_tables(known)[0].heads[1] == "enrolled"


def test_figures_are_files_named_by_what_they_show(tmp_path: Path) -> None:
    written, gaps = write_figures(VERDICT, [WHOLE], tmp_path / "new" / "folder")
    assert sorted(path.name for path in written) == sorted(f"{key}.{kind}" for key in KEYS for kind in ("png", "svg"))
    assert gaps == []
    assert (tmp_path / "new" / "folder" / "loss.png").read_bytes().startswith(b"\x89PNG")
    loss = (tmp_path / "new" / "folder" / "loss.svg").read_text()
    assert all(f">{text}</text>" in loss for text in ("treatment", "control", "Loss over the iterations"))


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedpingError, match=r"cannot write figures to .*--figures"):
        write_figures(VERDICT, [EMPTY], tmp_path / "file" / "folder")


@pytest.mark.parametrize(
    ("pings", "personal", "metrics", "noted"),
    [
        ("frecency-update", True, METRICS, True),
        ("frecency-update", True, METRICS[:2], False),
        ("frecency-update", False, METRICS, False),
        ("model-update", True, METRICS, False),
    ],
)
def test_the_loss_of_a_personal_arm_is_said_to_be_that_of_the_shared_model(
    pings: Any, personal: bool, metrics: tuple[Metric, ...], noted: bool
) -> None:
    first, *others = VERDICT.study.arms
    training = OneGradient(personal=FineTune(rate=1.0) if personal else None)
    study = msgspec.structs.replace(
        VERDICT.study,
        pings=pings,
        arms=(msgspec.structs.replace(first, applies=True, personal=personal), *others),
        lines=tuple(msgspec.structs.replace(line, training=training) for line in VERDICT.study.lines),
    )
    arms = {
        name: replace(arm, metrics={**arm.metrics, "loss": arm.metrics["rank_selected"]})
        for name, arm in VERDICT.tally.arms.items()
    }
    plan = replace(VERDICT.plan, metrics=metrics)
    found = reach_verdict(study, plan, replace(VERDICT.tally, arms=arms))
    said = "Arm 'treatment' is personal, but the loss in pings is the shared model's"
    assert any(said in note for note in table_notes(found)) == noted
    for verbose in (False, True):
        console = Console(width=400, record=True, file=io.StringIO())
        print_verdict(found, console, verbose=verbose)
        assert console.export_text().count(said) == noted, "on the terminal once, however much is asked for"
