"""Whether the inner loops run as machine code, as in a wheel, or as the sources they are."""

from gateway.core import scheduler


def form() -> str:
    """Return "compiled" or "interpreted"."""
    return "interpreted" if scheduler.__file__.endswith(".py") else "compiled"
