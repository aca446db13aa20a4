"""Being told to stop by a signal handler, and waiting for that."""

from __future__ import annotations

import os
import select


class Wakeup:
    """A wish to stop: a signal handler may express it, and whoever waits is woken by it.

    A byte in a pipe wakes the wait. The lock of a `threading.Event` could be held by the very thread that the handler
    interrupts, and would then be waited for by its holder for ever.
    """

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self.asked = False

    def ask(self) -> None:
        """Make this and every later wait end at once."""
        self.asked = True
        os.write(self._writer, b".")

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; return whether somebody has asked."""
        if not self.asked:
            select.select([self.reader], [], [], seconds)
        return self.asked
