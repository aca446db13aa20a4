"""Networks of any kind, as trees of named arrays and functions written with JAX; and those that fedping ships."""
