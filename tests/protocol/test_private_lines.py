"""A private line: settings that would break its guarantee are rejected, each with one sentence that says why."""

import pytest
from msgspec.structs import replace

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.guard import Guard
from fedping.protocol.limits import UpdateLimits
from fedping.protocol.links import PrivateVector, Sign
from fedping.protocol.pipeline import (
    ClipByNorm,
    MeanOfSigns,
    Median,
    Pipeline,
    Recluster,
    Staleness,
)
from fedping.protocol.privacy import Central, ClippedByKind, LocalGaussian, Privacy
from fedping.protocol.stopping_settings import EarlyStop, IterationByClients, IterationBySigns, IterationByTime
from fedping.protocol.study import Line
from fedping.protocol.training import OneGradient
from tests.support.private import CENTRAL, private_study

LINE = private_study().lines[0]
LOCAL = Privacy(local=LocalGaussian(epsilon=1, delta=1e-6))

REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "weighting by pings": ({"pipeline": Pipeline(weighting="ping")}, 'weighting = "client"'),
    "weighting by examples": ({"pipeline": Pipeline(weighting="examples")}, 'weighting = "client"'),
    "late pings": ({"pipeline": Pipeline(staleness=Staleness(most=3))}, "Remove 'staleness'"),
    "signs": ({"pipeline": Pipeline(aggregate=MeanOfSigns())}, "Remove 'aggregate', 'clip' and 'bucketing'"),
    "a median": ({"pipeline": Pipeline(aggregate=Median())}, "Remove 'aggregate', 'clip' and 'bucketing'"),
    "reclustering": ({"pipeline": Pipeline(aggregate=Recluster())}, "Remove 'aggregate', 'clip' and 'bucketing'"),
    "a clip": ({"pipeline": Pipeline(clip=ClipByNorm(norm=1))}, "Remove 'aggregate', 'clip' and 'bucketing'"),
    "buckets": (
        {"pipeline": Pipeline(aggregate=Median(), bucketing=2)},
        "Remove 'aggregate', 'clip' and 'bucketing'",
    ),
    "a guard": ({"guard": Guard()}, "Remove 'guard'"),
    "limits": ({"limits": UpdateLimits(norm=1.0)}, "Remove 'limits'"),
    "a length by clients": ({"length": IterationByClients(clients=5)}, 'length = { by = "time" }'),
    "a length by signs": ({"length": IterationBySigns()}, 'length = { by = "time" }'),
    "signs of the training": ({"training": OneGradient(sign=True)}, "'sign' of 'training'"),
    "another link": ({"upload": (Sign(),)}, "Remove 'upload'"),
    "a stop by losses that nobody tells": (
        {"privacy": LOCAL, "early_stopping": EarlyStop(arm="treatment")},
        "Remove 'early_stopping'",
    ),
    "a weight that is not there": ({"privacy": Privacy(central=CENTRAL, left_out=("w9",))}, "names the weight 'w9'"),
    "a kind without a norm": (
        {"privacy": Privacy(central=CENTRAL, contribution=ClippedByKind(norms={"bonus": 1.0}))},
        "of the kind 'coefficient', which 'norms'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_breaks_the_guarantee_of_a_line_is_refused(what: str) -> None:
    changes, said = REFUSED[what]
    with pytest.raises(InvalidSettings) as told:
        replace(LINE, **changes)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_what_keeps_it_is_taken() -> None:
    assert replace(LINE, length=IterationByTime(minutes=30)).upload == (PrivateVector(),)
    assert replace(LINE, early_stopping=EarlyStop(arm="treatment")).early_stopping is not None


def test_private_vectors_are_for_private_lines() -> None:
    with pytest.raises(InvalidSettings, match="has no 'privacy'"):
        Line(name="main", spec=LINE.spec, upload=(PrivateVector(),))


def test_clients_that_choose_their_arm_have_one_line() -> None:
    study = private_study(enrolment="elsewhere")
    other = replace(LINE, name="other")
    arms = (study.arms[0], replace(study.arms[1], line="other", submits=True))
    with pytest.raises(InvalidSettings, match="could contribute to several lines"):
        replace(study, lines=(LINE, other), arms=arms)
    assert replace(study, lines=(LINE, other), arms=arms, enrolment="hash").is_private


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "'privacy' has no guarantee"),
        ({"central": CENTRAL, "loss": (1.0, 1.0)}, "give a range"),
        (
            {"central": Central(epsilon=1, delta=0.001, rounds=1, population=1000)},
            "would allow a round of 1,000 clients to reveal one of them completely",
        ),
    ],
)
def test_settings_that_guarantee_nothing_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        Privacy(**settings)  # type: ignore[arg-type]
