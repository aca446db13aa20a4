"""Networks of any kind, as trees of named arrays and functions written with JAX, and fedping's built-in networks."""
