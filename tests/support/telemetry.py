"""Pings in the format of the two studies of 2018, written by hand from the known fields."""

import gzip
import json
from typing import Any

from fedping.protocol.study import Arm, Study
from tests.support.versions import small_study

M = 22
ARM = "treatment"

FIRST: dict[str, Any] = {
    "model_version": 0,
    "frecency_scores": [2000, 175, 100],
    "loss": 75,
    "update": [(i % 5) - 2 for i in range(M)],
    "num_suggestions_displayed": 3,
    "rank_selected": 1,
    "study_variation": ARM,
    "num_chars_typed": 3,
}
"""Payload of the first study's published add-on; its two suggestion counts include history and bookmarks only."""

SECOND: dict[str, Any] = {
    "model_version": 0,
    "study_variation": ARM,
    "update": [0.5 * ((i % 5) - 2) for i in range(M)],
    "loss": 12.25,
    "frecency_scores": [2000, 175],
    "num_suggestions_displayed": 6,
    "rank_selected": 4,
    "bookmark_and_history_num_suggestions_displayed": 2,
    "bookmark_and_history_rank_selected": 1,
    "search_string_length": 5,
    "num_key_down_events": 7,
    "num_key_down_events_at_selecteds_first_entry": 3,
    "time_start_interaction": 0,
    "time_end_interaction": 2100,
    "time_at_selecteds_first_entry": 900,
    "selected_style": "autofill heuristic",
    "selected_url_was_same_as_search_string": 0,
    "enter_was_pressed": 1,
    "study_addon_version": "2.0.0",
}
"""Payload of the second study's add-on."""

APPLICATION = {
    "architecture": "x86-64",
    "buildId": "20180621125625",
    "name": "Firefox",
    "version": "61.0",
    "displayVersion": "61.0",
    "vendor": "Mozilla",
    "platformVersion": "61.0",
    "xpcomAbi": "x86_64-msvc",
    "channel": "release",
}

HEADERS = {"Content-Type": "application/json; charset=UTF-8", "Content-Encoding": "gzip"}


def telemetry_study(name: str = "firefox", m: int = M, **settings: Any) -> Study:
    """Return a study that accepts telemetry: one line, a training arm, and a control arm that only reports."""
    line = small_study("any", m=m).lines[0]
    arms = (
        Arm(name=ARM, share=0.6, line=line.name, applies=True, submits=True),
        Arm(name="control", share=0.2, line=line.name),
    )
    return Study(name=name, arms=arms, lines=(line,), **{"telemetry": True, **settings})


def envelope(payload: dict[str, Any], document: str, client: str, **fields: Any) -> dict[str, Any]:
    """Return a payload in the browser's envelope."""
    return {
        "type": "frecency-update",
        "id": document,
        "creationDate": "2018-06-25T09:41:07.123Z",
        "version": 4,
        "application": APPLICATION,
        "payload": payload,
        "clientId": client,
        **fields,
    }


def path(document: str, document_type: str = "frecency-update", query: str = "?v=4") -> str:
    """Return the path to which a browser posts such a ping."""
    return f"/submit/telemetry/{document}/{document_type}/Firefox/61.0/release/20180621125625{query}"


def packed(ping: dict[str, Any]) -> bytes:
    """Return the body of a ping as a browser sends it."""
    return gzip.compress(json.dumps(ping, separators=(",", ":")).encode())
