"""Asks a running ingest to land what it has accepted, through its operations port."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from fedping.protocol.errors import FedpingError, TemporaryFailure
from fedping.protocol.own_login import login_in_address
from fedping.server_jobs.shutdown import TimedOut

_MOST_BYTES = 65_536
"""Of an answer; ingest's has some hundred."""

_PATIENCE = 10.0
"""Seconds beyond those that ingest gets, for the way there and back."""


def flush(operations: str, seconds: float) -> None:
    """Return when every ping that ingest has accepted so far is in Parquet.

    Args:
        operations: the address of ingest's operations port, such as http://127.0.0.1:8082.
        seconds: the time that ingest gets for it.

    Raises:
        TemporaryFailure: ingest does not answer, or too many flushes are under way.
        OutOfTime: pings have not landed within the time.
        FedpingError: the address is not that of an operations port.
    """
    url = f"{operations.rstrip('/')}/__flush__"
    status, answer = _answer(url, operations, seconds)
    if status == 504:
        raise TimedOut(f"ingest at {operations} has not landed its pings within {seconds:g} s. See its log.")
    if status == 503:
        raise TemporaryFailure(f"ingest at {operations} has too many flushes under way. Run the command again.")
    if status != 200 or not isinstance(answer, dict) or answer.get("flushed") is not True:
        raise FedpingError(
            f"{url} does not answer as ingest does ({status}). Pass the address of its operations port, which its "
            "first lines name."
        )


def _answer(url: str, operations: str, seconds: float) -> tuple[int, Any]:
    """Post to an address; return the status, and the JSON of the answer, None if it has none."""
    import requests

    deadline = time.monotonic() + seconds + _PATIENCE
    late = TemporaryFailure(
        f"ingest doesn't answer at {url}. Check that it runs, and that this is its operations port."
    )
    found: list[tuple[int, Any] | FedpingError] = []

    def ask() -> None:
        try:
            with requests.post(
                url,
                params={"timeout": seconds},
                timeout=seconds + _PATIENCE,
                allow_redirects=False,
                stream=True,
                auth=login_in_address,
            ) as answer:
                body = answer.raw.read(_MOST_BYTES)
            try:
                found.append((answer.status_code, json.loads(body)))
            except ValueError:
                found.append((answer.status_code, None))
        except ValueError:  # of an address that is none; those of requests are such errors, too
            found.append(_no_address(operations))
        except Exception:  # of requests, urllib3 and the sockets below
            found.append(late)

    # A server that sends a byte at a time never exceeds a timeout of the socket.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(max(0.0, deadline - time.monotonic()))
    said = found[0] if found else late
    if isinstance(said, FedpingError):
        raise said
    return said


def _no_address(operations: str) -> FedpingError:
    return FedpingError(
        f"'{operations[:200]}' isn't an address. Pass that of ingest's operations port, such as http://127.0.0.1:8082."
    )
