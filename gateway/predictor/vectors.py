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
FEATURE_VERSION = 1
"""Goes up when the row's meaning changes: kept with what is written to disk."""
COUNTED_CHARS = 4096
MAX_CACHED = 1024

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
        1.5 if _DIGIT.search(both_ends(text)) else -0.5,
    )
    return [min(max(value, -3.0), 3.0) for value in raw]


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
        keys = [(stage, hash(text)) for stage, text in prompts]
        new = [i for i, key in enumerate(keys) if key not in self._cached]
        if new:
            texts = [self._templates.strip(*prompts[i]) for i in new]
            for i, text, row in zip(new, texts, self._embedder.embed(texts), strict=True):
                self._cached[keys[i]] = _joined(row, features(text))
        found = []
        for key in keys:
            self._cached.move_to_end(key)
            found.append(self._cached[key])
        while len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return found

    def coarse(self, row: Vector) -> Vector:
        """Return the short row by which candidates are found, of length one again."""
        dim, kept = self._embedder.dim, self._embedder.coarse
        if kept == dim:
            return row
        head, rest = row[:kept], row[dim:]
        # The features keep the weight against the text that they have in the whole row: theirs
        # stays as it is, and the text's leading part gets the length that all of the text had.
        text = max(1.0 - float(rest @ rest), 1e-12)
        short: Vector = np.empty(kept + FEATURES, np.float32)
        short[:kept] = head
        short[:kept] *= np.float32(sqrt(text / max(float(head @ head), 1e-18)))
        short[kept:] = rest
        return short


def _joined(row: Vector, extra: list[float]) -> Vector:
    weight = FEATURE_WEIGHT / sqrt(FEATURES)
    length = sqrt(1.0 + weight**2 * sum(value * value for value in extra))
    joined: Vector = np.empty(len(row) + FEATURES, np.float32)
    np.divide(row, np.float32(length), out=joined[: len(row)])
    joined[len(row) :] = [value * weight / length for value in extra]
    return joined
