"""A valid ping as a plain JSON object, for tests to change in one place."""

from typing import Any


def ping_json(m: int = 22, **payload: Any) -> dict[str, Any]:
    """Return a ping of an arm that submits, with an update of m numbers and the given payload fields replaced."""
    return {
        "clientId": "2a3f7f1e-7a52-4d54-9a5e-0d8f3a9d4c11",
        "type": "frecency-update",
        "payload": {
            "model_version": 0,
            "study_variation": "treatment",
            "update": [0.5 * (i % 3 - 1) for i in range(m)],
            "loss": 12.5,
            "frecency_scores": [120.0, 100.0, 7.0],
            "num_suggestions_displayed": 6,
            "rank_selected": 1,
            "bookmark_and_history_num_suggestions_displayed": 3,
            "bookmark_and_history_rank_selected": 1,
            "num_chars_typed": 4,
            "num_key_down_events": 5,
            "num_key_down_events_at_selecteds_first_entry": 2,
            "time_start_interaction": 0,
            "time_end_interaction": 2100,
            "time_at_selecteds_first_entry": 900,
            "selected_style": "autofill",
            "selected_url_was_same_as_search_string": 0,
            "enter_was_pressed": 1,
            "study_addon_version": "1.0.0",
            **payload,
        },
    }
