"""Cost and noise of private lines: accounting, calibration, discrete Gaussians.

All functions are deterministic except the noise of a published round, which the operating system draws. Nothing here is
imported before it is used: SciPy, dp-accounting and OpenDP come with the extra `privacy`.
"""
