"""Logins for fedping's own requests: only those in the address, none from the machine's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from requests import PreparedRequest


def login_in_address(request: PreparedRequest) -> PreparedRequest:
    """Add the login in a request's address, if any, to the request; for the argument ``auth`` of the library requests.

    Without an ``auth``, the library would send credentials from ``~/.netrc`` that the caller didn't ask for.
    """
    from requests.auth import HTTPBasicAuth
    from requests.utils import get_auth_from_url

    user, password = get_auth_from_url(request.url or "")
    return HTTPBasicAuth(user, password)(request) if user or password else request
