r"""The form of a segment: frames, each a checksummed header and the JSON lines of one commit.

    FPJ1 <crc32 of the payload, 8 hex> <bytes of the payload, 10 digits> <lines, 8 digits>\n<payload>

A frame is on disk as a whole before the next is begun, so that a crash can tear the last one only.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

MAGIC = b"FPJ1 "
HEADER_BYTES = len(MAGIC) + 8 + 1 + 10 + 1 + 8 + 1


@dataclass(frozen=True)
class Frame:
    """One commit: where its payload lies in the segment, and how many pings it holds."""

    start: int
    end: int
    rows: int


@dataclass(frozen=True)
class Contents:
    """What a segment holds: its whole frames, and the ranges of bytes that are not part of any."""

    frames: tuple[Frame, ...]
    damaged: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """The pings in whole frames."""
        return sum(frame.rows for frame in self.frames)

    def torn_at(self, size: int) -> int | None:
        """Return where the torn tail begins, if the only damage is at the end of a segment of ``size`` bytes."""
        if len(self.damaged) == 1 and self.damaged[0][1] == size:
            return self.damaged[0][0]
        return None


def frame_header(payload: bytes, rows: int) -> bytes:
    """Return the header of a frame."""
    return MAGIC + b"%08x %010d %08d\n" % (zlib.crc32(payload), len(payload), rows)


def scan(data: bytes) -> Contents:
    """Return what a segment's bytes hold; damage is stepped over and told, never raised."""
    frames: list[Frame] = []
    damaged: list[tuple[int, int]] = []
    at = 0
    while at < len(data):
        frame = _frame_at(data, at)
        if frame is None:
            following = _next_frame(data, at + 1)
            damaged.append((at, following))
            at = following
        else:
            frames.append(frame)
            at = frame.end
    return Contents(tuple(frames), tuple(damaged))


def _next_frame(data: bytes, start: int) -> int:
    """Return where the next whole frame begins, or the end of the data."""
    at = data.find(MAGIC, start)
    while at != -1:
        if _frame_at(data, at) is not None:
            return at
        at = data.find(MAGIC, at + 1)
    return len(data)


def _frame_at(data: bytes, at: int) -> Frame | None:
    header = data[at : at + HEADER_BYTES]
    fields = _header_fields(header)
    if fields is None:
        return None
    crc, length, rows = fields
    start = at + HEADER_BYTES
    payload = memoryview(data)[start : start + length]
    if len(payload) != length or zlib.crc32(payload) != crc:
        return None
    return Frame(start, start + length, rows)


def count_rows(file: BinaryIO) -> int:
    """Return the pings in a segment by its headers alone, up to the first that is not one."""
    total = 0
    while (fields := _header_fields(file.read(HEADER_BYTES))) is not None:
        _, length, rows = fields
        total += rows
        file.seek(length, os.SEEK_CUR)
    return total


def _header_fields(header: bytes) -> tuple[int, int, int] | None:
    if len(header) != HEADER_BYTES or not header.startswith(MAGIC) or header[-1:] != b"\n":
        return None
    try:
        crc, length, rows = header[len(MAGIC) :].split()
        return int(crc, 16), int(length), int(rows)
    except ValueError:
        return None


def payloads(data: bytes, frames: tuple[Frame, ...]) -> Iterator[bytes]:
    """Yield the payloads of frames."""
    for frame in frames:
        yield data[frame.start : frame.end]
