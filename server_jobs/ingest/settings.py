"""The settings of one ingest, and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from fedping.protocol.location import Place

LOGGED = "fedping ingest: "
"""What stands before all that ingest logs as text."""

MIB = 1024 * 1024
OPERATIONS_PORT = 8082


@dataclass(frozen=True)
class BodyLimit:
    """How many bytes a body may have as sent and as unpacked, and the option by which an operator allows more."""

    sent: int
    unpacked: int
    option: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one request may ask for.

    ``batch_bytes`` bounds a body as sent and ``decompressed_bytes`` as unpacked, be it a batch or one ping;
    ``ping_bytes`` bounds one ping further, alone or as a line of a batch (None: not). An update has 11 to 20 bytes a
    weight. A batch may always have as many bytes as a ping. ``header_bytes`` bounds each header that is read.

    ``memory_bytes`` bounds what all the requests of a worker may hold at a time, small ones apart. A body has
    ``body_seconds`` to arrive, and a second more for every ``body_rate`` bytes of it that have.
    """

    ping_bytes: int | None = None
    batch_bytes: int = 16 * MIB
    decompressed_bytes: int = 64 * MIB
    batch_lines: int = 100_000
    path_bytes: int = 1024
    header_bytes: int = 1024
    memory_bytes: int = 384 * MIB
    body_seconds: float = 10.0
    body_rate: int = 16 * 1024

    @property
    def ping(self) -> BodyLimit:
        """What one ping may have, whether it is a body or a line of one."""
        if self.ping_bytes is None:
            return self.batch
        return BodyLimit(self.ping_bytes, self.ping_bytes, "--max-ping-mib")

    @property
    def batch(self) -> BodyLimit:
        """What the body of a batch may have."""
        ping = self.ping_bytes or 0
        return BodyLimit(max(self.batch_bytes, ping), max(self.decompressed_bytes, ping), "--max-batch-mib")

    @property
    def receiving_bytes(self) -> int:
        """What the bodies that are being received may hold in a worker: a quarter, and never less than one batch."""
        return max(self.memory_bytes // 4, self.batch.sent)

    @property
    def working_bytes(self) -> int:
        """What may be unpacked and decoded in a worker: the rest, and never less than one request may need."""
        beside = LARGEST_WINDOW + SLICE_COST + 3 * PART + LINE_COST * self.batch_lines
        return max(self.memory_bytes * 3 // 4, self.batch.unpacked + beside)


SMALL = 64 * 1024
"""Bytes that a request may hold without asking: all threads together have few of them."""

LITTLE = 256 * 1024
"""Bytes that may be unpacked and decoded for a request without asking."""

PING_UNPACKED = 4 * MIB
"""Bytes that a packed ping may unpack to before it is checked, unless its study's pings may have more."""

SLICE = MIB
"""Bytes of a batch that are decoded at a time."""

OBJECT_COST = 48
"""Bytes that a number takes once it is decoded, measured: 24 of its own, 8 in a list and 8 in a tuple."""

LOOK_COST = 48
"""Bytes a weight that it takes to look into an encoded update: what it inflates to, and its numbers."""

LOOKED_INTO = 2**30
"""Weights of the encoded updates of a batch at most: some ten seconds of work. Few bytes may be an update of many."""

SLICE_COST = SLICE * (1 + OBJECT_COST // 2)
"""Bytes that a slice takes once it is decoded, if it is nothing but numbers of one digit."""

PART = 4 * MIB
"""Bytes of a batch, as the journal keeps them, that are gathered before they are written."""

LINE_COST = 200
"""Bytes that the answer to a refused line of a batch takes until it is sent."""

LARGEST_WINDOW = 128 * MIB
"""The memory that a zstd frame may ask for to be unpacked, as `zstd --long` does."""

PROGRAM = 192 * MIB
"""What a worker holds without any request: the program, the models that it serves, and free memory for the next."""

CONNECTIONS = 2048
"""Connections that a worker has at a time; the system keeps as many more waiting."""

CONNECTION_BYTES = 64 * 1024
"""What is read from a connection ahead; a path and headers within their limits are less."""


@dataclass(frozen=True, kw_only=True)
class IngestSettings:
    """What ``fedping ingest`` was asked to do.

    A journal segment is rolled, and then compacted, when it has ``roll_bytes`` or is ``compact_every`` seconds old.
    ``slow_bodies`` is how many bodies a worker waits for at a time before it cuts off the slowest.
    ``demo_page`` serves a page to try the study with, below ``/demo/``. What is the operator's has a listener of its
    own, at ``operations_host`` and ``operations_port`` (0: any free one). ``ticket_keys`` is the file of the keys of
    tickets. ``prefix_rate`` is how many pings a second one network may send (None: any number), and
    ``trusted_proxies`` whose word is believed on where a request came from.
    """

    store: Place
    landing: Place
    journal: Path
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 2
    threads: int = 64
    slow_bodies: int = 256
    compact_every: float = 60.0
    roll_bytes: int = 64 * MIB
    limits: Limits = Limits()
    demo_page: bool = False
    operations_host: str = "127.0.0.1"
    operations_port: int = OPERATIONS_PORT
    ticket_keys: Path | None = None
    prefix_rate: float | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()

    @property
    def memory_bound(self) -> int:
        """What a worker's memory stays below, whatever is sent to it."""
        small = CONNECTIONS * (CONNECTION_BYTES + SMALL) + self.threads * LITTLE
        return PROGRAM + small + self.limits.receiving_bytes + self.limits.working_bytes

    @property
    def quarantine(self) -> Path:
        """Where bytes of the journal go that cannot be read: kept for a person to look at, never landed."""
        return self.journal / "quarantine"

    @property
    def counters(self) -> Path:
        """Where the processes keep their counters."""
        return self.journal / ".counters"

    @property
    def compaction_failing(self) -> Path:
        """Where the compactor notes that its passes fail, for as long as they do."""
        return self.counters / "compaction.failing"

    @property
    def rejected(self) -> Path:
        """Where the reasons of rejected requests are written, for the operator."""
        return (self.landing if isinstance(self.landing, Path) else self.journal) / ".rejected"

    @property
    def flush_request(self) -> Path:
        """The file whose change asks every worker to roll its segment now."""
        return self.journal / ".flush"
