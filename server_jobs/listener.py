"""Listening on an address: checks before the start, and the requests that may be answered there."""

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
    """A server cannot start with its settings; nothing was started."""


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Check that an address is free: workers share their port, and would share it with other programs, too.

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
    """Return whether a ``Host`` header names us by an address, as localhost or by one of ``names``.

    This prevents DNS rebinding: a page whose name was pointed at this machine sends that name. No foreign page has an
    address of ours.
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
    """Return whether a request comes from a page of another site, other than by a link that a person follows.

    Programs send no site, and are accepted.
    """
    reads = request.method in SAFE_METHODS
    site = request.headers.get("Sec-Fetch-Site")
    led_here = reads and request.headers.get("Sec-Fetch-Mode") == "navigate"
    origin = request.headers.get("Origin")
    foreign = site is not None and site not in ("same-origin", "none") and not led_here
    return foreign or (origin is not None and urlsplit(origin).netloc.lower() != request.host.lower())


def stay_here(application: Flask) -> None:
    """Make an application redirect to its own paths only, never to the host that a request names.

    Flask's router adds and removes slashes by redirects to ``http://<Host>/...``.
    """
    application.after_request(_within)


def _within(response: Response) -> Response:
    if response.location is not None:
        parts = urlsplit(response.location)
        if parts.scheme or parts.netloc:
            response.location = urlunsplit(("", "", "/" + parts.path.lstrip("/"), parts.query, parts.fragment))
    return response
