"""Make a tiny Qwen2-Audio with random weights: a model that is given sound, to be run where there is no GPU.

Its tokenizer is that of make_tiny_llama.py, its decoder of the same size. A second of sound is 25 tokens, and at most
30 seconds of an item are heard. Needs `torch` and `transformers`, as vLLM does.

usage: python tools/make_tiny_qwen2audio.py OUTDIR
"""

import torch
from make_tiny_llama import SEED, decoder_shape, describe, outdir_of, save_model, train_tokenizer
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2AudioConfig,
    Qwen2AudioEncoderConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    Qwen2Config,
    WhisperFeatureExtractor,
)

AUDIO, AUDIO_START, AUDIO_END = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
MEL_BINS = 16

# The content of a message is text, or a list of blocks of text and sound in any order.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for block in message['content'] %}"
    "{% if block['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif block['type'] == 'text' %}{{ block['text'] }}{% endif %}"
    "{% endfor %}"
    "{% endif %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PUBLISHED_PREFIXES = {
    "model.language_model.": "language_model.model.",
    "model.audio_tower.": "audio_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "lm_head.": "language_model.lm_head.",
}


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2AudioForConditionalGeneration:
    torch.manual_seed(SEED)
    ear = Qwen2AudioEncoderConfig(
        num_mel_bins=MEL_BINS,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        max_source_positions=1500,  # of 20 ms: 30 seconds
    )
    return Qwen2AudioForConditionalGeneration(
        Qwen2AudioConfig(
            audio_config=ear,
            text_config=Qwen2Config(**decoder_shape(tokenizer)),
            audio_token_index=tokenizer.convert_tokens_to_ids(AUDIO),
            tie_word_embeddings=False,
            dtype="float32",
        )
    )


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen2AudioProcessor:
    return Qwen2AudioProcessor(
        feature_extractor=WhisperFeatureExtractor(feature_size=MEL_BINS),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )


def main() -> None:
    outdir = outdir_of("Make a tiny Qwen2-Audio with random weights, to be given sound without a GPU.")
    tokenizer = train_tokenizer(AUDIO, AUDIO_START, AUDIO_END, chat_template=CHAT_TEMPLATE)
    model = build_model(tokenizer)
    save_model(model, outdir, PUBLISHED_PREFIXES)
    build_processor(tokenizer).save_pretrained(outdir)
    print(describe(model, tokenizer, outdir))


if __name__ == "__main__":
    main()
