"""Cost and noise of private lines: accounting, calibration, discrete Gaussians.

All functions are deterministic except the noise of a published round, which the operating system draws. SciPy,
dp-accounting and OpenDP are imported only when used, because they belong to the extra `privacy`.
"""
