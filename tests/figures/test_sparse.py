"""The sparse half of the BPPSA paper: exact counts, patterns as pictures, and a network trained through its scan."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot

from bppsa.codegen.cpu.build import available
from figures.figure import QUICK, Options
from figures.paper import LENET, PRUNED, TABLE_1
from figures.sparse import fig5, fig6, fig10, table1
from figures.sparse.images import PIXELS, TEST_DIGITS, images
from figures.sparse.networks import chain, pruned, vgg11

OPTIONS = Options(QUICK, 1.0, torch.device("cpu"), ("PyTorch", "auto"))
MODULES = {"table1": table1, "fig5": fig5, "fig6": fig6, "fig10": fig10}


@pytest.fixture(scope="module")
def record() -> Callable[[str], dict[str, Any]]:
    if reason := available():
        pytest.skip(f"the figures run kernels of ours: {reason}")
    known: dict[str, dict[str, Any]] = {}

    def measured(name: str) -> dict[str, Any]:
        if name not in known:
            known[name] = MODULES[name].measure(OPTIONS)
        return known[name]

    return measured


@pytest.mark.parametrize("name", MODULES)
def test_draws(record: Callable[[str], dict[str, Any]], name: str, tmp_path: Path) -> None:
    picture = MODULES[name].draw(record(name))
    picture.savefig(tmp_path / "a.png")
    pyplot.close(picture)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_the_printed_examples_are_the_exact_counts(record: Callable[[str], dict[str, Any]]) -> None:
    rows = record("table1")["rows"]
    conv = rows["conv 3->64"]
    assert (conv["shape"], conv["nnz"]) == ([3072, 65536], 1_696_512)
    assert conv["nnz"] == 3 * 64 * (3 * 32 - 2) ** 2
    assert [(row["shape"], row["nnz"]) for row in (rows["ReLU"], rows["max-pool 2x2"])] == [
        ([65536, 65536], 65536),
        ([65536, 16384], 65536),
    ]
    for name, paper in TABLE_1.items():
        assert float(paper.example) == pytest.approx(rows[name]["sparsity"], abs=1e-5)
        exact = paper.value == pytest.approx(rows[name]["sparsity"], abs=1e-12)
        assert exact == (name != "conv 3->64")  # the expression of a convolution forgets the border
    assert f"{conv['sparsity']:.5f}" == TABLE_1["conv 3->64"].example == "0.99157"
    assert f"{TABLE_1['conv 3->64'].value:.5f}" == "0.99121"
    assert f"{conv['mib']['values']:.1f}" == "6.5"
    assert conv["mib"]["dense"] == 768


def test_pictures_show_what_autograd_finds(record: Callable[[str], dict[str, Any]]) -> None:
    found = record("fig5")["panels"]
    assert found["convolution 3 x 3"] == {"shape": [128, 256], "possible": 2 * 4 * 22**2, "non_zero": 2 * 4 * 22**2}
    assert found["ReLU"]["possible"] == 256 > found["ReLU"]["non_zero"]
    assert found["max-pooling 2 x 2"] == {"shape": [256, 64], "possible": 256, "non_zero": 64}
    layers, image = fig5.network()
    for panel, jt in fig5.operators().items():
        x = layers[: panel.first](image)[0].detach()
        j = torch.func.jacrev(lambda x, panel=panel: layers[panel.first : panel.last](x[None])[0])(x)
        expected = j.reshape(-1, x.numel()).T
        torch.testing.assert_close(jt.dense(), expected)
        assert torch.equal(fig5.kinds(jt) == 2, expected != 0)
        assert torch.equal(fig5.kinds(jt) > 0, jt.pattern.mask())


def test_steps_of_the_scan_and_of_back_propagation(record: Callable[[str], dict[str, Any]]) -> None:
    steps = record("fig10")["steps"]
    dense, sparse, scan = (steps[way] for way in (fig10.DENSE, fig10.SPARSE, fig10.SCAN))
    assert len(dense) == len(sparse) == 20  # of 21 operators; the image needs no gradient
    torch.manual_seed(0)
    x, model = torch.randn(1, 3, 32, 32), vgg11(16)
    assert [step["flops"] for step in dense] == [2 * jt.nnz for jt in chain(model, x)[1:]]
    kept = [2 * jt.pattern.nnz for jt in chain(pruned(model, PRUNED), x)[1:]]
    assert [step["flops"] for step in sparse] == kept[::-1]  # from the last layer on
    assert {step["kind"] for step in dense + sparse} == {"mv"}
    for phase, critical in (("up", 2), ("middle", 4), ("down", 2)):
        assert sum(step["critical"] for step in scan if step["phase"] == phase) == critical
    assert {step["kind"] for step in scan if step["phase"] != "up"} == {"mv"}
    products = [step for step in scan if step["kind"] == "mm"]
    assert len(products) == 14  # 10 and 4: a[0] is a vector, and so is what it meets
    assert all(step["flops"] <= 2 * step["dense"] for step in dense + sparse + scan)


def test_lenet_learns_the_same_through_the_scan(record: Callable[[str], dict[str, Any]]) -> None:
    found = record("fig6")
    plain, scan = (found["ways"][way] for way in ("PyTorch", "blelloch"))
    assert (plain["ran"], scan["ran"]) == ("pytorch", "blelloch")
    for what in ("training", "test"):
        assert len(plain[what]) == found["iterations"] >= 1
        assert scan[what] == pytest.approx(plain[what], abs=1e-5)
    assert max(found["greatest_difference"].values()) < 1e-5
    assert found["relative_difference_of_gradients"] < 1e-5
    assert (LENET.rows, LENET.lr, LENET.momentum) == (256, 0.001, 0.9)


def test_digits_stand_in_for_cifar() -> None:
    found = images(None)
    assert found.training[0].shape == (1797 - TEST_DIGITS, 1, 32, 32)
    assert found.test[0].shape == (TEST_DIGITS, 1, 32, 32)
    assert found.training[0].mean().abs() < 1e-5
    batches = list(islice(found.batches(256, torch.device("cpu")), 12))
    assert [len(x) for x, _ in batches] == [256] * 12
    epochs = [torch.cat([classes for _, classes in part]).sort().values for part in (batches[:6], batches[6:])]
    assert torch.equal(*epochs)
    assert not torch.equal(batches[0][0], batches[6][0])


def test_cifar_is_read_where_it_is(tmp_path: Path) -> None:
    for number, name in enumerate([f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]):
        (tmp_path / name).write_bytes(bytes([number]) + bytes(range(256)) * (PIXELS // 256))
    found = images(tmp_path)
    assert found.name == "CIFAR-10"
    assert found.training[1].tolist() == [0, 1, 2, 3, 4]
    assert found.test[1].tolist() == [5]
    assert found.training[0].shape == (5, 3, 32, 32)
    red = found.test[0][0, 0].flatten()
    assert torch.equal(red[:256].argsort(), torch.arange(256))
    with pytest.raises(FileNotFoundError, match="data_batch_1"):
        images(tmp_path / "nowhere")
