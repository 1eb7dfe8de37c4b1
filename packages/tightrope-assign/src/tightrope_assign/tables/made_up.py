"""Tables that are drawn: what cost models are measured on, and what methods are compared on.

Rows, pooling and skew spread over powers of ten, as in the public sets of click logs, which are not included.
"""

import random
from collections.abc import Sequence
from math import log10

from tightrope_assign.values.tables import EmbeddingTable, TableSet

DIMS = (4, 8, 16, 32, 64, 128)
_MOST_NUMBERS = 2**25


def made_up_tables(
    num_tables: int,
    *,
    seed: int = 0,
    batch: int = 512,
    dims: Sequence[int] = DIMS,
    most_rows: int = 3_000_000,
) -> TableSet:
    """Draw tables: from 1e3 rows, within 128 MiB, 1 to 50 rows a sample, popularity from even to steep.

    >>> len(made_up_tables(5, seed=1).tables)
    5
    """
    chance = random.Random(f"tables {seed}")
    found = []
    for at in range(num_tables):
        dim = chance.choice(dims)
        rows = int(min(10 ** chance.uniform(3, log10(most_rows)), _MOST_NUMBERS // dim))
        pooling = 1.0 if chance.random() < 0.3 else round(10 ** chance.uniform(0, 1.7), 2)
        skew = 0.0 if chance.random() < 0.2 else round(chance.uniform(0.5, 1.3), 2)
        found.append(EmbeddingTable(f"t{at}", rows, dim, pooling, skew))
    return TableSet(tuple(found), batch, 4, f"made-up {num_tables} {seed}")
