"""Observers of the decision log: numbers, recent decisions, traces, a file. Nothing here decides.

Beside them: how logs are written.
"""
