"""A request as it comes, and the answer as it goes: once for a version, and on disk before anybody has it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import DecodeError, Meta, Raw, Struct, ValidationError, msgpack

from fedping.helper.aggregate import arms_answered, bytes_a_client, check_age
from fedping.helper.enrol import current, keys_of
from fedping.helper.folder import HelperFolder
from fedping.helper.records import LAST_VERSION, Answered, NewAnswer, Pinned, Records, Unavailable
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.local_files import sync_folder
from fedping.protocol.notation import utc_now
from fedping.protocol.sharing.exchange import (
    MOST_CLIENTS,
    SIGNED,
    Answer,
    Refused,
    Request,
    digest_of_signed,
    is_from,
    read_signed,
    signed,
)
from fedping.protocol.sharing.keys import SIGNATURE_BYTES
from fedping.protocol.sharing.offer import Terms, terms_of
from fedping.protocol.weights import Name
from fedping.server_jobs.privacy.noise import Noise, SystemNoise

MOST_ARMS = 64

_AROUND = 16_384
"""Bytes of a request beside what it has of each client: the signature, names, and where what begins."""


class _Heading(Struct, frozen=True):
    """What of a request is read before it is known who has sent it: little, whatever it is."""

    study: Name
    line: Name
    arms: Annotated[tuple[Raw, ...], Meta(max_length=MOST_ARMS)]


class Reply(NamedTuple):
    """An answer as it travels, and what a log may say of it.

    ``clients`` were asked for, of whom ``refused`` are not in it; ``again`` is whether it was answered before.
    """

    data: bytes
    study: str
    line: str
    version: int
    clients: int
    refused: int
    again: bool


def reply(
    folder: HelperFolder,
    data: bytes,
    now: datetime,
    *,
    noise: Noise | None = None,
    threads: int = 1,
    on_step: Callable[[str], None] = lambda _: None,
) -> Reply:
    """Return the answer to a request, which is on disk then; for the same request the same bytes.

    Args:
        folder: the helper's.
        data: the request as it came, from anybody.
        now: the helper's time, with a time zone.
        noise: what draws the noise; the operating system's randomness by default.
        threads: how many open shares at a time.
        on_step: told what was just done: "read", "searched", "looked", "summed", "signed", "written", "kept".

    Raises:
        Refused: there is no answer, for a reason that can be told to whoever asked. Nothing of the request is kept.
        FedpingError: the helper's folder is not in order.
    """
    try:
        return _replied(folder, data, now, noise or SystemNoise(), threads, on_step)
    except Refused as error:
        if error.reason in SIGNED:
            error.sign(digest_of_signed(data), folder.key)
        raise


def _replied(
    folder: HelperFolder, data: bytes, now: datetime, noise: Noise, threads: int, on_step: Callable[[str], None]
) -> Reply:
    heading = _heading(data)
    with _told_of_the_disk(), folder.records() as records:
        pinned = records.line(heading.study, heading.line)
        if pinned is None:
            raise Refused(
                "unknown",
                f"this helper does not take part in line '{heading.line}' of study '{heading.study}'; its operator has "
                "to join it",
            )
        offers = records.offers(pinned.number)
        terms = terms_of(current(offers), folder.identity)
        if not is_from(data, Request, terms.leader):
            raise Refused(
                "forged",
                f"the request is not signed by the leader {terms.leader[:16]}…, whom line '{pinned.line}' of study "
                f"'{pinned.study}' was joined with",
            )
        request, digest = _read(data), digest_of_signed(data)
        on_step("read")
        known = _known(records, pinned, request.version, digest)
        if known is not None:
            return _reply_of(known.answer, pinned, request, again=True)
        on_step("searched")
        check_age(request, now)
        _check_rounds(records, pinned)
        documents = [arm.documents for arm in request.arms]
        used = records.used(pinned.number, documents)
        on_step("looked")
        # Another process may have answered since the look above, and then it is its answer that has used them.
        known = _known(records, pinned, request.version, digest)
        if known is not None:
            return _reply_of(known.answer, pinned, request, again=True)
        arms = arms_answered(terms, keys_of(folder, offers), request, noise, threads, used)
        on_step("summed")
        made = utc_now()
        answer = Answer(
            study=pinned.study, line=pinned.line, version=request.version, request=digest, arms=arms, made=made
        )
        answered = Answered(digest, signed(answer, folder.key))
        on_step("signed")
        with records.writing():
            known = _known(records, pinned, request.version, digest)  # another process may have answered meanwhile
            if known is None:
                _check_rounds(records, pinned)
                refused = sum(len(arm.refused) for arm in arms)
                new = NewAnswer(request.version, answered, made, refused)
                records.keep(pinned.number, new, documents, but=used)
                on_step("written")
        on_step("kept")
        return _reply_of((known or answered).answer, pinned, request, again=known is not None)


def _heading(data: bytes) -> _Heading:
    try:
        return msgpack.decode(memoryview(data)[SIGNATURE_BYTES:], type=_Heading)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error) from error


def read_request(folder: HelperFolder, file: Path) -> bytes:
    """Return the bytes of a file that is to be a request.

    Raises:
        InvalidSettings: it cannot be read, or is longer than any request of the lines here.
    """
    with folder.records() as records:
        newest = [current(records.offers(each.number)) for each in records.lines()]
    most = max((largest_request(terms_of(offer, folder.identity)) for offer in newest), default=_AROUND)
    try:
        with open(file, "rb") as source:
            data = source.read(most + 1)
    except OSError as error:
        raise InvalidSettings(f"the request {file} cannot be read: {error.strerror}; give another file") from error
    if len(data) > most:
        raise InvalidSettings(
            f"{file} has more than {most:,} bytes, so it is no request of a line here; give another file"
        )
    return data


def write_answer(file: Path, data: bytes) -> None:
    """Write an answer to a file, which is whole or as it was.

    Raises:
        FedpingError: it cannot be written; the answer is kept all the same.
    """
    hidden = file.with_name(f".{file.name}.tmp-{os.getpid()}")
    try:
        try:
            with open(hidden, "wb") as sink:
                sink.write(data)
                sink.flush()
                os.fsync(sink.fileno())
            os.replace(hidden, file)
        finally:
            hidden.unlink(missing_ok=True)
        sync_folder(file.parent)
    except OSError as error:
        raise FedpingError(
            f"the answer cannot be written to {file}: {error.strerror}; it is kept: answer the request once more"
        ) from error


def largest_request(terms: Terms) -> int:
    """Return how many bytes a request of a line has at most."""
    return MOST_CLIENTS * bytes_a_client(terms) + _AROUND


def _reply_of(data: bytes, pinned: Pinned, request: Request, *, again: bool) -> Reply:
    arms = read_signed(data, Answer).arms
    clients, refused = sum(arm.clients for arm in request.arms), sum(len(arm.refused) for arm in arms)
    return Reply(data, pinned.study, pinned.line, request.version, clients, refused, again)


def _read(data: bytes) -> Request:
    try:
        request = read_signed(data, Request)
    except ValueError as error:
        raise _unreadable(error) from error
    if request.version > LAST_VERSION:
        raise _unreadable("no version has such a number")
    return request


def _unreadable(why: object) -> Refused:
    return Refused("unreadable", f"this is no request of a leader that this helper can read: {why}")


def _known(records: Records, pinned: Pinned, version: int, digest: str) -> Answered | None:
    """Return the answer that a request has already.

    Raises:
        Refused: another request has it, or may have had it.
    """
    found = records.answered(pinned.number, version)
    if found is not None and found.request == digest:
        return found
    if found is not None:
        raise Refused("answered", f"version {version} is answered, to another request; a version has one answer")
    if version < pinned.first:
        raise Refused(
            "answered",
            f"version {version} may have been answered before this helper was restored, which answers from version "
            f"{pinned.first} on",
        )
    return None


def _check_rounds(records: Records, pinned: Pinned) -> None:
    """Raise :class:`Refused` if as many versions may be answered as the guarantee to clients allows."""
    if pinned.rounds is not None and records.answers(pinned.number) >= pinned.rounds:
        raise Refused(
            "other_terms",
            f"what line '{pinned.line}' of study '{pinned.study}' guarantees is for {pinned.rounds:,} rounds, and so "
            "many are answered; the line is over",
        )


@contextmanager
def _told_of_the_disk() -> Iterator[None]:
    """Have records that cannot be read or written refuse a request."""
    try:
        yield
    except (sqlite3.Error, OSError, Unavailable) as error:
        raise Refused("storage", _of_storage(error)) from error


def _of_storage(error: BaseException) -> str:
    while isinstance(error, Unavailable) and error.__cause__ is not None:
        error = error.__cause__
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return "the helper's disk has no room left, so nothing was answered; its operator has to make room: ask again"
    if code == sqlite3.SQLITE_BUSY:
        return "the helper's records are in use, so nothing was answered; ask again"
    return "the helper cannot read or write its records, so nothing was answered; its operator has to look: ask again"
