"""Other forms of the same computation: ``python -m benchmarks forms [--only H1] [--nets gpt2] [--data DIR]``.

H1  hypergraph convolution over two products with CSR matrices of torch, and over the message passing of
    torch_geometric's HypergraphConv, forward and both ways
H2  epochs of HGNN, UniGIN and UniGCNII with 64 features over the same mathematics in torch_geometric, and
    the peak bytes of a layer in training
R1  every rule of rewriting, proved on 100 examples a pair
R2  extraction against greedy substitution, backtracking and restarts, on parts of six nets
R3  bytes that six training steps keep and need, rewritten, over those of the nets as they were
R4  what searches by one rule after another find for four and eight RepVGG blocks, the agent of X-RLflow
    among them; inference of four by Inductor and onnxruntime over that of their rewritten form
L1  recurrent cells in a Python loop as kernels, over eager and Inductor: times, first calls, bytes, errors
L3  certificates of such kernels, judged by isl and by numbers

Times are of one thread, in interleaved pairs of thread-CPU time. ``--data`` is a checkout of
github.com/malllabiisc/HyperGCN; torch_geometric and hypernetx are installed with ``pip install --no-deps``.
"""

import json
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.forms import hypergraphs, inference, recurrent, rewrites
from benchmarks.forms.nets import NETS


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the tables; write them as JSON where asked."""
    parser = ArgumentParser(prog="python -m benchmarks forms")
    questions: dict[str, Callable[..., Any]] = {
        "H1": hypergraphs.kernels, "H2": hypergraphs.epochs,
        "R1": rewrites.proofs, "R2": rewrites.searches, "R3": rewrites.trainings,
        "R4": inference.merged,
        "L1": recurrent.cells, "L3": recurrent.certificates,
    }  # fmt: skip
    parser.add_argument("--only", default="", help=f"some of {','.join(questions)}")
    parser.add_argument("--nets", default=",".join(NETS), help=f"of R3, some of {','.join(NETS)}")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    asked = options.only.split(",") if options.only else list(questions)
    nets = options.nets.split(",")
    for option, given, known in (("--only", asked, questions), ("--nets", nets, NETS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{option} {','.join(unknown)}: choose from {','.join(known)}")
    questions["R3"] = partial(rewrites.trainings, nets=nets)
    found = {name: questions[name](options.data, console, options.pairs) for name in asked}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0
