"""Make a tiny LLaVA with random weights: a model that is given images, to be run where there is no GPU.

Its decoder and tokenizer are those of make_tiny_llama.py. An image of any size is cropped to 28 x 28 pixels and seen as
two by two patches: 4 tokens. Needs `torch`, `transformers` and `torchvision` (tools/install_vllm_cpu.sh).

usage: python tools/make_tiny_llava.py OUTDIR
"""

import torch
from make_tiny_llama import INITIALIZER_RANGE, SEED, decoder_shape, describe, outdir_of, save_model, train_tokenizer
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

IMAGE = "<image>"
IMAGE_SIDE, PATCH_SIDE = 28, 14  # pixels
IMAGE_TOKENS = (IMAGE_SIDE // PATCH_SIDE) ** 2

# The content of a message is text, or a list of blocks of text and images in any order.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for block in message['content'] %}"
    "{% if block['type'] == 'image' %}<image>{% elif block['type'] == 'text' %}{{ block['text'] }}{% endif %}"
    "{% endfor %}"
    "{% endif %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PUBLISHED_PREFIXES = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "lm_head.": "language_model.lm_head.",
}


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """The initialiser's range goes for each part: with CLIP's own default, all images would look alike."""
    torch.manual_seed(SEED)
    eye = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=IMAGE_SIDE,
        patch_size=PATCH_SIDE,
        projection_dim=32,
    )
    return LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=eye,
            text_config=LlamaConfig(**decoder_shape(tokenizer), head_dim=32),
            image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
            image_seq_length=IMAGE_TOKENS,
            vision_feature_layer=-1,
            vision_feature_select_strategy="default",  # leaves out the token that stands for the whole image
            tie_word_embeddings=False,
            initializer_range=INITIALIZER_RANGE,
            dtype="float32",
        )
    )


def build_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    return LlavaProcessor(
        image_processor=CLIPImageProcessor(
            size={"shortest_edge": IMAGE_SIDE}, crop_size={"height": IMAGE_SIDE, "width": IMAGE_SIDE}
        ),
        tokenizer=tokenizer,
        patch_size=PATCH_SIDE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    )


def main() -> None:
    outdir = outdir_of("Make a tiny LLaVA with random weights, to be given images without a GPU.")
    tokenizer = train_tokenizer(IMAGE, chat_template=CHAT_TEMPLATE)
    model = build_model(tokenizer)
    save_model(model, outdir, PUBLISHED_PREFIXES)
    build_processor(tokenizer).save_pretrained(outdir)
    print(describe(model, tokenizer, outdir))


if __name__ == "__main__":
    main()
