"""Settings: the command line, HEXSAGE_* variables and backends.yaml, checked whole at start-up.

The order is command line, environment, file, default. Unknown keys are refused; every mistake is
named with its file and line, or its variable.
"""
