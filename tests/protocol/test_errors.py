"""An error's text as a separate sentence."""

import pytest

from fedping.protocol.errors import as_sentence


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("there is no line", "There is no line."),
        ("diverged.", "Diverged."),
        ("waiting: 3 of 4 clients", "Waiting: 3 of 4 clients."),
        ("is it?", "Is it?"),
        ("", ""),
        ("landing/study=mine/line=main/x.parquet is damaged", "landing/study=mine/line=main/x.parquet is damaged."),
        ("study.json: it is damaged", "study.json: it is damaged."),
        ("min_clients is 0", "min_clients is 0."),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_with_a_name(said: str, sentence: str) -> None:
    assert as_sentence(said) == sentence
