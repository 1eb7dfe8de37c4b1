"""S1 to S4: one pipeline under other lowerings.

S1: what is known to differ is flagged, what is known to be equal is not. S2: all noises are there, and
rank as published. S3: pinned preprocessing has no flips, and planted differences are found where they are.
S4: a user's preprocessing with a net in ONNX, by one command, within a minute.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from rich.console import Console
from torch import nn

from benchmarks.differ.nets import pooled, preprocess, trained, wide
from benchmarks.differ.photos import write_photos
from benchmarks.differ.planted import PLANTED, SOURCE, PlantedDifference, line_with
from benchmarks.micro.rows import Row
from tightrope.cli.target import called
from tightrope_differ.images.files import images_in
from tightrope_differ.images.places import CallPlaces
from tightrope_differ.nets.lowerings import onnx_file
from tightrope_differ.parity import ImageNet, ParityOptions, compare, pin_net, pinned_pipeline
from tightrope_differ.parity.compare import asked_for, groups
from tightrope_differ.parity.pipeline import image_net
from tightrope_differ.values.parity import JUDGED, ParityReport

DIFFERENT: Final = (
    "resize-opencv-bilinear",
    "decode-fast-dct",
    "decode-no-smooth",
    "colour-i420",
    "pool-ceil",
)
SAME: Final = ("decode-opencv", "decode-turbo")
NUM_PAIRS: Final = 5000
NUM_NULLS: Final = 200
PUBLISHED: Final = {"ceil": 1.24, "resize": 0.75, "colour": 0.09, "fp16": 0.0}
"""Drop of ResNet-50 on ImageNet in percentage points (SysNoise, README)."""
SECONDS: Final = 60.0


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """Give the bars by their names."""
    return {"S1": s1, "S2": s2, "S3": s3, "S4": s4}


@cache
def folder() -> Path:
    """Make a folder that ends with the process."""
    keeper = tempfile.TemporaryDirectory(prefix="tightrope-differ-")
    _KEPT.append(keeper)
    return Path(keeper.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def photos(num: int) -> Path:
    """Write pictures that no net was trained on."""
    made = folder() / f"photos-{num}"
    write_photos(made, num)
    return made


@cache
def net(make: Callable[[], nn.Module]) -> nn.Module:
    """Train a net on 2,000 pictures of its own."""
    made = folder() / "train"
    if not made.exists():
        write_photos(made, 2000, first=1_000_000)
    return trained(make, made)


def _compare(given: ImageNet, asked: str, data: Path) -> ParityReport:
    return compare(given, asked_for(asked), *images_in(data))


def s1() -> list[Row]:
    given = ImageNet("pooled", preprocess, net(pooled))
    report = _compare(given, ",".join((*DIFFERENT, *SAME)), photos(NUM_PAIRS))
    found = {one.name: one for one in report.differences}
    said = ", ".join(
        f"{one.name} {one.flips} flips (p {one.adjusted:.1g}), {one.largest / report.floor:.0f} nulls"
        for one in map(found.__getitem__, DIFFERENT)
    )
    same = ", ".join(f"{name} {found[name].status}, {found[name].flips} flips" for name in SAME)
    flagged = [name for name in DIFFERENT if found[name].flagged]
    false = _false_flags(given)
    return [
        Row("S1", f"5 known differences are flagged on {report.images} images", f"{len(flagged)}: {said}",
            len(flagged) == len(DIFFERENT) and report.images >= NUM_PAIRS),
        Row("S1", "decoders at equal settings are not flagged", same,
            not any(found[name].flagged for name in SAME)),
        Row("S1", "the null run has 0 flips", f"{report.null_flips}", report.null_flips == 0),
        Row("S1", f"no false flag in {NUM_NULLS} null repetitions", f"{false}", false == 0),
    ]  # fmt: skip


def _false_flags(given: ImageNet) -> int:
    """Compare with what is equal, on other images in other batches each time."""
    rng = np.random.default_rng(0)
    paths, labels = images_in(photos(NUM_PAIRS))
    assert labels is not None
    wrong = 0
    for _ in range(NUM_NULLS):
        chosen = rng.choice(len(paths), 40, replace=False)
        asked = asked_for("eager,decode-opencv,decode-turbo,resize-pillow-bilinear")
        options = ParityOptions(batch=int(rng.integers(1, 41)))
        some, theirs = [paths[at] for at in chosen], [labels[at] for at in chosen]
        report = compare(given, asked, some, theirs, options=options)
        wrong += len(report.flagged)
    return wrong


def s2() -> list[Row]:
    found: list[Row] = []
    known = groups()
    counts = {
        name: len(known[name]) for name in ("decode", "resize", "colour", "graph", "precision", "backends")
    }
    have = counts["resize"] >= 11 and counts["decode"] >= 4 and counts["colour"] >= 2 and counts["graph"] >= 3
    found.append(
        Row(
            "S2",
            "11 resizes, 4 decoders, I420, NV12, ceil, upsampling, box offset, fewer bits",
            str(counts),
            have,
        )
    )
    for make in (pooled, wide):
        report = _compare(
            ImageNet(make.__name__, preprocess, net(make)),
            "resize,pool-ceil,colour-i420,colour-nv12,fp16",
            photos(1000),
        )
        flips: dict[str, list[float]] = {}
        for one in report.differences:
            if one.status in JUDGED and one.name != "resize-pillow-bilinear":
                kind = {"pool-ceil": "ceil"}.get(one.name, one.name.partition("-")[0])
                flips.setdefault(kind, []).append(one.flips / one.images)
        mean = {kind: float(np.mean(values)) for kind, values in flips.items()}
        rank = _spearman([mean[kind] for kind in PUBLISHED], list(PUBLISHED.values()))
        said = ", ".join(f"{kind} {share:.2%}" for kind, share in mean.items())
        found.append(
            Row("S2", "flips rank as published: Spearman >= 0.7",
                f"{make.__name__} (accuracy {report.accuracy:.1f} %): {rank:.2f}; {said}", rank >= 0.7)
        )  # fmt: skip
    return found


def _spearman(one: list[float], other: list[float]) -> float:
    first, second = (np.argsort(np.argsort(values)).astype(float) for values in (one, other))
    return float(np.corrcoef(first, second)[0, 1])


def s3() -> list[Row]:
    with CallPlaces() as places:
        given = ImageNet("pooled", preprocess, net(pooled))
        data = photos(1000)
        paths, labels = images_in(data)
        pinned = pinned_pipeline(given, pin_net(given, paths, places))
        asked = asked_for(
            "eager,compiled,fused,onnx,inductor,decode-pillow,decode-opencv,decode-turbo,resize"
        )
        report = compare(pinned, asked, paths, labels, places=places)
        plain = ParityOptions(walk=False)
        before = compare(given, asked_for("resize"), paths, labels, places=places, options=plain)
    judged = [one for one in report.differences if one.status in JUDGED]
    stopped = [one.name for one in report.differences if one.status not in (*JUDGED, "no place")]
    flips = sum(one.flips for one in judged)
    was = max(one.flips for one in before.differences)
    right = [one.name for one in PLANTED if _is_found(one)]
    missed = ", ".join(one.name for one in PLANTED if one.name not in right) or "none"
    return [
        Row("S3", "0 flips over all host lowerings of the pinned pipeline",
            f"{flips} over {len(judged)} lowerings of {report.images} images, with the "
            f"bits of the user's pixels; resizes alone changed up to {was} answers before; not run: "
            f"{', '.join(stopped) or 'none'}", flips == 0 and len(judged) >= 8),
        Row("S3", f"the parting op of >= 28 of 30 planted differences ({len(PLANTED)} here)",
            f"{len(right)}; missed: {missed}", len(right) * 30 >= 28 * len(PLANTED)),
    ]  # fmt: skip


def _is_found(one: PlantedDifference) -> bool:
    """Tell whether the line at which values part is named, on either side."""
    work = folder() / "planted"
    work.mkdir(exist_ok=True)
    changed = SOURCE.replace(one.old, one.new, 1)
    assert changed != SOURCE, one.name
    (work / "reference.py").write_text(SOURCE)
    (work / "other.py").write_text(changed)
    name = f"{work / 'other.py'}:build"
    with CallPlaces() as places:
        reference, other = (
            image_net(target, called(target), work) for target in (f"{work / 'reference.py'}:build", name)
        )
        paths, _ = images_in(photos(1000), 4)
        few = ParityOptions(batch=2)
        report = compare(reference, (name,), paths, others={name: other}, places=places, options=few)
    parting = report.differences[0].parting
    return parting is not None and parting.line.endswith(f"other.py:{line_with(changed, one.line)}")


_APP: Final = """
import numpy as np
from PIL import Image


def preprocess(path):
    image = Image.open(path).convert("RGB").resize((64, 64), Image.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32) / 255
    return ((pixels - 0.5) / 0.25).transpose(2, 0, 1)


def build():
    return "net.onnx", preprocess
"""


def s4() -> list[Row]:
    onnx_file(pooled().eval(), torch.zeros(32, 3, 64, 64), folder() / "net.onnx")
    (folder() / "app.py").write_text(_APP)
    call = [
        sys.executable,
        "-m",
        "tightrope",
        "parity",
        "app.py:build",
        "--data",
        str(photos(1000)),
        "--json",
    ]
    begun, before = time.monotonic(), os.times()
    done = subprocess.run(call, cwd=folder(), capture_output=True, text=True, check=False)
    wall, after = time.monotonic() - begun, os.times()
    took = after.children_user + after.children_system - before.children_user - before.children_system
    if done.returncode not in (0, 3):
        return [Row("S4", "one command for a net in ONNX", done.stderr[-300:], False)]
    found = json.loads(done.stdout)
    judged = [one for one in found["differences"] if one["status"] in JUDGED]
    said = (
        f"{took:.1f} s of CPU, {wall:.1f} s on this busy machine, {found['images']} images, {len(judged)} "
        f"lowerings, exit code {done.returncode}"
    )
    claim = f"a user's preprocessing and a net in ONNX by one command within {SECONDS:.0f} s of CPU"
    return [Row("S4", claim, said, took <= SECONDS)]
