"""The single definition of pings accepts those of the study of 2018, and rejects everything else."""

import json
from typing import Any

import msgspec
import pytest

from fedping.protocol.ping import FRECENCY_UPDATE, Ping
from tests.support.pings import ping_json


def decode(document: dict[str, Any]) -> Ping:
    return msgspec.json.decode(json.dumps(document).encode(), type=FRECENCY_UPDATE.ping)


def test_a_ping_of_2018_is_valid() -> None:
    ping = decode(ping_json())
    assert ping.payload.study_variation == "treatment"
    assert msgspec.json.decode(msgspec.json.encode(ping), type=FRECENCY_UPDATE.ping) == ping


def test_an_arm_that_does_not_submit_sends_null() -> None:
    assert decode(ping_json(update=None)).payload.update is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_version", -2),
        ("model_version", 2**63),
        ("model_version", 1.5),
        ("model_version", "3"),
        ("model_version", None),
        ("study_variation", "a/b"),
        ("study_variation", ""),
        ("study_variation", "x" * 65),
        ("update", [1.0, None]),
        ("update", ["1"]),
        ("update", "dense"),
        ("update", [1e31]),
        ("loss", None),
        ("loss", 1e31),
        ("frecency_scores", [0.0] * 1001),
        ("rank_selected", -2),
        ("num_chars_typed", -1),
        ("time_start_interaction", 5),
        ("selected_url_was_same_as_search_string", 2),
        ("enter_was_pressed", True),
        ("selected_style", "x" * 65),
        ("url", "https://example.org"),
    ],
)
def test_a_field_out_of_its_range_or_undeclared_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        decode(ping_json(**{field: value}))


REQUIRED = {"model_version", "study_variation", "update", "loss", "frecency_scores"}
PAIR = ("num_suggestions_displayed", "rank_selected")
OF_HISTORY = tuple(f"bookmark_and_history_{name}" for name in PAIR)


def without(*fields: str, **payload: object) -> dict[str, Any]:
    document = ping_json(**payload)
    for field in fields:
        del document["payload"][field]
    return document


@pytest.mark.parametrize("field", sorted({*REQUIRED, *PAIR, *OF_HISTORY, "num_chars_typed"}))
def test_what_every_client_has_is_required_and_half_a_pair_is_none(field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        decode(without(field))


def test_some_pair_of_counts_is_required() -> None:
    with pytest.raises(msgspec.ValidationError, match="rank_selected"):
        decode(without(*PAIR, *OF_HISTORY))


OTHERS = sorted(ping_json()["payload"].keys() - {*REQUIRED, *PAIR, *OF_HISTORY, "num_chars_typed"})


@pytest.mark.parametrize("field", OTHERS)
def test_a_field_that_a_client_does_not_have_is_absent_and_not_null(field: str) -> None:
    ping = decode(without(field))
    assert field not in msgspec.to_builtins(ping)["payload"]
    assert msgspec.json.decode(msgspec.json.encode(ping), type=FRECENCY_UPDATE.ping) == ping
    with pytest.raises(msgspec.ValidationError, match=field):
        decode(ping_json(**{field: None}))


@pytest.mark.parametrize("left_out", [PAIR, OF_HISTORY])
def test_a_pair_that_is_alone_counts_history_and_bookmarks(left_out: tuple[str, str]) -> None:
    numbers = dict.fromkeys((*PAIR, *OF_HISTORY), 3) | dict.fromkeys((PAIR[1], OF_HISTORY[1]), 1)
    ping = decode(without(*left_out, **numbers))
    said = msgspec.to_builtins(ping)["payload"]
    assert [said.get(name) for name in (*PAIR, *OF_HISTORY)] == [None, None, 3, 1]
    assert FRECENCY_UPDATE.examples_of(ping.payload) == 1
    assert msgspec.json.decode(msgspec.json.encode(ping), type=FRECENCY_UPDATE.ping) == ping


def test_the_characters_typed_have_two_names_and_one_is_sent() -> None:
    ping = decode(without("num_chars_typed", search_string_length=9))
    said = msgspec.to_builtins(ping)["payload"]
    assert said["num_chars_typed"] == 9
    assert "search_string_length" not in said
    with pytest.raises(msgspec.ValidationError, match="one field"):
        decode(ping_json(search_string_length=4))


def test_not_a_number_and_infinity_are_not_json() -> None:
    for word in ("NaN", "Infinity", "-Infinity", "1e400"):
        text = json.dumps(ping_json()).replace('"loss": 12.5', f'"loss": {word}')
        assert word in text
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(text.encode(), type=FRECENCY_UPDATE.ping)


def test_a_line_of_a_batch_names_its_document() -> None:
    line = {**ping_json(), "documentId": "7d1a9a50-24e5-4cde-8be5-3e6a7a3e7e4c"}
    assert (
        str(msgspec.json.decode(json.dumps(line).encode(), type=FRECENCY_UPDATE.batched).document_id)
        == line["documentId"]
    )
