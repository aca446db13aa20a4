"""The dashboard application for tests, over their own folders and without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from fedping.dashboard.application import create_application
from fedping.dashboard.settings import DashboardSettings


def dashboard_settings(folder: Path, **changes: Any) -> DashboardSettings:
    """Return settings with all folders below ``folder``."""
    places: dict[str, Any] = {
        "store": folder / "store",
        "landing": folder / "landing",
        "journal": folder / "landing" / ".journal",
        "runs": folder / "runs",
    }
    return DashboardSettings(**{**places, **changes})


def dashboard_application(folder: Path, **changes: Any) -> Flask:
    """Return the application over ``folder``."""
    return create_application(dashboard_settings(folder, **changes))


def dashboard_client(folder: Path, **changes: Any) -> FlaskClient:
    """Return a test client of the application over ``folder``."""
    return dashboard_application(folder, **changes).test_client()


def csrf_token(client: FlaskClient, page: str) -> str:
    """Return the CSRF token that ``page`` contains for its scripts and forms."""
    text = client.get(page, headers={"Accept": "text/html"}).get_data(as_text=True)
    return text.partition('name="csrf-token" content="')[2].partition('"')[0]
