"""Listening sockets: checks before a server starts, and checks of requests' hosts and sites."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from fedping.protocol.errors import FedpingError

if TYPE_CHECKING:
    from flask import Flask, Request, Response

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BACKLOG = 128


class CannotStart(FedpingError):
    """A server can't start with its settings. No process was started."""


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Check that an address is free. Workers share their port, and would otherwise share it with other programs, too.

    Raises:
        CannotStart: the host is not an address of this machine, or the port is in use.
    """
    _bound(host, port, "--host", option).close()


def listen(host: str, port: int, host_option: str, port_option: str) -> socket.socket:
    """Return a listening socket; port 0 is any free port.

    Raises:
        CannotStart: the host is not an address of this machine, or the port is in use.
    """
    bound = _bound(host, port, host_option, port_option)
    bound.listen(_BACKLOG)
    return bound


def _bound(host: str, port: int, host_option: str, port_option: str) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        probe = socket.socket(family, kind)
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        except OSError:
            probe.close()
            raise
        return probe
    except socket.gaierror as error:
        raise CannotStart(f"the host '{host}' is not an address of this machine; correct {host_option}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotStart(
                f"port {port} of {host} is in use by another program; stop it, or give another port with {port_option}"
            ) from error
        raise CannotStart(
            f"cannot listen on {host} port {port}: {error.strerror}; correct {host_option} or {port_option}"
        ) from error


def is_addressed(host: str, names: Iterable[str]) -> bool:
    """Return whether a ``Host`` header contains an IP address, localhost or one of ``names``.

    This prevents DNS rebinding: a page whose host name was pointed at this machine sends that name. A page of another
    site never has an address of this machine.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    try:
        ip_address(name)
    except ValueError:
        return name in ("localhost", *(each.lower() for each in names))
    return True


def is_cross_site(request: Request) -> bool:
    """Return whether a request comes from a page of another site. Navigation by a link doesn't count.

    Programs don't send the site, so their requests aren't cross-site.
    """
    reads = request.method in SAFE_METHODS
    site = request.headers.get("Sec-Fetch-Site")
    led_here = reads and request.headers.get("Sec-Fetch-Mode") == "navigate"
    origin = request.headers.get("Origin")
    foreign = site is not None and site not in ("same-origin", "none") and not led_here
    return foreign or (origin is not None and urlsplit(origin).netloc.lower() != request.host.lower())


def stay_here(application: Flask) -> None:
    """Make an application redirect only to its own paths, never to the host named in a request.

    Flask's router redirects to ``http://<Host>/...`` to add or remove slashes.
    """
    application.after_request(_within)


def _within(response: Response) -> Response:
    if response.location is not None:
        parts = urlsplit(response.location)
        if parts.scheme or parts.netloc:
            response.location = urlunsplit(("", "", "/" + parts.path.lstrip("/"), parts.query, parts.fragment))
    return response
