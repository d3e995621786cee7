"""Make a tiny BERT with random weights that gives a pair of texts a score: a cross-encoder, to rerank without a GPU.

Its tokenizer has the words of make_tiny_llama.py's, and frames texts as BERT does. Needs `torch` and `transformers`, as
vLLM does.

usage: python tools/make_tiny_bert.py OUTDIR
"""

import torch
from make_tiny_llama import CONTEXT, SEED, describe, outdir_of, save_model, train_tokenizer
from tokenizers import processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

BEGIN, SEPARATOR = "[CLS]", "[SEP]"
INITIALIZER_RANGE = 0.5  # wide, or all pairs have the same score


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Of a pair, the second text has the other type of token."""
    tokenizer = train_tokenizer(BEGIN, SEPARATOR)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN}:0 $A:0 {SEPARATOR}:0",
        pair=f"{BEGIN}:0 $A:0 {SEPARATOR}:0 $B:1 {SEPARATOR}:1",
        special_tokens=[(marker, tokenizer.convert_tokens_to_ids(marker)) for marker in (BEGIN, SEPARATOR)],
    )
    tokenizer.cls_token, tokenizer.sep_token = BEGIN, SEPARATOR
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.chat_template = None
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast) -> BertForSequenceClassification:
    torch.manual_seed(SEED)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=CONTEXT,
            pad_token_id=tokenizer.pad_token_id,
            num_labels=1,
            initializer_range=INITIALIZER_RANGE,
            dtype="float32",
        )
    )


def main() -> None:
    outdir = outdir_of("Make a tiny BERT with random weights that scores pairs of texts, to rerank without a GPU.")
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    save_model(model, outdir)
    tokenizer.save_pretrained(outdir)
    print(describe(model, tokenizer, outdir))


if __name__ == "__main__":
    main()
