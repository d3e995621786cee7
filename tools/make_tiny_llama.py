"""Make a tiny Llama with random weights, its own tokenizer and a chat template: a model to serve where there is no GPU.

It says nonsense, fast: 0.6 million parameters, under 3 MB. Nothing is downloaded; the tokenizer is trained on the
sources of the Python standard library, which every machine has. Needs `torch` and `transformers`, as vLLM does.

usage: python tools/make_tiny_llama.py OUTDIR
"""

import argparse
import json
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY = 4096
CONTEXT = 2048
SEED = 0
INITIALIZER_RANGE = 0.5

PAD, BOS, TURN_START, TURN_END = "<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(*markers: str, chat_template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """A byte-level BPE, so that any text can be encoded and some tokens are parts of a character, as in real models.

    `markers` are further texts that are one special token each, such as what stands for an image.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, TURN_START, TURN_END, *markers],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    bpe.train([str(source) for source in sources], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=TURN_END,
        pad_token=PAD,
        additional_special_tokens=[TURN_START, *markers],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
    )


def decoder_shape(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Two small layers. Untied embeddings and wide weights: with the defaults, greedy decoding repeats one token."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
        "initializer_range": INITIALIZER_RANGE,
        "dtype": "float32",
    }


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    return LlamaForCausalLM(LlamaConfig(**decoder_shape(tokenizer), head_dim=32))


def save_model(model: PreTrainedModel, outdir: Path, published: Mapping[str, str] | None = None) -> None:
    """Save a model; its weights under the names that checkpoints are published with, which vLLM reads.

    `published` holds prefixes: that of a name in memory -> that of the published name. What transformers itself would
    write for a model of several parts depends on its release, and vLLM does not read all of it.
    """
    model.save_pretrained(outdir)
    if published is not None:
        weights = {}
        for name, tensor in model.state_dict().items():
            prefix = next(prefix for prefix in published if name.startswith(prefix))
            weights[published[prefix] + name.removeprefix(prefix)] = tensor.contiguous()
        save_file(weights, outdir / "model.safetensors", metadata={"format": "pt"})


def describe(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, outdir: Path) -> str:
    """What was made, as a line of JSON."""
    made = {
        "model": str(outdir),
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "bytes": sum(file.stat().st_size for file in outdir.iterdir()),
    }
    return json.dumps(made)


def outdir_of(description: str) -> Path:
    """The one argument of a script that makes a model."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("outdir", type=Path, help="the folder to write the model and its tokenizer into")
    outdir: Path = parser.parse_args().outdir
    return outdir


def main() -> None:
    outdir = outdir_of("Make a tiny Llama with random weights, to be served without a GPU.")
    tokenizer = train_tokenizer()
    model = build_model(tokenizer)
    save_model(model, outdir)
    tokenizer.save_pretrained(outdir)
    print(describe(model, tokenizer, outdir))


if __name__ == "__main__":
    main()
