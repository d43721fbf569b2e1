"""Subcommands of `hexsage` that need no running gateway: one module each.

Each has `add_arguments(parser)` and `run(arguments)`, which returns the exit code.
"""
