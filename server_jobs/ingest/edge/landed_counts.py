"""How much has landed for the next round of a line: pings, and clients whose updates it could use."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TypeAlias

from fedping.protocol.documents import DocumentType
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import open_pings
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place

MOST_ROWS = 20_000
"""In files of more rows altogether, clients are not counted: whoever has that many asks the round."""

Key: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True)
class _Counted:
    rows: int
    clients: frozenset[bytes]


class LandedCounts:
    """Counts of the current version of each line. A landed file never changes, so that each is read once."""

    def __init__(self, landing: Place) -> None:
        self._landing = open_landing(landing)
        self._known: dict[tuple[str, str], tuple[int, dict[Place, _Counted]]] = {}
        self._lock = threading.Lock()

    def of(self, document: DocumentType, study: str, line: str, iteration: int) -> dict[str, int | None]:
        """Return ``pings``, all that have landed for this version, and ``clients``, None for too many to count.

        Duplicates count, and so do updates that the round will find damaged: it is an estimate for people to look at.
        """
        files = self._landing.files(study, line, iteration)
        with self._lock:
            last, before = self._known.get((study, line), (iteration, {}))
            known = before if last == iteration else {}
            counted = {file: known.get(file) or _counted(document, file) for file in files}
            self._known[study, line] = (iteration, counted)
        rows = sum(each.rows for each in counted.values())
        clients: frozenset[bytes] = frozenset().union(*(each.clients for each in counted.values()))
        return {"pings": rows, "clients": len(clients) if rows <= MOST_ROWS else None}


def _counted(document: DocumentType, file: Place) -> _Counted:
    """Return the counts of one file; nothing of one that cannot be read, of which the round tells."""
    import pyarrow as pa

    from fedping.protocol.arrow import UPDATE_ENCODING, counted

    columns = ["client_id", UPDATE_ENCODING, *document.counted_by]
    try:
        landed = open_pings(file, document, columns)
        rows = landed.footer.num_rows
        if rows > MOST_ROWS:
            return _Counted(rows, frozenset())
        with landed.opened() as opened:
            table = opened.read(columns=columns)
    except (OSError, FedpingError):
        return _Counted(0, frozenset())
    examples = document.examples(counted(table, document).to_numpy())
    useful = (examples > 0) & table[UPDATE_ENCODING].is_valid().to_numpy()
    return _Counted(rows, frozenset(table["client_id"].filter(pa.array(useful)).to_pylist()))
