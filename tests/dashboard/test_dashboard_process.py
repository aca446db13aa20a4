"""The dashboard's process: access, the limit of viewers, and a clean end."""

import contextlib
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from fedping.commands.dashboard import dashboard
from fedping.commands.ingest import ingest
from fedping.main import main
from tests.support import forked
from tests.support.dashboard_server import DashboardServer, running_dashboard, start_dashboard
from tests.support.ingest_app import PATH, landed_ids, make_store
from tests.support.ingest_server import descendants, free_port
from tests.support.pings import ping_json
from tests.support.processes import left_over, wait_until

STREAM = {"Accept": "text/event-stream"}


def follow(server: DashboardServer) -> requests.Response:
    """Begin to follow the list of runs, which exists without any study."""
    return server.get("/runs/feed", headers=STREAM, stream=True)


def test_beside_ingest_it_has_the_options_that_it_has_alone() -> None:
    own = {"host", "port", "store_path", "landing", "journal"}  # where it listens, and what ingest has anyway
    alone = {option.name for option in dashboard.params} - own
    assert {
        "data",
        "refresh",
        "no_token",
        "allow_host",
        "runs_at_once",
        "team",
        "token_file",
        "viewers",
        "runs",
    } == alone - {"log_format"}
    assert alone <= {option.name for option in ingest.params}


@pytest.mark.long
def test_viewers_come_and_go_and_those_too_many_are_told_to_poll(tmp_path: Path) -> None:
    with running_dashboard(tmp_path, "--viewers", "2") as server:
        first, second = follow(server), follow(server)
        lines = first.iter_lines()  # kept, because a reader without references closes its connection
        assert next(lines) == b"retry: 2000"
        assert second.status_code == 200
        refused = follow(server)
        assert refused.status_code == 503
        assert "this one polls instead" in refused.json()["error"]
        assert server.get("/runs/feed").status_code == 200
        first.close()
        assert wait_until(lambda: follow(server).status_code == 200), "the place of who left is not free"


def test_beyond_loopback_nobody_enters_without_the_printed_token(tmp_path: Path) -> None:
    with running_dashboard(tmp_path, "--host", "0.0.0.0") as server:
        address = next(word for word in server.said.read_text().split() if "token=" in word)
        assert server.get("/runs/").status_code == 401
        token = address.partition("token=")[2].rstrip(".")
        assert len(token) >= 32
        visitor = requests.Session()
        visitor.headers["Sec-Fetch-Site"] = "none"  # as browsers send for a pasted address
        assert visitor.get(f"{server.url}/runs/?token={token}", timeout=240).ok
        assert visitor.get(f"{server.url}/runs/", timeout=240).ok


def test_on_loopback_the_printed_address_lets_in_and_does_so_after_a_restart(tmp_path: Path) -> None:
    visitor = requests.Session()
    visitor.headers["Sec-Fetch-Site"] = "none"  # as browsers send for a pasted address
    printed = []
    for _ in range(2):
        with running_dashboard(tmp_path, "--host", "127.0.0.1") as server:
            assert server.get("/runs/").status_code == 401
            address = next(word for word in server.said.read_text().split() if "token=" in word).rstrip(".")
            token = address.partition("token=")[2]
            assert server.get("/runs/", headers={"Authorization": f"Bearer {token}"}).ok
            if not printed:
                assert visitor.get(address, timeout=240).ok
            assert visitor.get(f"{server.url}/runs/", timeout=240, headers={"Cookie": _cookie(visitor, server)}).ok
            printed.append(token)
    assert printed[0] == printed[1], "a restart logs no one out"
    assert (tmp_path / "runs" / ".dashboard-token").stat().st_mode & 0o077 == 0


def _cookie(visitor: requests.Session, server: DashboardServer) -> str:
    """Return the visitor's cookie of this server, whose port is in the cookie's name."""
    (cookie,) = visitor.cookies
    return f"fedping-dashboard-{server.url.rpartition(':')[2]}={cookie.value}"


@pytest.mark.parametrize(("host", "mode"), [("127.0.0.1", 0o600), ("0.0.0.0", 0o644)])
def test_a_token_that_was_given_is_not_printed(tmp_path: Path, host: str, mode: int) -> None:
    token = "a token of the operator"
    (tmp_path / "token").write_text(f"{token}\n")
    (tmp_path / "token").chmod(mode)
    with running_dashboard(tmp_path, "--host", host, "--token-file", str(tmp_path / "token")) as server:
        assert server.get("/runs/").status_code == 401
        assert server.get("/runs/", headers={"Authorization": f"Bearer {token}"}).ok
    said = server.said.read_text()
    assert f":{server.url.rpartition(':')[2]}/. Ctrl-C" in said
    assert token not in said
    assert ("run chmod 600" in said) == (mode == 0o644), "a token that all can read is worth a word"


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT, signal.SIGKILL]
)
def test_nothing_is_left_of_it_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    with running_dashboard(tmp_path) as server:
        stream = follow(server)
        next(stream.iter_lines())
        code = server.stop(number)
    assert code == (-9 if number == signal.SIGKILL else 0)


def test_beside_ingest_it_is_another_process_that_may_die_and_ends_with_ingest(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    port = free_port()
    places = [f"--{name}={tmp_path / name}" for name in ("store", "landing", "runs")]
    server = start_dashboard(tmp_path / "said", "ingest", *places, "--port", str(port), "--operations-port", "0")

    def send() -> int:
        url = f"http://127.0.0.1:{port}{PATH}/{uuid.uuid4()}"
        return requests.post(url, json=ping_json(), timeout=240).status_code

    def processes() -> list[int]:
        # Every process of ingest has the name of its command; the dashboard's listen on its port.
        return [pid for pid in descendants(server.process.pid) if _listens(pid, int(server.url.rpartition(":")[2]))]

    assert send() == 200
    found = processes()
    assert found
    assert not any(_listens(pid, port) for pid in found), "the dashboard shares a process with what takes pings"
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert send() == 200
    assert wait_until(server.is_up), "a dashboard that died is not started again"
    assert send() == 200
    assert server.stop() == 0
    assert not left_over(server.mark)
    assert len(landed_ids(tmp_path / "landing")) == 3


def _listens(pid: int, port: int) -> bool:
    """Return whether a process has a socket listening on a port."""
    with contextlib.suppress(OSError):
        links = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
        rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" and f"socket:[{row[9]}]" in links for row in rows)
    return False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["dashboard", "--port", "{taken}"],
            "port {taken} of 127.0.0.1 is in use by another program; stop it",
        ),
        (
            ["dashboard", "--no-token", "--host", "0.0.0.0"],
            "but 0.0.0.0 is reached from other machines; remove one of the two",
        ),
        (["dashboard", "--no-token", "--token-file", "{token}"], "but you also give a token; remove one of the two"),
        (["dashboard", "--runs", "{file}"], "can't write to the folder of runs {file}"),
        (
            ["dashboard", "--token-file", "{file}.none"],
            "No such file or directory; correct --token-file",
        ),
        (["dashboard", "--token-file", "{file}"], "the dashboard's token has 5 characters; give at least 16"),
        (["ingest", "--token-file", "{file}"], "--token-file needs --dashboard"),
        (["ingest", "--dashboard-host", "0.0.0.0"], "--dashboard-host needs --dashboard"),
        (["ingest", "--data", "."], "--data needs --dashboard"),
        (
            ["ingest", "--dashboard", "{free}", "--no-token", "--token-file", "{token}"],
            "remove one of the two",
        ),
        (["ingest", "--port", "{free}", "--dashboard", "{free}"], "port {free} is used for pings"),
        (["ingest", "--port", "{free}", "--dashboard", "{taken}"], "or give another port with --dashboard"),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)  # the folder of runs is made here
    check_kept_from_starting(tmp_path, arguments, sentence, lambda words: (main(words), capfd.readouterr().err))


def test_what_keeps_it_from_starting_is_one_sentence_of_its_process(tmp_path: Path) -> None:
    def ran(words: list[str]) -> tuple[int, str]:
        command = [sys.executable, "-m", "fedping", *words]
        done = forked.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        return done.returncode, done.stderr

    taken = "port {taken} of 127.0.0.1 is in use by another program; stop it"
    check_kept_from_starting(tmp_path, ["dashboard", "--port", "{taken}"], taken, ran)


def check_kept_from_starting(
    tmp_path: Path, arguments: list[str], sentence: str, ran: Callable[[list[str]], tuple[int, str]]
) -> None:
    file = tmp_path / "file"
    file.write_text("short")
    token = tmp_path / "token"
    token.write_text("long enough for a token")
    token.chmod(0o600)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        words = {
            "taken": str(holder.getsockname()[1]),
            "free": str(free_port()),
            "file": str(file),
            "token": str(token),
        }
        code, said = ran([word.format(**words) for word in arguments])
    assert code in (1, 2)
    assert sentence.format(**words) in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
