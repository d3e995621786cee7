"""Make a tiny Whisper with random weights: a model that writes sound down, to be served where there is no GPU.

Its tokenizer has the words of make_tiny_llama.py's and Whisper's own markers: of the languages, the tasks and the
beginning of a transcript. It hears up to 30 seconds and writes nonsense until it is stopped. Needs `torch` and
`transformers`, as vLLM does.

usage: python tools/make_tiny_whisper.py OUTDIR
"""

import json

import torch
from make_tiny_llama import SEED, describe, outdir_of, save_model, train_tokenizer
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
MEL_BINS = 16
POSITIONS_HEARD = 1500  # of 20 ms: 30 seconds
POSITIONS_WRITTEN = 448
INITIALIZER_RANGE = 0.5  # wide, or greedy decoding repeats one token


def build_tokenizer() -> WhisperTokenizer:
    """The trained vocabulary under Whisper's class, whose markers are special tokens."""
    markers = [END, START, *(f"<|{language}|>" for language in LANGUAGES), *TASKS]
    trained = json.loads(train_tokenizer(*markers).backend_tokenizer.to_str())["model"]
    return WhisperTokenizer(
        vocab=trained["vocab"],
        merges=[tuple(pair) for pair in trained["merges"]],
        pad_token=END,
        additional_special_tokens=markers[1:],
        model_max_length=POSITIONS_WRITTEN,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: WhisperTokenizer) -> WhisperForConditionalGeneration:
    torch.manual_seed(SEED)
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=len(tokenizer),
            num_mel_bins=MEL_BINS,
            d_model=64,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=128,
            decoder_layers=2,
            decoder_attention_heads=2,
            decoder_ffn_dim=128,
            max_source_positions=POSITIONS_HEARD,
            max_target_positions=POSITIONS_WRITTEN,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            decoder_start_token_id=tokenizer.convert_tokens_to_ids(START),
            suppress_tokens=None,
            begin_suppress_tokens=None,
            init_std=INITIALIZER_RANGE,
            dtype="float32",
        )
    )


def main() -> None:
    outdir = outdir_of("Make a tiny Whisper with random weights, to be given speech without a GPU.")
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    save_model(model, outdir)
    WhisperProcessor(WhisperFeatureExtractor(feature_size=MEL_BINS), tokenizer).save_pretrained(outdir)
    print(describe(model, tokenizer, outdir))


if __name__ == "__main__":
    main()
