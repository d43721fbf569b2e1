"""Observers of the decision log: numbers, recent decisions, a file. Nothing here decides."""
