"""Arithmetic: facts in, decisions out.

Nothing in this folder sleeps, logs, draws a number or knows the time: it imports the standard
library's data tools and nothing else (a contract in `pyproject.toml` holds that). `now` is always
an argument, in seconds on one monotonic clock.

Unit suffixes: `_s` a span in seconds, `_at` an instant, `_tokens` a count of tokens, `_per_s` a
rate. `None` means absent. Ties are broken by id, so that every run replays.
"""
