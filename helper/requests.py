"""Answering requests as they arrive: one answer for each version, written to disk before it is sent."""

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
"""Maximum bytes of a request apart from its clients: the signature, names, and positions of the parts."""


class _Heading(Struct, frozen=True):
    """The few fields of a request that are read before its signature is checked."""

    study: Name
    line: Name
    arms: Annotated[tuple[Raw, ...], Meta(max_length=MOST_ARMS)]


class Reply(NamedTuple):
    """An answer, and facts about the answer that may be logged.

    Attributes:
        data: the answer in the form that is sent.
        study: the study of the line.
        line: the line.
        version: the version that the answer is for.
        clients: number of clients in the request.
        refused: number of clients that the answer leaves out.
        again: whether the request had been answered before.
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
    """Return the answer to a request, after writing the answer to disk; the same request gets the same bytes.

    Args:
        folder: the helper's folder.
        data: the request as it arrived, from any sender.
        now: the helper's time, with a time zone.
        noise: draws the noise; None for the operating system's randomness.
        threads: number of threads that open shares.
        on_step: called with each finished step: "read", "searched", "looked", "summed", "signed", "written", "kept".

    Raises:
        Refused: the request is refused, for a reason that the sender may learn. Nothing of the request is stored.
        FedpingError: the helper's folder is faulty.
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
    with _refusing_without_disk(), folder.records() as records:
        pinned = records.line(heading.study, heading.line)
        if pinned is None:
            raise Refused(
                "unknown",
                f"this helper has not joined line '{heading.line}' of study '{heading.study}'; its operator has to",
            )
        offers = records.offers(pinned.number)
        terms = terms_of(current(offers), folder.identity)
        if not is_from(data, Request, terms.leader):
            raise Refused(
                "forged",
                f"the request is not signed by the leader {terms.leader[:16]}… of line '{pinned.line}' of study "
                f"'{pinned.study}'",
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
        # Another process may have answered since the search above, and used these documents.
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
            known = _known(records, pinned, request.version, digest)  # by another process in the meantime
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
    """Return the bytes of a file with a request.

    Raises:
        InvalidSettings: the file can't be read, or is longer than any request for the helper's lines.
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
            f"{file} has more than {most:,} bytes, so it is not a request of a line of this helper; give another file"
        )
    return data


def write_answer(file: Path, data: bytes) -> None:
    """Write an answer to a file atomically, so that the file is never incomplete.

    Raises:
        FedpingError: the file can't be written; the answer remains in the records.
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
            f"the answer cannot be written to {file}: {error.strerror}; it is stored: answer the request again"
        ) from error


def largest_request(terms: Terms) -> int:
    """Return the maximum size of a request for a line with these terms, in bytes."""
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
        raise _unreadable("its version's number is too large")
    return request


def _unreadable(why: object) -> Refused:
    return Refused("unreadable", f"this helper can't read the request: {why}")


def _known(records: Records, pinned: Pinned, version: int, digest: str) -> Answered | None:
    """Return the recorded answer to a request; None if the request has not been answered.

    Raises:
        Refused: another request for the version was answered, or may have been answered.
    """
    answered = records.answered(pinned.number, version)
    if answered is not None and answered.request == digest:
        return answered
    if answered is not None:
        raise Refused("answered", f"version {version} was answered to another request; a version has one answer")
    if version < pinned.first:
        raise Refused(
            "answered",
            f"version {version} may have been answered before this helper was restored; it answers from version "
            f"{pinned.first} on",
        )
    return None


def _check_rounds(records: Records, pinned: Pinned) -> None:
    """Raise :class:`Refused` if the guarantee to clients allows no further answer."""
    if pinned.rounds is not None and records.answers(pinned.number) >= pinned.rounds:
        raise Refused(
            "other_terms",
            f"the guarantee of line '{pinned.line}' of study '{pinned.study}' is for {pinned.rounds:,} rounds, and "
            "all are answered. The line has ended",
        )


@contextmanager
def _refusing_without_disk() -> Iterator[None]:
    """Turn disk errors of the records into a refusal."""
    try:
        yield
    except (sqlite3.Error, OSError, Unavailable) as error:
        raise Refused("storage", _of_storage(error)) from error


def _of_storage(error: BaseException) -> str:
    while isinstance(error, Unavailable) and error.__cause__ is not None:
        error = error.__cause__
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return "the helper's disk has no room left, so nothing was answered; its operator must make room: ask again"
    if code == sqlite3.SQLITE_BUSY:
        return "the helper's records are in use, so nothing was answered; ask again"
    return "the helper cannot read or write its records, so nothing was answered; its operator must look: ask again"
