"""Request bodies, read and decompressed within their limits and within a worker's memory.

Memory is reserved before use: for received bytes, for decompressed bytes, and for the objects decoded from them.
Small requests reserve none, because the number of connections bounds their memory.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias, cast

from fedping.server_jobs.ingest.answers import Rejection
from fedping.server_jobs.ingest.settings import LARGEST_WINDOW, LITTLE, BodyLimit

JSON_TYPES = frozenset({"", "application/json", "text/plain", "application/x-ndjson"})
"""Accepted content types. Browsers may send text/plain across origins without a preflight. ``application/x-ndjson``
is the usual name of NDJSON, which has no registered type."""

_GZIP = 16 + zlib.MAX_WBITS
_UNKNOWN_SIZE = 2**64 - 1
_ZSTD_HEAD = 18
"""Maximum bytes of the header of a zstd frame."""

_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
_RLE = 2
"""Type number in a block's header for a block of one repeated byte."""

_FED = 16 * 1024
"""Bytes passed to zlib at a time. At the end of each member, zlib copies the remaining bytes."""

_CHUNK = 1024 * 1024

_FREE_PARTS = 1_000
_PART_BYTES = 64
"""Minimum average size, in compressed bytes, of members, frames and blocks beyond the first :data:`_FREE_PARTS`. A
ping is larger, even as a separate member, frame or block."""


class Memory(NamedTuple):
    """A worker's memory for large requests: while they are received, and while they are processed."""

    receiving: Budget
    working: Budget


Cost: TypeAlias = Callable[[int], int]
"""Function that returns the maximum bytes that decoding needs in addition to a body of a given length."""

Unpack: TypeAlias = Callable[[bytes, int, "Room"], bytes]
"""Function that decompresses a body, given the maximum size and the memory to reserve."""


class Announced(NamedTuple):
    """A body's length, and the function to decompress it (None if not compressed), from the headers."""

    length: int
    unpack: Unpack | None


def announced(environ: dict[str, Any], limit: BodyLimit) -> Announced:
    """Return the length and compression of a request's body, from its headers.

    Raises:
        Rejection: the length is missing or too large, or the content type or encoding is unknown.
    """
    _check_type(environ.get("CONTENT_TYPE", ""))
    unpack = _unpacker(environ.get("HTTP_CONTENT_ENCODING", ""))
    length = _length(environ)
    check_size(length, limit.sent, limit.option)
    return Announced(length, unpack)


def check_size(size: int, most: int, option: str, what: str = "body") -> None:
    """Raise :class:`Rejection` if a body or a ping exceeds the limit of an option."""
    if size > most:
        raise Rejection(
            "body_too_large",
            f"the {what} has {size} bytes, and the maximum is {most}; send less in one request, or ask the operator "
            f"for a larger {option}",
            f"{size} bytes; {option} allows {most}",
        )


def length_within(environ: dict[str, Any], most: int) -> int:
    """Return the Content-Length of a request; 0 if it is missing or more than ``most`` bytes."""
    try:
        length = _length(environ)
    except Rejection:
        return 0
    return length if length <= most else 0


def unpacked(
    unpack: Unpack | None, body: bytes, limit: BodyLimit, memory: Memory, cost: Cost, held: ExitStack
) -> bytes:
    """Return a decompressed body. The memory for the body and its decoding is reserved until ``held`` ends.

    Raises:
        Rejection: the compressed body is invalid, or no memory is free for it.
    """
    if unpack is not None:
        return unpack(body, limit.unpacked, Room(memory.working, cost, held))
    amount = cost(len(body))
    if amount > LITTLE:
        held.enter_context(memory.working.lease(amount))
    return body


class Room:
    """The memory of a body to be decompressed, reserved from a budget before use."""

    def __init__(self, budget: Budget, cost: Cost, held: ExitStack) -> None:
        self._budget = budget
        self._cost = cost
        self._held = held
        self._lease: Lease | None = None

    def take(self, unpacked: int, besides: int = 0) -> None:
        """Reserve the memory for a body of this size and its decoding, and release earlier reservations."""
        self.keep(0)
        amount = unpacked + besides + self._cost(unpacked)
        if amount > LITTLE:
            self._lease = self._held.enter_context(self._budget.lease(amount))

    def keep(self, unpacked: int) -> None:
        """Release the memory that a body of this size doesn't need."""
        if self._lease is not None:
            self._lease.shrink(unpacked + self._cost(unpacked) if unpacked else 0)


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in JSON_TYPES:
        raise Rejection(
            "content_type",
            "the Content-Type is not supported; send application/json, application/x-ndjson or text/plain",
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
        raise Rejection("content_encoding", "the Content-Encoding is not supported; send gzip, zstd or none")
    return _UNPACKERS[name]


def gunzip(data: bytes, limit: int, room: Room) -> bytes:
    """Return the contents of one or more gzip members; raise :class:`Rejection` beyond ``limit`` bytes.

    Zeros after a member are padding, as for other programs. The last four bytes are the size of the last member,
    which is nearly always the only member. Otherwise, memory is reserved for the limit, and decompression starts
    again.
    """
    size = min(limit, int.from_bytes(data[-4:], "little"))
    try:
        if len(data) <= _CHUNK and size <= _CHUNK:
            room.take(size)
            whole = _one_member(data, size)
            if whole is not None:
                return whole
        for most in (size, limit):
            room.take(most)
            out = _gunzip_up_to(data, most)
            if out is not None:
                room.keep(len(out))
                return out
    except zlib.error as error:
        raise _broken("gzip") from error
    raise _too_large(limit)


class _Parts:
    """A limit on a body's members, frames and blocks, because each takes as much time as many bytes."""

    def __init__(self, encoding: str, size: int) -> None:
        self._encoding = encoding
        self._most = self._left = _FREE_PARTS + size // _PART_BYTES

    def one_more(self) -> None:
        """Count one more part; raise :class:`Rejection` beyond the limit for a body of this size."""
        self._left -= 1
        if self._left < 0:
            raise Rejection(
                "decompression",
                f"the body has more than {self._most} {self._encoding} members, frames and blocks; compress it as one, "
                "flush less often, and send it again",
                f"more than {self._most} members, frames and blocks",
            )


def _one_member(data: bytes, size: int) -> bytes | None:
    """Return a decompressed gzip member; None if it doesn't have ``size`` bytes or other data follow."""
    member = zlib.decompressobj(_GZIP)
    out = member.decompress(data, size + 1)
    return out if member.eof and len(out) == size and not member.unused_data else None


def _gunzip_up_to(data: bytes, most: int) -> bytes | None:
    """Return all members decompressed, or None beyond ``most`` bytes; little additional memory is used."""
    parts = _Parts("gzip", len(data))
    out = bytearray()
    pieces = (data[at : at + _FED] for at in range(0, len(data), _FED))
    piece = next(pieces, b"")
    member = zlib.decompressobj(_GZIP)
    fresh, padded = True, False
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
    if not fresh or not data:
        raise _broken("gzip")
    return cast(bytes, out)  # not copied, which would double the memory; callers use only what bytes support


class _Frames(NamedTuple):
    """Headers of a body's zstd frames: total size, largest window, and whether it is a single frame with a size."""

    size: int
    window: int
    is_one: bool


def unzstd(data: bytes, limit: int, room: Room) -> bytes:
    """Return the contents of consecutive zstd frames; raise :class:`Rejection` beyond ``limit`` bytes.

    Skippable frames are skipped. A frame's size is optional, and the library trusts it, so it is checked first.

    Source: RFC 8878, section 3.1.
    """
    import zstandard

    try:
        frames = _zstd_frames(data)
        if frames.size > limit:
            raise _too_large(limit)
        if frames.is_one:
            room.take(frames.size)
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
    """Return a reader that decompresses all frames. It doesn't report an incomplete last frame."""
    import zstandard

    unpacking = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    return unpacking.stream_reader(data, read_across_frames=True)


def _zstd_frames(data: bytes) -> _Frames:
    """Return the headers of a body's frames, without decompressing the frames.

    Raises:
        Rejection: a frame is incomplete, or there are too many.
    """
    import zstandard

    parts = _Parts("zstd", len(data))
    number = sized = total = window = at = 0
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
            sized, total = sized + 1, total + frame.content_size
        at = _end_of_blocks(data, at + zstandard.frame_header_size(head), parts) + 4 * frame.has_checksum
    if at != len(data) or not data:
        raise _broken("zstd")
    return _Frames(total, window, number == sized == 1)


def _end_of_blocks(data: bytes, at: int, parts: _Parts) -> int:
    """Return the end of a zstd frame's blocks, which begin at ``at``. Each block has a header with its size."""
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
        "decompression", f"the body is not complete and valid {encoding}; check the compression, and send it again"
    )


def _too_large(limit: int) -> Rejection:
    return Rejection(
        "decompressed_too_large", f"the body unpacks to more than {limit} bytes; send fewer pings in one request"
    )


class Budget:
    """A number of bytes that threads share in the order of their requests.

    Args:
        total: number of bytes; at least the maximum of one request.
        patience: maximum wait of a request, in seconds.
        waiting: maximum number of waiting requests; each holds a thread.
    """

    def __init__(self, total: int, patience: float, waiting: int) -> None:
        self.total = total
        self._patience = patience
        self._most_waiting = waiting
        self._taken = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def taken(self) -> int:
        """The number of bytes reserved at present."""
        return self._taken

    @contextlib.contextmanager
    def lease(self, amount: int) -> Iterator[Lease]:
        """Reserve ``amount`` bytes within the context; wait in the queue for them.

        Raises:
            Rejection: no memory became free in time, or too many requests are waiting. The client should retry.
        """
        self._take(min(amount, self.total), self._patience)
        lease = Lease(self, min(amount, self.total))
        try:
            yield lease
        finally:
            lease.shrink(0)

    def _take(self, amount: int, patience: float) -> None:
        with self._changed:
            if not self._queue and self._taken + amount <= self.total:
                self._taken += amount
                return
            if patience <= 0 or len(self._queue) >= self._most_waiting:
                raise busy()
            ticket = object()
            self._queue.append(ticket)
            until = time.monotonic() + patience
            try:
                while self._queue[0] is not ticket or self._taken + amount > self.total:
                    left = until - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        raise busy()
                self._taken += amount
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _give(self, amount: int) -> None:
        with self._changed:
            self._taken -= amount
            self._changed.notify_all()


class Lease:
    """The bytes of a :class:`Budget` that one request holds."""

    def __init__(self, budget: Budget, held: int) -> None:
        self._budget = budget
        self.held = held

    def shrink(self, amount: int) -> None:
        """Release all bytes but ``amount``."""
        if amount < self.held:
            give, self.held = self.held - amount, amount
            self._budget._give(give)

    def grow(self, amount: int) -> None:
        """Reserve ``amount`` more bytes without waiting; raise :class:`Rejection` if they aren't free."""
        self._budget._take(amount, 0.0)
        self.held += amount


def busy() -> Rejection:
    """Return the rejection of a request for which no memory is free."""
    return Rejection("busy", "the server's memory for requests is full; send it again a little later")
