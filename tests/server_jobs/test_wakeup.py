"""Being told to stop by a signal, wherever the signal comes."""

import subprocess
import sys

from fedping.server_jobs.processes import Wakeup

# Three thousand signals, each at some moment of a wait that begins anew all the time. A `threading.Event` in place of
# the wakeup stands still for ever at one of them: the handler waits for the lock that its own thread holds.
INTERRUPTED = """
import os, signal
from fedping.server_jobs.processes import Wakeup

wakeup = Wakeup()
signal.signal(signal.SIGALRM, lambda number, frame: wakeup.ask())
for _ in range(3000):
    signal.setitimer(signal.ITIMER_REAL, 0.0002)
    while not wakeup.asked:
        wakeup.wait(0.00001)
    os.read(wakeup.reader, 1)
    wakeup.asked = False
"""


def test_a_signal_at_any_moment_of_a_wait_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_who_has_been_asked_waits_no_more() -> None:
    wakeup = Wakeup()
    assert not wakeup.wait(0.0)
    wakeup.ask()
    assert all(wakeup.wait(1000) for _ in range(10))
