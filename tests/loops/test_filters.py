"""Linear algebra within a loop: PyTorch's errors, raised where PyTorch raises them; after them it is a scan again."""

from __future__ import annotations

import pytest
import torch

from tests.loops.beside import Pair
from tests.loops.cells import x
from tests.loops.filters import Filter


def test_a_singular_matrix_is_pytorchs_error() -> None:
    torch.manual_seed(0)
    pair = Pair(Filter())
    assert pair.strategies(x()) == ["sequential"]
    kept = {name: parameter.detach().clone() for name, parameter in pair.plain.named_parameters()}
    for name in ("seen", "error"):
        pair.both(lambda model, name=name: getattr(model, name).data.zero_())  # type: ignore[misc]
    given = x()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        pair.fast(given)
    assert torch.equal(torch.get_rng_state(), before)
    assert caught.value.__context__ is None
    assert any(entry.name == "forward" and entry.path.name == "filters.py" for entry in caught.traceback)
    pair.both(lambda model: model.load_state_dict(kept))
    assert pair.strategies(x(), calls=1) == ["sequential"]
