"""The second server of two-server lines, run by another organisation; it opens clients' shares and returns only sums.

The helper has no pings, no Spark and no models. It answers requests of the leader, and stores its answers in its
folder. `fedping.protocol.sharing` defines the messages and terms between the two servers and the clients.
"""
