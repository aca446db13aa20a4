"""Access control and security headers, applied to every request so that no view can forget them.

A visitor logs in with the dashboard's single token, or as a member of its team with a personal token or a proxy's
header. Changes are refused to visitors without the necessary role. Permitted changes are recorded before a view makes
them.

The host check is against DNS rebinding: an attacker's page whose name points to loopback has that name in ``Host``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from flask import Flask, Request, Response, g, make_response, redirect, render_template, request, session
from flask_wtf.csrf import CSRFError, CSRFProtect
from werkzeug.wrappers import Response as AnyResponse

from fedping.dashboard.answers import FRESH, bearer_token
from fedping.dashboard.changes import recording
from fedping.dashboard.changes.log import ChangeLog
from fedping.dashboard.permissions import HARMLESS, OPEN, SHARED, Visitor, needs, refusal
from fedping.dashboard.settings import LEAST_TOKEN, LOOPBACK, DashboardSettings
from fedping.dashboard.team import Member, Team, TeamFile, checked_name, mark_of, new_token
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.log import tell
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
    """Refuse a request for an unknown host name if the dashboard needs no login.

    Raises:
        Refused: the host name is unknown.
    """
    if settings.is_closed:
        return
    check_known_host(request, settings)


def check_known_host(request: Request, settings: DashboardSettings) -> None:
    """Refuse a request for a host name that is neither the dashboard's own nor allowed by the operator.

    Raises:
        Refused: the host name is unknown.
    """
    name = (urlsplit(f"//{request.host}").hostname or "").lower()
    if not name:
        raise Refused("the request has no valid host name; open the address that the dashboard printed")
    if name not in (*LOOPBACK, settings.host.lower(), *(host.lower() for host in settings.hosts)):
        raise Refused(
            f"this dashboard does not accept the host name '{name}'; open the address that it printed, or start it "
            f"with --allow-host {name}"
        )


def check_origin(request: Request) -> None:
    """Refuse requests from pages of another site, except navigation by a link.

    Another site's page could not read the answer, but each stream that it opens takes the place of a viewer. Programs
    send no origin; they are checked by their token.

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


def checked_token(token: str) -> str:
    """Return an operator's token without surrounding white space.

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
    """Return the secret in a file that only its owner can read; create the file if necessary."""
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


@dataclass(frozen=True)
class Admission:
    """Authentication of visitors.

    Attributes:
        settings: the dashboard's settings, with its single token if it has one.
        team: the file of its team, if it has one.
        said: the last reported problem with the team's file.
    """

    settings: DashboardSettings
    team: TeamFile | None
    said: list[str] = field(default_factory=list)

    def program(self, request: Request) -> Visitor | None:
        """Return the visitor who presents a token in ``Authorization: Bearer``."""
        given = bearer_token(request)
        found = self.by_token(given) if given is not None else None
        return found[0] if found else None

    def person(self, request: Request) -> Visitor | None:
        """Return the visitor who is logged in, or whom the proxy names."""
        mark, token = str(session.get(_IN, "")), self.settings.token
        if token is not None and hmac.compare_digest(mark.encode(), _mark(token).encode()):
            return SHARED
        team = self._team()
        if team is None:
            return None
        member = team.by_mark(mark) if mark else None
        return _named_by_proxy(request, team, self.settings) or (None if member is None else _as_visitor(member))

    def by_token(self, given: str) -> tuple[Visitor, str] | None:
        """Return a token's owner, and the mark for the owner's cookie; None for an unknown token."""
        token = self.settings.token
        if token is not None and same(given, token):
            return SHARED, _mark(token)
        team = self._team()
        member = team.by_token(given) if team is not None else None
        return None if member is None else (_as_visitor(member), mark_of(member))

    def still_admits(self, visitor: Visitor) -> bool:
        """Return whether a visitor with an open page may still read it, by the same rules as at its request."""
        if visitor.alone:
            return True
        try:
            team = self._team()
        except Refused:
            return False
        if team is None or team.member(visitor.name) != visitor.entry:
            return False
        return visitor.entry is not None or (team.proxy is not None and team.proxy.others == visitor.role)

    def _team(self) -> Team | None:
        try:
            return None if self.team is None else self.team.now()
        except InvalidSettings as error:
            self.trouble(str(error))
            raise Refused(
                "the list of this dashboard's people can't be read; ask its operator to read the terminal"
            ) from error

    def trouble(self, sentence: str) -> None:
        """Print a problem in the terminal, unless it is the same as last time."""
        if self.said != [sentence]:
            self.said[:] = [sentence]
            tell(sentence, "warning")


def _as_visitor(member: Member) -> Visitor:
    return Visitor(member.name, member.role, entry=member)


def _named_by_proxy(request: Request, team: Team, settings: DashboardSettings) -> Visitor | None:
    """Return the person named in the proxy's header; None if the request isn't from the proxy or has no name.

    A header that is sent twice arrives as one value with a comma, which isn't a valid name.

    Raises:
        Refused: the name is invalid or not in the team, or the request is for an unknown host.
    """
    if team.proxy is None or not team.trusts(request.remote_addr):
        return None
    given = request.environ.get(f"HTTP_{team.proxy.header.upper()}", "")
    if not given:
        return None
    check_known_host(request, settings)
    try:
        name = checked_name(given.encode("latin-1").decode())
    except (UnicodeError, InvalidSettings) as error:
        raise Refused(
            f"the proxy's header {team.proxy.header} has no valid name, or has two; correct the proxy, which must "
            "replace the header that a visitor sends"
        ) from error
    member = team.member(name)
    if member is not None:
        return _as_visitor(member)
    if team.proxy.others is None:
        raise Refused(f"{name} is not on the team of this dashboard; ask its operator for a role")
    return Visitor(name, team.proxy.others)


def let_in(mark: str) -> None:
    """Log the visitor in by storing the mark of their token in the session."""
    session[_IN] = mark
    session.permanent = True


def same(given: str, token: str) -> bool:
    """Return whether two tokens are equal, compared in constant time."""
    return hmac.compare_digest(given.encode(), token.encode())


def _mark(token: str) -> str:
    """Return a hash of the token for the cookie, which becomes useless once the token changes."""
    return hashlib.sha256(b"fedping dashboard:" + token.encode()).hexdigest()


_FREE = ("/static/", "/enter")

MOST_BYTES = 2 * 1024 * 1024
"""Maximum bytes of a request's body: descriptions are short, and the login page is open to all."""


def guard(application: Flask, settings: DashboardSettings) -> None:
    """Admit only permitted requests: by host, by token, and for changes by origin, CSRF token and role.

    A change is recorded before a view makes it, and its outcome afterwards.
    """
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
    admission = Admission(settings, TeamFile(settings.team) if settings.team is not None else None)
    changes = ChangeLog(settings.changes_folder)

    @application.before_request
    def check() -> AnyResponse | None:
        g.visitor = None
        check_host(request, settings)
        check_origin(request)
        program = admission.program(request) if settings.is_closed else None
        if program is None:  # a program needs no CSRF token, since no browser can be made to imitate it
            free = request.path.startswith(_FREE)
            g.visitor = OPEN if not settings.is_closed else None if free else admission.person(request)
            if g.visitor is None and not free:
                return _ask_for(admission)
            if request.method not in SAFE_METHODS:
                _check_token_of_page(csrf)
        visitor: Visitor | None = program or g.visitor
        if visitor is not None:
            g.visitor, g.still_admitted = visitor, partial(admission.still_admits, visitor)
            _check_change(changes, visitor)
        return None

    @application.route("/enter", methods=["GET", "POST"])
    def enter() -> AnyResponse | tuple[str, int, dict[str, str]]:
        if not settings.is_closed:
            return redirect("/")
        if request.method == "GET":
            return _door(200)
        found = admission.by_token(request.form.get("token", "").strip())
        if found is None:
            return _door(403, "This is not the token of this dashboard; ask its operator.")
        let_in(found[1])
        return redirect(_local(request.form.get("next", "/")))

    @application.post("/leave")
    def leave() -> AnyResponse:
        session.clear()
        return redirect("/enter")

    application.context_processor(lambda: {"visitor": g.get("visitor"), "may": _may, "needs": needs})
    application.after_request(add_headers)
    application.after_request(partial(recording.end, changes))


def _check_change(changes: ChangeLog, visitor: Visitor) -> None:
    """Refuse a change if the visitor's role doesn't permit it; otherwise record it.

    Raises:
        Refused: the role doesn't suffice.
        FedpingError: the change can't be recorded.
    """
    endpoint = request.endpoint
    if request.method in SAFE_METHODS or endpoint is None or endpoint in HARMLESS:
        return
    if not visitor.may(endpoint):
        raise Refused(refusal(visitor, endpoint))
    recording.begin(changes, visitor, endpoint)


def _may(endpoint: str) -> bool:
    """Return whether the visitor of the current page may request a change."""
    visitor: Visitor | None = g.get("visitor")
    return visitor is not None and visitor.may(endpoint)


def _check_token_of_page(csrf: CSRFProtect) -> None:
    try:
        csrf.protect()
    except CSRFError as error:
        if "Referer" in request.headers or "Origin" in request.headers or session:
            raise Refused("this page is too old to make changes; reload it and try again") from error
        raise Refused(
            "programs need the dashboard's token to make changes: start the dashboard with --token-file, and send "
            "the file's content as 'Authorization: Bearer ...'; in a browser, reload the page and try again"
        ) from error


def _ask_for(admission: Admission) -> AnyResponse:
    """Answer a visitor who is not logged in: log in with the token in the address, or show the login page.

    Only an address that the visitor has typed, pasted or opened from outside the browser logs in at once. A link on a
    page might log visitors in as another person. So after a link, the login page shows the name and waits for a click.
    """
    reads = request.method == "GET"
    is_page = reads and "text/html" in request.headers.get("Accept", "")
    given = request.args.get("token", "") if reads else ""
    found = admission.by_token(given) if given else None
    if found is not None:
        visitor, mark = found
        rest = urlencode([(key, value) for key, value in request.args.items(multi=True) if key != "token"])
        path = request.script_root + request.path
        following = f"{path}?{rest}" if rest else path
        if request.headers.get("Sec-Fetch-Site") in _OWN:
            let_in(mark)
            return redirect(following)
        if is_page:
            return make_response(_door(200, following=following, token=given, visitor=visitor))
    if is_page:
        return redirect(f"/enter?{urlencode({'next': (request.script_root + request.full_path).rstrip('?')})}")
    raise Closed("this dashboard needs its token; open /enter, or send the token as 'Authorization: Bearer ...'")


_OWN = ("none", "same-origin")
"""Values of ``Sec-Fetch-Site`` for requests not caused by another site. Browsers omit it for HTTP beyond loopback."""


class Closed(Refused):
    """No valid token was presented."""


def _door(
    status: int, message: str = "", *, following: str | None = None, token: str = "", visitor: Visitor | None = None
) -> tuple[str, int, dict[str, str]]:
    """Return the login page; with a token from the address, the page names the token's owner."""
    goal = _local(request.values.get("next", "/") if following is None else following)
    return render_template("enter.html", next=goal, message=message, token=token, led=visitor), status, FRESH


def _local(address: str) -> str:
    """Return the address, or "/" if it is outside the dashboard, so that redirects never lead to another site."""
    parts = urlsplit(address)
    inside = not parts.scheme and not parts.netloc and address.startswith("/") and "\\" not in address
    return address if inside and not address.startswith("//") else "/"
