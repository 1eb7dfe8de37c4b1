"""What torch does not make public."""

from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import _get_default_store


def store() -> Store:
    """Return the store that the ranks of this job met by."""
    return _get_default_store()
