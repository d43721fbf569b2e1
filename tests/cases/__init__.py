"""Faults of peers, turned into tests: what the other tests do not already cover. See README.md."""
