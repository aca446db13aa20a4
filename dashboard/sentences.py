"""What went wrong, in one sentence for whoever looks at a page."""

from __future__ import annotations

from protocol.errors import FedpingError

MOST = 200
"""Letters of a path or an address that are said."""


def sentence_of(error: FedpingError | OSError) -> str:
    """Return what an error says, without a full stop; of a file that cannot be used, which and why."""
    if isinstance(error, FedpingError):
        return str(error)
    where = str(error.filename or "a file")[:MOST]
    return f"{where} cannot be used ({(error.strerror or str(error)).lower()}); see to that and try again"
