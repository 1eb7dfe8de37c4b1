"""Where a node of a captured graph comes from: module path and source line."""

import re
from pathlib import PurePath
from typing import Any

import torch.fx

_OWN = PurePath(__file__).parents[1]
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_ROOT = re.compile(r"^L\['\w+'\]\.?")
_MODULE = re.compile(r"\._modules\['([^']+)'\]|\[(\d+)\]")


def module_path(node: torch.fx.Node) -> str:
    """Name the innermost module that ran ``node``; backward nodes carry their forward's module.

    Example: ``transformer.h.3.mlp``; the empty string is the root module.
    """
    stack: dict[str, Any] | None = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = _MODULE.sub(lambda match: "." + (match[1] or match[2]), path)
    path = _ROOT.sub("", path)
    return path.removeprefix("self.").strip(".")


def source_line(node: torch.fx.Node) -> str:
    """Name the user's line that made ``node`` as ``file.py:123``, or the empty string."""
    for file, line in reversed(_FRAME.findall(node.meta.get("stack_trace") or "")):
        path = PurePath(file)
        if not path.is_relative_to(_OWN):
            return f"{path.name}:{line}"
    return ""
