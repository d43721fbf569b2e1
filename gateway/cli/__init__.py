"""Subcommands of `hexsage`: one module each.

Each has `add_arguments(parser)` and `run(arguments)`, which returns the exit code.
"""
