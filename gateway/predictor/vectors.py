"""Vectors: what is special of a prompt, as one row by which prompts are compared."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from math import log1p, sqrt

import numpy as np

from gateway.predictor.embedder import Embedder, both_ends
from gateway.predictor.query import Vector
from gateway.predictor.templates import Templates

FEATURES = 5
FEATURE_WEIGHT = 0.5
_EACH = FEATURE_WEIGHT / sqrt(FEATURES)
FEATURE_VERSION = 1
"""Goes up when the row's meaning changes: kept with what is written to disk."""
COUNTED_CHARS = 4096
MAX_CACHED = 512

_DIGIT = re.compile(r"\d")


def features(text: str) -> list[float]:
    """Return a few things that a prompt says of its answer's length, on fixed scales.

    Log of characters, words and lines, whether it ends in a question mark, whether it has a digit.
    """
    # Of a long text the beginning is counted: all of it would take longer than to embed it.
    sample = text[:COUNTED_CHARS]
    scale = len(text) / max(len(sample), 1)
    lines = sample.count("\n") * scale
    raw = (
        (log1p(len(text)) - 4.8) / 0.9,
        (log1p(sample.count(" ") * scale + lines + 1) - 3.1) / 0.9,
        (log1p(lines) - 0.4) / 0.7,
        1.0 if text[-64:].rstrip().endswith("?") else -0.7,
        1.5 if _has_digit(both_ends(text)) else -0.5,
    )
    return [-3.0 if value < -3.0 else min(value, 3.0) for value in raw]


def _has_digit(text: str) -> bool:
    if text.isascii():  # a tenth of what the expression takes where there is none
        return len(text.encode().translate(None, b"0123456789")) < len(text)
    return _DIGIT.search(text) is not None


class Vectors:
    """Strips templates, embeds, appends features; remembers exact prompts. One owner; bounded."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._templates = Templates()
        self._cached: OrderedDict[tuple[str, int], Vector] = OrderedDict()
        self.dim = embedder.dim + FEATURES
        self.coarse_dim = embedder.coarse + FEATURES
        self.name = f"{embedder.name}-f{FEATURE_VERSION}"
        embedder.embed(["warm up: the first run allocates"])

    @property
    def nbytes(self) -> int:
        """Memory, in bytes, the model and its word cache included."""
        cached = len(self._cached) * (4 * self.dim + 300)
        return self._embedder.nbytes + self._templates.nbytes + cached + 2_000_000

    def of(self, prompts: Sequence[tuple[str, str]]) -> list[Vector]:
        """Return the rows of (stage, text) pairs; what is not cached is embedded in one go."""
        found: list[Vector | None] = []
        new = []
        for at, (stage, text) in enumerate(prompts):
            key = stage, hash(text)
            row = self._cached.get(key)
            found.append(row)
            if row is None:
                new.append((at, key, self._templates.strip(stage, text)))
            else:
                self._cached.move_to_end(key)
        if new:
            rows = self._embedder.embed([text for _, _, text in new])
            for (at, key, text), row in zip(new, rows, strict=True):
                found[at] = self._cached[key] = _joined(row, features(text))
            while len(self._cached) > MAX_CACHED:
                self._cached.popitem(last=False)
        return [row for row in found if row is not None]

    def coarse(self, row: Vector) -> Vector:
        """Return the short row by which candidates are found, of length one again."""
        dim, kept = self._embedder.dim, self._embedder.coarse
        if kept == dim:
            return row
        head, rest = row[:kept], row[dim:]
        # The features keep the weight against the text that they have in the whole row: theirs
        # stays as it is, and the text's leading part gets the length that all of the text had.
        text = 1.0 - float(rest.dot(rest)) + 1e-12
        short: Vector = np.empty(kept + FEATURES, np.float32)
        stretch = np.float32(sqrt(abs(text) / (float(head.dot(head)) + 1e-18)))
        np.multiply(head, stretch, out=short[:kept])
        short[kept:] = rest
        return short


def _joined(row: Vector, extra: list[float]) -> Vector:
    length = sqrt(1.0 + _EACH**2 * sum([value * value for value in extra]))
    share = _EACH / length
    joined: Vector = np.empty(len(row) + FEATURES, np.float32)
    np.divide(row, np.float32(length), out=joined[:-FEATURES])
    joined[-FEATURES:] = [value * share for value in extra]
    return joined
