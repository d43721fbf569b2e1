"""Vectors: what is special of a prompt, as one row by which prompts are compared."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from math import log1p, sqrt

import numpy as np

from gateway.predictor.embedder import Embedder, cut
from gateway.predictor.query import Vector
from gateway.predictor.templates import Templates

FEATURES = 5
FEATURE_WEIGHT = 0.5
FEATURE_VERSION = 1
"""Goes up when the row's meaning changes: kept with what is written to disk."""
COUNTED_CHARS = 4096
MAX_CACHED = 2048

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
        1.5 if _DIGIT.search(cut(text)) else -0.5,
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
        found = [self._cached.get(key) for key in keys]
        new = [i for i, row in enumerate(found) if row is None]
        if new:
            texts = [self._templates.strip(*prompts[i]) for i in new]
            for i, text, row in zip(new, texts, self._embedder.embed(texts), strict=True):
                self._cached[keys[i]] = found[i] = _joined(row, features(text))
        for key in keys:
            self._cached.move_to_end(key)
        while len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return [row for row in found if row is not None]

    def coarse(self, row: Vector) -> Vector:
        """Return the short row by which candidates are found, of length one again."""
        dim, kept = self._embedder.dim, self._embedder.coarse
        if kept == dim:
            return row
        head, text, rest = row[:kept], row[:dim], row[dim:]
        squares = float(head @ head)
        # The features keep the weight against the text that they have in the whole row.
        scale = sqrt(squares / max(float(text @ text), 1e-12))
        short: Vector = np.empty(kept + len(rest), np.float32)
        short[:kept] = head
        short[kept:] = rest
        short[kept:] *= np.float32(scale)
        short /= np.float32(max(sqrt(squares + scale**2 * float(rest @ rest)), 1e-9))
        return short


def _joined(row: Vector, extra: list[float]) -> Vector:
    weight = FEATURE_WEIGHT / sqrt(FEATURES)
    joined: Vector = np.concatenate((row, np.array(extra, np.float32) * np.float32(weight)))
    joined /= np.float32(max(sqrt(float(joined @ joined)), 1e-9))
    return joined
