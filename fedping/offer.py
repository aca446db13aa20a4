"""`fedping study offer`: a helper's offer, from its file or from the helper itself."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.location import local_path
from fedping.protocol.own_login import login_in_address
from fedping.protocol.sharing.offer import Offer

MOST_BYTES = 256 * 1024
"""Of an offer as JSON: its terms, at most 64 kB of text with every character escaped, fit well."""

CONNECT_SECONDS, READ_SECONDS, MOST_SECONDS = 5.0, 10.0, 30.0


def read_offer(where: str, study: str, line: str) -> Offer:
    """Return the offer for a line that is in a file, or that the helper at an address has.

    Raises:
        FedpingError: there is none, it is none, or the helper does not answer in time.
    """
    is_address = where.startswith(("http://", "https://"))
    data = _asked(f"{where.rstrip('/')}/offers/{study}/{line}") if is_address else _read(where)
    try:
        return msgspec.json.decode(data, type=Offer)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(
            f"{where} holds no offer of a helper: {error}; give its file, or the address at which it serves"
        ) from error


def _read(where: str) -> bytes:
    path: Path = local_path(where)
    try:
        with path.open("rb") as source:
            data = source.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidSettings(f"cannot read the offer {where}: {error.strerror}; correct the path") from error
    return _bounded(data, where)


def _asked(url: str) -> bytes:
    """Return what is at an address, without following it elsewhere, in bounded time and memory."""
    import requests

    deadline, data = time.monotonic() + MOST_SECONDS, bytearray()
    try:
        with requests.get(
            url,
            timeout=(CONNECT_SECONDS, READ_SECONDS),
            stream=True,
            allow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            auth=login_in_address,
        ) as answer:
            for chunk in answer.iter_content(4096):
                data += chunk
                if len(data) > MOST_BYTES or time.monotonic() > deadline:
                    break
    except requests.RequestException as error:
        raise FedpingError(
            f"the helper cannot be asked at {url} ({type(error).__name__}); is it served there, and reached from here?"
        ) from error
    if time.monotonic() > deadline:
        raise FedpingError(f"the helper has not answered {url} within {MOST_SECONDS:g} seconds; try it again later")
    if answer.status_code == 404:
        raise InvalidSettings(
            f"the helper has no offer at {url}; its operator makes one with 'fedping helper join', from the study as "
            "ingest publishes it"
        )
    if answer.status_code != 200:
        raise FedpingError(f"{url} answers {answer.status_code} in the place of an offer; is it the helper's address?")
    return _bounded(bytes(data), url)


def _bounded(data: bytes, where: str) -> bytes:
    if len(data) > MOST_BYTES:
        raise InvalidSettings(f"{where} has more than {MOST_BYTES:,} bytes, as no offer has; give the helper's offer")
    return data
