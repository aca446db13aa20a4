"""Environments of the frameworks, each made once below ``build/peers``."""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "peers"


@dataclass(frozen=True)
class Peer:
    """A framework: its name, the packages to install, and the file that does the work with it."""

    name: str
    packages: tuple[str, ...]
    worker: str


PEERS = (
    Peer("Flower", ("flwr[simulation]==1.41.0",), "flower_worker.py"),
    Peer("JAX", ("jax==0.10.2",), "jax_worker.py"),
    Peer("pfl-research", ("pfl==0.6.0", "torch==2.13.0"), "pfl_worker.py"),
)


def python_of(peer: Peer) -> Path:
    """Return the interpreter of a framework's environment; install the framework if necessary.

    Raises:
        RuntimeError: the framework cannot be installed; the message has the end of the installer's output.
    """
    folder = FOLDER / peer.name.lower()
    python, done = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(peer.packages)
    if done.is_file() and done.read_text() == wanted:
        return python
    print(f"installing {', '.join(peer.packages)} in {folder}", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *peer.packages]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{peer.name} could not be installed: {result.stderr.strip()[-500:]}")
    done.write_text(wanted)
    return python
