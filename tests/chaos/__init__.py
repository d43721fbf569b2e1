"""Chaos: engines die, stop and come back under load. Run by hand: `python -m tests.chaos.run`."""
