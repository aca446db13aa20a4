"""Listening on an address: what can be wrong with it is found before anything runs."""

from __future__ import annotations

import errno
import socket

from protocol.errors import FedpingError


class CannotStart(FedpingError):
    """A server cannot run as asked; nothing was started."""


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Refuse an address that is taken: workers share their port among each other and would share it with others too.

    Raises:
        CannotStart: the host is none of this machine's, or the port is in use.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise CannotStart(f"the host '{host}' is not an address of this machine; correct --host") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotStart(
                f"port {port} of {host} is in use by another program; stop it, or give another port with {option}"
            ) from error
        raise CannotStart(
            f"cannot listen on {host} port {port}: {error.strerror}; correct --host or {option}"
        ) from error
