"""The settings of the dashboard, and the services that its views get."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from fedping.dashboard.feeds import Streams
from fedping.protocol.location import Place

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LEAST_TOKEN = 16


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """The dashboard's settings: folders that it reads, address, and access.

    Attributes:
        store: the model store; it need not exist, but then the pages about studies have no content.
        landing: the landing folder.
        journal: ingest's journal, whose counters are shown; may not exist.
        runs: the folder of the runs started from the dashboard.
        host: the address to listen on.
        port: the port to listen on.
        token: the token that visitors must present; None admits everybody, which is allowed on loopback only.
        token_is_ours: whether the dashboard made the token itself, so that it has to show the token to users.
        hosts: accepted host names, in addition to those of loopback, for requests without a login or by the proxy that
            names the visitors.
        viewers: maximum number of pages that are kept up to date by an open connection; the others poll.
        runs_at_once: maximum number of runs at a time; the others wait.
        refresh: minutes between recounts of the studies as interim looks; None for no recounts.
        data: folders whose files a description may name.
        key: the file of the key that signs cookies; in ``runs`` if None.
        team: the file of the people who may use the dashboard, each with a role; None to admit by the token alone.
        changes: the folder of the list of changes; in ``runs`` if None.
    """

    store: Place
    landing: Place
    journal: Path
    runs: Path
    host: str = "127.0.0.1"
    port: int = 8081
    token: str | None = None
    token_is_ours: bool = False
    hosts: tuple[str, ...] = ()
    viewers: int = 32
    runs_at_once: int = 1
    refresh: float | None = None
    data: tuple[Path, ...] = ()
    key: Path | None = None
    team: Path | None = None
    changes: Path | None = None

    @property
    def beyond_loopback(self) -> bool:
        """Whether programs on other machines can reach the dashboard."""
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:  # a name, which may resolve to any address
            return self.host not in LOOPBACK

    @property
    def is_closed(self) -> bool:
        """Whether visitors have to log in."""
        return self.token is not None or self.team is not None

    @property
    def changes_folder(self) -> Path:
        """The folder of the list of changes that people make with the dashboard."""
        return self.changes or self.runs / ".dashboard-changes"

    @property
    def secret_file(self) -> Path:
        """The file of the key that signs cookies, so that a restart keeps users logged in."""
        return self.key or self.runs / ".dashboard-key"

    @property
    def token_file(self) -> Path:
        """The file of the token that the dashboard makes on loopback, so that a restart keeps users logged in."""
        return self.runs / ".dashboard-token"


@dataclass(frozen=True)
class Services:
    """The dashboard's settings, and the streams that answer with a feed."""

    settings: DashboardSettings
    streams: Streams
