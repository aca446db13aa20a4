"""What the JVM writes to its output: held back while Spark starts, so that a failure can be told in one sentence."""

from __future__ import annotations

import os
import re
import sys
import threading

UNCAUGHT = re.compile(r'Exception in thread "main" [\w.$]+: (.+)')
LAST_WORD_SECONDS = 5
ERROR = re.compile(r"Error: (.+)")


class Complaints:
    """A pipe to give to the JVM as its output, whose content goes to stderr once Spark has started.

    Output of the JVM is no output of ours, which may be JSON for a machine, so both of its streams come here.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._held: list[bytes] | None = []
        self._closed = False
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="spark-complaints", daemon=True)
        self._reader.start()

    def pass_on(self) -> None:
        """Write what was held back to stderr, and from now on everything at once."""
        with self._lock:
            held, self._held = self._held or [], None
            _write(b"".join(held))

    def close_write_end(self) -> None:
        """Give up our handle, once the JVM has its own, so that its end is seen."""
        if not self._closed:
            self._closed = True
            os.close(self.write_end)

    def end(self) -> None:
        """Wait until the JVM's last word has been read, but not for a process it may have left the pipe to."""
        self._reader.join(LAST_WORD_SECONDS)

    def cause(self) -> str:
        """Wait for the JVM's end and return in one line why Spark did not start: its error, else its last word."""
        self.end()
        with self._lock:
            said = b"".join(self._held or []).decode(errors="replace").strip()
        found = UNCAUGHT.search(said) or ERROR.search(said)
        return found[1] if found else (said.splitlines() or ["its JVM said nothing"])[-1]

    def _read(self) -> None:
        with os.fdopen(self._read_end, "rb", buffering=0) as pipe:
            while data := pipe.read(65536):
                with self._lock:
                    if self._held is None:
                        _write(data)
                    else:
                        self._held.append(data)


def _write(data: bytes) -> None:
    if sys.stderr is not None and data:
        sys.stderr.write(data.decode(errors="replace"))
        sys.stderr.flush()
