"""Hypergraphs to measure on: real ones that are on this computer, and generated ones.

Real sets are read, never kept: disGene from the wheel of hypernetx (2.4), and those of a checkout of
github.com/malllabiisc/HyperGCN. Their pickles may name sets and numbers of numpy, nothing else.
"""

import importlib.util
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

_HYPERGCN: Final = ("coauthorship/dblp", "cocitation/pubmed", "coauthorship/cora", "cocitation/citeseer")
_ALLOWED: Final = {("__builtin__", "set"), ("numpy.core.multiarray", "scalar"), ("numpy", "dtype")}
GENERATED: Final = {
    "generated: mean degree 6": (88_860, 69_906, 430_000, 1.6),
    "generated: mean degree 90": (20_000, 4_000, 360_000, 1.9),
}
"""Vertices, hyperedges, incidences and the exponent of degrees."""


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed here")
        return super().find_class(module, name)


def sets(data: Path | None, console: Console) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the index (2, N) of every set that is here; say what is missing."""
    if (file := _hypernetx()) is not None:
        yield "disGene", _numbered(line.split()[::-1] for line in file.read_text().splitlines() if line)
    else:
        console.print("disGene is missing: pip install --no-deps hypernetx==2.4.3")
    for name in _HYPERGCN:
        file = None if data is None else data / "data" / name / "hypergraph.pickle"
        if file is not None and file.is_file():
            with file.open("rb") as stream:
                found = _Restricted(stream, encoding="latin1").load()
            yield name, _numbered((int(v), edge) for edge, members in found.items() for v in members)
        else:
            console.print(f"{name} is missing: give --data, a checkout of malllabiisc/HyperGCN")
    for name, sizes in GENERATED.items():
        yield name, generated(*sizes)


def _hypernetx() -> Path | None:
    spec = importlib.util.find_spec("hypernetx")
    file = (
        None if spec is None or spec.origin is None else Path(spec.origin).parent / "utils/toys/disGene.txt"
    )
    return file if file is not None and file.is_file() else None


def _numbered(pairs: Any) -> Tensor:
    """Number vertices and hyperedges by where they occur first."""
    vertices: dict[Any, int] = {}
    edges: dict[Any, int] = {}
    rows = [(vertices.setdefault(v, len(vertices)), edges.setdefault(e, len(edges))) for v, e in pairs]
    return torch.tensor(rows).T.contiguous()


def generated(num_vertices: int, num_edges: int, num_pairs: int, exponent: float) -> Tensor:
    """Draw hyperedges whose degrees follow a power law, with members drawn evenly."""
    draw = np.random.default_rng(0)
    degree = np.minimum(draw.zipf(exponent, num_edges).astype(float) + 1, num_vertices / 10)
    degree = np.maximum(1, degree * num_pairs / degree.sum()).astype(int)
    edges = np.repeat(np.arange(num_edges), degree)
    return torch.from_numpy(np.stack((draw.integers(0, num_vertices, len(edges)), edges)))
