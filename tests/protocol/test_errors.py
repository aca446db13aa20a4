"""An error's text as a separate sentence."""

from pathlib import Path

import numpy as np
import pytest

from fedping.protocol.errors import as_raised, as_sentence


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


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("np.broadcast_to(np.zeros(3), 2)", ValueError),  # raised in a file of NumPy
        ("Path(3)", TypeError),  # of the standard library
        ("as_raised(3)", AttributeError),  # of fedping
        ("1 / 0", ZeroDivisionError),
    ],
)
def test_an_error_inside_a_library_has_the_place_of_the_users_line(line: str, kind: type[Exception]) -> None:
    code = compile(f"\n\n{line}", "/home/someone/mine.py", "exec")
    with pytest.raises(kind) as caught:
        exec(code, {"np": np, "Path": Path, "as_raised": as_raised})
    assert as_raised(caught.value).endswith("(mine.py, line 3)")


def test_an_error_of_libraries_alone_has_the_innermost_place() -> None:
    with pytest.raises(ValueError, match="broadcast") as caught:
        np.broadcast_to(np.zeros(3), 2)
    inner = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # type: ignore[union-attr]
    assert "(_stride_tricks_impl.py, line" in as_raised(inner) or "(stride_tricks.py, line" in as_raised(inner)
