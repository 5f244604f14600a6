"""All models that are cut and trained, by name."""

from __future__ import annotations

import pytest

from tests.models.case import Cases
from tests.models.decoders import DECODERS
from tests.models.encoders import ENCODERS
from tests.models.media import MEDIA
from tests.models.plain import PLAIN
from tests.models.vision import TIMM, TORCHVISION

MODELS: Cases = {**PLAIN, **DECODERS, **ENCODERS, **MEDIA, **TIMM, **TORCHVISION}

# Those that every change must pass: the cheapest and most different, and all of torch's own. The others are for
# `make test-models`.
ALWAYS = {*PLAIN, "gpt2", "llama", "bert", "mamba", "timm convnext", "timm resnet18"}


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in ALWAYS else [pytest.mark.models]
