"""A real ingest beside this process, as an operator would start it, and gone when this process is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from fedping.experiments.server_process import free_ports, server_process
from fedping.protocol.errors import FedpingError
from fedping.protocol.location import Place
from fedping.server_jobs.ingest.backlog import flush

FLUSH_SECONDS = SERVED_SECONDS = 60.0
LOOK_EVERY = 0.05


@dataclass(frozen=True)
class RunningIngest:
    """An ingest that answers clients at ``address``, its operator at ``operations``, and has its say in ``log``."""

    address: str
    operations: str
    log: Path

    def flush(self) -> None:
        """Return when everything that was accepted so far is in Parquet.

        Raises:
            FedpingError: it is not within a minute, or ingest does not answer.
        """
        try:
            flush(self.operations, FLUSH_SECONDS)
        except FedpingError as error:
            raise FedpingError(f"{error} What it said is in {self.log}") from error

    def wait_for(self, study: str, line: str, version: int) -> None:
        """Return when clients are served a version: of a store in a bucket, ingest may see it a second later.

        Raises:
            FedpingError: they are not within a minute, or ingest does not answer.
        """
        newest = f"{self.address}/models/{study}/{line}/latest.json"
        until = time.monotonic() + SERVED_SECONDS
        try:
            while requests.get(newest, timeout=SERVED_SECONDS).json()["iteration"] < version:
                if time.monotonic() > until:
                    raise FedpingError(f"ingest does not serve version {version} of {study}/{line}; see {self.log}")
                time.sleep(LOOK_EVERY)
        except (requests.RequestException, KeyError) as error:
            raise FedpingError(f"ingest at {self.address} does not answer; see what it said in {self.log}") from error


@contextmanager
def ingest_process(
    store: Place, landing: Place, log: Path, *options: str, port: int | None = None
) -> Iterator[RunningIngest]:
    """Start ``fedping ingest`` on this machine, yield it when it is healthy, and stop it in order.

    Args:
        store: a model store that exists.
        landing: where pings land.
        log: the file for what it says.
        options: more options of the command.
        port: to listen on; None for a free one.

    Raises:
        FedpingError: it does not start; the sentence ends with what it said.
    """
    free, operations = free_ports()
    port = port or free
    command = ["ingest", "--port", str(port), "--operations-port", str(operations), "--compact-every", "1"]
    command += ["--store", str(store), "--landing", str(landing), *options]
    running = RunningIngest(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{operations}", log)
    with server_process("ingest", command, log, [running.address, running.operations]):
        yield running
