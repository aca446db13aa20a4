"""Clients of the helper of a two-server line: over HTTP, or by files that operators exchange.

This module only limits the size and time of answers; `fedping.server_jobs.round.shared` checks them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from msgspec import DecodeError, ValidationError, json

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.own_login import login_in_address
from fedping.protocol.sharing.exchange import Refusal, Refused, digest_of_signed

if TYPE_CHECKING:
    import requests

CONNECT_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
"""Maximum seconds that a round waits for an answer. The next round requests it again."""

POLL_SECONDS = 2.0
"""Minimum seconds between two polls while the helper works on the answer."""

MOST_REFUSAL_BYTES = 65_536
MOST_WHY = 500
BYTES = "application/octet-stream"
_BLOCK = 65_536


class HelperUnavailable(FedpingError):
    """No answer is available yet, but a later request may succeed. The message is the reason, as part of a sentence."""


class Helper(Protocol):
    """A client of a line's helper."""

    def answer(self, request: bytes, most: int) -> bytes:
        """Return the unchecked answer to a request, at most ``most`` bytes.

        Raises:
            HelperUnavailable: no answer is available yet.
            Refused: the helper rejects the request.
            FedpingError: the response isn't an answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class HttpHelper:
    """A helper over HTTP: ``POST <url>/answers``, then ``GET <url>/answers/<digest>`` while it works on the answer.

    Args:
        url: the helper's address.
        patience: maximum seconds for an answer, over all attempts.

    Raises:
        InvalidSettings: the address isn't an HTTP URL.
    """

    url: str
    patience: float = PATIENCE_SECONDS

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            fine = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
        except ValueError:
            fine = False
        if not fine:
            raise InvalidSettings(f"'{self.url}' is not a helper's address. Use one such as https://helper.example.")

    def answer(self, request: bytes, most: int) -> bytes:
        """See :class:`Helper`."""
        until = time.monotonic() + self.patience
        outcome = self._attempt(request, most, until, begun=False)
        while not isinstance(outcome, bytes):
            if time.monotonic() + outcome >= until:
                raise HelperUnavailable(f"the helper at {self.url} is still computing the answer")
            time.sleep(outcome)
            outcome = self._attempt(request, most, until, begun=True)
        return outcome

    def _attempt(self, request: bytes, most: int, until: float, *, begun: bool) -> bytes | float:
        """Return the answer, or the seconds until the next poll. A request in progress isn't sent again."""
        with self._errors_named():
            with self._get(request, until) if begun else self._post(request, until) as response:
                if response.status_code == 202:
                    return _seconds(response.headers.get("Retry-After"))
                body = self._body(response, most if response.status_code == 200 else MOST_REFUSAL_BYTES, until)
            if response.status_code == 200:
                return body
            if begun:  # the helper has no answer; only a new POST returns the reason
                return self._attempt(request, most, until, begun=False)
            if (refusal := refusal_in(body)) is not None:
                raise _refused(refusal, request)
            raise HelperUnavailable(f"the helper at {self.url} answered with HTTP {response.status_code}")

    def _post(self, request: bytes, until: float) -> requests.Response:
        import requests

        data = _Upload(request, until)
        return requests.post(self._address, data=data, **self._bounds(until, {"Content-Type": BYTES}))

    def _get(self, request: bytes, until: float) -> requests.Response:
        import requests

        return requests.get(f"{self._address}/{digest_of_signed(request)}", **self._bounds(until, {}))

    @property
    def _address(self) -> str:
        return f"{self.url.rstrip('/')}/answers"

    def _bounds(self, until: float, headers: dict[str, str]) -> dict[str, Any]:
        return {
            "headers": {**headers, "Accept-Encoding": "identity"},
            "timeout": (CONNECT_SECONDS, max(1.0, until - time.monotonic())),
            "stream": True,
            "allow_redirects": False,
            "auth": login_in_address,
        }

    def _body(self, response: requests.Response, most: int, until: float) -> bytes:
        body = bytearray()
        for block in response.iter_content(_BLOCK):
            body += block
            if len(body) > most:
                raise FedpingError(
                    f"the helper at {self.url} answered with more than {most:,} bytes, so it is not a helper. Check "
                    "the address."
                )
            if time.monotonic() > until:
                raise HelperUnavailable(f"the helper at {self.url} did not answer within {self.patience:g} seconds")
        return bytes(body)

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        """Turn connection errors into :class:`HelperUnavailable` with the reason."""
        import requests

        try:
            yield
        except requests.ConnectTimeout as error:
            raise HelperUnavailable(f"can't reach the helper at {self.url}") from error
        except requests.Timeout as error:
            raise HelperUnavailable(
                f"the helper at {self.url} did not answer within {self.patience:g} seconds"
            ) from error
        except requests.exceptions.SSLError as error:
            raise HelperUnavailable(
                f"the certificate of the helper at {self.url} is not trusted; if the helper's operator has a private "
                "certificate authority, set REQUESTS_CA_BUNDLE to its file"
            ) from error
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            raise HelperUnavailable(f"can't reach the helper at {self.url}, or it closed the connection") from error
        except requests.RequestException as error:
            raise HelperUnavailable(f"can't ask the helper at {self.url} ({type(error).__name__})") from error


class _Upload:
    """The bytes of a request. Sending stops at a deadline, even if the receiver is slow."""

    def __init__(self, data: bytes, until: float) -> None:
        self._data, self._at, self._until = memoryview(data), 0, until

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int = -1) -> bytes:
        if time.monotonic() > self._until:
            import requests

            raise requests.Timeout
        end = len(self._data) if size < 0 else self._at + min(size, _BLOCK)
        block, self._at = self._data[self._at : end], min(end, len(self._data))
        return bytes(block)


@dataclass(frozen=True, slots=True)
class FileHelper:
    """A file from the helper's operator: the answer, or the rejection as JSON."""

    path: Path

    def answer(self, request: bytes, most: int) -> bytes:
        """See :class:`Helper`."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(most + 1)
        except OSError as error:
            raise FedpingError(f"can't read the answer {self.path} ({error.strerror}). Pass another file.") from error
        if len(data) > most:
            raise FedpingError(
                f"{self.path} has more than {most:,} bytes, so it is not an answer. Pass the file that the helper "
                "wrote."
            )
        if (refusal := refusal_in(data)) is not None:
            raise _refused(refusal, request)
        return data


def _refused(refusal: Refusal, request: bytes) -> Refused | HelperUnavailable:
    """Return the error for a rejection. A rejection of another request means that the answer isn't available yet."""
    if refusal.request not in (None, digest_of_signed(request)):
        return HelperUnavailable(
            "this is the rejection of an earlier request; give the helper's answer to the current one"
        )
    return Refused(refusal.refused, refusal.why, refusal.signature)


def refusal_in(data: bytes) -> Refusal | None:
    """Return the rejection in a response, with a printable reason of limited length; None if there is no rejection."""
    if len(data) > MOST_REFUSAL_BYTES:
        return None
    try:
        refusal = json.decode(data, type=Refusal)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError):
        return None
    why = "".join(c if c.isprintable() else " " for c in refusal.why[:MOST_WHY])
    return Refusal(refused=refusal.refused, why=why, request=refusal.request, signature=refusal.signature)


def _seconds(header: str | None) -> float:
    """Return the seconds of a ``Retry-After`` header."""
    return max(POLL_SECONDS, float(header)) if header and header.isascii() and header.isdecimal() else POLL_SECONDS
