"""What all tests share: what runs only when asked for, and in CI the same examples each time."""

import os

from hypothesis import settings

collect_ignore = ["engines"]
"""Real engines take minutes and gigabytes: `make test-engines`."""

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
