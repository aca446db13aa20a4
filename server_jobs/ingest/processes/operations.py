"""The process of the operator's listener, which nothing arriving at the public port can keep from answering."""

from __future__ import annotations

import os
import threading
import time

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from fedping.model_store import store_at
from fedping.server_jobs.ingest.admission.catalogue import Catalogue
from fedping.server_jobs.ingest.edge.operations import Operations
from fedping.server_jobs.ingest.edge.services import ServiceState
from fedping.server_jobs.ingest.processes.process_lock import exit_with_parent
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.listener import listen

MOST_AT_ONCE = 64
SILENT_SECONDS = 10.0
"""How long a connection may keep a thread waiting for its request."""


class OperatorsListener:
    """A socket that this process listens on and a child serves: if the child dies, no waiting request is lost.

    Raises:
        CannotStart: the host is not one of this machine's, or the port is in use.
    """

    def __init__(self, settings: IngestSettings) -> None:
        self._settings = settings
        self._socket = listen(
            settings.operations_host, settings.operations_port, "--operations-host", "--operations-port"
        )
        self.port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        """The URL on which it listens."""
        host = self._settings.operations_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def serve(self, parent: int) -> None:
        """Serve until this process is ended; it ends with ``parent`` at the latest."""
        exit_with_parent(parent)
        os.setpgrp()
        watched = _watched(self._settings)
        threading.Thread(target=_keep_up, args=(watched.catalogue,), daemon=True).start()
        address = self._socket.getsockname()[0]
        _Server(address, self.port, Operations(watched), _Handler, fd=self._socket.fileno()).serve_forever()


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.0"  # one request per connection, and so per thread
    timeout = SILENT_SECONDS

    def log(self, type: str, message: str, *args: object) -> None:
        """Log nothing: a scrape every few seconds is no news, and a dropped connection is no error."""


class _Server(ThreadedWSGIServer):
    """A server with a bounded number of threads; further connections wait to be accepted."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)

    def process_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


def _watched(settings: IngestSettings) -> ServiceState:
    """Return what to watch; the store need not be readable, because whoever asks wants to know why it is not."""
    store = store_at(settings.store)
    return ServiceState(
        settings=settings, store=store, catalogue=Catalogue(store, patient=True, ticket_keys=settings.ticket_keys)
    )


def _keep_up(catalogue: Catalogue) -> None:
    """Follow the newest versions like the workers, which remember what was published whatever happens to the store."""
    while True:
        time.sleep(catalogue.every)
        catalogue.refresh()
