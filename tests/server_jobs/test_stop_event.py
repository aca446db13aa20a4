"""The stop event of signal handlers, for a signal at any moment."""

import subprocess
import sys

from fedping.server_jobs.processes import StopEvent

# Three thousand signals, each at some moment of a repeated wait. A `threading.Event` in place of
# the stop event blocks forever at one of them: the handler waits for the lock that its own thread holds.
INTERRUPTED = """
import os, signal
from fedping.server_jobs.processes import StopEvent

stop = StopEvent()
signal.signal(signal.SIGALRM, lambda number, frame: stop.set())
for _ in range(3000):
    signal.setitimer(signal.ITIMER_REAL, 0.0002)
    while not stop.is_set:
        stop.wait(0.00001)
    os.read(stop.reader, 1)
    stop.is_set = False
"""


def test_a_signal_at_any_moment_of_a_wait_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_no_wait_after_the_event_is_set() -> None:
    stop = StopEvent()
    assert not stop.wait(0.0)
    stop.set()
    assert all(stop.wait(1000) for _ in range(10))
