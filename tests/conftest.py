"""What all tests share: which are not run unless asked for, and the same examples in CI each time."""

import os

from hypothesis import settings

collect_ignore = ["engines"]
"""Real engines take minutes and gigabytes: `make test-engines`."""

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
