"""The newest entries of ingest's rejection log, and the meanings of its reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from fedping.dashboard.feeds import last_lines
from fedping.protocol.formats import NewerFormat, without_format

TAIL_BYTES = 64 * 1024
"""Bytes read from the end of each log; a line has about 150 bytes."""

NEWEST = 50

WORDS = {
    "path": "an address that does not exist",
    "page": "a page or a model that could not be served (not a ping)",
    "unknown_study": "a study that the store does not have",
    "unknown_type": "another type of ping than the study's",
    "unknown_version": "an unknown version of the protocol",
    "ticket_missing": "no ticket, in a study that needs one",
    "ticket_forged": "a ticket of another client, or of an unknown key",
    "ticket_expired": "a ticket that is too old",
    "beyond_limits": "a loss or a rank beyond the study's limits",
    "update_range": "an update beyond its line's limits",
    "not_enrolled": "a client id that is assigned to another arm",
    "study_ended": "a ping of a study that has ended",
    "document_id": "no document id, or an invalid one",
    "too_many_lines": "too many lines in one batch",
    "method": "neither POST nor PUT",
    "length_required": "a body without its length",
    "body_too_large": "a body that is too large (--max-batch-mib, --max-ping-mib)",
    "decompressed_too_large": "a body that is too large when unpacked",
    "path_too_long": "an address that is too long",
    "content_type": "an unsupported content type",
    "content_encoding": "an unsupported compression",
    "header_too_large": "a header that is too large",
    "body_incomplete": "a body that ended early",
    "decompression": "a body that cannot be unpacked",
    "not_utf8": "a body that is not UTF-8",
    "not_json": "a body that is not JSON",
    "nesting": "a body that is nested too deeply",
    "duplicate_key": "a field that occurs twice",
    "not_a_ping": "a field that is missing, unknown or of the wrong kind",
    "unknown_arm": "an arm that the study does not have",
    "update_not_expected": "an update from an arm that does not train",
    "update_missing": "no update from an arm that trains",
    "update_length": "an update of another model",
    "update_encoding": "an update in another encoding than its line's",
    "update_payload": "an update whose bytes do not match its encoding",
    "update_not_zero": "an update without an example that is not zero",
    "outcome_undeclared": "an outcome that the study does not declare",
    "outcome_bounds": "an outcome beyond its bounds, or not rounded as declared",
    "outcome_late": "an outcome too late after its choice",
    "outcome_choice": "an outcome with a wrong choice, or an id that does not match its choice",
    "model_version": "a version that was never published",
    "version_unseen": "the store could not be read to look for a version; clients resend these",
    "study_unreadable": "the study could not be read; clients resend these",
    "beyond_study": "more bytes or numbers than any ping of the study can have",
    "body_timeout": "a body that arrived too slowly; clients resend these",
    "too_many_pings": "too many pings from one network (--prefix-rate); clients resend these",
    "busy": "too many bytes of requests at once; clients resend these",
    "not_read": "the rest of a batch, after a thousand rejected lines",
    "no_ping_accepted": "a batch without a single valid line",
    "disk_full": "the disk was full; clients resend these",
    "not_stored": "the journal could not be written; clients resend these",
    "internal": "a bug in fedping",
}
"""Descriptions of the rejection reasons."""


class Refusal(Struct, frozen=True, kw_only=True):
    """An entry of a rejection log; ``left_out`` is the number of rejections that were not logged within a second."""

    time: str
    study: str = ""
    status: int | None = None
    reason: str | None = None
    words: str = ""
    detail: str = ""
    left_out: int | None = None


def newest_refusals(folder: Path, study: str, most: int = NEWEST) -> list[Refusal]:
    """Return the newest rejections of pings that name the given study or no study, newest first.

    Args:
        folder: the folder of the rejection logs of ingest's processes; it need not exist.
        study: the study's name.
        most: maximum number of entries.
    """
    entries = [entry for path in sorted(folder.glob("*.jsonl")) for entry in _tail(path)]
    concerned = [entry for entry in entries if entry.study in ("", study)]
    return sorted(concerned, key=lambda entry: entry.time, reverse=True)[:most]


def _tail(path: Path) -> Iterator[Refusal]:
    """Yield the entries at the end of a log; skip lines that are incomplete or not entries."""
    for line in last_lines(path, TAIL_BYTES):
        try:
            entry = msgspec.json.decode(without_format(line, f"a line of {path}"), type=Refusal)
        except NewerFormat as error:
            yield Refusal(time="", words=str(error))
            continue
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        yield msgspec.structs.replace(entry, words=WORDS.get(entry.reason or "", ""))
