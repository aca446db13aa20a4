"""A real Firefox without a window, told through Marionette to put visits and bookmarks into its history."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.ingest_server import free_port

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")


class Firefox:
    """A connection to a running browser. Scripts run with the browser's own rights, and their promise is waited for."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._socket = _connect(port, process)
        self._number = 0
        self._read()
        self._ask("WebDriver:NewSession", {})
        self._ask("Marionette:SetContext", {"value": "chrome"})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of an asynchronous function in the browser and return what it returns."""
        body = f"const done = arguments[arguments.length - 1]; (async (...arguments) => {{ {script} }})(...arguments)"
        body += ".then(done, error => done({failed: String(error)}));"
        value = self._ask("WebDriver:ExecuteAsyncScript", {"script": body, "args": list(arguments)})["value"]
        assert not (isinstance(value, dict) and "failed" in value), value
        return value

    def quit(self) -> None:
        """Ask the browser to end in order."""
        with contextlib.suppress(OSError, AssertionError):
            self._ask("Marionette:Quit", {"flags": ["eForceQuit"]})
        self._socket.close()

    def _ask(self, command: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, command, parameters])
        self._socket.sendall(f"{len(message.encode())}:{message}".encode())
        _, _, error, result = self._read()
        assert error is None, error
        return result

    def _read(self) -> Any:
        length = b""
        while (byte := self._receive(1)) != b":":
            length += byte
        return json.loads(self._receive(int(length)))

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the browser closed the connection")
            data += part
        return data


@contextlib.contextmanager
def running_firefox(profile: Path, home: Path) -> Iterator[Firefox]:
    """Run Firefox on a profile, made if need be; it has ended when this returns."""
    assert FIREFOX is not None
    port = free_port()
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
    command = [FIREFOX, "--headless", "--no-remote", "--marionette", "--remote-allow-system-access"]
    process = subprocess.Popen(
        [*command, "--profile", str(profile)],
        env={**os.environ, "HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        browser = Firefox(port, process)
        try:
            yield browser
        finally:
            browser.quit()
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def _connect(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, "Firefox ended at its start"
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except OSError:
            assert time.monotonic() < deadline, "Firefox did not open its Marionette port"
            time.sleep(0.1)
