"""The library for Arduino: built with g++ and stand-ins for card and console, it computes the same."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from test_micro_host import needs_cc
from torch import nn

from tightrope.core import Machine
from tightrope_micro import MicroStep, compile_step, run_on_host
from tightrope_micro.host import c_compiler, execute
from tightrope_micro.infer import capture_net, compile_net
from tightrope_micro.paging.economy import Economy

CARD = """#include <cstdint>
#include <cstdio>
enum { O_READ = 1, O_WRITE = 2 };
struct File {
  FILE *file = nullptr;
  bool seek(uint32_t at) { return !fseek(file, at, SEEK_SET); }
  int read(uint8_t *to, uint32_t bytes) { return (int)fread(to, 1, bytes, file); }
  size_t write(const uint8_t *from, uint32_t bytes) { return fwrite(from, 1, bytes, file); }
  void flush() { fflush(file); }
  operator bool() const { return file; }
};
static struct {
  bool begin() { return true; }
  File open(const char *name, int) { return File{fopen(name, "r+b")}; }
} SD;
static struct {
  void begin(long) {}
  void println(float value, int) { printf("%.9g\\n", (double)value); }
  void println(int value) { printf("%d\\n", value); }
} Serial;
"""
MAIN = "\nint main() { setup(); loop(); loop(); }\n"


def said(folder: Path, scratch: Path) -> list[str]:
    """Build the sketch of a folder, run it twice on its storage, and return what it printed."""
    compiler, c = shutil.which("g++") or shutil.which("c++"), c_compiler()
    if compiler is None or c is None:
        pytest.skip("no C++ compiler (g++ or c++) is installed")
    scratch.mkdir()
    (scratch / "SD.h").write_text(CARD)
    shutil.copyfile(folder / "storage.bin", scratch / "storage.bin")
    source, library = folder / "arduino" / "src", folder / "arduino"
    sketch = (library / "examples" / "run" / "run.ino").read_text()
    (scratch / "sketch.cpp").write_text(sketch + MAIN)
    parts = []
    for file in sorted(source.glob("*.c")):
        parts.append(str(scratch / f"{file.stem}.o"))
        execute(
            [c, "-std=c11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-c", "-o", parts[-1], str(file)],
            "building",
        )
    program = str(scratch / "sketch")
    sources = [str(scratch / "sketch.cpp"), *parts]
    execute([compiler, f"-I{scratch}", f"-I{source}", "-o", program, *sources, "-lm"], "building")
    assert "includes=tightrope_micro.h" in (library / "library.properties").read_text()
    return execute([program], "running", folder=scratch).split()


@needs_cc
def test_a_step_for_arduino_is_that_of_the_host(
    steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    compiled = compile_step(steps["pooled"], board, ram=6000, economy=Economy(walks=20))
    folder = compiled.write(tmp_path / "out")
    sample = (folder / "sample.bin").read_bytes()
    losses = [float(one) for one in said(folder, tmp_path / "scratch")]
    host = run_on_host(folder, [sample, sample])
    assert losses == list(host.losses)
    assert losses[1] < losses[0]


@needs_cc
def test_inference_for_arduino_is_that_of_the_host(board: Machine, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    net = capture_net(model, (torch.ones(1, 6),))
    folder = compile_net(net, board, ram=4096).write(tmp_path / "out")
    found = bytes(int(one) for one in said(folder, tmp_path / "scratch"))
    once = np.frombuffer(found, np.float32).reshape(2, 3)
    with torch.no_grad():
        wanted = model(torch.zeros(1, 6)).numpy()
    assert np.abs(once - wanted).max() < 1e-6
