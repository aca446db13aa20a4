"""The body of a request: read within its limits and unpacked, or refused with a reason."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from server_jobs.ingest.admission.rejection import Rejection
from server_jobs.ingest.settings import BodyLimit

JSON_TYPES = frozenset({"", "application/json", "text/plain", "application/x-ndjson"})
"""Content types that are taken. text/plain is what a browser may send across origins without asking first; the last is
the usual name of NDJSON, which has no registered one."""

_GZIP = 16 + zlib.MAX_WBITS
_UNKNOWN_SIZE = 2**64 - 1


def read_body(environ: dict[str, Any], limit: BodyLimit) -> bytes:
    """Return the unpacked body of a request.

    Raises:
        Rejection: no length, too large as sent or as unpacked, another content type or encoding, cut short, or not
            what its encoding says.
    """
    _check_type(environ.get("CONTENT_TYPE", ""))
    unpack = _unpacker(environ.get("HTTP_CONTENT_ENCODING", ""))
    length = _length(environ)
    if length > limit.sent:
        raise Rejection(
            "body_too_large",
            f"the body has {length} bytes and may have {limit.sent}; send less in one request, or have ingest started "
            f"with a larger {limit.option}",
            f"{length} bytes; {limit.option} allows {limit.sent}",
        )
    body: bytes = environ["wsgi.input"].read(length) if length else b""
    if len(body) != length:
        raise Rejection("body_incomplete", f"the body ended after {len(body)} of {length} bytes; send it again")
    return unpack(body, limit.unpacked) if unpack else body


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in JSON_TYPES:
        raise Rejection(
            "content_type", "the Content-Type is not one that is taken here; send application/json or text/plain"
        )


def _length(environ: dict[str, Any]) -> int:
    given = environ.get("CONTENT_LENGTH") or ""
    if not given:
        raise Rejection("length_required", "the request has no Content-Length; send one instead of a chunked body")
    if not (given.isascii() and given.isdigit()):
        raise Rejection("body_incomplete", "the Content-Length is not a number; send the number of bytes")
    return int(given) if len(given) < 19 else 10**18


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes] | None:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _UNPACKERS:
        raise Rejection("content_encoding", "the Content-Encoding is not known here; send gzip, zstd or none")
    return _UNPACKERS[name]


def gunzip(data: bytes, limit: int) -> bytes:
    """Return what one or more gzip members unpack to; raises :class:`Rejection` beyond ``limit`` bytes."""
    out: list[bytes] = []
    room = limit
    while data or not out:
        member = zlib.decompressobj(_GZIP)
        try:
            part = member.decompress(data, room + 1)
        except zlib.error as error:
            raise _broken("gzip") from error
        if len(part) > room:
            raise _too_large(limit)
        if not member.eof:
            raise _broken("gzip")
        room -= len(part)
        out.append(part)
        data = member.unused_data
    return out[0] if len(out) == 1 else b"".join(out)


def unzstd(data: bytes, limit: int) -> bytes:
    """Return what one zstd frame unpacks to; raises :class:`Rejection` beyond ``limit`` bytes.

    A frame may or may not say its size, and if it does the library believes it: the size is looked at first.
    """
    import zstandard

    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size != _UNKNOWN_SIZE:
            if size > limit:
                raise _too_large(limit)
            return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        return _unzstd_of_unknown_size(data, limit)
    except zstandard.ZstdError as error:
        raise _broken("zstd") from error


def _unzstd_of_unknown_size(data: bytes, limit: int) -> bytes:
    import zstandard

    with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(data) as reader:
        if len(reader.read(limit + 1)) > limit:
            raise _too_large(limit)
    # The reader does not say whether the frame was whole; now that its size is known to be small, this one does.
    whole = zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()
    out = whole.decompress(data)
    if not whole.eof or whole.unused_data:
        raise _broken("zstd")
    return out


_UNPACKERS = {"gzip": gunzip, "x-gzip": gunzip, "zstd": unzstd}


def _broken(encoding: str) -> Rejection:
    return Rejection(
        "decompression", f"the body is not whole and valid {encoding}; check how it is compressed, and send it again"
    )


def _too_large(limit: int) -> Rejection:
    return Rejection(
        "decompressed_too_large", f"the body unpacks to more than {limit} bytes; send fewer pings in one request"
    )
