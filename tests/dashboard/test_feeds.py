"""Following a feed: every event arrives exactly once, and the limit of viewers holds."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from fedping.dashboard.feeds import Change, SharedReading, Streams
from fedping.protocol.errors import FedpingError

STREAM = {"Accept": "text/event-stream"}


@dataclass(frozen=True)
class Lines:
    """A feed of a file's lines; the position is the number of lines that a page has."""

    file: Path

    def since(self, position: str | None) -> Change | None:
        lines = self.file.read_text().splitlines()
        if lines == ["broken"]:
            raise FedpingError("the file is broken; mend it")
        begin = int(position) if position and position.isdigit() and int(position) <= len(lines) else 0
        return Change(str(len(lines)), {"whole": begin == 0, "lines": lines[begin:]}) if begin < len(lines) else None


class Events:
    """The events of a stream, read as far as a test needs."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.position: str | None = None

    def next(self) -> dict[str, object]:
        for chunk in self._chunks:
            fields = dict(
                line.split(": ", 1) for line in chunk.decode().splitlines() if ": " in line and line[0] != ":"
            )
            if "event" in fields:
                self.position = fields.get("id", self.position)
                return {"kind": fields["event"], **json.loads(fields["data"])}
        raise AssertionError("the stream has ended")


def serving(file: Path, viewers: int = 4) -> tuple[Flask, Streams]:
    application, streams = Flask(__name__), Streams(viewers, tick=0.0, sleep=lambda seconds: None)
    application.add_url_rule("/feed", view_func=lambda: streams.answer(Lines(file)))
    return application, streams


def test_a_stream_tells_everything_first_and_then_what_came(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a\nb\n")
    application, _ = serving(file)
    with application.test_client().get("/feed", headers=STREAM) as answer:
        assert answer.content_type == "text/event-stream"
        events = Events(answer.iter_encoded())
        assert events.next() == {"kind": "change", "whole": True, "lines": ["a", "b"]}
        file.write_text("a\nb\nc\n")
        assert events.next() == {"kind": "change", "whole": False, "lines": ["c"]}


@given(cuts=st.lists(st.integers(0, 12), max_size=8), restarts=st.booleans())
def test_however_often_the_line_breaks_every_line_comes_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], restarts: bool
) -> None:
    file = tmp_path_factory.mktemp("feed") / "lines"
    file.write_text("0\n")
    application, _ = serving(file)
    got: list[str] = []
    position: str | None = None
    for length in itertools.accumulate(cuts, max, initial=1):
        file.write_text("".join(f"{i}\n" for i in range(max(length, 1))))
        if restarts:
            application, _ = serving(file)
        headers = STREAM if position is None else {**STREAM, "Last-Event-ID": position}
        if len(got) < max(length, 1):
            with application.test_client().get("/feed", headers=headers) as answer:
                events = Events(answer.iter_encoded())
                got += events.next()["lines"]  # type: ignore[arg-type]
                position = events.position
    assert got == [str(i) for i in range(len(got))]
    assert len(got) == max([1, *cuts])


def test_polling_tells_the_same_as_the_stream(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a\n")
    client = serving(file)[0].test_client()
    first = client.get("/feed")
    assert first.json == {"position": "1", "data": {"whole": True, "lines": ["a"]}}
    assert client.get("/feed?since=1").status_code == 204
    file.write_text("a\nb\n")
    assert client.get("/feed?since=1").json["data"] == {"whole": False, "lines": ["b"]}
    assert client.get("/feed?since=of-another-time").json["data"]["whole"] is True


def test_a_viewer_too_many_is_refused_a_stream_and_polls(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a\n")
    application, streams = serving(file, viewers=2)
    first, second = (application.test_client().get("/feed", headers=STREAM) for _ in range(2))
    refused = application.test_client().get("/feed", headers=STREAM)
    assert refused.status_code == 503
    assert refused.headers["Retry-After"] == "10"
    assert application.test_client().get("/feed").status_code == 200
    first.close()
    assert streams.open == 1
    third = application.test_client().get("/feed", headers=STREAM)
    assert third.status_code == 200
    second.close()
    third.close()
    assert streams.open == 0


def test_what_cannot_be_read_is_told_and_the_stream_goes_on_when_it_is_mended(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("broken")
    application, _ = serving(file)
    with application.test_client().get("/feed", headers=STREAM) as answer:
        events = Events(answer.iter_encoded())
        assert events.next() == {"kind": "problem", "error": "the file is broken; mend it"}
        file.write_text("a\n")
        assert events.next() == {"kind": "change", "whole": True, "lines": ["a"]}


def test_a_hundred_viewers_cost_one_reading_a_tick() -> None:
    now = [0.0]
    read = []

    @dataclass(frozen=True)
    class Counting:
        def since(self, position: str | None) -> Change | None:
            read.append(position)
            return None

    reading = SharedReading(tick=0.2, clock=lambda: now[0])
    for _ in range(100):
        reading.since(Counting(), "7")
    assert read == ["7"]
    now[0] = 0.3
    reading.since(Counting(), "7")
    reading.since(Counting(), "8")
    assert read == ["7", "7", "8"]
