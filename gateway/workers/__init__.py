"""Several processes: workers accept, parse and relay; one scheduler process decides for all.

What goes between them is in `wire`; docs/decisions/0004-workers.md says why it is as it is.
"""
