"""Embedder: texts -> vectors of length one. Static ONNX by default, others plug in."""

import logging
from collections.abc import Sequence
from hashlib import file_digest
from math import sqrt
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gateway.predictor import pages
from gateway.predictor.query import Vector
from gateway.predictor.tokens import Ids, WordIds

DATA = Path(__file__).parent / "data"
CUT_CHARS = 512
"""Head and tail that are embedded: the first 16-64 tokens of a prompt say as much as all of it."""
_ONES = np.ones((1, 1024), np.int64)

log = logging.getLogger(__name__)


class Embedder(Protocol):
    """Turns texts into float32 rows of length one. One thread uses it at a time."""

    name: str
    """Changes whenever vectors stop being comparable: kept with what is written to disk."""
    dim: int
    coarse: int
    """How many leading dimensions find good candidates; `dim` if they are not ordered by weight."""
    nbytes: int

    def embed(self, texts: Sequence[str]) -> Vector:
        """Return one row for each text."""
        ...


def load_embedder(choice: str | None = None) -> Embedder:
    """Return the embedder a setting names: None the built-in one, "hashed", or a model's path.

    Without the built-in model's file it is the hashed one, so that a gateway starts anyhow.
    """
    if choice == "hashed":
        return HashingEmbedder()
    if choice is not None:
        return TransformerEmbedder(Path(choice))
    if not (DATA / "static.onnx").is_file():
        log.warning("no %s: prompts are compared by hashed n-grams", DATA / "static.onnx")
        return HashingEmbedder()
    return StaticEmbedder(DATA)


def both_ends(text: str) -> str:
    """Return the head and the tail of a text, or all of it where that is shorter."""
    if len(text) > 2 * CUT_CHARS:
        text = f"{text[:CUT_CHARS]} {text[-CUT_CHARS:]}"
    return text


def cut(text: str) -> str:
    """Return what is embedded of a text."""
    ends = both_ends(text)
    if ends.isascii():
        return ends
    # JSON can spell half a surrogate pair, which no tokenizer takes.
    return ends.encode("utf-8", "replace").decode()


class StaticEmbedder:
    """The table of token vectors distilled from MiniLM: some 0.05 ms a text."""

    DIM = 187
    """Of 256, in falling order of variance: the last 69 are worth 0.001 of skill, a third more
    memory."""
    COARSE = 43

    def __init__(self, folder: Path) -> None:
        model = folder / "static.onnx"
        self.name = f"static-{_digest(model)}-{self.DIM}"
        self.dim, self.coarse = self.DIM, self.COARSE
        self.nbytes = 2 * model.stat().st_size + 12_000_000
        self._session = _session(model)
        self._words = WordIds(folder / "tokenizer.json")
        pages.give_back()  # what reading the files took

    def embed(self, texts: Sequence[str]) -> Vector:
        """Return one row for each text."""
        ids, mask = _padded([self._words.of(cut(text)) for text in texts])
        rows = _run(self._session, {"input_ids": ids, "attention_mask": mask})
        return _unit(rows[:, : self.dim])


class TransformerEmbedder:
    """A sentence transformer as ONNX, its tokenizer.json beside it: better, at 5 ms and more."""

    MAX_TOKENS = 32

    def __init__(self, path: Path) -> None:
        self.name = f"transformer-{_digest(path)}-{self.MAX_TOKENS}"
        self._session = _session(path)
        self._inputs = {put.name for put in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.MAX_TOKENS)
        self.dim = self.coarse = int(self.embed(["a"]).shape[1])
        self.nbytes = 2 * path.stat().st_size

    def embed(self, texts: Sequence[str]) -> Vector:
        """Return one row for each text: the model's pooled output, or the mean of its tokens'."""
        # encode_batch, unlike encode, lets go of the interpreter lock.
        encoded = self._tokenizer.encode_batch([cut(text) for text in texts])
        ids, mask = _padded([each.ids for each in encoded])
        offered = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        rows = _run(self._session, {name: offered[name] for name in self._inputs})
        if rows.ndim == 3:
            rows = (rows * mask[:, :, None]).sum(axis=1)
        return _unit(rows)


class HashingEmbedder:
    """Character 3- to 5-grams hashed into signed bins, then projected. Needs no file at all."""

    BINS = 4096
    DIM = 256

    def __init__(self) -> None:
        self.name = "hashed-1"
        self.dim = self.coarse = self.DIM
        signs = np.random.default_rng(7).choice(np.array([-1, 1], np.int8), (self.BINS, self.DIM))
        self._projection = signs.astype(np.float32)
        self.nbytes = self._projection.nbytes

    def embed(self, texts: Sequence[str]) -> Vector:
        """Return one row for each text."""
        return _unit(np.stack([self._bins(cut(text)) for text in texts]) @ self._projection)

    def _bins(self, text: str) -> Vector:
        raw = np.frombuffer(f" {text.lower()} ".encode(), np.uint8)
        codes = raw.astype(np.uint32)
        bins = np.zeros(self.BINS)
        rolling = codes
        for length in range(2, 6):
            if len(codes) < length:
                break
            rolling = rolling[: len(codes) - length + 1] * np.uint32(16777619) ^ codes[length - 1 :]
            if length > 2:
                mixed = rolling * np.uint32(2654435769 + 2 * length)
                sign = 1.0 - 2.0 * ((mixed >> 11) & 1)
                bins += np.bincount(mixed >> 20, sign, self.BINS)
        # Damped, so that one phrase said ten times does not drown the rest.
        damped: Vector = (np.sign(bins) * np.sqrt(np.abs(bins))).astype(np.float32)
        return damped


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()[:16]


def _session(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    for kind in ("intra", "inter"):
        options.add_session_config_entry(f"session.{kind}_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _run(
    session: onnxruntime.InferenceSession, inputs: dict[str, NDArray[np.int64]]
) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = session.run(None, inputs)[0]
    return rows


def _padded(texts: Sequence[Sequence[int] | Ids]) -> tuple[Ids, Ids]:
    if len(texts) == 1 and 0 < len(texts[0]) <= _ONES.shape[1]:
        return np.asarray(texts[0], np.int64)[None], _ONES[:, : len(texts[0])]
    longest = max(1, *map(len, texts))
    ids = np.zeros((len(texts), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return ids, mask


def _unit(rows: NDArray[np.float32]) -> Vector:
    """Make each row one of length one, in its place."""
    for row in rows:  # a batch has a handful: one by one is sooner done than an axis
        row /= np.float32(sqrt(float(row.dot(row))) + 1e-9)
    return rows
