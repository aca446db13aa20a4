"""Asks a running ingest to land what it has accepted, through its operations port."""

from __future__ import annotations

from fedping.protocol.errors import FedpingError
from fedping.server_jobs.ending import OutOfTime, TemporaryFailure


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
    import requests

    url = f"{operations.rstrip('/')}/__flush__"
    try:
        answer = requests.post(url, params={"timeout": seconds}, timeout=seconds + 10, allow_redirects=False)
    except (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema):
        raise FedpingError(
            f"'{operations[:200]}' isn't an address. Pass that of ingest's operations port, such as "
            "http://127.0.0.1:8082."
        ) from None
    except requests.RequestException:
        raise TemporaryFailure(
            f"ingest doesn't answer at {url}. Check that it runs, and that this is its operations port."
        ) from None
    if answer.status_code == 504:
        raise OutOfTime(f"ingest at {operations} has not landed its pings within {seconds:g} s. See its log.")
    if answer.status_code == 503:
        raise TemporaryFailure(f"ingest at {operations} has too many flushes under way. Run the command again.")
    if answer.status_code != 200:
        raise FedpingError(
            f"{url} answers {answer.status_code}. Pass the address of its operations port; its first lines name it."
        )
