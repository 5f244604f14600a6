"""Forwards as people write them, by name: each has pruned layers and does one thing that a capture may lose."""

from tests.pruned.forwards.beside import BESIDE
from tests.pruned.forwards.buffers import BUFFERS
from tests.pruned.forwards.draws import DRAWS
from tests.pruned.forwards.kept import KEPT
from tests.pruned.forwards.modes import MODES
from tests.pruned.forwards.net import Net
from tests.pruned.forwards.python import PYTHON
from tests.pruned.forwards.structure import STRUCTURE

FORWARDS: dict[str, type[Net]] = MODES | DRAWS | BUFFERS | KEPT | PYTHON | STRUCTURE | BESIDE
