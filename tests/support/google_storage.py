"""An in-memory stand-in for the part of Google Cloud Storage's XML API that fedping uses.

No emulator in a package index suffices: they implement the JSON API, and lack the XML API's conditional puts, lists
or metadata. This server follows Google's description, not its observed behaviour.

    PUT /BUCKET                 make a bucket; this one is for tests, and asks for no project
    GET /BUCKET?list-type=2     delimiter, prefix, max-keys, start-after, continuation-token
    PUT /BUCKET/OBJECT          x-goog-if-generation-match, Cache-Control, Content-Type, x-goog-meta-*
    GET, HEAD /BUCKET/OBJECT    Range
    DELETE /BUCKET/OBJECT
    POST /BUCKET/OBJECT?uploads                        begin an upload in parts; the headers of a put
    PUT /BUCKET/OBJECT?partNumber=N&uploadId=ID        send one
    POST, DELETE /BUCKET/OBJECT?uploadId=ID            make the object of them, or give the upload up
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

TOKEN = "a-token-of-tests"
PAGE = 1000
LEAST_PART = 5 * 2**20
"""Minimum bytes of every part except the last."""

Start = Callable[..., Any]


@dataclass(frozen=True)
class _Object:
    data: bytes
    generation: int
    headers: tuple[tuple[str, str], ...]
    modified: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def tag(self) -> str:
        """Google's entity tag of an object sent in one request: the MD5 of its bytes."""
        return _tag(self.data)


@dataclass(frozen=True)
class _Upload:
    bucket: str
    key: str
    headers: tuple[tuple[str, str], ...]
    parts: dict[int, bytes] = field(default_factory=dict)


class _Refused(Exception):
    def __init__(self, status: str, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message


_Answer = tuple[str, list[tuple[str, str]], bytes]


class GoogleStorage:
    """A WSGI application; callers must send the token :data:`TOKEN`."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, _Object]] = {}
        self._uploads: dict[str, _Upload | None] = {}
        self._generation = 0
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        try:
            status, headers, body = self._answer(environ)
        except _Refused as refused:
            status, headers = refused.status, [("Content-Type", "application/xml; charset=UTF-8")]
            body = error_body(refused.code, refused.message)
        if not any(name == "Content-Length" for name, _ in headers):
            headers.append(("Content-Length", str(len(body))))
        start(status, headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environ: dict[str, Any]) -> _Answer:
        said = environ.get("HTTP_AUTHORIZATION")
        if said is None:
            raise _Refused(
                "403 Forbidden", "AccessDenied", "Anonymous caller does not have storage.objects.get access."
            )
        if said != f"Bearer {TOKEN}":
            raise _Refused("401 Unauthorized", "AuthenticationRequired", "Authentication required.")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = environ["PATH_INFO"].encode("latin-1").decode()
        bucket, _, key = path.removeprefix("/").partition("/")
        method = environ["REQUEST_METHOD"]
        with self._lock:
            if method == "PUT" and not key:
                self._buckets.setdefault(bucket, {})
                return "200 OK", [], b""
            if bucket not in self._buckets:
                raise _Refused("404 Not Found", "NoSuchBucket", "The specified bucket does not exist.")
            objects = self._buckets[bucket]
            asked = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
            if not key:
                return _list(bucket, objects, asked)
            if "uploads" in asked or "uploadId" in asked:
                return self._in_parts(objects, bucket, key, body, environ, asked)
            if method == "PUT":
                return self._put(objects, key, body, environ)
            if key not in objects:
                raise _Refused("404 Not Found", "NoSuchKey", "The specified key does not exist.")
            if method == "DELETE":
                del objects[key]
                return "204 No Content", [], b""
            return _get(objects[key], environ.get("HTTP_RANGE"))

    def _in_parts(
        self,
        objects: dict[str, _Object],
        bucket: str,
        key: str,
        body: bytes,
        environ: dict[str, Any],
        asked: dict[str, list[str]],
    ) -> _Answer:
        if "uploads" in asked:
            upload = f"upload-{len(self._uploads)}"
            self._uploads[upload] = _Upload(bucket, key, tuple(_kept(environ)))
            told = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return _xml("InitiateMultipartUploadResult", told)
        upload = asked["uploadId"][0]
        begun = self._uploads.get(upload)
        if begun is None or (begun.bucket, begun.key) != (bucket, key):
            raise _Refused("404 Not Found", "NoSuchUpload", "The requested upload was not found.")
        if environ["REQUEST_METHOD"] == "PUT":
            begun.parts[int(asked["partNumber"][0])] = body
            return "200 OK", [("ETag", _tag(body))], b""
        self._uploads[upload] = None
        if environ["REQUEST_METHOD"] == "DELETE":
            return "204 No Content", [], b""
        named = re.findall(r"<Part>.*?</Part>", body.decode(), re.DOTALL)
        numbers = [int(re.search(r"<PartNumber>(\d+)</PartNumber>", each)[1]) for each in named]  # type: ignore[index]
        if any(len(begun.parts.get(number, b"")) < LEAST_PART for number in numbers[:-1]):
            raise _Refused("400 Bad Request", "EntityTooSmall", "A part but the last is too small.")
        self._generation += 1
        data = b"".join(begun.parts[number] for number in numbers)
        objects[key] = made = _Object(data, self._generation, begun.headers)
        status, headers, answer = _xml("CompleteMultipartUploadResult", f"<ETag>{escape(made.tag)}</ETag>")
        return status, [*headers, ("x-goog-generation", str(made.generation))], answer

    def _put(self, objects: dict[str, _Object], key: str, body: bytes, environ: dict[str, Any]) -> _Answer:
        there = objects[key].generation if key in objects else 0
        wanted = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH")
        if wanted is not None and int(wanted) != there:
            message = "At least one of the pre-conditions you specified did not hold."
            raise _Refused("412 Precondition Failed", "PreconditionFailed", message)
        self._generation += 1
        objects[key] = made = _Object(body, self._generation, tuple(_kept(environ)))
        return "200 OK", [("ETag", made.tag), ("x-goog-generation", str(made.generation))], b""


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _xml(name: str, told: str, namespace: str = "http://s3.amazonaws.com/doc/2006-03-01/") -> _Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><{name} xmlns='{namespace}'>{told}</{name}>"
    return "200 OK", [("Content-Type", "application/xml; charset=UTF-8")], body.encode()


def error_body(code: str, message: str) -> bytes:
    """Return Google's body of an error response."""
    told = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    return f"<?xml version='1.0' encoding='UTF-8'?>{told}".encode()


def _kept(environ: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the headers of a put that are later served with the object."""
    yield "Content-Type", environ.get("CONTENT_TYPE") or "application/octet-stream"
    if "HTTP_CACHE_CONTROL" in environ:
        yield "Cache-Control", environ["HTTP_CACHE_CONTROL"]
    for name, value in environ.items():
        if name.startswith("HTTP_X_GOOG_META_"):
            yield name.removeprefix("HTTP_").lower().replace("_", "-"), value


def _get(found: _Object, wanted: str | None) -> _Answer:
    headers = [
        ("ETag", found.tag),
        ("Last-Modified", format_datetime(found.modified, usegmt=True)),
        ("x-goog-generation", str(found.generation)),
        *found.headers,
    ]
    size = len(found.data)
    span = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
    if span is None:
        return "200 OK", [*headers, ("Content-Length", str(size))], found.data
    first = int(span[1]) if span[1] else max(0, size - int(span[2]))
    after = min(size, int(span[2]) + 1) if span[1] and span[2] else size
    if first >= after:
        raise _Refused(
            "416 Requested Range Not Satisfiable", "InvalidRange", "The requested range cannot be satisfied."
        )
    part = found.data[first:after]
    headers += [("Content-Range", f"bytes {first}-{after - 1}/{size}"), ("Content-Length", str(len(part)))]
    return "206 Partial Content", headers, part


def _list(bucket: str, objects: dict[str, _Object], asked: dict[str, list[str]]) -> _Answer:
    """Answer with at most one page of objects and, with a delimiter, of their common prefixes."""
    prefix, delimiter = (asked.get(name, [""])[0] for name in ("prefix", "delimiter"))
    after = max(asked.get(name, [""])[0] for name in ("continuation-token", "start-after"))
    most = min(PAGE, int(asked.get("max-keys", [str(PAGE)])[0]))
    entries: dict[str, _Object | None] = {}
    for key in sorted(key for key in objects if key.startswith(prefix)):
        within = key.removeprefix(prefix)
        folder = f"{prefix}{within.partition(delimiter)[0]}{delimiter}" if delimiter and delimiter in within else None
        entries.setdefault(folder or key, None if folder else objects[key])
    names = [name for name in entries if name > after]
    shown, cut = names[:most], len(names) > most
    told = [f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{most}</MaxKeys>"]
    told.append(f"<KeyCount>{len(shown)}</KeyCount><IsTruncated>{str(cut).lower()}</IsTruncated>")
    if cut:
        told.append(f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>")
    for name in shown:
        each = entries[name]
        if each is None:
            told.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
        else:
            told.append(
                f"<Contents><Key>{escape(name)}</Key><Generation>{each.generation}</Generation>"
                f"<LastModified>{each.modified.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}</LastModified>"
                f"<ETag>{escape(each.tag)}</ETag><Size>{len(each.data)}</Size></Contents>"
            )
    return _xml("ListBucketResult", "".join(told), namespace="http://doc.s3.amazonaws.com/2006-03-01")
