"""`pipeline` over gRPC."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import grpc
import numpy as np
import torch
from torch import Tensor

from benchmarks.fabric.cases import nets

messages, services = grpc.protos_and_services("benchmarks/fabric/cases/pipeline.proto")
TIMEOUT = 60.0
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
CALLS = itertools.count()


def packed(tensor: Tensor) -> Any:
    array = tensor.detach().contiguous().numpy()
    return messages.Array(shape=array.shape, dtype=str(array.dtype), data=array.tobytes())


def unpacked(array: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(array.data, array.dtype).reshape(array.shape).copy())


class Stage(services.StageServicer):  # type: ignore[misc, name-defined]
    def __init__(self, number: int, end: Event) -> None:
        self.module, self.end = nets.stage(number), end
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.01)
        self.graphs: dict[int, tuple[Tensor, Tensor]] = {}

    def Forward(self, request: Any, context: Any) -> Any:
        value = unpacked(request.value)
        value.requires_grad_(request.wanted)
        found = self.module(value)
        self.graphs[request.number] = (value, found)
        return packed(found)

    def Backward(self, request: Any, context: Any) -> Any:
        value, found = self.graphs.pop(request.number)
        torch.autograd.backward(found, unpacked(request.value))
        return messages.Gradient(value=None if value.grad is None else packed(value.grad))

    def Step(self, request: Any, context: Any) -> Any:
        self.optimizer.step()
        self.optimizer.zero_grad()
        return messages.Nothing()

    def Fetch(self, request: Any, context: Any) -> Any:
        return messages.Weights(values=[packed(one) for one in self.module.parameters()])

    def Stop(self, request: Any, context: Any) -> Any:
        self.end.set()
        return messages.Nothing()


class RemoteCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stub: Any, always: Tensor, value: Tensor) -> Tensor:
        ctx.stub, ctx.number = stub, next(CALLS)
        call = messages.Call(number=ctx.number, wanted=value.requires_grad, value=packed(value))
        return unpacked(stub.Forward(call, timeout=TIMEOUT))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, came: Tensor) -> Any:
        found = ctx.stub.Backward(messages.Call(number=ctx.number, value=packed(came)), timeout=TIMEOUT)
        return None, None, unpacked(found.value) if found.HasField("value") else None


def remotely(stub: Any, value: Tensor) -> Tensor:
    found: Tensor = RemoteCall.apply(stub, torch.empty(0, requires_grad=True), value)  # type: ignore[no-untyped-call]
    return found


def serve(number: int) -> None:
    end = Event()
    server = grpc.server(ThreadPoolExecutor(1), options=OPTIONS)
    services.add_StageServicer_to_server(Stage(number, end), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    end.wait()
    server.stop(1).wait()


@contextmanager
def started(num: int) -> Iterator[list[Any]]:
    command = [sys.executable, "-m", __spec__.name]
    processes = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(1, num + 1)
    ]
    channels, stubs = [], []
    try:
        for process in processes:
            port = process.stdout.readline().strip()  # type: ignore[union-attr]
            channels.append(grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS))
            stubs.append(services.StageStub(channels[-1]))
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
    losses = []
    with started(2) as stubs:
        for step in range(rounds):
            for words, targets in nets.micro_batches(step):
                loss = nets.loss_of(remotely(stubs[1], remotely(stubs[0], words)), targets)
                torch.autograd.backward(loss)
                losses.append(loss.detach())
            for stub in stubs:
                stub.Step(messages.Nothing(), timeout=TIMEOUT)
        weights = [stub.Fetch(messages.Nothing(), timeout=TIMEOUT).values for stub in stubs]
    return losses + [unpacked(one) for some in weights for one in some]


if __name__ == "__main__":
    serve(int(sys.argv[1]))
