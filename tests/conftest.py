"""What all tests share: what runs only when asked for, and in CI the same examples each time."""

import gc
import os

from hypothesis import settings

collect_ignore = ["engines"]
"""Real engines take minutes and gigabytes: `make test-engines`."""

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_collection_finish() -> None:
    """Keep the garbage collector off thousands of collected tests: looking through them takes a
    second, in which no event loop runs and whoever counts the time of an answer is wrong.
    """
    gc.collect()
    gc.freeze()
