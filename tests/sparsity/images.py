"""Rows of samples for ops on images and sequences: pools, interpolations, padding, shuffles and normalisations."""

import torch

from tests.sparsity.samples import ACROSS, BLOCK, DENSE, DIAG, SPARSE, B, Sample

aten = torch.ops.aten
NO = (None,) * 12


def image(r):
    return r(B, 2, 5, 4)


def volume(r):
    return r(B, 1, 3, 4, 3)


def on(op, *rest, make=image, structures=SPARSE, overload="default", rtol=1e-12) -> Sample:
    return Sample(getattr(getattr(aten, op), overload), lambda r: (make(r), *rest), structures, rtol=rtol)


def shaped(*shape):
    return lambda r: r(B, *shape)


def norm(name, make, structures) -> Sample:
    return Sample(getattr(aten, name).default, make, structures, rtol=1e-10)


IMAGE_SAMPLES = [
    # pools
    on("max_pool2d_with_indices", [2, 2], structures=(SPARSE, None)),
    on("max_pool2d_with_indices", [2], make=shaped(2, 4, 4), structures=(SPARSE, None)),
    on("max_pool2d_with_indices", [3, 2], [2, 1], [1, 1], structures=(SPARSE, None)),
    on("max_pool2d_with_indices", [2, 2], [2, 2], [0, 0], [2, 1], True, structures=(SPARSE, None)),
    on("max_pool2d_with_indices", [1, 2], [3, 2], structures=(SPARSE, None)),
    on("max_pool3d_with_indices", [1, 2, 2], [1, 2, 1], make=volume, structures=(SPARSE, None)),
    on("adaptive_max_pool2d", [2, 3], structures=(SPARSE, None)),
    on("adaptive_max_pool3d", [3, 3, 2], make=volume, structures=(SPARSE, None)),
    on("avg_pool2d", [2, 2]),
    on("avg_pool2d", [3, 2], [2, 1], [1, 1], True, False),
    on("avg_pool2d", [3], [2], [1], True, True),
    on("avg_pool2d", [2, 2], [1, 1], [0, 0], False, True, 3),
    on("avg_pool3d", [2, 2, 2], [1, 2, 1], [1, 0, 0], make=volume),
    on("_adaptive_avg_pool2d", [2, 3]),
    on("_adaptive_avg_pool2d", [7, 4]),
    on("_adaptive_avg_pool3d", [2, 3, 1], make=volume),
    # interpolations
    on("upsample_linear1d", [7], False, make=shaped(2, 4)),
    on("upsample_linear1d", [3], True, make=shaped(2, 5)),
    on("upsample_bilinear2d", [7, 3], False),
    on("upsample_bilinear2d", [10, 8], False, 2.0, 2.0),
    on("upsample_bilinear2d", [9, 4], True),
    on("upsample_bicubic2d", [7, 6], False),
    on("upsample_trilinear3d", [4, 5, 6], False, make=volume),
    on("upsample_nearest1d", [7], make=shaped(2, 4)),
    on("upsample_nearest2d", [10, 8], 2.0, 2.0),
    on("upsample_nearest2d", [7, 3]),
    on("upsample_nearest3d", [4, 5, 6], make=volume),
    # padding and shuffles
    on("constant_pad_nd", [1, 2, 0, 1]),
    on("constant_pad_nd", [-1, 1, 1, -2], 0.5),
    on("constant_pad_nd", [0, 0, 1, 1, 0, 0, 0, 0]),
    on("constant_pad_nd", [0, 1, 0, 0, 0, 0, 1, 0], structures=ACROSS),
    on("reflection_pad1d", [2, 1], make=shaped(2, 4)),
    on("reflection_pad2d", [2, 1, 0, 3]),
    on("reflection_pad3d", [1, 1, 0, 2, 1, 0], make=volume),
    on("replication_pad1d", [2, 1], make=shaped(2, 4)),
    on("replication_pad2d", [2, 1, 0, 3]),
    on("replication_pad3d", [1, 1, 0, 2, 1, 0], make=volume),
    on("pixel_shuffle", 2, make=shaped(8, 2, 3)),
    on("pixel_unshuffle", 2, make=shaped(2, 4, 6)),
    on("channel_shuffle", 2, make=shaped(6, 2)),
    on("roll", [1, -2], [1, 3]),
    on("roll", [1], structures=ACROSS),
    on("flip", [-1, 1]),
    on("flip", [0], structures=ACROSS),
    on("repeat", [1, 2, 1, 3]),
    on("repeat", [1, 1, 2], make=shaped(5), structures=ACROSS),
    on("repeat", [2, 1], make=shaped(5), structures=ACROSS),
    on("tril", make=shaped(3, 4)),
    on("triu", 1, make=shaped(4, 3)),
    on("tril", make=shaped(4), structures=ACROSS),
    on("index", [None, torch.tensor([2, 0, 0])], make=shaped(4, 2), structures=(SPARSE, None), overload="Tensor"),
    on("index", [torch.tensor([2, 0])], make=shaped(4), structures=(ACROSS, None), overload="Tensor"),
    on(
        "_unsafe_index",
        [None, None, torch.tensor([[0], [2]]), torch.tensor([0, 1, 1])],
        make=shaped(2, 3, 2),
        structures=(SPARSE, None, None),
        overload="Tensor",
    ),
    # normalisations
    norm("native_layer_norm", lambda r: (r(B, 3, 4), [4], r(4), r(4), 1e-5), (BLOCK, ACROSS, ACROSS, *NO[:6])),
    norm("native_layer_norm", lambda r: (r(B, 3, 4), [3, 4], None, None, 1e-5), (DENSE, *NO[:2])),
    norm(
        "native_group_norm",
        lambda r: (r(B, 4, 3), r(4), r(4), B, 4, 3, 2, 1e-5),
        (BLOCK, ACROSS, ACROSS, *NO[:6]),
    ),
    norm("native_group_norm", lambda r: (r(B, 4, 3), None, None, B, 4, 3, 1, 1e-5), (DENSE, *NO[:2])),
    norm(
        "_native_batch_norm_legit_no_training",
        lambda r: (r(B, 2, 3), r(2), r(2), r(2), r.positive(2), 0.1, 1e-5),
        (DIAG, ACROSS, ACROSS, *NO[:12]),
    ),
    norm(
        "native_batch_norm",
        lambda r: (r(B, 2, 3), None, None, r(2), r.positive(2), False, 0.1, 1e-5),
        (DIAG, *NO[:8]),
    ),
    norm(
        "native_batch_norm",
        lambda r: (r(B, 2, 3), r(2), r(2), None, None, True, 0.1, 1e-5),
        (ACROSS, ACROSS, ACROSS, *NO[:6]),
    ),
]
