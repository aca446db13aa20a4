"""Participants, and evaluation on held-out rows: clients' claims count within bounds, and once."""

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fedping.client_sim.learning.registry import model_spec
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import UnreadableFile
from fedping.protocol.landing import landed_files, open_landing, partition, rewrite
from fedping.protocol.limits import Limits
from fedping.protocol.local_optimizers import LocalMomentum
from fedping.protocol.row_privacy import mu_of
from fedping.protocol.study import Study
from fedping.protocol.training import LocalSteps, OneGradient, Training
from fedping.server_jobs import participants
from fedping.server_jobs.participants import evaluations, list_participants, noise_if_protected
from fedping.server_jobs.row_noise import noise_of_round
from tests.support.institutions import ARMS, tumours
from tests.support.model_pings import Said, client_in, land
from tests.support.private import private_study
from tests.support.versions import small_study


def study_of(**study: Any) -> Study:
    return replace(tumours(arms=ARMS), **{"enrolment": "hash", "limits": Limits(examples=1000, loss=(0, 10)), **study})


def test_who_was_heard_last_is_first_with_what_it_said_last(tmp_path: Path) -> None:
    study = study_of()
    land(
        tmp_path,
        study,
        Said(client=1, arm="hospitals", version=0, received_ms=1_000, examples=50),
        Said(client=1, arm="hospitals", version=2, received_ms=9_000, examples=10**6),
        Said(client=2, arm="hospitals", version=1, received_ms=5_000, examples=70),
        Said(client=2, arm="held-out", version=1, received_ms=4_000, examples=30),
    )
    roll = list_participants(open_landing(tmp_path), study, "main")
    found = [(one.client, one.version, one.heard_ms, one.pings, one.examples) for one in roll.listed]
    ids = [str(client_in(study, arm, k))[:8] for arm, k in (("hospitals", 1), ("hospitals", 2), ("held-out", 2))]
    assert found == [(ids[0], 2, 9_000, 2, 1000), (ids[1], 1, 5_000, 1, 70), (ids[2], 1, 4_000, 1, 30)]
    assert (roll.clients, roll.complete) == (3, True)


def of_training(training: Training, weighting: str, **pipeline: Any) -> Study:
    line = tumours().lines[0]
    more: dict[str, Any] = {"weighting": weighting, **pipeline}
    return study_of(lines=(replace(line, training=training, pipeline=replace(line.pipeline, **more)),))


ROWS = (100, 300, 900)


@pytest.mark.parametrize(
    ("study", "votes", "moved"),
    [
        (of_training(OneGradient(), "examples"), ROWS, 1.0),
        (of_training(OneGradient(), "client"), (1, 1, 1), 1.0),
        (of_training(OneGradient(), "examples", most_votes=200), (100, 200, 200), 1.0),
        (of_training(LocalSteps(epochs=4, batch=10, rate=0.5), "examples"), ROWS, 0.5 * 2),
    ],
)
def test_the_noise_of_a_mean_is_that_of_the_institutions_of_its_version(
    tmp_path: Path, study: Study, votes: tuple[int, ...], moved: float
) -> None:
    """By hand: z for a budget of ε = 3 over 50 versions with a number of steps, on each number of a sum of rows."""
    said = [Said(client=k, arm="hospitals", version=2, examples=n) for k, n in enumerate(ROWS)]
    others = [Said(client=7, arm="hospitals", version=1), Said(client=8, arm="held-out", version=2)]
    land(tmp_path, study, *said, *others)
    listed = list_participants(open_landing(tmp_path), study, "main").listed
    steps = 4 if isinstance(study.lines[0].training, LocalSteps) else 1
    variances = []
    for n, vote in zip(ROWS, votes, strict=True):
        z = math.sqrt(50 * steps) / mu_of(3.0, n**-1.1)
        variances.append((vote / sum(votes) * z * math.sqrt(1 + 0.25**2) / n) ** 2)
    assert noise_if_protected(listed, study, "main") == pytest.approx(moved * math.sqrt(sum(variances)))


def test_the_noise_of_a_round_is_as_if_all_tables_were_alike() -> None:
    line = of_training(OneGradient(), "examples").lines[0]
    z = math.sqrt(50) / mu_of(3.0, 200**-1.1)
    assert noise_of_round(line, 4, 800) == pytest.approx(z * math.sqrt(4 * (1 + 0.25**2)) / 800)
    assert noise_of_round(line, 4, 79) is None, "tables of 20 rows and more"
    assert noise_of_round(line, 101, 10**6) is None, "too many to be institutions"
    assert noise_of_round(line, 0, 0) is None


def test_there_is_no_noise_to_state_of_what_is_not_protected_by_it(tmp_path: Path) -> None:
    plain = of_training(OneGradient(), "examples")
    line = plain.lines[0]
    k_means = model_spec("k-means", {"features": 30, "clusters": 2}, name="tumours")
    land(tmp_path, plain, Said(client=1, arm="held-out", version=0))
    listed = list_participants(open_landing(tmp_path), plain, "main").listed
    assert noise_if_protected(listed, plain, "main") is None
    one = [replace(each, arm="hospitals") for each in listed]
    assert noise_if_protected(one, plain, "main") is not None
    for other in (
        replace(line, spec=k_means),
        replace(line, training=OneGradient(sign=True)),
        replace(line, training=LocalSteps(steps=2, rate=0.1, optimizer=LocalMomentum())),
    ):
        assert noise_if_protected(one, replace(plain, lines=(other,)), "main") is None


def test_what_rounds_would_not_count_is_nobody(tmp_path: Path) -> None:
    study = study_of()
    land(
        tmp_path,
        study,
        Said(client=1, arm="hospitals", named="held-out"),
        Said(client=2, arm="hospitals", loss=11.0),
        Said(client=3, arm="hospitals", examples=0, loss=0.0),
        Said(client=4, arm="hospitals", named="no-arm"),
        Said(client=5, arm="hospitals"),
        Said(client=5, arm="hospitals"),  # the same document
    )
    (one,) = list_participants(open_landing(tmp_path), study, "main").listed
    assert one.pings == 1


def test_a_line_of_many_clients_is_counted_and_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of()
    land(tmp_path, study, *(Said(client=k, arm="hospitals", version=k % 2) for k in range(8)))
    monkeypatch.setattr(participants, "MOST_LISTED", 7)
    roll = list_participants(open_landing(tmp_path), study, "main")
    assert (roll.clients, roll.listed, roll.complete) == (8, (), True)
    monkeypatch.setattr(participants, "MOST_PINGS", 5)
    roll = list_participants(open_landing(tmp_path), study, "main")
    assert (roll.clients, roll.complete) == (5, False)
    assert [one.version for one in roll.listed].count(1) == 4  # all of the newest


def test_the_newest_files_are_read_first_and_a_large_one_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of()
    for file in range(3):
        pings = [Said(client=10 * file + k, arm="hospitals", received_ms=file) for k in range(4)]
        land(tmp_path, study, *pings, landed_ms=file)
    monkeypatch.setattr(participants, "MOST_PINGS", 6)
    roll = list_participants(open_landing(tmp_path), study, "main")
    assert (sorted(one.heard_ms for one in roll.listed), roll.complete) == ([1, 1, 2, 2, 2, 2], False)
    monkeypatch.setattr(participants, "MOST_PINGS", 3)
    roll = list_participants(open_landing(tmp_path), study, "main")
    assert ([one.heard_ms for one in roll.listed], roll.complete) == ([2, 2, 2], False)


def test_each_client_tells_once_and_within_the_limit_how_a_version_does(tmp_path: Path) -> None:
    study = study_of(limits=Limits(examples=100, loss=(0, 10)))
    said = (
        Said(client=1, arm="held-out", loss=1.0, examples=100, confusion=(40, 10, 20, 30)),
        Said(client=2, arm="held-out", loss=3.0, examples=1000, confusion=(500, 0, 0, 500)),  # counts as 100
        Said(client=3, arm="held-out", loss=2.0, examples=50),  # a model that tells no classes
        Said(client=4, arm="held-out", loss=2.0, examples=50, confusion=(10,) * 9),  # of other classes
    )
    land(tmp_path, study, *said, Said(client=9, arm="hospitals", loss=9.0))
    (found,) = evaluations(open_landing(tmp_path), study, "main")
    assert (found.version, found.arm, found.clients, found.examples) == (0, "held-out", 4, 300)
    assert found.loss == pytest.approx((100 * 1 + 100 * 3 + 50 * 2 + 50 * 2) / 300)
    assert found.confusion == ((90.0, 10.0), (20.0, 80.0))
    assert found.accuracy == pytest.approx(170 / 200)
    assert found.balanced_accuracy == pytest.approx((0.9 + 0.8) / 2)
    assert found.worst == pytest.approx(0.7)


@pytest.mark.parametrize(("weighting", "examples", "accuracy"), [("examples", 200, 0.5), ("ping", 1100, 1000 / 1100)])
def test_a_client_weighs_no_more_than_its_votes_in_a_round(
    tmp_path: Path, weighting: Any, examples: int, accuracy: float
) -> None:
    study = study_of()
    (line,) = study.lines
    pipeline = replace(line.pipeline, weighting=weighting, most_votes=100)
    study = replace(study, lines=(replace(line, pipeline=pipeline),))
    boasts = Said(client=1, arm="held-out", loss=0.0, examples=1000, confusion=(1000, 0, 0, 0))
    land(tmp_path, study, boasts, Said(client=2, arm="held-out", loss=4.0, examples=100, confusion=(0, 0, 100, 0)))
    (found,) = evaluations(open_landing(tmp_path), study, "main")
    assert (found.examples, found.accuracy) == (examples, pytest.approx(accuracy))
    assert found.loss == pytest.approx(4 * (1 - accuracy))


@pytest.mark.parametrize("model", ["linear-regression", "k-means"])
def test_of_a_model_without_classes_nobody_is_believed_about_classes(tmp_path: Path, model: str) -> None:
    study = study_of()
    spec = replace(study.lines[0].spec, model=model)
    study = replace(study, lines=(replace(study.lines[0], spec=spec),))
    land(tmp_path, study, Said(client=1, arm="held-out", examples=100, confusion=(100, 0, 0, 0)))
    (found,) = evaluations(open_landing(tmp_path), study, "main")
    assert (found.examples, found.accuracy, found.confusion) == (100, None, None)


def test_who_holds_no_version_tells_of_none(tmp_path: Path) -> None:
    study = study_of()
    land(tmp_path, study, Said(client=1, arm="held-out", version=-1), Said(client=2, arm="held-out", version=0))
    assert [one.version for one in evaluations(open_landing(tmp_path), study, "main")] == [0]
    assert {one.version for one in list_participants(open_landing(tmp_path), study, "main").listed} == {-1, 0}


def test_many_clients_that_tell_of_many_classes_take_little_memory(tmp_path: Path) -> None:
    """2,000 clients send the maximum of numbers, all large; as Python objects they would take 70 MB."""
    study = study_of(limits=Limits(loss=(0, 10)))
    spec = replace(study.lines[0].spec, settings={"features": 9, "classes": 32})
    study = replace(study, lines=(replace(study.lines[0], spec=spec),))
    cells = tuple(range(1_000_000, 1_000_000 + 32**2))
    said = (Said(client=k, arm="held-out", examples=sum(cells), confusion=cells) for k in range(2_000))
    land(tmp_path, study, *said)
    for read, most in ((list_participants, 8), (evaluations, 24)):
        tracemalloc.start()
        try:
            assert read(open_landing(tmp_path), study, "main")
            assert tracemalloc.get_traced_memory()[1] < most * 2**20
        finally:
            tracemalloc.stop()


def test_of_several_pings_of_a_client_the_same_one_counts_whatever_the_order(tmp_path: Path) -> None:
    study = study_of()
    many = [Said(client=1, arm="held-out", loss=float(k), document=k) for k in range(4)]
    found = []
    for place, order in enumerate((many, many[::-1])):
        land(tmp_path / str(place), study, *order)
        (one,) = evaluations(open_landing(tmp_path / str(place)), study, "main")
        assert one.clients == 1
        found.append(one.loss)
    assert found[0] == found[1]


def test_versions_of_before_confusion_are_read(tmp_path: Path) -> None:
    study = study_of()
    land(tmp_path, study, Said(client=1, arm="held-out", loss=2.0))
    (file,) = landed_files(partition(tmp_path, study.name, "main", 0))
    rewrite(file, lambda table: table.drop_columns(["confusion"]))
    (found,) = evaluations(open_landing(tmp_path), study, "main")
    assert (found.loss, found.accuracy) == (2.0, None)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    study = study_of()
    land(tmp_path, study, Said(client=1, arm="held-out"))
    (file,) = landed_files(partition(tmp_path, study.name, "main", 0))
    file.write_bytes(file.read_bytes()[:-5])
    for read in (list_participants, evaluations):
        with pytest.raises(UnreadableFile, match=file.name):
            read(open_landing(tmp_path), study, "main")


@pytest.mark.parametrize(
    ("study", "says"), [(private_study(), "have another id for every version"), (small_study(), "come from browsers")]
)
def test_of_other_studies_nothing_is_told(tmp_path: Path, study: Study, says: str) -> None:
    for read in (list_participants, evaluations):
        with pytest.raises(FedpingError, match=says):
            read(open_landing(tmp_path), study, "main")


def test_nothing_landed_is_nobody(tmp_path: Path) -> None:
    assert list_participants(open_landing(tmp_path), study_of(), "main").clients == 0
    assert evaluations(open_landing(tmp_path), study_of(), "main") == []


def test_as_many_classes_as_the_model_has_are_told(tmp_path: Path) -> None:
    study = study_of()
    spec = replace(study.lines[0].spec, settings={"features": 9, "classes": 3})
    study = replace(study, lines=(replace(study.lines[0], spec=spec),))
    cells = tuple(range(9))
    land(tmp_path, study, Said(client=1, arm="held-out", examples=36, confusion=cells))
    (found,) = evaluations(open_landing(tmp_path), study, "main")
    assert np.array(found.confusion).ravel().tolist() == list(cells)
