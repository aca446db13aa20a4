"""Listening on an address: what can be wrong with it is found before anything runs, and who may be answered there."""

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
    """A server cannot run as asked; nothing was started."""


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Refuse an address that is taken: workers share their port among each other and would share it with others too.

    Raises:
        CannotStart: the host is none of this machine's, or the port is in use.
    """
    _bound(host, port, "--host", option).close()


def listen(host: str, port: int, host_option: str, port_option: str) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises:
        CannotStart: the host is none of this machine's, or the port is in use.
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

    Against DNS rebinding: a page whose own name has been pointed at this machine has that name there. Nobody can have
    a page at an address that is ours.
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
    """Return whether a page of another site asks, and does not merely lead somebody here by a link.

    Programs, which name no site, are no pages.
    """
    reads = request.method in SAFE_METHODS
    site = request.headers.get("Sec-Fetch-Site")
    led_here = reads and request.headers.get("Sec-Fetch-Mode") == "navigate"
    origin = request.headers.get("Origin")
    foreign = site is not None and site not in ("same-origin", "none") and not led_here
    return foreign or (origin is not None and urlsplit(origin).netloc.lower() != request.host.lower())


def stay_here(application: Flask) -> None:
    """Have an application redirect to paths of its own only, never to the host that a request names.

    Flask's router adds slashes and takes them away by redirects to ``http://<Host>/...``.
    """
    application.after_request(_within)


def _within(response: Response) -> Response:
    if response.location is not None:
        parts = urlsplit(response.location)
        if parts.scheme or parts.netloc:
            response.location = urlunsplit(("", "", "/" + parts.path.lstrip("/"), parts.query, parts.fragment))
    return response
