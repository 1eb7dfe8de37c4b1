"""Run a function on several processes that form one gloo group, and collect what it returns."""

import json
import os
import socket
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

TIMEOUT = timedelta(seconds=60)


def on_ranks(num: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call ``function(rank, *args)`` on ``num`` ranks; results are JSON.

    Args:
        num: processes.
        function: of a module, so that a process can import it.
        args: for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        spawn(_work, args=(num, folder, function, args), nprocs=num)  # type: ignore[no-untyped-call]
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(num)]


def _work(rank: int, num: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=num, timeout=TIMEOUT
    )
    try:
        Path(folder, f"{rank}.json").write_text(json.dumps(function(rank, *args)))
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def _loopback() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
