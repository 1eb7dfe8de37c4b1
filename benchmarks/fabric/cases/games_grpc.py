"""`games` over gRPC."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import grpc
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.fabric.cases import nets

messages, services = grpc.protos_and_services("benchmarks/fabric/cases/games.proto")
TIMEOUT = 60.0
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def packed(tensor: Tensor) -> Any:
    array = tensor.detach().contiguous().numpy()
    return messages.Array(shape=array.shape, dtype=str(array.dtype), data=array.tobytes())


def unpacked(array: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(array.data, array.dtype).reshape(array.shape).copy())


class Learner(services.LearnerServicer):  # type: ignore[misc, name-defined]
    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def Act(self, request: Any, context: Any) -> Any:
        with torch.no_grad():
            return packed(self.net(unpacked(request)))


class Player(services.PlayerServicer):  # type: ignore[misc, name-defined]
    def __init__(self, learner: Any, end: Event) -> None:
        self.learner, self.end = learner, end

    def Play(self, request: Any, context: Any) -> Any:
        states, moves, reward = nets.play(self.ask, request.seed)
        return messages.Played(states=packed(states), moves=packed(moves), reward=reward)

    def ask(self, state: Tensor) -> Tensor:
        return unpacked(self.learner.Act(packed(state), timeout=TIMEOUT))

    def Stop(self, request: Any, context: Any) -> Any:
        self.end.set()
        return messages.Nothing()


def started(add: Callable[..., None], servicer: Any) -> tuple[Any, int]:
    server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
    add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def serve(learner: str) -> None:
    end = Event()
    with grpc.insecure_channel(learner, options=OPTIONS) as channel:
        player = Player(services.LearnerStub(channel), end)
        server, port = started(services.add_PlayerServicer_to_server, player)
        print(port, flush=True)
        end.wait()
        server.stop(1).wait()


@contextmanager
def players(num: int, learner: str) -> Iterator[list[Any]]:
    command = [sys.executable, "-m", __spec__.name, learner]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(num)]
    channels, stubs = [], []
    try:
        for process in processes:
            port = process.stdout.readline().strip()  # type: ignore[union-attr]
            channels.append(grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS))
            stubs.append(services.PlayerStub(channels[-1]))
        yield stubs
        for stub in stubs:
            stub.Stop(messages.Nothing(), timeout=TIMEOUT)
        for process in processes:
            process.wait(TIMEOUT)
    finally:
        for channel in channels:
            channel.close()
        for process in processes:
            process.kill()
            process.wait()


def train(rounds: int) -> list[Tensor]:
    net, losses = nets.policy(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    server, port = started(services.add_LearnerServicer_to_server, Learner(net))
    with players(2, f"127.0.0.1:{port}") as stubs:
        for turn in range(rounds):
            calls = [
                stub.Play.future(messages.Seed(seed=10 * turn + actor), timeout=TIMEOUT)
                for actor, stub in enumerate(stubs, 1)
            ]
            games = [
                (unpacked(one.states), unpacked(one.moves), one.reward) for one in (c.result() for c in calls)
            ]
            losses.append(nets.learn(net, optimizer, games))
    server.stop(1).wait()
    return losses + nets.weights_of(net)


if __name__ == "__main__":
    serve(sys.argv[1])
