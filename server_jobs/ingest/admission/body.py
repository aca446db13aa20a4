"""The body of a request: read within its limits and unpacked, or refused with a reason."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias, cast

from fedping.server_jobs.ingest.admission.budget import Budget, Lease
from fedping.server_jobs.ingest.admission.rejection import Rejection
from fedping.server_jobs.ingest.settings import LARGEST_WINDOW, LITTLE, BodyLimit

JSON_TYPES = frozenset({"", "application/json", "text/plain", "application/x-ndjson"})
"""Content types that are taken. text/plain is what a browser may send across origins without asking first; the last is
the usual name of NDJSON, which has no registered one."""

_GZIP = 16 + zlib.MAX_WBITS
_UNKNOWN_SIZE = 2**64 - 1
_ZSTD_HEAD = 18
"""Bytes that the header of a zstd frame has at most."""

_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
_RLE = 2
"""The kind of block that is one byte, to be repeated, where it stands in a block's header."""

_FED = 16 * 1024
"""Bytes given to zlib at a time. It copies what is left of them at the end of each member."""

_CHUNK = 1024 * 1024

_FREE_PARTS = 1_000
_PART_BYTES = 64
"""Packed bytes that the members, frames and blocks of a body have at least on average, beyond the first
:data:`_FREE_PARTS`. A ping has more, also if it is a member, frame or block of its own."""


class Memory(NamedTuple):
    """What the large requests of a worker may hold: while they are received, and while they are worked on."""

    receiving: Budget
    working: Budget


Cost: TypeAlias = Callable[[int], int]
"""Returns how many bytes may be held, beside a body of a given length, by what is made of it."""

Unpack: TypeAlias = Callable[[bytes, int, "Room"], bytes]
"""Returns what a body unpacks to, given the most bytes that this may be and where to ask for room."""


class Announced(NamedTuple):
    """What a request says of its body: how many bytes it has, and how it is unpacked (None: it is not packed)."""

    length: int
    unpack: Unpack | None


def announced(environ: dict[str, Any], limit: BodyLimit) -> Announced:
    """Return what a request says of its body.

    Raises:
        Rejection: it does not say, or says too many, or its body is of another content type or encoding.
    """
    _check_type(environ.get("CONTENT_TYPE", ""))
    unpack = _unpacker(environ.get("HTTP_CONTENT_ENCODING", ""))
    length = _length(environ)
    check_size(length, limit.sent, limit.option)
    return Announced(length, unpack)


def check_size(size: int, most: int, option: str, what: str = "body") -> None:
    """Raise :class:`Rejection` if a body or a ping has more bytes than an option allows."""
    if size > most:
        raise Rejection(
            "body_too_large",
            f"the {what} has {size} bytes and may have {most}; send less in one request, or have ingest started "
            f"with a larger {option}",
            f"{size} bytes; {option} allows {most}",
        )


def length_within(environ: dict[str, Any], most: int) -> int:
    """Return the length that a body is said to have, 0 if it is not said or more than ``most`` bytes."""
    try:
        length = _length(environ)
    except Rejection:
        return 0
    return length if length <= most else 0


def unpacked(
    unpack: Unpack | None, body: bytes, limit: BodyLimit, memory: Memory, cost: Cost, held: ExitStack
) -> bytes:
    """Return a body as it was before it was packed. What it and its decoding hold is taken from ``memory`` while held.

    Raises:
        Rejection: it is not what its encoding says, or too much beside the other requests.
    """
    if unpack is not None:
        return unpack(body, limit.unpacked, Room(memory.working, cost, held))
    amount = cost(len(body))
    if amount > LITTLE:
        held.enter_context(memory.working.lease(amount))
    return body


class Room:
    """Where a body is unpacked: bytes of a budget, taken before they are filled."""

    def __init__(self, budget: Budget, cost: Cost, held: ExitStack) -> None:
        self._budget = budget
        self._cost = cost
        self._held = held
        self._lease: Lease | None = None

    def take(self, unpacked: int, besides: int = 0) -> None:
        """Hold what a body of this size takes, its decoding included, and nothing else."""
        self.keep(0)
        amount = unpacked + besides + self._cost(unpacked)
        if amount > LITTLE:
            self._lease = self._held.enter_context(self._budget.lease(amount))

    def keep(self, unpacked: int) -> None:
        """Hold no more than what a body of this size takes."""
        if self._lease is not None:
            self._lease.shrink(unpacked + self._cost(unpacked) if unpacked else 0)


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in JSON_TYPES:
        raise Rejection(
            "content_type",
            "the Content-Type is not one that is taken here; send application/json, application/x-ndjson or text/plain",
        )


def _length(environ: dict[str, Any]) -> int:
    given = environ.get("CONTENT_LENGTH") or ""
    if not given:
        raise Rejection("length_required", "the request has no Content-Length; send one instead of a chunked body")
    if not (given.isascii() and given.isdigit()):
        raise Rejection("body_incomplete", "the Content-Length is not a number; send the number of bytes")
    return int(given) if len(given) < 19 else 10**18


def _unpacker(encoding: str) -> Unpack | None:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _UNPACKERS:
        raise Rejection("content_encoding", "the Content-Encoding is not known here; send gzip, zstd or none")
    return _UNPACKERS[name]


def gunzip(data: bytes, limit: int, room: Room) -> bytes:
    """Return what one or more gzip members unpack to; raises :class:`Rejection` beyond ``limit`` bytes.

    Zeros after a member are padding, as for other programs. The last four bytes say the size of the last member. Nearly
    always that is the size of all; where it is not, room is taken for as much as there may be, and the work done again.
    """
    told = min(limit, int.from_bytes(data[-4:], "little"))
    if len(data) <= _CHUNK and told <= _CHUNK:
        room.take(told)
        whole = _one_member(data, told)
        if whole is not None:
            return whole
    for most in (told, limit):
        room.take(most)
        out = _gunzip_up_to(data, most)
        if out is not None:
            room.keep(len(out))
            return out
    raise _too_large(limit)


class _Parts:
    """Counts the members, frames and blocks of a body: walking over one takes the time of many bytes in a large one."""

    def __init__(self, encoding: str, size: int) -> None:
        self._encoding = encoding
        self._most = self._left = _FREE_PARTS + size // _PART_BYTES

    def one_more(self) -> None:
        """Count one; raises :class:`Rejection` if that is more than a body of this size may have."""
        self._left -= 1
        if self._left < 0:
            raise Rejection(
                "decompression",
                f"the body has more than {self._most} {self._encoding} members, frames and blocks; compress it as one, "
                "flush less often, and send it again",
                f"more than {self._most} members, frames and blocks",
            )


def _one_member(data: bytes, size: int) -> bytes | None:
    """Return what a gzip member of ``size`` bytes unpacks to, or None if it has another size or more comes after it."""
    member = zlib.decompressobj(_GZIP)
    try:
        out = member.decompress(data, size + 1)
    except zlib.error as error:
        raise _broken("gzip") from error
    return out if member.eof and len(out) == size and not member.unused_data else None


def _gunzip_up_to(data: bytes, most: int) -> bytes | None:
    """Return what the members unpack to, or None if that is more than ``most`` bytes. Little is held beside it."""
    parts = _Parts("gzip", len(data))
    out = bytearray()
    pieces = (data[at : at + _FED] for at in range(0, len(data), _FED))
    piece = next(pieces, b"")
    member = zlib.decompressobj(_GZIP)
    fresh, padded = True, False
    try:
        while True:
            if fresh and padded:
                piece = piece.lstrip(b"\0")
            part = member.decompress(piece, _CHUNK)
            fresh = fresh and not piece
            out += part
            if len(out) > most:
                return None
            if member.eof:
                parts.one_more()
                piece = member.unused_data
                member, fresh, padded = zlib.decompressobj(_GZIP), True, True
            else:
                piece = member.unconsumed_tail
            if not piece and len(part) < _CHUNK:
                piece = next(pieces, b"")
                if not piece:
                    break
    except zlib.error as error:
        raise _broken("gzip") from error
    if not fresh or not data:
        raise _broken("gzip")
    return cast(bytes, out)  # a copy would hold as much again, and nothing asks for more than bytes can


class _Frames(NamedTuple):
    """What the zstd frames of a body say: bytes that they unpack to, their largest window, if it is one with a size."""

    told: int
    window: int
    is_one: bool


def unzstd(data: bytes, limit: int, room: Room) -> bytes:
    """Return what zstd frames, one after the other, unpack to; raises :class:`Rejection` beyond ``limit`` bytes.

    Skippable frames are skipped. A frame may or may not say its size, and if it does the library believes it: the size
    is looked at first.

    Source: RFC 8878, section 3.1.
    """
    import zstandard

    try:
        frames = _zstd_frames(data)
        if frames.told > limit:
            raise _too_large(limit)
        if frames.is_one:
            room.take(frames.told)
            return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        window = min(frames.window, LARGEST_WINDOW)
        room.take(0, window + _CHUNK)
        size = 0
        with _zstd_reader(data) as reader:
            while part := reader.read(_CHUNK):
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
        room.take(size, window)
        out = bytearray(size)
        with _zstd_reader(data) as reader, memoryview(out) as view:
            at = 0
            while at < size and (count := reader.readinto(view[at:])):
                at += count
        room.keep(size)
        return cast(bytes, out)
    except zstandard.ZstdError as error:
        raise _broken("zstd") from error


def _zstd_reader(data: bytes) -> Any:
    """Return a reader of what all frames unpack to. It does not say whether the last one is whole."""
    import zstandard

    unpacking = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    return unpacking.stream_reader(data, read_across_frames=True)


def _zstd_frames(data: bytes) -> _Frames:
    """Return what the frames of a body say, without unpacking them.

    Raises:
        Rejection: one is not whole, or there are too many.
    """
    import zstandard

    parts = _Parts("zstd", len(data))
    number = sized = told = window = at = 0
    while at < len(data):
        number += 1
        parts.one_more()
        head = data[at : at + _ZSTD_HEAD]
        if _SKIPPABLE.match(head):
            at += 8 + int.from_bytes(head[4:8], "little")
            continue
        frame = zstandard.get_frame_parameters(head)
        window = max(window, frame.window_size)
        if frame.content_size != _UNKNOWN_SIZE:
            sized, told = sized + 1, told + frame.content_size
        at = _end_of_blocks(data, at + zstandard.frame_header_size(head), parts) + 4 * frame.has_checksum
    if at != len(data) or not data:
        raise _broken("zstd")
    return _Frames(told, window, number == sized == 1)


def _end_of_blocks(data: bytes, at: int, parts: _Parts) -> int:
    """Return where the blocks of a zstd frame end that begin at ``at``: each says its size, and the last one that."""
    is_last = False
    while not is_last and at < len(data):
        parts.one_more()
        header = int.from_bytes(data[at : at + 3], "little")
        is_last = bool(header & 1)
        at += 3 + (1 if header & 6 == _RLE else header >> 3)
    return at if is_last else len(data) + 1


_UNPACKERS = {"gzip": gunzip, "x-gzip": gunzip, "zstd": unzstd}


def _broken(encoding: str) -> Rejection:
    return Rejection(
        "decompression", f"the body is not whole and valid {encoding}; check how it is compressed, and send it again"
    )


def _too_large(limit: int) -> Rejection:
    return Rejection(
        "decompressed_too_large", f"the body unpacks to more than {limit} bytes; send fewer pings in one request"
    )
