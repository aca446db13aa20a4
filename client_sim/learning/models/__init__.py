"""The models that clients train, one file each; `fedping.client_sim.learning.registry` lists them.

Each computes losses and gradients of many clients at once (:class:`fedping.client_sim.learning.Model`).
`page_ranking.py` adapts every page-ranking model in `fedping.client_sim.models`, which defines pages and a browser's
scores of them.
"""
