"""The transport over HTTP: fetches static files, posts pings, and keeps a bounded number of connections."""

from __future__ import annotations

import asyncio
import functools
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import UUID

import aiohttp
import msgspec
from msgspec import UNSET

from fedping.client_sim.transport import (
    ACCEPTED,
    BatchOutcome,
    Delivery,
    Fetched,
    NotModified,
    Outcome,
    StudyEnded,
    TransportError,
    Unavailable,
)
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.formats import NewerFormat, without_format
from fedping.protocol.log import shown
from fedping.protocol.model import ModelDocument
from fedping.protocol.ping import DOCUMENT_TYPES, FRECENCY_UPDATE, OUTCOME, DocumentType
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import PublicStudy
from fedping.protocol.trust import USUAL, Trust

_TRY_AGAIN = {408, 425, 429}
_REDIRECTS = {301, 302, 303, 307, 308}
_JSON = {"Content-Type": "application/json"}
_LINES = {"Content-Type": "application/x-ndjson"}
_GZIP = {"Content-Encoding": "gzip"}
_LONGEST_REASON = 200
_NETWORK_FAULTS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
_NOT_WHAT_WAS_ASKED = (msgspec.MsgspecError, UnicodeError, RecursionError)  # RecursionError: JSON with endless nesting


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """Settings of the transport over HTTP; times in seconds.

    Attributes:
        connections: maximum number of connections.
        connect_timeout, request_timeout: maximum wait for a connection, and for the next bytes of an answer.
        user_agent: the same for every simulated client.
        compress: bodies that are posted with ``Content-Encoding: gzip``: batches, because browsers can't set it on a
            ping without asking the server first; all bodies of over :data:`WORTH_COMPRESSING` bytes; or none.
        proxies: whether requests use the proxies that the environment names (``HTTPS_PROXY``).
        most_bytes: maximum length of an answer, unpacked; a model's is also limited by its study's spec.
        whole_timeout: maximum time of a request, with the wait for a free connection.
        redirects: allowed redirects of a fetch: to any address, such as the caches of a CDN; or, if ``secure``, to
            https addresses and to others at the server's host. Pings are never redirected.
        away: advice to the user if no server answers.
        trust: the certificate authorities for checking the certificates of https addresses.
    """

    connections: int = 64
    connect_timeout: float = 5.0
    request_timeout: float = 30.0
    user_agent: str = "fedping-fleet"
    compress: Literal["batches", "all", "none"] = "batches"
    proxies: bool = False
    most_bytes: int = 2**29
    whole_timeout: float | None = None
    redirects: Literal["anywhere", "secure"] = "anywhere"
    away: str = "start 'fedping ingest' there or correct the address"
    trust: Trust = USUAL


MOST_REDIRECTS = 5
"""Maximum number of redirects of a fetch."""

WORTH_COMPRESSING = 1024
"""Minimum bytes of a compressed body. A smaller one, such as a ping of 22 weights, saves less than its header."""

LEVEL = 1
"""Level of gzip: level 6 makes bodies a seventh smaller, and takes three to four times as long."""


class _RefusedLine(msgspec.Struct):
    line: int
    reason: str


class _BatchAnswer(msgspec.Struct):
    accepted: int
    rejected: list[_RefusedLine]


class HttpTransport:
    """Talks to one ingest address, such as ``http://127.0.0.1:8080``.

    It posts pings of the study's type, once it has fetched the study; else of type ``document``. The session is opened
    at the first request, in the event loop of that request, and serves only this loop. It keeps no cookies. Models of
    private lines are fetched without an entity tag: with a different tag for each client, a server could link the ids
    that a client sends with.

    Raises:
        InvalidSettings: the address is not an http or https URL.
    """

    def __init__(
        self, address: str, settings: HttpSettings = HttpSettings(), document: DocumentType = FRECENCY_UPDATE
    ) -> None:
        if not _is_address(address):
            raise InvalidSettings(f"'{address}' is not an ingest address; write one such as http://127.0.0.1:8080")
        self.address = address.rstrip("/")
        self._settings = settings
        self._document = document
        self._documents: dict[str, DocumentType] = {}
        self._largest: dict[tuple[str, str], int] = {}
        self._private: set[tuple[str, str]] = set()
        self._session: aiohttp.ClientSession | None = None

    async def fetch_study(self, study: str) -> PublicStudy:
        """See :meth:`fedping.client_sim.transport.Transport.fetch_study`."""
        url = f"{self.address}/models/{study}/study.json"
        try:
            async with self._get(url) as response:
                body = await _body(response, self._settings.most_bytes)
        except _NETWORK_FAULTS as error:
            advice = _UNTRUSTED if isinstance(error, aiohttp.ClientConnectorCertificateError) else self._settings.away
            raise TransportError(f"cannot reach {self.address}: {_in_words(error)}; {advice}") from error
        if response.status != 200:
            raise TransportError(f"{self.address} does not serve the study '{study}': {_why(response.status, body)}")
        try:
            public = msgspec.json.decode(without_format(body, url), type=PublicStudy)
        except _NOT_WHAT_WAS_ASKED as error:
            raise TransportError(
                f"{url} is not a study ({error}); give the address of a fedping ingest of this version"
            ) from error
        if public.ended is not UNSET:
            raise StudyEnded(f"the study '{study}' has ended, and {self.address} takes no more pings of it")
        self._documents[study] = DOCUMENT_TYPES[public.pings]
        self._largest.update(((study, line.name), _largest(line.spec)) for line in public.lines)
        self._private.update((study, line.name) for line in public.lines if line.privacy is not None)
        return public

    async def fetch_model(
        self, study: str, line: str, iteration: int | None, etag: str | None
    ) -> Fetched | NotModified | Unavailable:
        """See :meth:`fedping.client_sim.transport.Transport.fetch_model`."""
        return await self._fetch(study, line, "latest" if iteration is None else str(iteration), etag)

    async def fetch_staged(self, study: str, line: str, iteration: int) -> Fetched | Unavailable:
        """See :meth:`fedping.client_sim.transport.Transport.fetch_staged`."""
        answer = await self._fetch(study, line, f"staged-{iteration}", None)
        return Unavailable("not modified") if isinstance(answer, NotModified) else answer

    async def _fetch(self, study: str, line: str, name: str, etag: str | None) -> Fetched | NotModified | Unavailable:
        url = f"{self.address}/models/{study}/{line}/{name}.json"
        most = min(self._settings.most_bytes, self._largest.get((study, line), self._settings.most_bytes))
        untagged = (study, line) in self._private
        try:
            async with self._get(url, {"If-None-Match": etag} if etag and not untagged else None) as response:
                body = await _body(response, most)
        except _NETWORK_FAULTS as error:
            return Unavailable(_in_words(error))
        if response.status == 304:
            return NotModified()
        if response.status != 200:
            return Unavailable(_why(response.status, body))
        try:
            tag = None if untagged else response.headers.get("ETag")
            return Fetched(_document(body), tag, _size(response, body))
        except NewerFormat as error:
            return Unavailable(str(error))
        except _NOT_WHAT_WAS_ASKED as error:
            return Unavailable(f"not a model document: {error}")

    @asynccontextmanager
    async def _get(self, url: str, headers: dict[str, str] | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """Fetch an address, following allowed redirects."""
        if self._settings.redirects == "anywhere":
            async with self._open().get(url, headers=headers, proxy=self._proxy(url)) as response:
                yield response
            return
        address = url
        for _ in range(MOST_REDIRECTS + 1):
            proxy = self._proxy(address)
            async with self._open().get(address, headers=headers, allow_redirects=False, proxy=proxy) as response:
                if response.status not in _REDIRECTS or "Location" not in response.headers:
                    yield response
                    return
                address = _redirected(address, response.headers["Location"], self.address)
        raise _Astray(f"it redirects more than {MOST_REDIRECTS} times")

    async def submit(self, study: str, document_id: UUID, body: bytes, *, later: bool = False) -> Outcome:
        """See :meth:`fedping.client_sim.transport.Transport.submit`."""
        compress = self._settings.compress == "all"
        path = f"{study}/{OUTCOME.name}/{OUTCOME.version}" if later else self._path(study)
        return (await self._post(f"{path}/{document_id}", body, _JSON, compress))[0]

    async def submit_batch(self, study: str, lines: bytes) -> BatchOutcome:
        """Make one attempt to submit a batch: one ping per line, with a document id that is the same in every attempt.

        A batch with any accepted line is accepted; rejected lines must not be sent again.
        """
        outcome, answer = await self._post(self._path(study), lines, _LINES, self._settings.compress != "none")
        try:
            counts = msgspec.json.decode(answer, type=_BatchAnswer)
        except _NOT_WHAT_WAS_ASKED:
            return BatchOutcome(outcome)
        return BatchOutcome(outcome, counts.accepted, tuple((line.line, line.reason) for line in counts.rejected))

    def _path(self, study: str) -> str:
        document = self._documents.get(study, self._document)
        return f"{study}/{document.name}/{document.version}"

    async def _post(self, path: str, body: bytes, headers: dict[str, str], compress: bool) -> tuple[Outcome, bytes]:
        """Post to a path below /submit; return the outcome, and the bytes of the answer."""
        url = f"{self.address}/submit/{path}"
        if compress and len(body) > WORTH_COMPRESSING:
            body, headers = gzip.compress(body, LEVEL, mtime=0), headers | _GZIP
        try:
            proxy = self._proxy(url)
            async with self._open().post(
                url, data=body, headers=headers, allow_redirects=False, proxy=proxy
            ) as response:
                answer = await _body(response, self._settings.most_bytes)
        except _NETWORK_FAULTS as error:
            return Outcome(Delivery.RETRY, _in_words(error), posted_bytes=len(body)), b""
        outcome = _outcome(response.status, response.headers.get("Retry-After"), answer)
        return replace(outcome, posted_bytes=len(body)), answer

    async def close(self) -> None:
        """See :meth:`fedping.client_sim.transport.Transport.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _proxy(self, url: str) -> str | None:
        """Return the environment's proxy for an address, if proxies are used and the proxy's address is http.

        aiohttp's ``trust_env`` would also send the server's login in ``~/.netrc``, which would link a client's pings
        like a cookie.
        """
        parts = urlsplit(url)
        if not self._settings.proxies or proxy_bypass(parts.netloc.rpartition("@")[2]):
            return None
        proxy = getproxies().get(parts.scheme)
        return proxy if proxy is not None and proxy.startswith("http://") else None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._settings.connections, ssl=self._settings.trust.context()),
                # No total by default: it would include the wait for a free connection.
                timeout=aiohttp.ClientTimeout(
                    total=self._settings.whole_timeout,
                    sock_connect=self._settings.connect_timeout,
                    sock_read=self._settings.request_timeout,
                ),
                headers={"User-Agent": self._settings.user_agent},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _is_address(address: str) -> bool:
    """Return whether a URL is valid as the start of request paths."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port  # an invalid port raises
        host.encode("idna")
    except ValueError:
        return False
    plain = not parts.query and not parts.fragment and not any(map(str.isspace, address))
    return parts.scheme in ("http", "https") and bool(host) and plain


class _Astray(aiohttp.ClientError):
    """A server redirects to an address that is not allowed."""


def _redirected(source: str, location: str, server: str) -> str:
    """Return the target of a redirect; raise :class:`_Astray` unless it is https, or at the server's host."""
    target = urljoin(source, location)
    if not _is_address(target.partition("?")[0]):
        raise _Astray("it redirects to an invalid address")
    secure, from_secure = (urlsplit(each).scheme == "https" for each in (target, source))
    if not secure and (from_secure or urlsplit(target).netloc != urlsplit(server).netloc):
        raise _Astray("it redirects to another host without https, which is not followed")
    return target


class _TooLong(aiohttp.ClientPayloadError):
    """An answer is longer than its limit."""


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of an answer, unpacked; raise :class:`_TooLong` as soon as it exceeds the limit."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            raise _TooLong(f"its answer has over {most:,} bytes")
        parts.append(part)
    return b"".join(parts)


def _largest(spec: ModelSpec) -> int:
    """Return the approximate maximum length of a model document of a spec."""
    return 2**16 + 32 * spec.m + sum(6 * len(name) + 4 for name in spec.document_names)


def _size(response: aiohttp.ClientResponse, body: bytes) -> int:
    """Return the number of bytes of a body as received, possibly compressed."""
    length = response.content_length
    return len(body) if length is None else length


@functools.lru_cache(maxsize=64)
def _document(body: bytes) -> ModelDocument:
    """Decode a model document. Thousands of clients fetch the same bytes, so equal bytes are decoded once."""
    return msgspec.json.decode(without_format(body, "a model document"), type=ModelDocument)


def _outcome(status: int, retry_after: str | None, answer: bytes) -> Outcome:
    if 200 <= status < 300:
        return ACCEPTED
    if status >= 500 or status in _TRY_AGAIN or 300 <= status < 400:  # ingest doesn't redirect; other servers do
        return Outcome(Delivery.RETRY, f"HTTP {status}", _seconds(retry_after))
    return Outcome(Delivery.REJECTED, _why(status, answer))


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None if it is neither."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _why(status: int, body: bytes) -> str:
    """Return the reason that the server's body states, else the status."""
    try:
        sentence: Any = msgspec.json.decode(body)["error"]
    except (*_NOT_WHAT_WAS_ASKED, KeyError, TypeError):
        sentence = None
    return f"{status} {shown(sentence[:_LONGEST_REASON], kept='')}" if isinstance(sentence, str) else f"HTTP {status}"


def _in_words(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, _TooLong | _Astray):
        return str(error)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted ({_why_untrusted(error.certificate_error)})"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection ({error.os_error.strerror or error.os_error})"
    return f"the connection broke ({type(error).__name__})"


_UNTRUSTED = "if your own authority signed it, pass that authority's PEM file with --ca"


def _why_untrusted(error: Exception) -> str:
    return str(getattr(error, "verify_message", "")) or type(error).__name__
