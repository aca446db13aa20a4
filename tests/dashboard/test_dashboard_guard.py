"""Permissions on every page."""

import hashlib
import io
import re
from pathlib import Path

import pytest
from flask import Blueprint, Flask, jsonify

from fedping.dashboard.application import create_application
from fedping.dashboard.guard import CONTENT_SECURITY_POLICY, PLOT_STYLE
from tests.support.dashboard import csrf_token, dashboard_settings

TOKEN = "a-token-of-the-operator"
VENDOR = Path("dashboard/static/vendor")
PAGE = {"Accept": "text/html", "Sec-Fetch-Site": "none"}


def application(folder: Path, **changes: object) -> Flask:
    """Return the dashboard with one more view, which counts its requests for a change."""
    made = create_application(dashboard_settings(folder, **changes))
    made.config["changes"] = 0
    views = Blueprint("of_the_test", __name__)

    @views.route("/change", methods=["GET", "POST", "PUT", "DELETE"])
    def change() -> object:
        made.config["changes"] += 1
        return jsonify(changed=True)

    made.register_blueprint(views)
    return made


def test_a_change_needs_the_token_of_a_page_of_ours(tmp_path: Path) -> None:
    made = application(tmp_path)
    client = made.test_client()
    assert client.post("/change").status_code == 403
    assert client.post("/change", headers={"X-CSRF-Token": "forged"}).status_code == 403
    token = csrf_token(client, "/nowhere")
    assert made.test_client().post("/change", headers={"X-CSRF-Token": token}).status_code == 403, "of another visitor"
    assert made.config["changes"] == 0
    assert client.post("/change", headers={"X-CSRF-Token": token}).status_code == 200
    assert client.post("/change", data={"csrf_token": token}).status_code == 200
    assert made.config["changes"] == 2


def test_a_program_is_told_of_the_token_and_a_page_to_reload(tmp_path: Path) -> None:
    made = application(tmp_path)
    told = made.test_client().post("/change").json["error"]
    assert "--token-file" in told
    assert "Authorization: Bearer" in told
    page = made.test_client().post("/change", headers={"Origin": "http://localhost"}).json["error"]
    assert page == "this page is too old to make changes; reload it and try again"


@pytest.mark.parametrize(("accept", "is_page"), [("*/*", False), ("application/json", False), ("text/html", True)])
def test_a_description_that_cannot_be_meant_is_told_to_programs_in_json(
    tmp_path: Path, accept: str, is_page: bool
) -> None:
    made = application(tmp_path)
    client = made.test_client()
    form = {"csrf_token": csrf_token(client, "/nowhere"), "text": "name = 1", "title": ""}
    answer = client.post("/runs/start", data=form, headers={"Accept": accept})
    assert (answer.status_code, answer.is_json) == (400, not is_page)
    if not is_page:
        assert "not an experiment" in answer.json["error"]


def test_a_program_with_the_token_gets_json_whatever_it_accepts(tmp_path: Path) -> None:
    client = application(tmp_path, token=TOKEN).test_client()
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
    for text in ("name = 1", "not TOML"):
        answer = client.post("/runs/start", data={"text": text}, headers=headers)
        assert (answer.status_code, list(answer.json)) == (400, ["error"])


@pytest.mark.parametrize("method", ["post", "put", "delete"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
    ],
)
def test_a_page_of_another_site_changes_nothing(tmp_path: Path, method: str, headers: dict[str, str]) -> None:
    made = application(tmp_path)
    client = made.test_client()
    token = csrf_token(client, "/nowhere")
    answer = getattr(client, method)("/change", headers={"X-CSRF-Token": token, **headers})
    assert answer.status_code == 403
    assert "asked for this change" in answer.json["error"]
    assert made.config["changes"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        {"Origin": "http://localhost:1"},
    ],
)
def test_a_page_of_another_site_holds_no_stream_and_reads_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    client = application(tmp_path).test_client()
    for path in ("/runs/feed", "/change", "/static/js/page.js"):
        answer = client.get(path, headers={"Accept": "text/event-stream", **headers})
        assert (answer.status_code, answer.content_type) == (403, "application/json")


def test_a_link_of_another_site_leads_here(tmp_path: Path) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert application(tmp_path).test_client().get("/change", headers=headers).status_code == 200


def test_our_own_pages_change_what_they_ask_for(tmp_path: Path) -> None:
    made = application(tmp_path)
    client = made.test_client()
    headers = {
        "X-CSRF-Token": csrf_token(client, "/nowhere"),
        "Sec-Fetch-Site": "same-origin",
        "Origin": "http://localhost",
    }
    assert client.post("/change", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example"])
def test_without_a_token_only_names_of_this_machine_are_answered(tmp_path: Path, host: str) -> None:
    client = application(tmp_path).test_client()
    answer = client.get("/change", headers={"Host": host})
    assert answer.status_code == 403
    assert "--allow-host" in answer.json["error"]
    allowing = application(tmp_path, hosts=(host.partition(":")[0],)).test_client()
    assert allowing.get("/change", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["[", "a]b", "", "<script>"])
def test_a_host_that_is_none_is_told_in_a_sentence(tmp_path: Path, host: str) -> None:
    answer = application(tmp_path).test_client().get("/change", headers={"Host": host})
    assert answer.status_code == 403
    assert "has no valid host name" in answer.json["error"]


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8081"])
def test_loopback_is_open_by_all_its_names(tmp_path: Path, host: str) -> None:
    assert application(tmp_path).test_client().get("/change", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("host", "beyond"),
    [
        ("127.0.0.1", False),
        ("127.8.9.1", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.7", True),
        ("127.example.org", True),
    ],
)
def test_loopback_is_told_by_the_address_and_not_by_how_a_name_begins(tmp_path: Path, host: str, beyond: bool) -> None:
    assert dashboard_settings(tmp_path, host=host).beyond_loopback is beyond


def test_with_a_token_nothing_is_answered_to_who_has_not_shown_it(tmp_path: Path) -> None:
    made = application(tmp_path, token=TOKEN)
    client = made.test_client()
    assert client.get("/change").status_code == 401
    assert client.get("/change", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/change?token=wrong").status_code == 401
    assert client.get("/live/static/live.js").status_code == 401
    page = client.get("/change?a=1", headers=PAGE)
    assert page.status_code == 302
    assert page.location == "/enter?next=%2Fchange%3Fa%3D1"
    assert made.config["changes"] == 0
    assert client.get("/static/css/base.css").status_code == 200, "the door needs it"


def test_the_printed_address_lets_in_and_the_token_leaves_the_address(tmp_path: Path) -> None:
    client = application(tmp_path, token=TOKEN).test_client()
    answer = client.get(f"/change?token={TOKEN}&a=1", headers=PAGE)
    assert (answer.status_code, answer.location) == (302, "/change?a=1")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/change").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"},
        {"Referer": "http://evil.example/"},
    ],
)
def test_a_link_of_a_page_with_a_token_logs_in_nobody_before_a_click(tmp_path: Path, headers: dict[str, str]) -> None:
    client = application(tmp_path, token=TOKEN).test_client()
    answer = client.get(f"/change?token={TOKEN}&a=1", headers={"Accept": "text/html", **headers})
    page = answer.get_data(as_text=True)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
    assert "Enter as <bdi>the dashboard" in page
    assert "close this page" in page
    assert client.get("/change").status_code == 401, "nobody has clicked"
    form = dict(re.findall(r'<input [^>]*name="(\w+)"[^>]* value="([^"]*)"', page))
    assert form["next"] == "/change?a=1"
    assert client.post("/enter", data=form).location == "/change?a=1"
    assert client.get("/change").status_code == 200


def test_the_door_lets_in_by_the_token_and_leads_nowhere_else(tmp_path: Path) -> None:
    client = application(tmp_path, token=TOKEN).test_client()
    door = client.get("/enter?next=/change", headers=PAGE).get_data(as_text=True)
    form = {"csrf_token": door.partition('name="csrf_token" value="')[2].partition('"')[0]}
    wrong = client.post("/enter", data={**form, "token": "wrong", "next": "/change"})
    assert wrong.status_code == 403
    assert "not the token" in wrong.get_data(as_text=True)
    assert client.get("/change").status_code == 401
    for elsewhere in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        assert client.post("/enter", data={**form, "token": TOKEN, "next": elsewhere}).location == "/"
    assert client.post("/enter", data={**form, "token": TOKEN, "next": "/change"}).location == "/change"
    assert client.get("/change").status_code == 200


def test_nobody_can_send_so_much_that_the_disk_is_full(tmp_path: Path) -> None:
    client = application(tmp_path, token=TOKEN).test_client()
    answer = client.post("/enter", data={"csrf_token": "x", "file": (io.BytesIO(bytes(3 << 20)), "large")})
    assert answer.status_code == 413


def test_a_program_shows_the_token_and_needs_no_page(tmp_path: Path) -> None:
    client = application(tmp_path, token=TOKEN).test_client()
    for scheme in ("Bearer", "bearer", "BEARER"):  # RFC 7235: in any case
        headers = {"Authorization": f"{scheme} {TOKEN}", "Accept": "text/html"}
        assert client.post("/change", headers=headers).status_code == 200
        assert client.get("/nowhere", headers=headers).is_json
    assert client.post("/change", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401


def test_a_visitor_stays_in_over_a_restart_and_is_out_once_the_token_is_another(tmp_path: Path) -> None:
    client = application(tmp_path, token=TOKEN).test_client()
    cookie = client.get(f"/change?token={TOKEN}", headers=PAGE).headers["Set-Cookie"].partition(";")[0]
    again = application(tmp_path, token=TOKEN).test_client(use_cookies=False)
    assert again.get("/change", headers={"Cookie": cookie}).status_code == 200
    other = application(tmp_path, token="another-token-of-the-operator").test_client(use_cookies=False)
    assert other.get("/change", headers={"Cookie": cookie}).status_code == 401


def test_only_its_owner_can_read_the_key_of_the_cookies(tmp_path: Path) -> None:
    application(tmp_path)
    assert (dashboard_settings(tmp_path).secret_file.stat().st_mode & 0o077) == 0


@pytest.mark.parametrize("path", ["/", "/change", "/nowhere", "/static/js/page.js", "/enter"])
def test_every_answer_has_the_policy(tmp_path: Path, path: str) -> None:
    headers = application(tmp_path).test_client().get(path).headers
    assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_policy_allows_no_inline_script_and_no_outside_address() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'")


def test_the_allowed_style_is_the_one_that_plot_writes() -> None:
    template = (VENDOR / "plot.umd.min.js").read_text().replace("\\n", "\n")
    written = re.sub(r"\$\{\w\}", "plot", template)
    assert f"`{PLOT_STYLE}`" in written


def test_what_is_not_ours_is_unchanged() -> None:
    told = (VENDOR / "README.md").read_text()
    scripts = sorted(VENDOR.glob("*.js"))
    assert scripts
    for script in scripts:
        assert f"`{script.name}`" in told
        assert hashlib.sha256(script.read_bytes()).hexdigest() in told
