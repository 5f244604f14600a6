"""Models of timm and torchvision that read pictures."""

from __future__ import annotations

import torch
from torch import nn

from tests.models.case import CLASSES, Case, Cases, classes, images, of_class
from tests.models.library import library

KEEP = {"num_classes": CLASSES, "drop_rate": 0.0, "drop_path_rate": 0.0}
VIT = {"embed_dim": 16, "depth": 4, "num_heads": 2}
# Pixels a side for models that halve them five times: a batch norm over the one pixel that is left of 32, in the three
# rows of a micro-batch, makes ten million times as much of rounding.
WIDE = 64


def of_timm(name: str, size: int = 32, **options: object) -> Case:
    def make() -> nn.Module:
        return library("timm").create_model(name, **{**KEEP, **options})

    return Case(make, images(size), classes, of_class, needs="timm")


def of_torchvision(name: str, size: int = 32, **options: object) -> Case:
    def make() -> nn.Module:
        return getattr(library("torchvision").models, name)(num_classes=CLASSES, **options)

    return Case(make, images(size), classes, of_class, needs="torchvision")


def mixer() -> nn.Module:
    """By its class, as those that timm makes by name have a width of their own."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_blocks": 4}
    return library("timm.models.mlp_mixer").MlpMixer(CLASSES, **sizes)


def vgg11() -> nn.Module:
    """With fewer channels: the classifier that it comes with has 100 million weights."""
    vgg = library("torchvision").models.vgg
    with torch.device("meta"):
        model = vgg.VGG(nn.Identity(), CLASSES)
    model.features = vgg.make_layers([8, "M", 8, "M", 16, 16, "M", 16, 16, "M", 16, 16, "M"])
    layers = (nn.Linear(16 * 49, 24), nn.ReLU(True), nn.Dropout(0.0), nn.Linear(24, 24), nn.ReLU(True))
    model.classifier = nn.Sequential(*layers, nn.Dropout(0.0), nn.Linear(24, CLASSES))
    return model


TIMM: Cases = {
    "timm resnet18": of_timm("resnet18", channels=(8, 8, 16, 16), stem_width=8),
    "timm resnext": of_timm(
        "resnext50_32x4d", layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), cardinality=2, base_width=16
    ),
    "timm regnet": of_timm("regnetx_002", WIDE),
    "timm convnext": of_timm("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 12, 16, 24)),
    "timm vit": of_timm("vit_tiny_patch16_224", img_size=32, patch_size=8, **VIT),
    "timm deit": of_timm("deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, **VIT),
    "timm efficientnet": of_timm("test_efficientnet", WIDE),
    "timm mobilenetv3": of_timm("mobilenetv3_small_050", WIDE),
    "timm swin": of_timm(
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=2,
        embed_dim=8,
        depths=(1, 2, 1),
        num_heads=(1, 2, 2),
    ),
    "timm mixer": Case(mixer, images(), classes, of_class, needs="timm"),
    "timm poolformer": of_timm("poolformer_s12"),
}
TORCHVISION: Cases = {
    "torchvision resnet18": of_torchvision("resnet18", WIDE),
    "torchvision vgg11": Case(vgg11, images(), classes, of_class, needs="torchvision"),
    "torchvision densenet121": of_torchvision("densenet121", WIDE),
    "torchvision mobilenet_v2": of_torchvision("mobilenet_v2", WIDE, width_mult=0.25, dropout=0.0),
}
