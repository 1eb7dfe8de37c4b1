"""A node in a process of its own: what `SharedFabric` starts."""

import argparse
import importlib
import os
import socket
import sys

import torch

from tightrope_ranks.fabric import autograd, basic, current, memory
from tightrope_ranks.fabric.node import FabricNode


def main() -> None:
    """Serve until told to stop, or until node 0 ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--links", required=True, help="node:descriptor, with commas")
    parser.add_argument("--modules", default="")
    parser.add_argument("--shared", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    links = {
        int(peer): socket.socket(fileno=int(descriptor))
        for peer, descriptor in (one.split(":") for one in asked.links.split(","))
    }
    node = FabricNode(asked.node, links, timeout=asked.timeout, shared=asked.shared)
    current.set_node(node)
    for name in filter(None, asked.modules.split(",")):
        importlib.import_module(name)
    assert basic.ping() == os.getpid()
    served = (autograd, memory)  # imported for what they register
    assert all(served)
    driver = node.peers[0]
    node.pump(lambda: node.stopped or not driver.alive)
    node.close()
    sys.stdout.flush()
    os._exit(0)  # nothing is left to be cleaned up: memory and sockets have no names


if __name__ == "__main__":
    main()
