"""Requests to an object store: S3 and compatible services, Google Cloud Storage, Azure Blob Storage.

Credentials, region and endpoint come from the environment, from the variables that the tools of these services read
(``docs/object-stores.md``). Temporary failures (no connection, a time-out, 429, 5xx, a truncated answer) are retried at
growing intervals for :data:`PATIENCE` seconds; permanent failures raise an error with a sentence.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeVar

from fedping.protocol.errors import FedpingError, InvalidSettings, TemporaryFailure
from fedping.protocol.location import Bucket

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_T = TypeVar("_T")

PATIENCE = 20.0
"""Seconds during which a request is retried; the variable :data:`PATIENCE_VARIABLE` overrides it."""

PATIENCE_VARIABLE = "FEDPING_STORAGE_PATIENCE"

LONGEST_PATIENCE = 300.0
"""Maximum of :data:`PATIENCE_VARIABLE`, in seconds; renewed credentials may expire a few minutes later."""

ANSWERS_WITHIN = 60.0
"""Maximum seconds for one answer; an answer whose bytes stop arriving is given up after 15 seconds."""

_MOST_TRIES = 10_000
"""Maximum tries: more than fit into :data:`LONGEST_PATIENCE`, so that only time ends them."""

BROKEN_ANSWERS = ("body error",)
BROKEN_PUTS = (*BROKEN_ANSWERS, "error sending request", "NoSuchUpload", "InvalidBlockList")
"""The library's texts for connections that broke during a put. The library does not retry a put that may have
succeeded. If it retries the end of a multipart upload that has succeeded, the answer is that the upload no longer
exists."""

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_NAMELESS = "Encountered object with invalid path"
"""The library's text for a listed object whose name it cannot request."""

_CLOCKS_APART = ("RequestTimeTooSkewed", "Request date header too old", "reasonable timeframe")
"""Texts of S3, Azure and Google's token issuer for a request whose time differs from theirs by minutes."""

_NOT_ALLOWED = re.compile(
    r"status code: 40[13]\b|<Code>(Expired|Invalid)Token<|invalid_grant|lacked valid authentication credentials"
)
"""Answers to requests with bad or expired credentials. The codes come with status 400 from S3 and token issuers; the
last text is the library's, if a profile's credentials cannot be renewed."""

_PANIC = "its library can't build a request from the environment's settings"

_STAYS = re.compile(rf"status code: (3\d\d|4(?!08|25|29)\d\d)\b|{_PANIC}")
"""Permanent errors, which need a person's action: redirects and all 4xx except time-outs and too many requests."""

_IF_IT_STAYS = "correct the endpoint, region or credentials in the environment if it stays so"

_LONGEST_REASON = 300

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}

_ONE_LINE = {
    "s3": (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN"),
        *("AWS_REGION", "AWS_DEFAULT_REGION"),
    ),
    "gs": ("GOOGLE_BEARER_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    "az": (
        *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"),
        *("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"),
    ),
}
"""Variables whose values the library puts into requests, and which must therefore be a single line."""

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; no connection string",
}
"""The variables with credentials that a user most likely has, for messages."""


class StorageAway(FedpingError):
    """The object store that holds a model store or a landing folder does not answer, or refuses a request."""


class StorageUnavailable(StorageAway, TemporaryFailure):
    """An object store doesn't answer or reports a temporary problem; the same command may succeed later."""


class Unsettled(OSError):
    """A put has an unknown outcome: whether the object was created, and by which writer."""


@contextmanager
def told(what: str, where: Bucket, let: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Re-raise the library's errors as :class:`StorageAway`: "cannot ``what`` ``where`` in the object store".

    Errors in ``let`` are left to the caller, unless they say that the bucket does not exist.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, NotImplementedError) as error:
        if isinstance(error, let) and not any(code in str(error) for code in _NO_BUCKET):
            raise
        remedy = _remedy(str(error), where)
        stays = remedy is not None or isinstance(error, NotImplementedError) or _STAYS.search(str(error)) is not None
        passes = isinstance(error, Unsettled) or not stays
        kind, remedy = StorageUnavailable if passes else StorageAway, remedy or _IF_IT_STAYS
        raise kind(f"cannot {what} {where} in the object store ({_reason(error)}); {remedy}") from error


def _remedy(said: str, where: Bucket) -> str | None:
    """Return the remedy for an error of the library, as text for a message; None if the error may be temporary."""
    if any(code in said for code in _NO_BUCKET):
        return f"'{where.name}' does not exist. Create it, or correct the address"
    if _NAMELESS in said:
        return "remove that object, which is none of fedping's, with the tool of the object store"
    if any(words in said for words in _CLOCKS_APART):
        return "this machine's clock is wrong: set it, by NTP, say"
    if _NOT_ALLOWED.search(said):
        return "give credentials that may, and have not expired, by the environment"
    if "conditional put is disabled" in said:
        return "nothing can be published once without such puts: unset AWS_CONDITIONAL_PUT"
    return None


@cache
def connection(place: Bucket) -> ObjectStore:
    """Return the process's shared connection to a bucket; raise :class:`InvalidSettings` for a bad environment."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    _check_endpoints(place)
    _check_variables(place)
    given: dict[str, Any] = {
        "client_options": {
            "allow_http": any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS[place.scheme]),
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": timedelta(seconds=15),
            "timeout": timedelta(seconds=ANSWERS_WITHIN),
            "user_agent": "fedping",
        },
        "retry_config": {
            "max_retries": _MOST_TRIES,
            "retry_timeout": timedelta(seconds=_patience()),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
        },
    }
    if place.scheme == "s3" and (provider := _of_profile()) is not None:
        given["credential_provider"] = provider
    try:
        return from_url(str(place), **given)
    except (BaseError, ValueError) as error:
        raise InvalidSettings(
            f"{place} cannot be opened ({_reason(error)}); give what is missing by the environment, such as "
            f"{_CREDENTIALS[place.scheme]}"
        ) from error


def _check_endpoints(place: Bucket) -> None:
    """Reject an endpoint that cannot be requested, or that contains a secret, because errors would repeat it."""
    for name in _ENDPOINTS[place.scheme]:
        said = os.environ.get(name)
        if said is not None and not re.fullmatch(r"https?://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9._~/-]*)?", said):
            raise InvalidSettings(
                f"{name} is not an endpoint of an object store. Give http://HOST:PORT or https://HOST alone, and "
                "credentials by their own variables"
            )


def _check_variables(place: Bucket) -> None:
    """Reject a variable's value that no request header can hold, such as one with a line break."""
    for name in _ONE_LINE[place.scheme]:
        said = os.environ.get(name, "")
        if said != said.strip() or not said.isprintable():
            raise InvalidSettings(
                f"{name} has a line break, or a space at an end, such as a value read from a file. Set it without"
            )


def _of_profile() -> Any | None:
    """Return the credentials provider of the AWS profile; None if the environment has other credentials."""
    if "AWS_ACCESS_KEY_ID" in os.environ or not (profile := os.environ.get("AWS_PROFILE")):
        return None
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise InvalidSettings(
            f"the credentials of AWS_PROFILE={profile} are read by boto3, which is not installed; install it with "
            "'pip install boto3', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile))
    except (BotoCoreError, ValueError) as error:
        raise InvalidSettings(
            f"the credentials of AWS_PROFILE={profile} cannot be read ({_reason(error)}); correct its name, or log in"
        ) from error


def _patience() -> float:
    said = os.environ.get(PATIENCE_VARIABLE)
    if said is None:
        return PATIENCE
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= LONGEST_PATIENCE:
        raise InvalidSettings(
            f"{PATIENCE_VARIABLE}={said} is not a number of seconds for retries. Set 0 to {LONGEST_PATIENCE:.0f}"
        )
    return seconds


def heeding(ask: Callable[[], _T]) -> _T:
    """Return the result of a request, handling Ctrl-C and other signals meanwhile, which the library would not do."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        return _calm(ask)
    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(_calm(ask))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="object store", daemon=True).start()
    return answer.result()


def _calm(ask: Callable[[], _T]) -> _T:
    """Return the result of a request; raise a panic of the library, which isn't an Exception, as OSError."""
    try:
        return ask()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(_PANIC) from error


def again(ask: Callable[[], _T], broken: tuple[str, ...]) -> _T:
    """Return the result of a request, retried if the connection broke; the library doesn't retry such requests."""
    from obstore.exceptions import GenericError

    until, pause = time.monotonic() + _patience(), 0.1
    while True:
        try:
            return ask()
        except (GenericError, FileNotFoundError, Unsettled) as error:
            broke = isinstance(error, Unsettled) or any(words in str(error) for words in broken)
            if not broke or time.monotonic() + pause > until:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def check_bucket(error: FileNotFoundError) -> None:
    """Re-raise the error if the bucket itself is missing, rather than only an object."""
    if any(code in str(error) for code in _NO_BUCKET):
        raise error


def _reason(error: BaseException) -> str:
    """Return the first line of an object store's answer, without parts of addresses that may be secret."""
    said = re.split(r"<\?xml|<Error\b|Debug source:", str(error))[0]
    code = _code(error)
    said = re.sub(r"//[^/\s@]*@", "//", re.sub(r"\?\S*", "", said))
    text = shorten(re.sub(r"<[^>]*>", " ", said), _LONGEST_REASON, placeholder=" …").rstrip(": ")
    return (f"{code}: " if code else "") + text


def _code(error: BaseException) -> str:
    """Return the error code in an answer; "" if it has none, such as an answer to HEAD."""
    found = re.search(r"<Code>([^<]{1,80})</Code>", str(error))
    return found[1] if found else ""
