"""What all tests share: which are not run unless asked for."""

collect_ignore = ["engines"]
"""Real engines take minutes and gigabytes: `make test-engines`."""
