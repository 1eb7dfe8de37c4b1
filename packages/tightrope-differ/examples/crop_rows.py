"""A robot drives between two rows of crops. Find how wrong its nets may be, and how small.

    tightrope quality crop_rows.py:build --region region.toml --page region.html

One net sees the heading, and one sees the distance from the middle of the row. The robot works if 95 % of 64
drives of 60 m touch no plant. Simulator, camera and nets are all here.
"""

from functools import cache

import numpy as np
import torch
from torch import nn

from tightrope_differ.quality import Application

WIDTH, CLEAR, SPEED, STEP, DRIVES, STEPS = 0.76, 0.28, 0.6, 0.25, 64, 400
"""Metres between rows, metres to the plants, metres a second, seconds; 400 steps are 60 m."""
HIGH, WIDE = 24, 32
_BELOW, _SIDE = np.meshgrid(np.linspace(0.25, 1.0, HIGH), np.linspace(-0.9, 0.9, WIDE), indexing="ij")
AHEAD, ASIDE = 0.3 / _BELOW, 0.3 / _BELOW * _SIDE
"""Where each pixel of the camera meets the ground, in metres from the robot."""


class InjectedErrors:
    """Sees the truth with errors of a given size, which last for about a second."""

    def __init__(self, errors):
        self.sizes = np.radians(errors["heading"]), errors["distance"] * WIDTH
        self.last = np.zeros((2, DRIVES))

    def __call__(self, offset, heading, rng):
        self.last = 0.75 * self.last + np.sqrt(1 - 0.75**2) * rng.normal(size=(2, DRIVES))
        return heading + self.sizes[0] * self.last[0], offset + self.sizes[1] * self.last[1]


class SeenByNets:
    """Sees pictures of the camera by two nets."""

    def __init__(self, nets):
        self.nets = nets

    def __call__(self, offset, heading, rng):
        seen = torch.from_numpy(pictures(offset, heading, rng))
        with torch.no_grad():
            heading, offset = (
                self.nets[name](seen)[:, 0].double().numpy() for name in ("heading", "distance")
            )
        return np.radians(heading * 10), offset * WIDTH / 10


def drive(sees, seed=0):
    """Drive, and return how many metres from the plants 95 % of the drives stay; below 0 they touch."""
    rng = np.random.default_rng(seed)
    offset, heading, farthest = rng.normal(0, 0.06, DRIVES), rng.normal(0, 0.15, DRIVES), np.zeros(DRIVES)
    for _ in range(STEPS):
        bumps = rng.normal(0, 0.04, DRIVES)
        seen_heading, seen_offset = sees(offset, heading, rng)
        turn = np.clip(-0.9 * seen_heading - 1.2 * seen_offset, -1, 1)
        heading = heading + STEP * turn + bumps
        offset = offset + STEP * SPEED * np.sin(heading)
        farthest = np.maximum(farthest, np.abs(offset))
    return float(CLEAR - np.quantile(farthest, 0.95))


def pictures(offset, heading, rng):
    """Draw what the camera sees: plants are bright along the rows, with leaves, weeds and changing light."""
    side, turn = offset[:, None, None], heading[:, None, None]
    across = side + AHEAD * np.sin(turn) + ASIDE * np.cos(turn)
    rows = np.exp(-((np.abs((across + WIDTH) % WIDTH - WIDTH / 2) / 0.09) ** 2))
    light = rng.uniform(0.6, 1.4, (len(offset), 1, 1))
    leaves, weeds = rng.normal(0, 0.6, (2, len(offset), HIGH, WIDE))
    return (light * (rows * (1 + leaves) + weeds))[:, None].astype(np.float32)


@cache
def examples(num, seed):
    """Draw pictures with what a net has to answer: 10 degrees and a tenth of the width are 1."""
    rng = np.random.default_rng(seed)
    offset, heading = rng.uniform(-CLEAR, CLEAR, num), rng.uniform(-0.4, 0.4, num)
    answers = {"heading": np.degrees(heading) / 10, "distance": offset / WIDTH * 10}
    seen = torch.from_numpy(pictures(offset, heading, rng))
    return seen, {name: torch.from_numpy(one).float()[:, None] for name, one in answers.items()}


def trained(name, net, steps=200, seed=0):
    """Train a net on fresh pictures."""
    seen, answers = examples(4000, seed)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(net.train().parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(seen), (64,))
        loss = nn.functional.mse_loss(net(seen[rows]), answers[name][rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return net.eval()


def seeing():
    """Make a net of the size that people take at first."""
    sizes = (1, 24, 48, 96, 96)
    layers = [
        layer
        for before, after, stride in zip(sizes, sizes[1:], (2, 2, 1, 2), strict=False)
        for layer in (nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
    ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(384, 64), nn.ReLU(), nn.Linear(64, 1)
    )


@cache
def error(name, net, seed):
    """Give the root of the mean squared error of a net on pictures that none was trained on."""
    seen, answers = examples(1000, seed)
    with torch.no_grad():
        return float((net(seen) - answers[name]).square().mean().sqrt())


def measured(nets, seed=10_000):
    """Give the errors of both nets: degrees, and parts of the width of a row."""
    heading, distance = (error(name, nets[name], seed) for name in ("heading", "distance"))
    return {"heading": heading * 10, "distance": distance / 10}


def application(**more):
    """Give degrees from 0 to 10, and from 0 to a quarter of the width of a row."""
    return Application({"heading": (0.0, 10.0), "distance": (0.0, 0.25)}, InjectedErrors, drive, **more)


def build():
    """Give what `tightrope quality` asks about."""
    return application()


def with_nets(seed=0, steps=200):
    """Give the application with nets that are trained now, which takes about a minute."""
    nets = {name: trained(name, seeing(), steps, seed) for name in ("heading", "distance")}
    sample = examples(DRIVES, 5)[0]
    return application(
        nets=nets,
        measure=measured,
        perceive=SeenByNets,
        samples=dict.fromkeys(nets, sample),
        tune=lambda name, net: trained(name, net, steps // 2, seed),
    )
