"""Costs of a warm round over a bucket, relative to the same files in a folder: time, requests, bytes, memory.

    python -m benchmarks.bucket_rounds [--json] [--pings 5700000] [--rows-per-file 100000] [--repeats 5] [--seed 1]
                                       [--keep FOLDER]

The object store is nginx on this machine, which serves ranges of the folder's files, and a small process that lists
them; so the figures are fedping's cost, not a server's. It has no latency: a real one adds about 10 to 30 ms per
request, for which tasks wait in parallel. The ways take turns after one turn to warm up. Their results must be
bit-identical, else the run stops.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.aggregation import M, _driver_mb, aggregate, in_turns, landed, opened_folder, study_of
from benchmarks.ingest import free_port
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place, place_of
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.manifest import list_landed, work_on
from fedping.server_jobs.round.plan import Work, rules_for
from fedping.server_jobs.round.spark_engine import SparkEngine
from fedping.server_jobs.spark.session import spark_session
from fedping.server_jobs.spark.settings import SparkSettings

BUCKET = "benchmark"

_NGINX = """
daemon off; pid {folder}/nginx.pid; worker_processes 1; error_log {folder}/error.log; {user}
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    log_format seen '$request_method $status $bytes_sent';
    access_log {folder}/seen.log seen;
    sendfile on;
    server {{
        listen 127.0.0.1:{port};
        location /{bucket} {{
            if ($args ~ list-type) {{ proxy_pass http://127.0.0.1:{lister}; }}
            alias {root};
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Row:
    """Costs of a round over bucket or folder: median and fastest seconds, requests, MB sent, and the driver's peak."""

    what: str
    seconds: float
    fastest: float
    beside_folder: float
    requests: int | None = None
    megabytes: float | None = None
    driver_mb: float | None = None


class _Lister(BaseHTTPRequestHandler):
    """Answers S3's ListObjectsV2 from a folder."""

    root: Path

    def do_GET(self) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        prefix = unquote(asked.get("prefix", ""))
        keys = sorted(
            str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file() and path.name[0] != "."
        )
        found = [key for key in keys if key.startswith(prefix)]
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<Size>{(self.root / key).stat().st_size}</Size></Contents>"
            for key in found
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@dataclass(frozen=True)
class ObjectStore:
    """A running object store: a bucket of a folder's files, and the requests that it has answered."""

    folder: Path

    def seen(self) -> tuple[int, int]:
        """Return the number of requests, and the bytes of the answers."""
        lines = (self.folder / "seen.log").read_text().splitlines()
        return len(lines), sum(int(line.split()[2]) for line in lines)


@contextmanager
def object_store(root: Path) -> Iterator[ObjectStore]:
    """Serve a folder as a bucket, which this process and its children find by environment variables."""
    lister = ThreadingHTTPServer(("127.0.0.1", 0), type("Lister", (_Lister,), {"root": root}))
    threading.Thread(target=lister.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as made:
        folder, port = Path(made), free_port()
        user = "user root;" if os.geteuid() == 0 else ""
        settings = {"folder": folder, "port": port, "lister": lister.server_port, "root": root, "bucket": BUCKET}
        (folder / "nginx.conf").write_text(_NGINX.format(user=user, **settings))
        nginx = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "error.log"])
        given = {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }
        os.environ.update(given)
        try:
            while not (folder / "nginx.pid").exists():
                if nginx.poll() is not None:
                    raise SystemExit("nginx did not start")
                time.sleep(0.02)
            yield ObjectStore(folder)
        finally:
            nginx.terminate()
            nginx.wait()
            lister.shutdown()


def work_in(landing: Place) -> Work:
    """List a landing folder as a round does, and return its work."""
    study = study_of(M)
    manifest = list_landed(landing, study, "main", 0)
    return work_on(open_landing(landing), manifest.inputs, rules_for(study, "main", 0, key=b""))


def compare(where: Path, pings: int, rows: int, repeats: int, seed: int) -> Iterator[Row]:
    landed(where, pings, M, seed, rows)
    root = where / f"landing-{pings}-{M}-{seed}"
    with object_store(root) as store, spark_session(SparkSettings()) as session:
        from contextlib import nullcontext

        here, there = root, place_of(f"s3://{BUCKET}")
        spark = SparkEngine(lambda: nullcontext(session))
        both = {"folder": work_in(here), "bucket": work_in(there)}
        rules = both["folder"].rules

        def run(engine: NumpyEngine | SparkEngine, name: str) -> object:
            return aggregate(engine, list(both[name].paths), pings, rules).updates.mean

        ways: dict[str, Callable[[], object]] = {
            f"{engine}, {name}": partial(run, made, name)
            for engine, made in (("spark", spark), ("numpy", NumpyEngine()))
            for name in both
        }
        listing: dict[str, Callable[[], object]] = {
            "listing, folder": partial(work_in, here),
            "listing, bucket": partial(work_in, there),
        }
        for kind in ("spark", "numpy"):
            one, other = (np.asarray(ways[f"{kind}, {name}"]()) for name in both)
            assert one.tobytes() == other.tobytes(), "a bucket has given other bits"
        yield from _rows({**ways, **listing}, store, repeats)


def _rows(ways: Mapping[str, Callable[[], object]], store: ObjectStore, repeats: int) -> Iterator[Row]:
    taken = in_turns(ways, repeats)
    for name, seconds in taken.items():
        beside = taken[re.sub(r"bucket$", "folder", name)]
        ratio = statistics.median(a / b for a, b in zip(seconds, beside, strict=True))
        requests = megabytes = None
        memory = _driver_mb(ways[name]) if name.startswith("spark") else None
        if name.endswith("bucket"):
            before = store.seen()
            ways[name]()
            requests, sent = (after - first for after, first in zip(store.seen(), before, strict=True))
            megabytes = sent / 1e6
        yield Row(name, statistics.median(seconds), min(seconds), ratio, requests, megabytes, memory)


def _print(rows: list[Row]) -> None:
    table = Table("way", "seconds", "fastest", "of the folder's", "requests", "MB", "driver's peak")
    for row in rows:
        table.add_row(
            row.what,
            f"{row.seconds:.2f}",
            f"{row.fastest:.2f}",
            f"{row.beside_folder:.2f}",
            "" if row.requests is None else f"{row.requests:,}",
            "" if row.megabytes is None else f"{row.megabytes:,.0f}",
            "" if row.driver_mb is None else f"{row.driver_mb:.0f} MB",
        )
    Console().print(table)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pings", type=int, default=5_700_000)
    parser.add_argument("--rows-per-file", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    with opened_folder(asked.keep) as where:
        rows = list(compare(where, asked.pings, asked.rows_per_file, asked.repeats, asked.seed))
    if asked.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        _print(rows)


if __name__ == "__main__":
    main()
