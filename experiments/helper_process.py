"""A real helper beside this process, as another operator would start it, and gone when this process is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedping.experiments.server_process import free_ports, server_process


@dataclass(frozen=True)
class RunningHelper:
    """A helper that answers at ``address``, with its keys and records in ``folder``, and its say in ``log``."""

    address: str
    folder: Path
    log: Path


@contextmanager
def helper_process(folder: Path, log: Path) -> Iterator[RunningHelper]:
    """Start ``fedping helper serve`` on this machine, yield it when it is healthy, and stop it in order.

    Args:
        folder: a helper's folder that exists.
        log: the file for what it says.

    Raises:
        FedpingError: it does not start; the sentence ends with what it said.
    """
    port, _ = free_ports()
    address = f"http://127.0.0.1:{port}"
    command = ["helper", "serve", "--folder", str(folder), "--port", str(port)]
    with server_process("the helper", command, log, [address]):
        yield RunningHelper(address, folder, log)
