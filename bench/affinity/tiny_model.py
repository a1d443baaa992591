"""Writes a small language model with random weights as a GGUF file, in seconds and without any download.

    ENGINE_PYTHON bench/affinity/tiny_model.py FOLDER [--size 10m]

FOLDER gets `tiny.gguf` for llama.cpp, with tokenizer and chat template inside, and `tokenizer/`, the same tokenizer as
a Hugging Face folder for load generators that count tokens.

What it answers is nonsense, though printable and the same at temperature 0, and it hardly ever ends before
max_tokens. Tokenization, chat template, cost of prefill, KV cache and server-sent events are those of any model.
"""

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# It runs in the engine's environment.
import gguf  # type: ignore[import-not-found]
import numpy as np  # type: ignore[import-not-found]
from tokenizers import (  # type: ignore[import-not-found]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

_BEGIN, _END, _PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_VOCABULARY = 4096
_CONTEXT = 32_768
_HEAD = 64  # numbers of one attention head
_SOURCES = 120  # files of the standard library that the tokenizer learns from
_SPACE = "\u0120"  # how byte-level tokens spell a space


class Shape(NamedTuple):
    """The size of a model of Llama's architecture."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int


SHAPES = {
    "3m": Shape(4, 192, 512, 3, 1),
    "10m": Shape(6, 320, 960, 5, 1),
    "25m": Shape(8, 512, 1536, 8, 2),
    "60m": Shape(12, 704, 2112, 11, 1),
}


def _texts() -> Iterator[str]:
    """Give text that every Python has."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.glob("*.py"))[:_SOURCES]:
        yield path.read_text(errors="ignore")


def train_tokenizer() -> Any:
    """Make a byte-level tokenizer of our own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_PAD, _BEGIN, _END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write the tokenizer as Hugging Face's libraries read it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BEGIN,
        "eos_token": _END,
        "pad_token": _PAD,
        "chat_template": _TEMPLATE,
        "model_max_length": _CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def write_model(tokenizer: Any, shape: Shape, path: Path, seed: int) -> None:
    """Write weights, tokenizer and chat template in one file."""
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer = gguf.GGUFWriter(str(path), "llama")
    _write_facts(writer, shape)
    _write_vocabulary(writer, pieces, [" ".join(merge) for merge in model["merges"]])
    _write_weights(writer, shape, pieces, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_facts(writer: Any, shape: Shape) -> None:
    writer.add_name("tiny-random-llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(_VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def _write_vocabulary(writer: Any, pieces: list[str], merges: list[str]) -> None:
    special = {_PAD, _BEGIN, _END}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([gguf.TokenType.CONTROL if p in special else gguf.TokenType.NORMAL for p in pieces])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(pieces.index(_BEGIN))
    writer.add_eos_token_id(pieces.index(_END))
    writer.add_pad_token_id(pieces.index(_PAD))
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(_TEMPLATE)


def _is_plain(piece: str) -> bool:
    text = piece.replace(_SPACE, " ")
    return text.isascii() and text.isprintable() and piece not in {_PAD, _BEGIN, _END}


def _write_weights(writer: Any, shape: Shape, pieces: list[str], rng: Any) -> None:
    def matrix(name: str, rows: int, columns: int, *, scale: float = 1.0, zero: list[bool] | None = None) -> None:
        values = (rng.standard_normal((rows, columns)) * (scale / np.sqrt(columns))).astype(np.float32)
        if zero is not None:
            values[zero] = 0.0
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.width, dtype=np.float32))

    width, kv_width = shape.heads * _HEAD, shape.kv_heads * _HEAD
    matrix("token_embd.weight", len(pieces), shape.width, scale=np.sqrt(shape.width))
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        matrix(block + "attn_q.weight", width, shape.width)
        matrix(block + "attn_k.weight", kv_width, shape.width)
        matrix(block + "attn_v.weight", kv_width, shape.width)
        matrix(block + "attn_output.weight", shape.width, width)
        norm(block + "ffn_norm.weight")
        matrix(block + "ffn_gate.weight", shape.inner, shape.width)
        matrix(block + "ffn_up.weight", shape.inner, shape.width)
        matrix(block + "ffn_down.weight", shape.width, shape.inner)
    norm("output_norm.weight")
    # What is not plain text gets a score of 0, and so is never the best guess.
    matrix("output.weight", len(pieces), shape.width, scale=4.0, zero=[not _is_plain(p) for p in pieces])


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SHAPES, default="10m")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = train_tokenizer()
    write_tokenizer(tokenizer, args.folder / "tokenizer")
    write_model(tokenizer, SHAPES[args.size], args.folder / "tiny.gguf", args.seed)
    print(args.folder / "tiny.gguf")


if __name__ == "__main__":
    main()
