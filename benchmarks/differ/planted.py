"""A pipeline in one file, and differences that people make by mistake, each a change of one place in it."""

from typing import Final, NamedTuple

SOURCE: Final = """
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F


def preprocess(path):
    image = Image.open(path).convert("RGB")
    image = image.resize((72, 54), Image.BILINEAR)
    image = image.crop((4, 3, 68, 51))
    x = np.asarray(image, dtype=np.float32)
    x = x / 255
    x = x - np.array([0.485, 0.456, 0.406], np.float32)
    x = x / np.array([0.229, 0.224, 0.225], np.float32)
    x = x.transpose(2, 0, 1)
    return torch.from_numpy(x.copy())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.b = nn.Conv2d(16, 16, 3, padding=1)
        self.c = nn.Conv2d(16, 24, 3, padding=1)
        self.hidden = nn.Linear(24, 32)
        self.layer = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.a(x)
        x = self.norm(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 3, 2, 1)
        skip = x
        x = self.b(x)
        x = F.gelu(x)
        x = x + skip
        x = F.avg_pool2d(x, 3, 2, 1)
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        x = self.c(x)
        x = F.silu(x)
        x = x.mean((2, 3))
        x = self.hidden(x)
        x = self.layer(x)
        x = F.leaky_relu(x, 0.01)
        return self.head(x)


def build():
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net.norm.running_mean.normal_()
        net.norm.running_var.uniform_(0.01, 2)
    return net, preprocess
"""


class PlantedDifference(NamedTuple):
    """A change: text that is replaced, and text of the line at which values have to part."""

    name: str
    old: str
    new: str
    line: str


def _here(name: str, old: str, new: str) -> PlantedDifference:
    return PlantedDifference(name, old, new, new.strip().splitlines()[0])


_READ = 'image = Image.open(path).convert("RGB")'
_RESIZE = "image = image.resize((72, 54), Image.BILINEAR)"
_UP = 'x = F.interpolate(x, scale_factor=2, mode="bilinear")'
PLANTED: Final = (
    _here(
        "channels swapped after decoding",
        _READ,
        "image = Image.fromarray(np.asarray(Image.open(path))[..., ::-1].copy())",
    ),
    _here("decoded at half size", _READ, "image = Image.open(path).reduce(2)"),
    _here("decoded through grey", _READ, 'image = Image.open(path).convert("L").convert("RGB")'),
    _here("bicubic", _RESIZE, "image = image.resize((72, 54), Image.BICUBIC)"),
    _here("nearest", _RESIZE, "image = image.resize((72, 54), Image.NEAREST)"),
    _here(
        "OpenCV's bilinear",
        _RESIZE,
        "image = Image.fromarray(__import__('cv2').resize(np.asarray(image), (72, 54)))",
    ),
    _here("a gap in reduction", _RESIZE, "image = image.resize((72, 54), Image.BILINEAR, reducing_gap=1.0)"),
    _here("crop off by one", "image.crop((4, 3, 68, 51))", "image.crop((5, 3, 69, 51))"),
    _here("crop off by one row", "image.crop((4, 3, 68, 51))", "image.crop((4, 2, 68, 50))"),
    _here("divided by 256", "x = x / 255", "x = x / 256"),
    _here("not divided", "x = x / 255", "x = x / 1"),
    _here("float16 on the way", "x = x / 255", "x = (x / 255).astype(np.float16).astype(np.float32)"),
    _here("means in the order of OpenCV", "[0.485, 0.456, 0.406]", "[0.406, 0.456, 0.485]"),
    _here("one mean for all", "[0.485, 0.456, 0.406]", "[0.45, 0.45, 0.45]"),
    _here("a standard deviation", "[0.229, 0.224, 0.225]", "[0.229, 0.224, 0.229]"),
    _here("rows and columns swapped", "x.transpose(2, 0, 1)", "x.transpose(2, 0, 1)[:, ::-1]"),
    PlantedDifference(
        "epsilon of a batch norm", "nn.BatchNorm2d(16)", "nn.BatchNorm2d(16, eps=1e-3)", "x = self.norm(x)"
    ),
    PlantedDifference(
        "epsilon of a layer norm", "nn.LayerNorm(32)", "nn.LayerNorm(32, eps=1e-3)", "x = self.layer(x)"
    ),
    PlantedDifference(
        "another padding",
        "nn.Conv2d(16, 16, 3, padding=1)",
        'nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect")',
        "x = self.b(x)",
    ),
    _here(
        "bfloat16 in a convolution",
        "x = self.c(x)",
        "x = F.conv2d(*(t.bfloat16() for t in (x, self.c.weight, self.c.bias)), padding=1).float()",
    ),
    _here(
        "bfloat16 in a product",
        "x = self.hidden(x)",
        "x = F.linear(*(t.bfloat16() for t in (x, self.hidden.weight, self.hidden.bias))).float()",
    ),
    _here(
        "weights in 8 bits",
        "x = self.b(x)",
        "x = F.conv2d(x, (self.b.weight * 127).round() / 127, self.b.bias, padding=1)",
    ),
    _here("a bias left out", "x = self.c(x)", "x = F.conv2d(x, self.c.weight, None, padding=1)"),
    _here("GELU by tanh", "x = F.gelu(x)", 'x = F.gelu(x, approximate="tanh")'),
    _here("hard swish for SiLU", "x = F.silu(x)", "x = F.hardswish(x)"),
    _here("a slope", "x = F.leaky_relu(x, 0.01)", "x = F.leaky_relu(x, 0.02)"),
    _here("ReLU6", "x = F.relu(x)", "x = x.clamp(0, 3)"),
    _here(
        "ceil in pooling",
        "x = F.max_pool2d(x, 3, 2, 1)",
        "x = F.max_pool2d(x, 3, 2, 1, ceil_mode=True)[..., :24, :32].roll(1, 2)",
    ),
    _here(
        "padding not counted",
        "x = F.avg_pool2d(x, 3, 2, 1)",
        "x = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)",
    ),
    _here("corners aligned", _UP, _UP[:-1] + ", align_corners=True)"),
    _here("nearest upsampling", _UP, 'x = F.interpolate(x, scale_factor=2, mode="nearest")'),
    _here("a skip that is scaled", "x = x + skip", "x = x + 0.99 * skip"),
)


def line_with(source: str, text: str) -> int:
    """Find the number of the one line with a text."""
    (found,) = (at for at, line in enumerate(source.splitlines(), 1) if text in line)
    return found
