"""Starts servers as child processes that end with this process: an ingest, a helper, or any serving command."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from fedping.protocol.errors import FedpingError, sentences_with
from fedping.protocol.location import Place
from fedping.protocol.log import VARIABLE
from fedping.server_jobs.ingest.backlog import flush
from fedping.server_jobs.processes import child_command

START_SECONDS = 60.0
STOP_SECONDS = 60.0
_POLL = 0.05


@contextmanager
def server_process(what: str, command: Sequence[str], log: Path, addresses: Sequence[str]) -> Iterator[None]:
    """Start a serving command of fedping, wait until it is healthy, and at the end stop it in order.

    The server has its own session, so Ctrl-C reaches it only through this process, which first stops sending to it. The
    server dies with this process, however that ends. It finds the same modules as this process, because a study may
    have a user's upload links, and their module may be next to an experiment's file.

    Args:
        what: the server's name, as in "ingest did not start".
        command: the arguments after ``fedping``.
        log: the file for the server's output.
        addresses: the server's addresses, each with a ``/__heartbeat__``.

    Raises:
        FedpingError: the server does not start; the message ends with its output.
    """
    with open(log, "wb") as output:
        process = subprocess.Popen(
            child_command([sys.executable, "-m", "fedping", *command]),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), VARIABLE: "text"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _await_healthy(what, process, log, addresses)
        yield
    finally:
        _stop(process)


_PORTS = range(15_000, 32_000)
"""Ports below those that Linux uses for connections, which another program might get before the server does."""


def free_ports() -> tuple[int, int]:
    """Return two different ports that are unused at this moment."""
    first, second = itertools.islice(filter(_is_free, random.SystemRandom().sample(_PORTS, 1000)), 2)
    return first, second


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _await_healthy(what: str, process: subprocess.Popen[bytes], log: Path, addresses: Sequence[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise FedpingError(f"{what} did not start: {last[0] if last else f'see {log}'}")
        try:
            answers = [requests.get(f"{where}/__heartbeat__", timeout=5) for where in addresses]
            if all(answer.status_code == 200 for answer in answers):
                return
        except requests.RequestException:
            pass
        time.sleep(_POLL)
    raise FedpingError(f"{what} did not become healthy within {START_SECONDS:g} s; see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a server in order; a second Ctrl-C during the stop kills it at once."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except BaseException:
        process.kill()
        process.wait()
        raise


FLUSH_SECONDS = SERVED_SECONDS = 60.0
LOOK_EVERY = 0.05


@dataclass(frozen=True)
class RunningIngest:
    """A running ingest, with its addresses for clients and for ``operations``, and its ``log`` file."""

    address: str
    operations: str
    log: Path

    def flush(self) -> None:
        """Wait until all pings accepted so far are in Parquet.

        Raises:
            FedpingError: this takes more than a minute, or ingest does not answer.
        """
        with sentences_with(after=f" See {self.log}"):
            flush(self.operations, FLUSH_SECONDS)

    def wait_for(self, study: str, line: str, version: int) -> None:
        """Wait until ingest serves a version to clients; if the store is in a bucket, this may take a second.

        Raises:
            FedpingError: this takes more than a minute, or ingest does not answer.
        """
        newest = f"{self.address}/models/{study}/{line}/latest.json"
        until = time.monotonic() + SERVED_SECONDS
        try:
            while requests.get(newest, timeout=SERVED_SECONDS).json()["iteration"] < version:
                if time.monotonic() > until:
                    raise FedpingError(f"ingest does not serve version {version} of {study}/{line}; see {self.log}")
                time.sleep(LOOK_EVERY)
        except (requests.RequestException, KeyError) as error:
            raise FedpingError(f"ingest at {self.address} does not answer; see its log {self.log}") from error


@contextmanager
def ingest_process(
    store: Place, landing: Place, log: Path, *options: str, port: int | None = None
) -> Iterator[RunningIngest]:
    """Start ``fedping ingest`` on this machine, yield it when it is healthy, and stop it in order at the end.

    Args:
        store: an existing model store.
        landing: the landing folder.
        log: the file for ingest's output.
        options: more options of the command.
        port: the port for clients; None for a free one.

    Raises:
        FedpingError: the server does not start; the message ends with its output.
    """
    free, operations = free_ports()
    port = port or free
    command = ["ingest", "--port", str(port), "--operations-port", str(operations), "--compact-every", "1"]
    command += ["--store", str(store), "--landing", str(landing), *options]
    running = RunningIngest(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{operations}", log)
    with server_process("ingest", command, log, [running.address, running.operations]):
        yield running


@dataclass(frozen=True)
class RunningHelper:
    """A running helper, with its address, the ``folder`` of its keys and records, and its ``log`` file."""

    address: str
    folder: Path
    log: Path


@contextmanager
def helper_process(folder: Path, log: Path) -> Iterator[RunningHelper]:
    """Start ``fedping helper serve`` on this machine, yield it when it is healthy, and stop it in order.

    Args:
        folder: the folder of an existing helper.
        log: the file for its output.

    Raises:
        FedpingError: the server does not start; the message ends with its output.
    """
    port, _ = free_ports()
    address = f"http://127.0.0.1:{port}"
    command = ["helper", "serve", "--folder", str(folder), "--port", str(port)]
    with server_process("the helper", command, log, [address]):
        yield RunningHelper(address, folder, log)
