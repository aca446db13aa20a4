"""The settings of ingest, the location of its files, and its limits in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from fedping.protocol.location import Place

LOGGED = "fedping ingest: "
"""Prefix of ingest's log lines in text."""

MIB = 1024 * 1024
INGEST_LOCK, COMPACTOR_LOCK = ".ingest.lock", ".compactor.lock"
"""Names of the journal's lock files, held by the running ingest and by its compactor."""

OPERATIONS_PORT = 8082


@dataclass(frozen=True)
class BodyLimit:
    """Maximum bytes of a body as sent and decompressed, and the option that sets them."""

    sent: int
    unpacked: int
    option: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request.

    Attributes:
        ping_bytes: maximum bytes of a ping, alone or as a line of a batch; None: as ``batch_bytes``. An update has 11
            to 20 bytes per weight.
        batch_bytes: maximum bytes of a body as sent, for a batch or one ping; never less than ``ping_bytes``.
        decompressed_bytes: maximum bytes of a decompressed body.
        batch_lines: maximum number of lines of a batch.
        path_bytes: maximum bytes of the path.
        header_bytes: maximum bytes of each header that is read.
        memory_bytes: memory of all large requests of a worker together.
        body_seconds: time for a body to arrive, in seconds.
        body_rate: bytes per second that extend this time.
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
        """The limit for one ping, as a body or as a line of a batch."""
        if self.ping_bytes is None:
            return self.batch
        return BodyLimit(self.ping_bytes, self.ping_bytes, "--max-ping-mib")

    @property
    def batch(self) -> BodyLimit:
        """The limit for the body of a batch."""
        ping = self.ping_bytes or 0
        return BodyLimit(max(self.batch_bytes, ping), max(self.decompressed_bytes, ping), "--max-batch-mib")

    @property
    def receiving_bytes(self) -> int:
        """Memory of a worker for bodies being received: a quarter of its memory, and at least one batch."""
        return max(self.memory_bytes // 4, self.batch.sent)

    @property
    def working_bytes(self) -> int:
        """Memory of a worker for decompression and decoding: the rest, and at least the maximum of one request."""
        beside = LARGEST_WINDOW + SLICE_COST + 3 * PART + LINE_COST * self.batch_lines
        return max(self.memory_bytes * 3 // 4, self.batch.unpacked + beside)


SMALL = 64 * 1024
"""Maximum bytes of a body for which no memory of the budget is reserved."""

LITTLE = 256 * 1024
"""Maximum bytes that a request may decompress and decode without a reservation from the budget."""

PING_UNPACKED = 4 * MIB
"""Lower bound of the limit for a decompressed ping, in bytes. A study's pings may be larger."""

SLICE = MIB
"""Bytes of a batch that are decoded together."""

OBJECT_COST = 48
"""Bytes of memory of a decoded number, measured: 24 for the object, 8 in a list and 8 in a tuple."""

LOOK_COST = 48
"""Bytes of memory per weight to inspect an encoded update: its decompressed bytes and its numbers."""

LOOKED_INTO = 2**30
"""Maximum weights of the encoded updates of a batch, about ten seconds of work. Few bytes may encode many weights."""

SLICE_COST = SLICE * (1 + OBJECT_COST // 2)
"""Maximum bytes of a decoded slice, reached by numbers of one digit."""

PART = 4 * MIB
"""Bytes of journal lines that are collected before they are written."""

LINE_COST = 200
"""Bytes of memory for a rejected line of a batch until the response is sent."""

LARGEST_WINDOW = 128 * MIB
"""Maximum window of a zstd frame in bytes, the same as for `zstd --long`."""

PROGRAM = 192 * MIB
"""Bytes of memory of a worker without requests: the program, the served models, and free memory."""

CONNECTIONS = 2048
"""Maximum number of open connections of a worker. The system queues the same number in addition."""

CONNECTION_BYTES = 64 * 1024
"""Bytes read ahead from a connection; a path and headers within their limits are shorter."""


@dataclass(frozen=True, kw_only=True)
class IngestSettings:
    """The settings of ``fedping ingest``.

    Attributes:
        store: the model store.
        landing: the landing folder.
        journal: folder of the journal.
        host: address of the public listener.
        port: port of the public listener.
        workers: number of worker processes.
        threads: number of threads of a worker.
        slow_bodies: maximum number of slow bodies in a worker; beyond it, the slowest connections are closed.
        compact_every: age at which a journal segment is rolled and compacted, in seconds.
        roll_bytes: size at which a segment is rolled, in bytes.
        limits: limits of a request.
        demo_page: whether to serve the demo page below ``/demo/``.
        operations_host: address of the operations port.
        operations_port: number of the operations port; 0 for any free port.
        ticket_keys: file with the keys of tickets; None without tickets.
        prefix_rate: maximum pings per second of one network; None for no limit.
        trusted_proxies: networks of proxies whose X-Forwarded-For is trusted.
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
        """Upper bound of a worker's memory in bytes, for any sequence of requests."""
        small = CONNECTIONS * (CONNECTION_BYTES + SMALL) + self.threads * LITTLE
        return PROGRAM + small + self.limits.receiving_bytes + self.limits.working_bytes

    @property
    def quarantine(self) -> Path:
        """Folder for unreadable bytes of the journal, which are kept for inspection and never land."""
        return self.journal / "quarantine"

    @property
    def counters(self) -> Path:
        """Folder of the processes' counters."""
        return self.journal / ".counters"

    @property
    def compaction_failing(self) -> Path:
        """File with the compactor's note about failing passes."""
        return self.counters / "compaction.failing"

    @property
    def rejected(self) -> Path:
        """Folder with the log of rejected requests, for the operator."""
        return (self.landing if isinstance(self.landing, Path) else self.journal) / ".rejected"

    @property
    def flush_request(self) -> Path:
        """File whose change makes every worker roll its segment."""
        return self.journal / ".flush"
