"""Reads TensorFlow Federated's HDF5 files in a separate process, which a damaged file can crash or keep busy.

The process gets the file and the wanted features, and answers with the clients' names. It then gets the names of the
clients to read, and answers with their examples, in blocks. Messages are MessagePack, so that the process can't run
code here. Without an answer in time, the process is killed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.client_sim.data.originals import hdf5
from fedping.client_sim.data.originals.hdf5 import Bounds, Columns, Wanted
from fedping.client_sim.data.originals.reading import DamagedFile, damaged, reading
from fedping.protocol.errors import FedpingError

Takes: TypeAlias = Callable[[str], bool]
"""Function that decides whether to read a client's examples; called once per client, in the order of names."""


_BEGIN = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({handle})"
"""The program of the process, which imports from the same paths as this one."""


class _Request(Struct, frozen=True):
    file: str
    wanted: dict[str, tuple[int, ...] | None]
    bounds: Bounds


class _Numbers(Struct, frozen=True):
    kind: str
    rows: int
    data: bytes


class _Examples(Struct, frozen=True, tag=True):
    """Some examples of a client."""

    client: str
    features: dict[str, _Numbers | list[bytes]]


class _Clients(Struct, frozen=True, tag=True):
    """The names of all clients, or of those to read."""

    names: list[str]


class _Trouble(Struct, frozen=True, tag=True):
    """The reason why the file can't be read, and whether it is damaged."""

    sentence: str
    is_damage: bool


class _End(Struct, frozen=True, tag=True):
    """The last answer: all examples have been sent."""


_Answer: TypeAlias = _Examples | _Clients | _Trouble | _End


def clients_of_hdf5(
    file: Path, wanted: Wanted, takes: Takes, bounds: Bounds, patience: int
) -> Iterator[tuple[str, Columns]]:
    """Yield clients of a file with blocks of their examples; a client may have several blocks.

    Args:
        file: the file.
        wanted: the features to read.
        takes: returns whether to read a client.
        bounds: the maxima for the file.
        patience: seconds that the next examples may take.

    Raises:
        FedpingError: the file cannot be read, is damaged or too large, or takes too long.
    """
    with reading(file):
        file.open("rb").close()
    with _process(file, patience) as (here, answer):
        _send(here, _Request(str(file), dict(wanted), bounds))
        names = answer()
        assert isinstance(names, _Clients)
        _send(here, _Clients([name for name in names.names if takes(name)]))
        while isinstance(each := answer(), _Examples):
            yield each.client, {name: _column(values) for name, values in each.features.items()}


def _column(values: _Numbers | list[bytes]) -> NDArray[Any] | list[bytes]:
    if isinstance(values, list):
        return values
    return np.frombuffer(values.data, np.dtype(values.kind)).reshape(values.rows, -1)


@contextmanager
def _process(file: Path, patience: int) -> Iterator[tuple[Connection, Callable[[], _Answer]]]:
    """Start the process, and kill it at the end; yield the connection, and a function that returns its next answer."""
    here, there = Pipe()
    # Not multiprocessing, which runs the user's program again and can't be used in its daemons; and not a fork.
    begin = _BEGIN.format(path=sys.path, module=__name__, handle=there.fileno())
    with closing(here):
        with closing(there):
            process = subprocess.Popen(
                [sys.executable, "-c", begin],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        try:

            def answer() -> _Answer:
                try:
                    if not here.poll(patience):
                        raise FedpingError(
                            f"the file {file} has given no examples for {patience} seconds: it is damaged, perhaps on "
                            "purpose, or its disk is slow. Download it again, or raise 'patience' in [data.settings]"
                        )
                    found: _Answer = msgspec.msgpack.decode(here.recv_bytes(), type=_Answer)
                except (EOFError, OSError) as error:
                    raise damaged(
                        file, f"HDF5's library ended while it read it (exit status {process.wait()})"
                    ) from error
                if isinstance(found, _Trouble):
                    raise (DamagedFile if found.is_damage else FedpingError)(found.sentence)
                return found

            yield here, answer
        finally:
            process.kill()
            process.wait()


def _send(connection: Connection, message: Struct) -> None:
    connection.send_bytes(msgspec.msgpack.encode(message))


def serve(handle: int) -> None:
    """Answer the requests of another process on the socket of this number, until that process closes it."""
    connection = Connection(handle)
    try:
        request = msgspec.msgpack.decode(connection.recv_bytes(), type=_Request)
        for each in _answers(connection, request):
            _send(connection, each)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the other process has ended, or needs no more
        return


def _answers(connection: Connection, request: _Request) -> Iterator[_Answer]:
    file = Path(request.file)
    try:
        with closing(hdf5.opened(file)) as opened:
            yield _Clients(hdf5.names_of(file, opened, request.bounds))
            wanted = msgspec.msgpack.decode(connection.recv_bytes(), type=_Clients)
            for client, columns in hdf5.examples_of(file, opened, wanted.names, request.wanted, request.bounds):
                yield _Examples(client, {name: _sent(values) for name, values in columns.items()})
    except FedpingError as error:
        yield _Trouble(str(error), isinstance(error, DamagedFile))
        return
    yield _End()


def _sent(values: NDArray[Any] | list[bytes]) -> _Numbers | list[bytes]:
    return values if isinstance(values, list) else _Numbers(values.dtype.str, len(values), values.tobytes())
