"""Arrays in pages of their own: untouched they cost nothing, and dropped they go back at once.

What malloc hands out may have been used before, and is then cleared, which touches all of it; what
one thread frees is kept for that thread, some megabytes of it, for as long as the process lives.
"""

import ctypes
import mmap
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


def zeros(shape: tuple[int, ...], dtype: type[Scalar]) -> NDArray[Scalar]:
    """Return an array of zeros. For large ones: it takes a page at least."""
    count = prod(shape)
    size = max(count * np.dtype(dtype).itemsize, 1)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype, count).reshape(shape)


def give_back() -> None:
    """Give freed memory back to the system, where the C library can (glibc). Takes milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
