"""With ``--log-format json`` every line on stderr, also of libraries, is a JSON object without clients' data."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.commands.dashboard import at
from fedping.dashboard.settings import DashboardSettings
from fedping.experiments.server_process import server_process
from fedping.main import main
from fedping.protocol import log
from fedping.protocol.errors import FedpingError
from fedping.server_jobs.ingest.segments import OPEN, segments
from tests.support import forked
from tests.support.effort import few_or_all
from tests.support.ingest_app import PATH, make_store
from tests.support.ingest_server import ROOT, IngestServer, free_port
from tests.support.pings import ping_json
from tests.support.processes import left_over, new_mark, wait_until
from tests.support.rounds import crowd, land, store_with
from tests.support.versions import small_study

JSON = ("--log-format", "json")
CANARY = "canary-that-nobody-may-read"


def entries(text: str) -> list[dict[str, Any]]:
    """Return the objects of all lines, after checking that each has a time, level and message."""
    assert text.endswith("\n") or not text
    found = []
    for line in text.splitlines():
        entry = json.loads(line)
        assert datetime.fromisoformat(entry["time"]).utcoffset() == timedelta(0)
        assert entry["level"] in ("info", "warning", "error")
        assert entry["message"]
        found.append(entry)
    return found


def ran(*words: object, environment: dict[str, str] | None = None) -> tuple[int, str, list[dict[str, Any]]]:
    """Run a command; return its exit code, output and log entries."""
    command = [sys.executable, "-m", "fedping", *map(str, words)]
    done = forked.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, **(environment or {})}
    )
    return done.returncode, done.stdout, entries(done.stderr)


def places(tmp_path: Path) -> list[object]:
    return ["--store", tmp_path / "store", "--landing", tmp_path / "landing"]


# --- ingest ---


def asked(server: IngestServer, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=240)) as connection:
        connection.request(method, path, body, headers)
        return connection.getresponse().status


def test_ingest_logs_objects_and_nothing_of_its_clients_whatever_happens(tmp_path: Path) -> None:
    """Covers valid and invalid pings, killed processes, and a damaged journal."""
    make_store(tmp_path / "store")
    out, err = tmp_path / "out", tmp_path / "err"
    server = IngestServer(
        tmp_path / "store", tmp_path / "landing", "--workers", "2", "--compact-every", "3600", *JSON, says=(out, err)
    )

    def said(part: str) -> Callable[[], bool]:
        return lambda: part in err.read_text()

    server.start()
    client = str(uuid.uuid4())
    good = {**ping_json(), "clientId": client, "ticket": CANARY}
    bad = {**good, "payload": {**good["payload"], "loss": CANARY}}
    of_a_ticket = json.dumps(good).encode()
    assert asked(server, "POST", f"{PATH}/{uuid.uuid4()}", of_a_ticket, {"X-Ticket": CANARY}) in (200, 400)
    plain = {**ping_json(), "clientId": client}
    assert asked(server, "POST", f"{PATH}/{uuid.uuid4()}", json.dumps(plain).encode(), {}) == 200
    assert asked(server, "POST", f"{PATH}/{uuid.uuid4()}", json.dumps(bad).encode(), {}) == 400
    assert asked(server, "POST", f"/submit/{CANARY}/x/1/{client}?{CANARY}", CANARY.encode(), {}) == 404
    os.kill(server.workers()[0], signal.SIGKILL)
    os.kill(server.compactor(), signal.SIGKILL)
    assert wait_until(said("the compactor died (SIGKILL) and is being restarted"))
    assert wait_until(server.is_well)
    for _ in range(4):
        assert asked(server, "POST", f"{PATH}/{uuid.uuid4()}", json.dumps(plain).encode(), {}) == 200
    server.kill()

    written_last = list(segments(tmp_path / "landing/.journal", OPEN))
    assert written_last
    for path in written_last:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    server.start()
    assert wait_until(said("cannot be read"))
    server.stop()
    text = err.read_text()
    told = entries(text)
    assert client not in text
    assert client.replace("-", "") not in text
    assert CANARY not in text
    assert out.read_text() == ""
    by_level = {level: [one["message"] for one in told if one["level"] == level] for level in ("info", "error")}
    assert any(message.startswith("Accepting pings on http://127.0.0.1:") for message in by_level["info"])
    assert any("died (SIGKILL) and is being restarted" in message for message in by_level["error"])
    assert any("accepted but have not landed" in message for message in by_level["error"])


def test_a_compactor_that_fails_quotes_no_ping(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An exception's message may contain a ping; in both formats the log has only the place of the error."""
    for format_ in ("text", "json"):
        code = (
            "import os, sys; from pathlib import Path\n"
            "from fedping.protocol import log\n"
            "from fedping.server_jobs.ingest import compactor\n"
            "from fedping.server_jobs.ingest.supervisor import run_compactor\n"
            "from fedping.server_jobs.ingest.settings import IngestSettings\n"
            f"log.choose(['--log-format', '{format_}'], {{}})\n"
            f"def run_once(self): raise ValueError('{CANARY}'.encode().decode())\n"
            "compactor.Compactor.run_once = run_once\n"
            "here = Path(sys.argv[1])\n"
            "run_compactor(IngestSettings(store=here, landing=here, journal=here), os.getppid())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 1
        assert "ValueError" in done.stderr
        assert "run_once" in done.stderr
        assert f"ValueError: {CANARY}" not in done.stderr
        if format_ == "json":
            (entry,) = entries(done.stderr)
            assert entry["message"] == "ValueError"
            assert "attempt" in entry["trace"]


# --- rounds ---


def test_a_round_logs_what_became_of_it(tmp_path: Path) -> None:
    store_with(tmp_path / "store", small_study(m=2))
    land(tmp_path / "landing", crowd(120))
    command = ["round", "study", *places(tmp_path), "--engine", "numpy"]
    code, out, (entry,) = ran(*command, *JSON)
    assert (code, out) == (0, "")
    assert (entry["study"], entry["line"], entry["version"], entry["outcome"]) == ("study", "main", 1, "published")
    assert entry["level"] == "info"
    assert "published version 1" in entry["message"]
    code, out, (entry,) = ran(*command, "--json", environment={"FEDPING_LOG_FORMAT": "json"})
    assert (code, json.loads(out)["status"], entry["outcome"], entry["version"]) == (0, "nothing", "nothing", 1)


@pytest.mark.thorough
def test_a_round_that_cannot_be_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    store_with(tmp_path / "store", small_study(m=2))
    wrong = ((["study", "--nonsense"], 2), (["none"], 1), (["study", "--time-limit", "soon"], 2))
    for words, code in wrong[: few_or_all(1, 3)]:
        found, out, (entry,) = ran("round", *words, *places(tmp_path), "--engine", "numpy", "--log-format=json")
        assert (found, out, entry["level"]) == (code, "", "error")
    damaged = land(tmp_path / "landing", crowd(3))
    damaged.write_bytes(b"damaged")
    code, out, told = ran("round", "study", *places(tmp_path), "--engine", "numpy", *JSON)
    assert (code, out) == (1, "")
    assert told[-1]["level"] == "error"


def test_a_format_that_there_is_none_of_is_refused_in_text(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedping", "round", "study", "--log-format", "xml"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 2
    assert b"'xml' is not one of 'text', 'json'" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_schedule_logs_its_rounds_and_its_end(tmp_path: Path, number: signal.Signals) -> None:
    store_with(tmp_path / "store", small_study(m=2))
    land(tmp_path / "landing", crowd(120))
    mark, err = new_mark(), tmp_path / "err"
    command = [sys.executable, "-m", "fedping", "schedule", "study", "--every", "24h", "--now", "--engine", "numpy"]
    with open(err, "wb") as sink:
        running = forked.Popen(
            [*command, *map(str, places(tmp_path)), *JSON], cwd=ROOT, env={**os.environ, **mark}, stderr=sink
        )
    try:
        assert wait_until(lambda: "next round" in err.read_text())
    finally:
        running.send_signal(number)
        assert running.wait(60) == 0
    assert left_over(mark) == []
    told = entries(err.read_text())
    assert [one["message"].split()[0] for one in told[1:]] == ["next", "stopped"]
    assert {one["level"] for one in told} == {"info"}
    assert [one.get("study") for one in told] == ["study", "study", None]
    assert told[0]["outcome"] == "published"


# --- other long-running commands ---


def logged_until(tmp_path: Path, part: str, *words: object, then: Callable[[], object] = lambda: None) -> str:
    """Run a command until it has logged ``part``; call ``then``, end the command, and return its stderr."""
    mark, out, err = new_mark(), tmp_path / "out", tmp_path / "err"
    with open(out, "wb") as printed, open(err, "wb") as sink:
        command = [sys.executable, "-m", "fedping", *map(str, words), *JSON]
        running = forked.Popen(command, cwd=ROOT, env={**os.environ, **mark}, stdout=printed, stderr=sink)
    try:
        assert wait_until(lambda: part in err.read_text())
        then()
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(60)
    assert left_over(mark) == []
    assert out.read_text() == ""
    return err.read_text()


def test_what_watches_studies_logs_how_they_are(tmp_path: Path) -> None:
    store_with(tmp_path / "store", small_study(m=2))
    (tmp_path / "landing").mkdir()
    told = entries(logged_until(tmp_path, "verdict", "study", "watch", *places(tmp_path)))
    assert {one["study"] for one in told} == {"study"}
    assert told[0]["verdict"] in ("healthy", "warning", "problem")
    assert all(one["level"] != "info" for one in told if "finding" in one)


def test_a_helper_logs_what_it_refuses_and_not_what_was_sent(tmp_path: Path) -> None:
    folder, port = tmp_path / "helper", free_port()
    assert ran("helper", "init", "--folder", folder)[0] == 0
    body = CANARY.encode() * 100

    def ask() -> None:
        def status() -> int:
            with closing(HTTPConnection("127.0.0.1", port, timeout=240)) as connection:
                connection.request("POST", "/answers", body)
                return connection.getresponse().status

        def is_answered() -> bool:
            with contextlib.suppress(OSError):
                return status() >= 400
            return False

        assert wait_until(is_answered)

    text = logged_until(tmp_path, "Answering", "helper", "serve", "--folder", folder, "--port", port, then=ask)
    told = entries(text)
    assert CANARY not in text
    assert told[0]["message"].startswith("Answering requests on http://127.0.0.1:")
    assert [one["level"] for one in told[1:]] == ["warning"]
    assert told[1]["message"].startswith("refused (")


# --- secrets of the dashboard ---


def test_the_dashboards_token_is_in_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_ = DashboardSettings(
        store=tmp_path, landing=tmp_path, journal=tmp_path, runs=tmp_path, port=8081, token=CANARY, token_is_ours=True
    )
    assert CANARY in at(settings_)
    monkeypatch.setattr(log, "_lines", log._Lines())
    assert CANARY not in at(settings_)
    assert str(settings_.token_file) in at(settings_)


def test_a_token_that_would_have_to_be_printed_is_asked_for(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    words = ["dashboard", *places(tmp_path), "--host", "0.0.0.0", "--port", free_port(), *JSON]
    code, out, (entry,) = ran(*words)
    assert (code, out) == (2, "")
    assert "--token-file" in entry["message"]


# --- the logging interface ---


@settings(max_examples=40, deadline=None)
@given(message=st.text(min_size=1), trace=st.text(), study=st.text())
def test_a_line_is_one_object_that_no_pipe_tears(message: str, trace: str, study: str) -> None:
    for times in (1, 5000):
        line = log._line(message * times, "error", trace=trace * times, study=study)
        assert len(line) <= log.LONGEST
        assert line.count(b"\n") == 1
        entry = json.loads(line)
        assert entry["level"] == "error"
        if times == 1 and len(message + trace + study) < 500 and max(message) < "\ud800":
            assert entry["message"] == message.removeprefix("warning: ")
            assert entry.get("study", "") == study


def test_lines_of_many_processes_do_not_tear_one_another() -> None:
    code = (
        "import sys; from fedping.protocol import log; log.use_json()\n"
        "for n in range(100): log.tell('é' * 10_000); print('x' * 3000, n, file=sys.stderr)"
    )
    reading, writing = os.pipe()
    running = [forked.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=writing) for _ in range(3)]
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        assert len(entries(pipe.read())) == 3 * 200
    assert {each.wait(60) for each in running} == {0}


def written(monkeypatch: pytest.MonkeyPatch, writes: Callable[[io.TextIOBase], object]) -> list[dict[str, Any]]:
    lines: list[bytes] = []
    monkeypatch.setattr(log, "_write", lines.append)
    writes(log._Lines())
    return entries(b"".join(lines).decode())


def test_what_others_write_becomes_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    def spark(stream: io.TextIOBase) -> None:
        stream.write("spark: 12:00:00 WARN TaskSetManager: Lost task\nspark: 12:00:01 ERR")
        stream.write("OR Executor: Exception\n\n[INFO] starting\nno end")
        stream.flush()

    told = written(monkeypatch, spark)
    assert [one["level"] for one in told] == ["warning", "error", "info", "warning"]
    assert told[1]["message"] == "spark: 12:00:01 ERROR Executor: Exception"
    assert told[-1]["message"] == "no end"


def test_a_traceback_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stream: io.TextIOBase) -> None:
        import traceback

        try:
            json.loads("{")
        except ValueError:
            traceback.print_exc(file=stream)

    (entry,) = written(monkeypatch, fail)
    assert entry["message"].startswith("json.decoder.JSONDecodeError: ")
    assert entry["level"] == "error"
    assert "raw_decode" in entry["trace"]


def test_what_another_program_shows_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(log, "use_json", lambda: used.append(1))
    log.choose([], {"FEDPING_LOG_FORMAT": "json", "FEDPING_PROGRESS": "lines"})
    log.choose(["round", "--log-format", "text"], {"FEDPING_LOG_FORMAT": "json"})
    log.choose(["round", "--", "--log-format", "json"], {})
    log.choose([], {})
    log.choose(["round"], {})
    assert used == []
    log.choose([], {"FEDPING_LOG_FORMAT": "json"})
    assert used == [1]


@pytest.mark.parametrize(
    "command", [["ingest"], ["round"], ["schedule"], ["dashboard"], ["helper", "serve"], ["study", "watch"]]
)
def test_every_command_that_runs_for_long_takes_it(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert "--log-format" in capsys.readouterr().out


def test_a_server_that_does_not_start_in_a_demo_is_told_in_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence quotes the server's last line."""
    monkeypatch.setenv("FEDPING_LOG_FORMAT", "json")
    command = ["ingest", *map(str, places(tmp_path))]
    with (
        pytest.raises(FedpingError, match="ingest did not start: fedping: "),
        server_process("ingest", command, tmp_path / "log", ["http://127.0.0.1:1"]),
    ):
        pass
