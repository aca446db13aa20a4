"""What holds for every test: no test asserts a wall time, so Hypothesis gets no deadline for an example either."""

from hypothesis import settings

settings.register_profile("fedping", deadline=None)
settings.load_profile("fedping")
