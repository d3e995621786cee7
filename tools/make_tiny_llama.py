"""Make a tiny Llama with random weights, its own tokenizer and a chat template: a model to serve where there is no GPU.

It says nonsense, fast: 0.6 million parameters, under 3 MB. Nothing is downloaded; the tokenizer is trained on the
sources of the Python standard library, which every machine has. Needs `torch` and `transformers`, as vLLM does.

usage: python tools/make_tiny_llama.py OUTDIR
"""

import argparse
import json
import sysconfig
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
CONTEXT = 2048
SEED = 0

PAD, BOS, TURN_START, TURN_END = "<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE, so that any text can be encoded and some tokens are parts of a character, as in real models."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, TURN_START, TURN_END],
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
        additional_special_tokens=[TURN_START],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Two small layers. Untied embeddings and wide weights: with the defaults, greedy decoding repeats one token."""
    torch.manual_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
            initializer_range=0.5,
            dtype="float32",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a tiny Llama with random weights, to be served without a GPU.")
    parser.add_argument("outdir", type=Path, help="the folder to write the model and its tokenizer into")
    outdir: Path = parser.parse_args().outdir

    started = time.monotonic()
    tokenizer = train_tokenizer()
    model = build_model(tokenizer)
    tokenizer.save_pretrained(outdir)
    model.save_pretrained(outdir)
    made = {
        "model": str(outdir),
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "bytes": sum(file.stat().st_size for file in outdir.iterdir()),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(made))


if __name__ == "__main__":
    main()
