"""The second server of two-server lines, run by another organisation: it opens clients' shares, and returns only sums.

It has no pings, no Spark and no models: it answers requests of the leader, and keeps its answers in its folder.
`fedping.protocol.sharing` has the messages and terms of the two servers and the clients.
"""
