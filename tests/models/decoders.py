"""Language models of transformers that read a text from left to right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, nn

from tests.models.case import WORDS, Call, Case, Cases, of_words, text, words
from tests.models.library import library

SMALL = {"vocab_size": WORDS, "use_cache": False}
# What most configurations call their sizes.
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def made(name: str, architecture: str, **sizes: object) -> Callable[[], nn.Module]:
    """The model of this architecture, made from the configuration of this name."""

    def make() -> nn.Module:
        transformers = library("transformers")
        return getattr(transformers, architecture)(getattr(transformers, name)(**sizes))

    return make


transformer = partial(Case, needs="transformers")


def language(name: str, architecture: str, **sizes: object) -> Case:
    return transformer(made(name, architecture, **sizes), text, words, of_words)


def labelled(rows: int, g: Generator) -> Call:
    """The text is its own label: the model returns its loss."""
    ids = words(rows, g)
    return (), {"input_ids": ids, "labels": ids}


GPT2 = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "n_layer": 4, "n_head": 2}
GPT2 |= {f"{part}_pdrop": 0.0 for part in ("attn", "embd", "resid")} | {"bos_token_id": 1, "eos_token_id": 2}
LLAMA = {**SMALL, **SIZES, **ENDS, "num_key_value_heads": 1}
# Which experts a word goes to is found by sorting; the grouped product that is chosen by default has no float64.
MIXTRAL = {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}
NEOX = {**SMALL, **SIZES, **ENDS, "attention_dropout": 0.0, "hidden_dropout": 0.0}
OPT = {**SMALL, **SIZES, **ENDS, "ffn_dim": 24, "word_embed_proj_dim": 16, "dropout": 0.0, "activation_dropout": 0.0}
BLOOM = {**SMALL, **ENDS, "hidden_size": 16, "n_layer": 4, "n_head": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0}
PHI = {**NEOX, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
MAMBA = {**SMALL, **ENDS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 4, "time_step_rank": 2}

DECODERS: Cases = {
    "gpt2": language("GPT2Config", "GPT2LMHeadModel", **GPT2, use_cache=False),
    "llama": language("LlamaConfig", "LlamaForCausalLM", **LLAMA),
    "mistral": language("MistralConfig", "MistralForCausalLM", **LLAMA, sliding_window=4),
    "mixtral": replace(language("MixtralConfig", "MixtralForCausalLM", **MIXTRAL), dtype=torch.float32),
    "mixtral in batches": language(
        "MixtralConfig", "MixtralForCausalLM", **MIXTRAL, experts_implementation="batched_mm"
    ),
    "qwen2": language("Qwen2Config", "Qwen2ForCausalLM", **LLAMA, tie_word_embeddings=True),
    "gemma": language("GemmaConfig", "GemmaForCausalLM", **LLAMA, head_dim=8),
    "gpt_neox": language("GPTNeoXConfig", "GPTNeoXForCausalLM", **NEOX),
    "opt": language("OPTConfig", "OPTForCausalLM", **OPT, attention_dropout=0.0),
    "bloom": language("BloomConfig", "BloomForCausalLM", **BLOOM),
    "falcon": language("FalconConfig", "FalconForCausalLM", **NEOX, num_kv_heads=1),
    "phi": language("PhiConfig", "PhiForCausalLM", **PHI),
    "mamba": language("MambaConfig", "MambaForCausalLM", **MAMBA),
    # With the cache of keys and values that it returns where nobody says otherwise, and with a loss of its own.
    "gpt2 as it comes": language("GPT2Config", "GPT2LMHeadModel", **GPT2),
    "gpt2 with labels": transformer(
        made("GPT2Config", "GPT2LMHeadModel", **GPT2, use_cache=False), labelled, None, None
    ),
    "llama with labels": transformer(made("LlamaConfig", "LlamaForCausalLM", **LLAMA), labelled, None, None),
}
