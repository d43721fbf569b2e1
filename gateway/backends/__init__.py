"""Talking to engines: one client over HTTP, one dialect a kind, probes beside them.

Nothing here knows the scheduler. A call goes in with a listener; bytes come out, facts about them
go to the listener, and a failure is one exception of the tree in `base`.
"""
