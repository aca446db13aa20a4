"""Who may do what, and what a page may load. Applied to every request, so that no view can forget it.

The host check is against DNS rebinding: an attacker's page whose name points to loopback has that name in ``Host``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from flask import Flask, Request, Response, redirect, render_template, request, session
from flask_wtf.csrf import CSRFError, CSRFProtect
from werkzeug.wrappers import Response as AnyResponse

from fedping.dashboard.settings import LEAST_TOKEN, LOOPBACK, DashboardSettings
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.server_jobs.listener import SAFE_METHODS, is_cross_site

PLOT_STYLE = """:where(.plot) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.plot text),
:where(.plot tspan) {
  white-space: pre;
}"""
"""The only inline style allowed: Observable Plot writes it into every drawing of class ``plot``."""


def _allowed(style: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"


CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {_allowed(PLOT_STYLE)}",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def add_headers(response: Response) -> Response:
    """Add the headers that an answer does not set itself."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


class Refused(FedpingError):
    """The request is not allowed."""


def check_host(request: Request, settings: DashboardSettings) -> None:
    """Refuse a request that addresses us by an unknown host, if there is no token that a stranger would lack.

    Raises:
        Refused: the host is not one of ours.
    """
    if settings.token is not None:
        return
    name = (urlsplit(f"//{request.host}").hostname or "").lower()
    if not name:
        raise Refused("the request names no host, or none that can be one; open the address that the dashboard printed")
    if name not in (*LOOPBACK, settings.host.lower(), *(host.lower() for host in settings.hosts)):
        raise Refused(
            f"this dashboard is not known as '{name}'; open it by the address that it printed, or start it with "
            f"--allow-host {name}"
        )


def check_origin(request: Request) -> None:
    """Refuse requests from pages of another site, except navigation by a link.

    Such a page could not read the answer, but every stream that it holds is one viewer less. Programs, which name no
    site, are checked by the token.

    Raises:
        Refused: the request comes from another site.
    """
    if is_cross_site(request):
        reads = request.method in SAFE_METHODS
        asked = (
            "this page; open the dashboard directly"
            if reads
            else "this change; use the buttons of the dashboard itself"
        )
        raise Refused(f"a page of another site asked for {asked}")


_IN = "visitor"
_BEARER = "Bearer "


def new_token() -> str:
    """Return an unguessable token."""
    return secrets.token_urlsafe(24)


def checked_token(token: str) -> str:
    """Return a token chosen by an operator.

    Raises:
        InvalidSettings: it is too short to withstand guessing.
    """
    token = token.strip()
    if len(token) < LEAST_TOKEN:
        raise InvalidSettings(f"the dashboard's token has {len(token)} characters; give at least {LEAST_TOKEN}")
    return token


def kept_token(file: Path) -> str:
    """Return the token of this machine's dashboard, created at the first start.

    Raises:
        OSError: the file can be neither read nor created.
    """
    return _kept(file, lambda: new_token().encode()).decode()


def signing_key(file: Path) -> bytes:
    """Return the key that signs cookies, created at the first start.

    Raises:
        OSError: the file can be neither read nor created.
    """
    return _kept(file, lambda: secrets.token_bytes(32))


def _kept(file: Path, make: Callable[[], bytes]) -> bytes:
    """Return the secret in a file that only its owner can read, created if necessary."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        secret = file.read_bytes()
        if secret:
            return secret
        handle = os.open(file, os.O_WRONLY)
    secret = make()
    with os.fdopen(handle, "wb") as sink:
        sink.write(secret)
    return secret


def has_bearer(request: Request, token: str) -> bool:
    """Return whether a program presents the token in ``Authorization: Bearer``."""
    given = request.headers.get("Authorization", "")
    return given.startswith(_BEARER) and same(given.removeprefix(_BEARER), token)


def is_in(token: str) -> bool:
    """Return whether this visitor has presented the current token before."""
    return hmac.compare_digest(str(session.get(_IN, "")), _mark(token))


def let_in(token: str) -> None:
    """Remember that this visitor has presented the token."""
    session[_IN] = _mark(token)
    session.permanent = True


def same(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), token.encode())


def _mark(token: str) -> str:
    """Return the contents of the cookie: not the token, and useless once the token changes."""
    return hashlib.sha256(b"fedping dashboard:" + token.encode()).hexdigest()


_FREE = ("/static/", "/enter")

MOST_BYTES = 2 * 1024 * 1024
"""Limit on a request's body: descriptions are short, and the login page is open to all."""


def guard(application: Flask, settings: DashboardSettings) -> None:
    """Admit only permitted requests: by host, by token, and for changes by origin and CSRF token."""
    application.config.update(
        SECRET_KEY=signing_key(settings.secret_file),
        SESSION_COOKIE_NAME=f"fedping-dashboard-{settings.port}",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        WTF_CSRF_CHECK_DEFAULT=False,
        WTF_CSRF_TIME_LIMIT=None,
        WTF_CSRF_HEADERS=["X-CSRF-Token"],
        MAX_CONTENT_LENGTH=MOST_BYTES,
    )
    csrf = CSRFProtect(application)
    token = settings.token

    @application.before_request
    def check() -> AnyResponse | None:
        check_host(request, settings)
        check_origin(request)
        if token is not None and has_bearer(request, token):
            return None  # a program, which no browser can be made to imitate
        if token is not None and not request.path.startswith(_FREE) and not is_in(token):
            return _ask_for(token)
        if request.method not in SAFE_METHODS:
            _check_token_of_page(csrf)
        return None

    @application.route("/enter", methods=["GET", "POST"])
    def enter() -> AnyResponse | tuple[str, int]:
        if token is None:
            return redirect("/")
        if request.method == "GET":
            return _door(200)
        if not same(request.form.get("token", "").strip(), token):
            return _door(403, "That is not the token of this dashboard; ask whoever started it.")
        let_in(token)
        return redirect(_local(request.form.get("next", "/")))

    application.after_request(add_headers)


def _check_token_of_page(csrf: CSRFProtect) -> None:
    try:
        csrf.protect()
    except CSRFError as error:
        if "Referer" in request.headers or "Origin" in request.headers or session:
            raise Refused("this page is too old to make changes; reload it and try again") from error
        raise Refused(
            "a program that changes anything needs the dashboard's token: start the dashboard with --token-file, and "
            "send what is in that file as 'Authorization: Bearer ...'; if this is a page, reload it and try again"
        ) from error


def _ask_for(token: str) -> AnyResponse:
    """Answer a visitor who is not logged in: by the token in the address if there is one, else by the login page."""
    given = request.args.get("token")
    if given is not None and request.method == "GET" and same(given, token):
        let_in(token)
        rest = urlencode([(key, value) for key, value in request.args.items(multi=True) if key != "token"])
        path = request.script_root + request.path
        return redirect(f"{path}?{rest}" if rest else path)
    if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
        return redirect(f"/enter?{urlencode({'next': (request.script_root + request.full_path).rstrip('?')})}")
    raise Closed("this dashboard asks for its token; open /enter, or send it as 'Authorization: Bearer ...'")


class Closed(Refused):
    """No token was presented."""


def _door(status: int, message: str = "") -> tuple[str, int]:
    following = request.values.get("next", "/")
    return render_template("enter.html", next=_local(following), message=message), status


def _local(address: str) -> str:
    """Return an address within the dashboard, so that redirects never lead to another site."""
    parts = urlsplit(address)
    inside = not parts.scheme and not parts.netloc and address.startswith("/") and "\\" not in address
    return address if inside and not address.startswith("//") else "/"
