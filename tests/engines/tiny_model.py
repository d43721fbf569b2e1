"""Builds a language model of three million parameters that real engines load: a Llama directory.

Nothing is downloaded: tokenizer and weights come from the help pages of Python's standard library.
With as many hidden dimensions as tokens, a token's embedding can be an axis of its own, and the
output head then holds the text's bigram probabilities exactly: what the model says resembles
English, and it ends its turn with the same small probability after every token. Its attention adds
a little noise to the axes, so that a greedy answer depends on more than the last token.
"""

import json
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

Weights = npt.NDArray[np.float32]

END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, TURN, END_OF_TURN]
END_ID = SPECIAL.index(END_OF_TURN)
VOCABULARY = 1024
LAYERS, HEADS, KV_HEADS, HEAD_SIZE, INNER = 1, 2, 1, 32, 64
MEAN_TOKENS = 120
"""Of an answer that nothing else ends."""
NOISE = 0.3
"""Size of what attention adds, next to the 1 of the token itself."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% elif message['content'] %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(folder: Path, *, max_tokens: int = 4096, seed: int = 0) -> Path:
    """Write the model into `folder` and return it. `max_tokens` is its longest context."""
    folder.mkdir(parents=True, exist_ok=True)
    paragraphs = [" ".join(text.split()) for text in topics.values()]
    tokenizer = _train_tokenizer(paragraphs)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = np.concatenate([encoded.ids for encoded in tokenizer.encode_batch(paragraphs)])
    _write_safetensors(folder / "model.safetensors", _weights(text, np.random.default_rng(seed)))
    for name, value in _configs(max_tokens).items():
        (folder / name).write_text(json.dumps(value, indent=1))
    return folder


def _train_tokenizer(paragraphs: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(paragraphs, trainer)
    return tokenizer


def _weights(text: npt.NDArray[np.int64], rng: np.random.Generator) -> dict[str, Weights]:
    pairs = np.full((VOCABULARY, VOCABULARY), 0.01)
    np.add.at(pairs, (text[:-1], text[1:]), 1.0)
    pairs[:, : len(SPECIAL)] = 1e-9
    pairs *= (1 - 1 / MEAN_TOKENS) / pairs.sum(1, keepdims=True)
    pairs[:, END_ID] = 1 / MEAN_TOKENS

    def random(rows: int, columns: int, scale: float) -> Weights:
        return (scale * rng.standard_normal((rows, columns))).astype(np.float32)

    axis_length = np.sqrt(VOCABULARY)  # the norm layers make every vector this long
    weights = {
        "model.embed_tokens.weight": (axis_length * np.eye(VOCABULARY)).astype(np.float32),
        "model.norm.weight": np.ones(VOCABULARY, np.float32),
        "lm_head.weight": (np.log(pairs).T / axis_length).astype(np.float32),
    }
    heads, kv_heads = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    for layer in range(LAYERS):
        named = {
            # Large queries and keys: attention picks few tokens instead of averaging all away.
            "self_attn.q_proj": random(heads, VOCABULARY, 1.5 / axis_length),
            "self_attn.k_proj": random(kv_heads, VOCABULARY, 1.5 / axis_length),
            "self_attn.v_proj": random(kv_heads, VOCABULARY, 1 / axis_length),
            "self_attn.o_proj": random(VOCABULARY, heads, NOISE / np.sqrt(heads)),
            "mlp.gate_proj": random(INNER, VOCABULARY, 1 / axis_length),
            "mlp.up_proj": random(INNER, VOCABULARY, 1 / axis_length),
            "mlp.down_proj": random(VOCABULARY, INNER, 0.1 * NOISE / np.sqrt(INNER)),
            "input_layernorm": np.ones(VOCABULARY, np.float32),
            "post_attention_layernorm": np.ones(VOCABULARY, np.float32),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": w for name, w in named.items()}
    return weights


def _write_safetensors(path: Path, weights: dict[str, Weights]) -> None:
    """The format: length of the header, the header as JSON, the numbers."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in weights.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in weights.values():
            file.write(np.ascontiguousarray(array).tobytes())


def _configs(max_tokens: int) -> dict[str, dict[str, object]]:
    end_of_text = SPECIAL.index(END_OF_TEXT)
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": VOCABULARY,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_SIZE,
            "hidden_act": "silu",
            "max_position_embeddings": max_tokens,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "float32",
            "bos_token_id": end_of_text,
            "eos_token_id": END_ID,
        },
        "generation_config.json": {
            "bos_token_id": end_of_text,
            "eos_token_id": [END_ID, end_of_text],
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TURN,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_tokens,
            "chat_template": CHAT_TEMPLATE,
        },
    }
