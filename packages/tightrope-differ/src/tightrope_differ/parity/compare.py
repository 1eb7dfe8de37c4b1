"""Compare lowerings of one pipeline over images: distances of logits, changed answers, significance.

Idea        Every lowering answers for the same images. A second run of the reference, which must not change
            one bit, and batches that are divided in another way say what chance alone does.
Guarantee   Where two runs of the reference differ, nothing is judged. A lowering is flagged if its answers
            change significantly, corrected for all that was judged, or its logits move ten times more than in
            batches that are divided in another way.
Complexity  Images times lowerings; preprocessing that returns equal bits takes no second run of the net.
Gaps        The test asks whether answers change at all. Whether accuracy falls is said, and not judged.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from tightrope.core import TightropeError
from tightrope_differ.parity.graphs import GRAPH_NOISES, Call, capture_net, with_noise
from tightrope_differ.parity.lowerings import PRECISIONS, eager, lowering, names, quiet, run
from tightrope_differ.parity.noises import IMAGE_NOISES
from tightrope_differ.parity.pipeline import ImageNet, where_it_failed
from tightrope_differ.parity.places import COLOUR, DECODE, CallPlaces
from tightrope_differ.parity.statistics import holm, mcnemar
from tightrope_differ.parity.walk import (
    WalkedValue,
    parting,
    walk_graph,
    walk_in_turn,
    walk_lines,
    walk_onnx,
)
from tightrope_differ.values.parity import (
    DIFFERS,
    EQUAL,
    FLIPS,
    MISSING,
    NO_PLACE,
    ROUNDING,
    STOPPED,
    Difference,
    ParityReport,
    PartingPoint,
)

_TIMES_NULL: Final = 10.0
_SMALLEST_FLOOR: Final = 16 * 2.0**-23
"""Of rounding in float32, relative to the largest logit."""
_POSITIONS: Final = 0.01
"""Share of an image's positions, such as pixels of a map, that have to change for its answer to count."""
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """Knobs of a comparison.

    Attributes:
        batch: images at once.
        alpha: chance of one false flag among all tests.
        accepted: names or groups whose differences are never flagged.
        walk: whether to look for the op at which values part.
    """

    batch: int = 32
    alpha: float = 0.01
    accepted: tuple[str, ...] = ()
    walk: bool = True


@dataclass
class _Track:
    """One lowering while images run."""

    found: Difference
    kind: str
    call: Call | None = None
    other: ImageNet | None = None
    graph: fx.GraphModule | None = None
    gaps: list[NDArray[np.float64]] = field(default_factory=list)
    flipped: list[NDArray[np.bool_]] = field(default_factory=list)
    right: list[NDArray[np.bool_]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


def groups() -> dict[str, tuple[str, ...]]:
    """List what can be asked for, by groups."""
    kinds: dict[str, list[str]] = {}
    for name, noise in IMAGE_NOISES.items():
        kinds.setdefault(noise.kind, []).append(name)
    backends = [name for name in names() if name not in (*PRECISIONS, "eager")]
    found = {**kinds, "graph": [*GRAPH_NOISES], "precision": [n for n in names() if n in PRECISIONS],
             "backends": backends}  # fmt: skip
    return {name: tuple(members) for name, members in found.items()}


def asked_for(text: str) -> tuple[str, ...]:
    """Read names and groups, apart by commas; ``all`` is every group. Files and targets stay as they are.

    Raises:
        TightropeError: a name is not known.
    """
    known = groups()
    every = [name for members in known.values() for name in members]
    found: list[str] = []
    for word in filter(None, (one.strip() for one in text.split(","))):
        if not (word in ("all", "eager", *known, *every) or word.endswith(".onnx") or ".py:" in word):
            raise TightropeError(
                f"{word!r:.100} is no lowering. Groups: {', '.join(known)}, all. Names: {', '.join(every)}. "
                "Others: FILE.onnx, FILE.py:FUNCTION."
            )
        found += every if word == "all" else known.get(word, (word,))
    return tuple(dict.fromkeys(found))


class Comparison:
    """A reference, and lowerings that are compared with it.

    Args:
        reference: preprocessing and net.
        asked: names as `asked_for` gives them.
        others: what other targets built, by name; an error where building failed.
        places: in force since before the user's file was imported.
        options: batch, level, what is accepted.
    """

    def __init__(
        self,
        reference: ImageNet,
        asked: Sequence[str],
        others: dict[str, ImageNet | TightropeError],
        places: CallPlaces,
        options: ParityOptions,
    ) -> None:
        self.reference, self.others, self.places, self.options = reference, others, places, options
        self.tracks = [self._track(name) for name in asked]
        self.call = reference.call()
        self.graph: fx.GraphModule | TightropeError | None = None
        self.example: Tensor | None = None
        self.scales: list[float] = []
        self.floor = 0.0
        self.right: list[NDArray[np.bool_]] = []
        self.unread: list[str] = []
        self.num_images = 0

    def run(self, paths: Sequence[Path], labels: Sequence[int] | None) -> ParityReport:
        """Compare over all images, a batch at a time.

        Raises:
            TightropeError: the reference reads no image, or two runs of it differ.
        """
        size = self.options.batch
        kept: list[tuple[str, Tensor, int]] = []
        for at, path in enumerate(paths):
            sample = self._read(str(path))
            if sample is not None:
                kept.append((str(path), sample, -1 if labels is None else labels[at]))
            if len(kept) == size or (at == len(paths) - 1 and kept):
                self._batch(*zip(*kept, strict=True), labelled=labels is not None)
                kept = []
        if not self.num_images:
            raise TightropeError(
                f"no image can be read. First: {self.unread[0]}. Give images that preprocess reads."
            )
        return self._report(labelled=labels is not None)

    def _track(self, name: str) -> _Track:
        group = next((group for group, members in groups().items() if name in members), "other")
        found = Difference(name=name, group=group, status=EQUAL)
        found.accepted = name in self.options.accepted or group in self.options.accepted
        if name in IMAGE_NOISES:
            missing = [one for one in IMAGE_NOISES[name].needs if not find_spec(one)]
            if missing:
                found.status, found.note = (
                    MISSING,
                    f"needs {missing[0]}: pip install 'tightrope-differ[images]'",
                )
            return _Track(found, "front")
        track = _Track(found, "net")
        if ".py:" in name:
            other = self.others[name]
            if isinstance(other, TightropeError):
                found.status, found.note = STOPPED, str(other)
            else:
                track.kind, track.other = "other", other
        return track

    def _read(self, path: str) -> Tensor | None:
        try:
            return self.reference.sample(path)
        except Exception as error:  # of the user's function or of a decoder
            self.unread.append(f"{path}: {where_it_failed(error)}")
            return None

    def _batch(
        self, paths: tuple[str, ...], samples: tuple[Tensor, ...], labels: tuple[int, ...], *, labelled: bool
    ) -> None:
        if (self.example is not None and samples[0].shape != self.example.shape[1:]) or len(
            {s.shape for s in samples}
        ) > 1:
            shapes = {tuple(s.shape) for s in (*samples, *(() if self.example is None else self.example[:1]))}
            raise TightropeError(
                f"preprocess returns shapes {', '.join(map(str, sorted(shapes)))}: return one shape."
            )
        batch = torch.stack(samples)
        whole = self._whole(batch)
        if self.example is None:
            self.example = whole
            with quiet():
                self._start()
        results = self._results(self.call, whole, len(batch))
        self._check_null(paths, batch, results)
        answers = self.reference.answers(results)
        self.scales = [
            max(float(one.abs().max()), known)
            for one, known in zip(results, self.scales or [0.0] * len(results), strict=True)
        ]
        self.num_images += len(batch)
        right = self._right(answers, labels) if labelled else None
        if right is not None:
            self.right.append(right)
        for track in self.tracks:
            if track.found.status == EQUAL:
                try:
                    self._one(track, paths, batch, results, answers, labels, labelled=labelled)
                except Exception as error:  # of a library: what was found before is kept
                    track.found.status, track.found.note = STOPPED, where_it_failed(error)

    def _whole(self, batch: Tensor) -> Tensor:
        """Fill a batch up with its last image: lowerings are compiled for one size."""
        return torch.cat([batch, batch[-1:].expand(self.options.batch - len(batch), *batch.shape[1:])])

    def _results(self, call: Call, whole: Tensor, num: int) -> tuple[Tensor, ...]:
        return tuple(one[:num] for one in run(call, whole))

    def _check_null(self, paths: Sequence[str], batch: Tensor, results: tuple[Tensor, ...]) -> None:
        again = torch.stack([self.reference.sample(path) for path in paths])
        second = self._results(self.call, self._whole(again), len(batch))
        same = again.shape == batch.shape and torch.equal(again, batch)
        if not same or not all(_same(a, b) for a, b in zip(results, second, strict=True)):
            what = "the net" if same else "preprocess"
            raise TightropeError(
                f"two runs of {self.reference.name!r} differ: {what} is random. Nothing was judged. "
                "Fix its seed, or take the random part out."
            )
        cut = len(batch) // 3 + 1
        parts = [run(self.call, part) for part in torch.split(batch, cut)]
        divided = [torch.cat(part) for part in zip(*parts, strict=True)]
        for one, other in zip(results, divided, strict=True):
            scale = max(float(one.abs().max()), 1e-30)
            self.floor = max(self.floor, float((one.double() - other.double()).abs().max()) / scale)

    def _right(self, answers: Tensor, labels: Sequence[int]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (answers == torch.tensor(labels)[:, None]).all(1).numpy()
        return found

    def _start(self) -> None:
        """Make what runs each lowering of the net."""
        assert self.example is not None
        if isinstance(self.reference.net, nn.Module):
            try:
                self.graph = capture_net(self.reference.net, self.example)
            except TightropeError as error:
                self.graph = error
        for track in self.tracks:
            name, found = track.found.name, track.found
            if found.status != EQUAL or track.kind == "front":
                continue
            try:
                self._start_one(track, name)
            except (TightropeError, KeyError) as error:
                found.status = MISSING if "pip install" in str(error) else STOPPED
                found.note = " ".join(str(error).split())[:300]
            except Exception as error:  # of a compiler or an exporter
                found.status, found.note = STOPPED, where_it_failed(error)

    def _start_one(self, track: _Track, name: str) -> None:
        assert self.example is not None
        if track.other is not None:
            track.call = track.other.call()
        elif name.endswith(".onnx"):
            from tightrope_differ.parity.lowerings import OnnxCall

            track.call = OnnxCall(name)
        elif self.graph is None:
            track.found.status, track.found.note = (
                NO_PLACE,
                "the net is a file in ONNX, not a torch.nn.Module",
            )
        elif isinstance(self.graph, TightropeError):
            raise self.graph
        elif name in GRAPH_NOISES:
            graph, track.found.line = with_noise(self.graph, name)
            if not track.found.line:
                track.found.status, track.found.note = NO_PLACE, "the net has no such op"
            track.call = track.graph = graph
        else:
            assert isinstance(self.reference.net, nn.Module)
            track.call = lowering(name)(self.reference.net, self.example)

    def _one(
        self, track: _Track, paths: tuple[str, ...], batch: Tensor, results: tuple[Tensor, ...],
        answers: Tensor, labels: tuple[int, ...], *, labelled: bool,
    ) -> None:  # fmt: skip
        """Run one lowering on one batch and keep what differs."""
        rows, given = list(range(len(batch))), batch
        if track.kind != "net":
            rows, given = self._front(track, paths, batch)
            if not rows:
                return
        if track.kind == "front" and torch.equal(given, batch[rows]):
            made = tuple(one[rows] for one in results)
        else:
            made = self._results(
                self.call if track.call is None else track.call, self._whole(given), len(rows)
            )
        gaps = np.zeros((len(rows), len(results)))
        flipped = np.ones(len(rows), np.bool_)
        right = np.zeros(len(rows), np.bool_)
        if [one.shape[1:] for one in made] != [one.shape[1:] for one in results]:
            track.found.note = "its results have another shape"
            gaps[:] = np.inf
        else:
            for at, (one, other) in enumerate(zip(made, results, strict=True)):
                gap = (one.double() - other[rows].double()).abs().reshape(len(rows), -1).amax(1)
                gaps[:, at] = torch.nan_to_num(gap, nan=torch.inf).numpy()
            mine = self.reference.answers(made)
            flipped = ((mine != answers[rows]).double().mean(1) > _POSITIONS).numpy()
            right = self._right(mine, [labels[row] for row in rows]) if labelled else right
        track.gaps.append(gaps)
        track.flipped.append(flipped)
        track.right.append(np.stack([right, self.right[-1][rows] if labelled else right]))
        track.paths += [paths[row] for row in rows]

    def _front(self, track: _Track, paths: tuple[str, ...], batch: Tensor) -> tuple[list[int], Tensor]:
        """Preprocess a batch as a lowering does; images that it cannot read are left out and named."""
        found, noise = track.found, IMAGE_NOISES.get(track.found.name)
        rows, made = [], []
        net = track.other or self.reference
        watched = self.places.watched() if noise and not found.line else nullcontext([])
        with self.places.using(noise.swap) if noise else nullcontext(), watched as calls:
            for row, path in enumerate(paths):
                try:
                    made.append(net.sample(path))
                    rows.append(row)
                except Exception as error:  # of the user's function or of a decoder
                    found.undecoded.append(f"{path}: {where_it_failed(error)}")
                if noise and not found.line:
                    kind = DECODE if noise.kind == COLOUR else noise.kind
                    line = next((call.line or "?" for call in calls if call.kind == kind), None)
                    if line is None and made:
                        found.status = NO_PLACE
                        found.note = f"preprocess calls no {kind} of Pillow or OpenCV"
                        return [], batch
                    found.line = line or ""
                calls.clear()
        return rows, torch.stack(made) if made else batch

    def _report(self, *, labelled: bool) -> ParityReport:
        floor = max(self.floor, _SMALLEST_FLOOR)
        for track in self.tracks:
            found = track.found
            if found.status == NO_PLACE or not (track.gaps or found.undecoded):
                continue
            self._figures(track, labelled=labelled)
        judged = [track for track in self.tracks if track.found.status == EQUAL and track.found.images]
        adjusted = holm([track.found.p for track in judged])
        for track, value in zip(judged, adjusted, strict=True):
            found, found.adjusted = track.found, value
            if found.adjusted < self.options.alpha:
                found.status = FLIPS
            elif found.largest > _TIMES_NULL * floor or found.undecoded:
                found.status = DIFFERS
            elif found.largest > 0:
                found.status = ROUNDING
        for track in self.tracks:
            if track.found.status == EQUAL and track.found.undecoded:
                track.found.status = DIFFERS
            if self.options.walk and track.found.status in (DIFFERS, FLIPS) and track.found.images:
                self._part(track)
        return ParityReport(
            target=self.reference.name,
            images=self.num_images,
            unread=self.unread,
            null_flips=0,
            floor=floor,
            alpha=self.options.alpha,
            accuracy=float(np.concatenate(self.right).mean()) * 100 if labelled else None,
            differences=[track.found for track in self.tracks],
        )

    def _figures(self, track: _Track, *, labelled: bool) -> None:
        found = track.found
        found.note = found.note or (
            f"{len(found.undecoded)} images are not decoded" if found.undecoded else ""
        )
        found.undecoded = found.undecoded[:_NAMED]
        if not track.gaps:
            return
        scales = np.maximum(np.array(self.scales), 1e-30)
        gaps = np.nan_to_num((np.concatenate(track.gaps) / scales).max(1), posinf=1.0)
        flipped = np.concatenate(track.flipped)
        found.images, found.flips = len(gaps), int(flipped.sum())
        found.distance, found.largest = float(gaps.mean()), float(gaps.max())
        found.p = mcnemar(found.flips, 0)
        if labelled:
            mine, theirs = np.concatenate(track.right, axis=1)
            found.accuracy = float(mine.mean() - theirs.mean()) * 100
            found.p_accuracy = mcnemar(int((mine & ~theirs).sum()), int((theirs & ~mine).sum()))

    def _part(self, track: _Track) -> None:
        """Find the first op at which values part, on the image with the largest distance."""
        worst = track.paths[
            int((np.concatenate(track.gaps) / np.maximum(self.scales, 1e-30)).max(1).argmax())
        ]
        try:
            with quiet():
                track.found.parting = self._parting(track, worst)
        except Exception as error:  # the walk is a help: without it the figures stand
            track.found.note = f"{track.found.note} not walked: {where_it_failed(error)}".strip()[:300]

    def _parting(self, track: _Track, path: str) -> PartingPoint | None:
        noise, other = IMAGE_NOISES.get(track.found.name), track.other
        sample = self.reference.sample(path)
        if noise is not None or other is not None:
            swap = self.places.using(noise.swap) if noise else nullcontext()
            mine = walk_lines(self.reference.front, path, self.places)
            with swap:
                front = (other or self.reference).front
                found = parting(mine, walk_lines(front, path, self.places), "preprocessing")
                different = not torch.equal((other or self.reference).sample(path), sample)
            if found is not None or different or other is None:
                return found
        batch = self._whole(sample[None])
        reference = self._walked(self.reference, batch)
        return parting(reference, self._other_walk(track, batch, reference), "model")

    def _walked(self, net: ImageNet, batch: Tensor) -> list[WalkedValue]:
        if isinstance(net.net, str):
            return walk_onnx(net.net, batch)
        graph = self.graph if net is self.reference else capture_net(net.net, batch)
        if not isinstance(graph, fx.GraphModule):
            raise TightropeError(f"the net of {net.name!r} is not one graph: {graph}")
        return walk_graph(graph, batch, eager)

    def _other_walk(
        self, track: _Track, batch: Tensor, reference: Sequence[WalkedValue]
    ) -> list[WalkedValue]:
        name = track.found.name
        if track.other is not None:
            return self._walked(track.other, batch)
        if name.endswith(".onnx"):
            return walk_onnx(name, batch)
        assert isinstance(self.graph, fx.GraphModule)
        if track.graph is not None:
            return walk_graph(track.graph, batch, eager)
        try:
            return walk_graph(self.graph, batch, lowering(name))
        except Exception:  # it returns one value at a time
            return walk_in_turn(self.graph, batch, lowering(name), reference)


def _same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two results have the same bits; NaN equals NaN."""
    return torch.equal(torch.nan_to_num(one, nan=1e30), torch.nan_to_num(other, nan=1e30))


def compare(
    reference: ImageNet,
    asked: Sequence[str],
    paths: Sequence[Path],
    labels: Sequence[int] | None = None,
    *,
    options: ParityOptions | None = None,
) -> ParityReport:
    """Compare lowerings of a pipeline over images.

    Args:
        reference: preprocessing and net.
        asked: names of noises and lowerings, or files in ONNX.
        paths: of images.
        labels: number of the class of each image; None = unknown.
        options: batch, level, what is accepted.

    Raises:
        TightropeError: no image is read, two runs of the reference differ, or shapes differ.

    Example:
        >>> net = ImageNet("doubles", lambda path: np.full((3, 2, 2), len(path), np.float32), nn.Flatten())
        >>> report = compare(net, ["eager", "bf16"], [Path("a.jpg"), Path("bb.jpg")])
        >>> [(one.name, one.status, one.flips) for one in report.differences]
        [('eager', 'equal', 0), ('bf16', 'equal', 0)]
    """
    with CallPlaces() as places:
        return Comparison(reference, asked, {}, places, options or ParityOptions()).run(paths, labels)
