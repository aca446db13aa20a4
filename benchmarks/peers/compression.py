"""Encodings of updates in fedping, and compressors of FedJAX and FLSim, on the same vectors.

    python -m benchmarks.peers.compression [--vectors learned|million|normal|sparse] [--clients 4] [--draws 64]
                                           [--peers FedJAX FLSim] [--python FedJAX=BINARY] [--json]

The vectors are updates of 10,345 weights that clients of `experiments/papers/hartmann_2018_compression.toml` learn from
version 0; updates of clients of `hartmann_2018_million.toml`; as many normal numbers; or 22 weights with two nonzero
ones, for which one rotation isn't enough. Every way gets each vector ``--draws`` times. The printed columns are

- *said*: bits per weight as the framework counts them; for fedping, bits of the actual payload;
- *handed on*: bits per weight that the framework passes from its client to its server, and the same through zlib;
- *error*: E|h~ - h|² / |h|²;
- *bias²*: |E h~ - h|² / |h|², the error of the mean of all draws, minus its part that is due to chance;
- *ms*: CPU time for encoding and decoding a vector, all threads.

The frameworks run in their own environments (`benchmarks.peers.environments`), or in those of ``--python``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.encodings import LINKS, line_of
from benchmarks.peers.environments import Peer, python_of
from fedping.client_sim.learning import updates_of_fleet
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.encodings.payloads import payload_lengths
from fedping.protocol.upload import receiving, sending

WORKER = Path(__file__).with_name("compression_worker.py")
PAPERS = Path(__file__).parents[2] / "experiments" / "papers"

PEERS = (
    Peer(
        "FedJAX",
        (
            "fedjax==0.0.17",  # from 2023; needs the JAX of that time, which needs libraries of that time
            *("jax==0.4.23", "jaxlib==0.4.23", "dm-haiku==0.0.11", "optax==0.1.9", "numpy==1.26.4", "scipy==1.11.4"),
        ),
        WORKER.name,
    ),
    Peer("FLSim", ("flsim==0.1.0", "torch==2.13.0", "torchvision"), WORKER.name),
)

OURS = (
    *("mask .1", "levels 1", "levels 2", "levels 4", "levels 8", "levels 1, rotated", "levels 4, rotated"),
    *("steps 1", "steps 2", "eden 1", "eden 2"),
)


@dataclass(frozen=True)
class Row:
    """Results of a framework's compressor: bits per weight, relative errors, and milliseconds per vector."""

    framework: str
    way: str
    said: float
    handed_on: float
    zipped: float
    error: float
    bias: float
    milliseconds: float


def learned(file: str, clients: int) -> NDArray[np.float32]:
    """Return the updates that clients of an experiment file learn from version 0, shape (clients, m)."""
    setup = experiment_from_toml(PAPERS / file).variants["dense"]
    problem = prepare(setup, 1, None)
    ids = np.arange(clients)
    found = np.empty((clients, problem.spec.m), np.float32)
    start = problem.spec.start_array
    for block in updates_of_fleet(problem.model, setup.training, start, problem.train, ids, problem.keys(0)):
        found[block.at] = block.updates
    return found


VECTORS: dict[str, Callable[[int], NDArray[np.float32]]] = {
    "learned": lambda clients: learned("hartmann_2018_compression.toml", clients),
    "million": lambda clients: learned("hartmann_2018_million.toml", clients),
    "normal": lambda clients: np.random.default_rng(1).normal(size=(clients, 10_345)).astype(np.float32),
    "sparse": lambda clients: np.tile(np.float32([*[0] * 3, 10.75, *[0] * 3, -4, *[0] * 14]), (clients, 1)),
}


def ours(way: str, vectors: NDArray[np.float32], draws: int) -> Row:
    """Return the result of a fedping encoding for vectors, each encoded separately, as by a client."""
    k, m = vectors.shape
    line = line_of(LINKS[way], m)
    encode, server = sending(line).encode, receiving(line)
    assert encode is not None
    keys = child_keys(root_key(1), np.arange(draws * k)).reshape(draws, k)
    decoded = np.empty((draws, k, m), np.float32)
    bits, zipped, began = 0.0, 0.0, time.process_time()
    for draw in range(draws):
        for place in range(k):
            payloads = encode(vectors[place : place + 1], keys[draw, place : place + 1])
            decoded[draw, place] = server.decode(payloads, m)[0][0]
            bits += 8 * float(payload_lengths(payloads)[0]) / (m * draws * k)
    seconds = (time.process_time() - began) / (draws * k)
    for place in range(k):
        payload = encode(vectors[place : place + 1], keys[0, place : place + 1])[0].as_py()
        zipped += 8 * len(zlib.compress(payload, 6)) / (m * k)
    return Row("fedping", way, bits, bits, zipped, *errors(vectors, decoded), 1000 * seconds)


def theirs(peer: Peer, python: str | Path, vectors: NDArray[np.float32], draws: int) -> list[Row]:
    """Return the results of a framework's compressors for the vectors."""
    with tempfile.TemporaryDirectory() as folder:
        sent, found = Path(folder) / "vectors.npy", Path(folder) / "found.npz"
        np.save(sent, vectors)
        subprocess.run([python, WORKER, peer.name, sent, found, str(draws)], check=True)
        with np.load(found) as told:
            names = [name.removesuffix("/told") for name in told.files if name.endswith("/told")]
            return [_row(peer, name, told[f"{name}/told"], vectors, told[f"{name}/decoded"]) for name in names]


def _row(
    peer: Peer, name: str, told: NDArray[np.float64], vectors: NDArray[np.float32], decoded: NDArray[np.float32]
) -> Row:
    said, handed_on, zipped, seconds = told.tolist()
    return Row(peer.name, name, said, handed_on, zipped, *errors(vectors, decoded), 1000 * seconds)


def errors(vectors: NDArray[np.float32], decoded: NDArray[np.float32]) -> tuple[float, float]:
    """Return the error of decoded vectors, shape (draws, k, m), and their squared bias, corrected for chance."""
    apart = decoded - vectors.astype(np.float64)
    whole = float((vectors.astype(np.float64) ** 2).sum())
    error = float((apart**2).sum(axis=(1, 2)).mean()) / whole
    of_mean = float((apart.mean(axis=0) ** 2).sum()) / whole
    draws = len(decoded)
    return error, max(0.0, (draws * of_mean - error) / (draws - 1))


def table_of(rows: list[Row]) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("framework", "way", "said", "handed on", "zlib", "error", "bias²", "ms"):
        table.add_column(heading, justify="left" if heading in ("framework", "way") else "right")
    for row in rows:
        bits = [f"{each:.2f}" for each in (row.said, row.handed_on, row.zipped)]
        bias = f"{row.bias:.2g}" if row.bias > 1e-3 * row.error else "0"
        table.add_row(row.framework, row.way, *bits, f"{row.error:.3g}", bias, f"{row.milliseconds:.2f}")
    return table


def main(argv: list[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", choices=VECTORS, default="learned")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--draws", type=int, default=64)
    parser.add_argument("--peers", nargs="*", default=[peer.name for peer in PEERS])
    parser.add_argument("--python", action="append", default=[], help="a framework's interpreter: FedJAX=BINARY")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    pythons = dict(each.split("=", 1) for each in options.python)
    vectors = VECTORS[options.vectors](options.clients)
    rows = [ours(way, vectors, options.draws) for way in OURS]
    for peer in PEERS:
        if peer.name in options.peers:
            rows += theirs(peer, pythons.get(peer.name) or python_of(peer), vectors, options.draws)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        Console(width=110).print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
