"""The settings of one ingest, and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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

    ``ping_bytes`` bounds one ping, ``batch_bytes`` a batch as sent and ``decompressed_bytes`` as unpacked. An update
    has 11 to 20 bytes a weight, so that a study of more than 200,000 weights needs a larger ``ping_bytes``; a batch may
    always have as many bytes as a ping.
    """

    ping_bytes: int = 4 * MIB
    batch_bytes: int = 16 * MIB
    decompressed_bytes: int = 64 * MIB
    batch_lines: int = 100_000
    path_bytes: int = 1024
    header_bytes: int = 1024

    @property
    def ping(self) -> BodyLimit:
        """What the body of one ping may have."""
        return BodyLimit(self.ping_bytes, self.ping_bytes, "--max-ping-mib")

    @property
    def batch(self) -> BodyLimit:
        """What the body of a batch may have."""
        sent, unpacked = max(self.batch_bytes, self.ping_bytes), max(self.decompressed_bytes, self.ping_bytes)
        return BodyLimit(sent, unpacked, "--max-batch-mib")


@dataclass(frozen=True, kw_only=True)
class IngestSettings:
    """What ``fedping ingest`` was asked to do.

    A journal segment is rolled, and then compacted, when it has ``roll_bytes`` or is ``compact_every`` seconds old.
    ``demo_page`` serves a page to try the study with, below ``/demo/``. What is the operator's has a listener of its
    own, at ``operations_host`` and ``operations_port`` (0: any free one).
    """

    store: Path
    landing: Path
    journal: Path
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 2
    threads: int = 64
    compact_every: float = 60.0
    roll_bytes: int = 64 * MIB
    limits: Limits = Limits()
    demo_page: bool = False
    operations_host: str = "127.0.0.1"
    operations_port: int = OPERATIONS_PORT

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
        return self.landing / ".rejected"

    @property
    def flush_request(self) -> Path:
        """The file whose change asks every worker to roll its segment now."""
        return self.journal / ".flush"
