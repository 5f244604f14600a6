"""Models of transformers that read pictures and sound."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from tests.models.case import CLASSES, WORDS, Call, Cases, classes, images, of_all, of_class, of_words, reals, words
from tests.models.decoders import ENDS, SIZES, made, transformer
from tests.models.encoders import BART, LABELS, NO_DROPOUT, next_words

VIT = {**SIZES, **NO_DROPOUT, "image_size": 16, "patch_size": 4, **LABELS}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 2, 1], "num_heads": [1, 2, 2]}
SWIN |= {"window_size": 2, "hidden_dropout_prob": 0.0, "drop_path_rate": 0.0, **NO_DROPOUT, **LABELS}
SEGFORMER = {"num_encoder_blocks": 3, "depths": [1, 1, 1], "sr_ratios": [2, 2, 1], "hidden_sizes": [8, 8, 16]}
SEGFORMER |= {"num_attention_heads": [1, 2, 2], "patch_sizes": [7, 3, 3], "strides": [4, 2, 2]}
SEGFORMER |= {"mlp_ratios": [2, 2, 2], "decoder_hidden_size": 16, "classifier_dropout_prob": 0.0}
SEGFORMER |= {"drop_path_rate": 0.0, **NO_DROPOUT, **LABELS}
WHISPER = {
    **BART,
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "max_target_positions": 16,
    "apply_spec_augment": False,
}
WHISPER |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "pad_token_id": 0}
WAV2VEC2 = {**SIZES, "vocab_size": WORDS, "conv_dim": [8, 8, 8], "conv_kernel": [10, 3, 3], "conv_stride": [5, 2, 2]}
WAV2VEC2 |= {"num_feat_extract_layers": 3, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
WAV2VEC2 |= {"classifier_proj_size": 8, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0, **LABELS}
WAV2VEC2 |= {f"{what}_dropout": 0.0 for what in ("hidden", "attention", "activation", "feat_proj", "final")}
CLIP_SIDE = {
    key: SIZES[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
}
CLIP_TEXT = {**CLIP_SIDE, **ENDS, "num_hidden_layers": 2, "vocab_size": WORDS, "max_position_embeddings": 32}
CLIP_VISION = {**CLIP_SIDE, "num_hidden_layers": 2, "image_size": 16, "patch_size": 4}


def speech(rows: int, g: Generator) -> Call:
    return (reals(8, 20)(rows, g),), {"decoder_input_ids": words(rows, g, 5)}


def sound(rows: int, g: Generator) -> Call:
    return (reals(400)(rows, g),), {}


def captioned(rows: int, g: Generator) -> Call:
    return (), {"input_ids": words(rows, g), "pixel_values": reals(3, 16, 16)(rows, g)}


def of_pixels(output: object, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.logits, target)


def pixels(rows: int, g: Generator) -> Tensor:
    return torch.randint(CLASSES, (rows, 8, 8), generator=g)


class Embeddings(nn.Module):
    """What CLIP makes of a text and of a picture, without the comparison of all texts with all pictures: that is of a
    micro-batch, and has no rows of its own."""

    def __init__(self, clip: nn.Module) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> dict[str, Tensor]:
        found = self.clip(input_ids=input_ids, pixel_values=pixel_values)
        return {"text": found.text_embeds, "image": found.image_embeds}


def clip() -> nn.Module:
    make = made("CLIPConfig", "CLIPModel", text_config=CLIP_TEXT, vision_config=CLIP_VISION, projection_dim=8)
    return Embeddings(make())


MEDIA: Cases = {
    "vit": transformer(made("ViTConfig", "ViTForImageClassification", **VIT), images(16), classes, of_class),
    "swin": transformer(made("SwinConfig", "SwinForImageClassification", **SWIN), images(32), classes, of_class),
    "segformer": transformer(
        made("SegformerConfig", "SegformerForSemanticSegmentation", **SEGFORMER), images(32), pixels, of_pixels
    ),
    "whisper": transformer(
        made("WhisperConfig", "WhisperForConditionalGeneration", **WHISPER), speech, next_words, of_words
    ),
    "wav2vec2": transformer(
        made("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", **WAV2VEC2), sound, classes, of_class
    ),
    "clip": transformer(clip, captioned, reals(), of_all),
}
