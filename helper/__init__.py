"""The second server of lines of shares, run by somebody else: it opens clients' shares, and gives away sums alone.

It has no pings, no Spark and no models: requests come from the leader, answers go back, and what it has answered stays
in a folder of its own. See `fedping.protocol.sharing` for what the two servers and the clients agree on.
"""
