"""Ways to the helper of a line of shares: over HTTP, or by files that somebody carries.

Nothing that comes back is believed here: it is bounded in size and time, and judged where it is used
(`fedping.server_jobs.round.shared`).
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
"""Seconds that a round waits for an answer in all; it does not lose it by going on, for the next one asks again."""

POLL_SECONDS = 2.0
"""Seconds between two questions at least, where the helper says that it is at work."""

MOST_REFUSAL_BYTES = 65_536
MOST_WHY = 500
BYTES = "application/octet-stream"
_BLOCK = 65_536


class HelperUnavailable(FedpingError):
    """There is no answer yet, and asking again may bring it: for what it waits, as part of a sentence."""


class Helper(Protocol):
    """A way to the helper of a line."""

    def answer(self, request: bytes, most: int) -> bytes:
        """Return what has come as the answer to a request, at most ``most`` bytes; nobody has looked at it.

        Raises:
            NoAnswer: nothing has come.
            Refused: the helper refuses the request.
            FedpingError: what has come can be no answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class HttpHelper:
    """A helper over HTTP: ``POST <url>/answers``, and ``GET <url>/answers/<digest>`` while it is at work on that.

    Args:
        url: where it is.
        patience: seconds that one question may take, all attempts together.

    Raises:
        InvalidSettings: the URL is none of HTTP.
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
            raise InvalidSettings(f"'{self.url}' is no address of a helper; give one such as https://helper.example")

    def answer(self, request: bytes, most: int) -> bytes:
        """See :class:`Helper`."""
        until = time.monotonic() + self.patience
        waits = self._attempt(request, most, until, begun=False)
        while not isinstance(waits, bytes):
            if time.monotonic() + waits >= until:
                raise HelperUnavailable(f"the helper at {self.url} is still at work on the answer")
            time.sleep(waits)
            waits = self._attempt(request, most, until, begun=True)
        return waits

    def _attempt(self, request: bytes, most: int, until: float, *, begun: bool) -> bytes | float:
        """Return the answer, or after how many seconds to look again; what is worked on is not sent once more."""
        with self._told():
            with self._looked(request, until) if begun else self._posted(request, until) as got:
                if got.status_code == 202:
                    return _seconds(got.headers.get("Retry-After"))
                body = self._body(got, most if got.status_code == 200 else MOST_REFUSAL_BYTES, until)
            if got.status_code == 200:
                return body
            if begun:  # it has ended without an answer, and why is told to whoever sends the request
                return self._attempt(request, most, until, begun=False)
            if (refusal := refusal_in(body)) is not None:
                raise _refused(refusal, request)
            raise HelperUnavailable(f"the helper at {self.url} has answered with HTTP {got.status_code}")

    def _posted(self, request: bytes, until: float) -> requests.Response:
        import requests

        data = _Upload(request, until)
        return requests.post(self._address, data=data, **self._bounds(until, {"Content-Type": BYTES}))

    def _looked(self, request: bytes, until: float) -> requests.Response:
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

    def _body(self, got: requests.Response, most: int, until: float) -> bytes:
        found = bytearray()
        for block in got.iter_content(_BLOCK):
            found += block
            if len(found) > most:
                raise FedpingError(
                    f"the helper at {self.url} has answered with more than {most:,} bytes, which is no answer; see "
                    "that the address is that of a helper"
                )
            if time.monotonic() > until:
                raise HelperUnavailable(
                    f"the helper at {self.url} was too slow to answer within {self.patience:g} seconds"
                )
        return bytes(found)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what goes wrong on the way into what the round waits for."""
        import requests

        try:
            yield
        except requests.ConnectTimeout as error:
            raise HelperUnavailable(f"the helper at {self.url} cannot be reached") from error
        except requests.Timeout as error:
            raise HelperUnavailable(
                f"the helper at {self.url} was too slow to answer within {self.patience:g} seconds"
            ) from error
        except requests.exceptions.SSLError as error:
            raise HelperUnavailable(f"the certificate of the helper at {self.url} cannot be checked") from error
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            raise HelperUnavailable(f"the helper at {self.url} cannot be reached, or broke off") from error
        except requests.RequestException as error:
            raise HelperUnavailable(f"the helper at {self.url} cannot be asked ({type(error).__name__})") from error


class _Upload:
    """The bytes of a request as they are sent: not beyond a moment, however slowly they are taken."""

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
    """A file that the helper's operator has sent back: the answer, or the refusal as JSON."""

    path: Path

    def answer(self, request: bytes, most: int) -> bytes:
        """See :class:`Helper`."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(most + 1)
        except OSError as error:
            raise FedpingError(f"the answer {self.path} cannot be read: {error.strerror}; give another file") from error
        if len(data) > most:
            raise FedpingError(
                f"{self.path} has more than {most:,} bytes, which is no answer; give the file that the helper wrote"
            )
        if (refusal := refusal_in(data)) is not None:
            raise _refused(refusal, request)
        return data


def _refused(refusal: Refusal, request: bytes) -> Refused | HelperUnavailable:
    """Return what a refusal means for a request: nothing, if it says that it is of another one."""
    if refusal.request not in (None, digest_of_signed(request)):
        return HelperUnavailable("what has come refuses an earlier request; give what the helper says to this one")
    return Refused(refusal.refused, refusal.why, refusal.signature)


def refusal_in(data: bytes) -> Refusal | None:
    """Return the refusal that somebody says to be one; None if it is none. Its words are cut, and printable."""
    if len(data) > MOST_REFUSAL_BYTES:
        return None
    try:
        found = json.decode(data, type=Refusal)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError):
        return None
    why = "".join(c if c.isprintable() else " " for c in found.why[:MOST_WHY])
    return Refusal(refused=found.refused, why=why, request=found.request, signature=found.signature)


def _seconds(told: str | None) -> float:
    return max(POLL_SECONDS, float(told)) if told and told.isascii() and told.isdecimal() else POLL_SECONDS
