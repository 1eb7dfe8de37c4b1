"""Pictures and pipelines of the tests: small, and of known differences."""

from pathlib import Path

import numpy as np
from PIL import Image

SOURCE = """
import numpy as np
import torch
from PIL import Image


def preprocess(path):
    image = Image.open(path).convert("RGB")
    image = image.resize((17, 13), Image.BILINEAR)
    x = np.asarray(image, dtype=np.float32) / 255
    return torch.from_numpy((x - 0.5).transpose(2, 0, 1).copy())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(6)
        self.head = torch.nn.Linear(6, 4)

    def forward(self, x):
        x = self.norm(self.conv(x))
        x = torch.relu(x)
        x = torch.nn.functional.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


def build():
    torch.manual_seed(0)
    return Net(), preprocess
"""


def write_pictures(
    folder: Path, num: int = 6, *, high: int = 24, wide: int = 32, labels: bool = False
) -> Path:
    """Write pictures with sharp colours as JPEG."""
    rng = np.random.default_rng(0)
    for at in range(num):
        small = rng.integers(0, 256, (high // 4, wide // 4, 3), dtype=np.uint8)
        place = folder / "ab"[at % 2] if labels else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(small.repeat(4, 0).repeat(4, 1)).save(place / f"{at}.jpg", quality=90)
    return folder
