"""What holds for every test."""

import signal

from hypothesis import settings

# No test asserts a wall time, so Hypothesis gets no deadline for an example either.
settings.register_profile("fedping", deadline=None)
settings.load_profile("fedping")

# A shell starts what it puts into the background with Ctrl-C ignored, and whatever is started from there inherits it:
# commands that are tested for how they end on Ctrl-C would not even notice it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
