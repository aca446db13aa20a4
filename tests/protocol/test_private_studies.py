"""A study with a private line: the settings that exclude it."""

from typing import Any

import pytest
from msgspec.structs import replace

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.limits import Limits
from fedping.protocol.metrics import Segment, StudyMetric
from fedping.protocol.study import Arm, Study, protected
from tests.support.private import private_study
from tests.support.versions import small_study

STUDY = private_study()

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "pings that tell more": ({"pings": "model-update"}, 'pings = "private-update"'),
    "a line that is not private": (
        {
            "lines": (*STUDY.lines, replace(STUDY.lines[0], name="open", privacy=None, upload=())),
            "arms": (*STUDY.arms[:1], replace(STUDY.arms[1], line="open", submits=True)),
        },
        "line 'open' is not",
    ),
    "an arm without a line": ({"arms": (STUDY.arms[0], Arm(name="plain", share=0.1))}, "arm 'plain' has no line"),
    "the envelope of Firefox": ({"telemetry": True}, "Remove 'telemetry'"),
    "metrics": ({"metrics": (StudyMetric(name="m", column="model_version"),)}, "Remove 'metrics'"),
    "segments": ({"segments": (Segment(name="s", column="model_version", cuts=(1,)),)}, "Remove 'segments'"),
    "limits": ({"limits": Limits(loss=(0, 1))}, "Remove 'limits'"),
    "tickets": ({"tickets": "required"}, "Remove 'tickets'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_private_study_refuses(what: str) -> None:
    more, said = WRONG[what]
    with pytest.raises(InvalidSettings, match=said):
        private_study(**more)


def test_private_pings_are_for_private_lines() -> None:
    study = small_study("study")
    with pytest.raises(InvalidSettings, match="has no private line"):
        replace(study, pings="private-update")


def test_a_new_private_study_gets_no_limits() -> None:
    made: Study = protected(private_study(enrolment=None))
    assert (made.limits, made.enrolment, made.lines[0].guard) == (None, "hash", None)
