"""Logins of requests that fedping makes: those that are in the address, and none of the machine's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from requests import PreparedRequest


def login_in_address(request: PreparedRequest) -> PreparedRequest:
    """Give a request the login that its address has, if any: the ``auth`` of a call of the library requests.

    Without an ``auth`` that library sends the credentials for the host in ``~/.netrc``, which the caller didn't
    request.
    """
    from requests.auth import HTTPBasicAuth
    from requests.utils import get_auth_from_url

    user, password = get_auth_from_url(request.url or "")
    return HTTPBasicAuth(user, password)(request) if user or password else request
