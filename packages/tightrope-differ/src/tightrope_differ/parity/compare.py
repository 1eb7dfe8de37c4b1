"""Compare lowerings of one pipeline over images: distances of logits, changed answers, significance.

Idea        Every lowering answers for the same images. A second run of the reference, which must not change
            one bit, and batches that are divided in another way say what chance alone does.
Guarantee   Where two runs of the reference differ, nothing is judged. A lowering is flagged if its answers
            change significantly, corrected for all that was judged, or its logits move ten times more than in
            batches that are divided in another way.
Complexity  Images times lowerings; preprocessing that returns equal bits takes no second run of the net.
Gaps        The test asks whether answers change at all. Whether accuracy falls is said, and not judged.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, fx, nn

from tightrope.core import TightropeError
from tightrope_differ.images.noises import IMAGE_NOISES
from tightrope_differ.images.places import COLOUR, DECODE, CallPlaces, ImageSwap, PlaceCall
from tightrope_differ.lines import quiet, where_it_failed
from tightrope_differ.nets.graphs import GRAPH_NOISES, Call, capture_net, with_noise
from tightrope_differ.nets.lowerings import LOWERINGS, PRECISIONS, OnnxCall, filled, run
from tightrope_differ.parity.pipeline import ImageNet
from tightrope_differ.parity.statistics import holm, mcnemar
from tightrope_differ.parity.walk import WalkedValue, parting, walk_graph, walk_in_turn, walk_lines, walk_onnx
from tightrope_differ.values.parity import FLAGGED, LoweringDifference, ParityReport, PartingPoint

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


def groups() -> dict[str, tuple[str, ...]]:
    """List what can be compared with, by groups."""
    kinds = {noise.kind for noise in IMAGE_NOISES.values()}
    found = {kind: tuple(n for n, one in IMAGE_NOISES.items() if one.kind == kind) for kind in sorted(kinds)}
    backends = tuple(name for name in LOWERINGS if name not in (*PRECISIONS, "eager"))
    precision = tuple(name for name in LOWERINGS if name in PRECISIONS)
    return {**found, "graph": tuple(GRAPH_NOISES), "precision": precision, "backends": backends}


def asked_for(text: str) -> tuple[str, ...]:
    """Read names and groups, apart by commas; ``all`` is every group. Files and targets stay as they are.

    Raises:
        TightropeError: a name is not known.
    """
    known = groups()
    every = tuple(name for members in known.values() for name in members)
    words = {**{name: (name,) for name in (*every, "eager")}, **known, "all": every}
    found: list[str] = []
    for word in filter(None, (one.strip() for one in text.split(","))):
        if word not in words and not word.endswith(".onnx") and ".py:" not in word:
            raise TightropeError(
                f"{word!r:.100} is no lowering. Groups: {', '.join(known)}, all. Names: {', '.join(every)}. "
                "Others: FILE.onnx, FILE.py:FUNCTION."
            )
        found += words.get(word, (word,))
    return tuple(dict.fromkeys(found))


@dataclass
class _Track:
    """One lowering while images run: its figures, whose preprocessing and what net runs, and sums.

    Attributes:
        swap: in force meanwhile; None = preprocessing is that of the reference.
        worst: the image with the largest distance.
        won: images where only this side is right; ``lost``: where only the reference is.
    """

    found: LoweringDifference
    net: ImageNet
    call: Call
    swap: ImageSwap | None = None
    worst: str = ""
    won: int = 0
    lost: int = 0


@contextmanager
def _stopping(found: LoweringDifference) -> Iterator[None]:
    """Stop one lowering where a library or the user's code fails; what was found before is kept."""
    try:
        with quiet():
            yield
    except Exception as error:  # they have no common class
        ours = isinstance(error, TightropeError)
        found.status = "missing" if ours and "pip install" in str(error) else "stopped"
        found.note = str(error) if ours else where_it_failed(error)


def _read(net: ImageNet, paths: Sequence[str]) -> tuple[list[int], list[Tensor], list[str]]:
    """Preprocess images; give the places of those that can be read, samples, and why others cannot."""
    rows: list[int] = []
    samples: list[Tensor] = []
    errors: list[str] = []
    for row, path in enumerate(paths):
        try:
            samples.append(net.sample(path))
            rows.append(row)
        except Exception as error:  # of the user's function or of a decoder
            errors.append(f"{path}: {where_it_failed(error)}")
    return rows, samples, errors


def compare(
    reference: ImageNet,
    asked: Sequence[str],
    paths: Sequence[Path],
    labels: Sequence[int] | None = None,
    *,
    others: Mapping[str, ImageNet | TightropeError] | None = None,
    places: CallPlaces | None = None,
    options: ParityOptions | None = None,
) -> ParityReport:
    """Compare lowerings of a pipeline over images.

    Args:
        reference: preprocessing and net.
        asked: names as `asked_for` gives them.
        paths: of images.
        labels: number of the class of each image; None = unknown.
        others: what other targets built, by name; an error where building failed.
        places: in force since before the user's file was imported; None = from now on.
        options: batch, level, what is accepted.

    Raises:
        TightropeError: no image is read, two runs of the reference differ, or shapes differ.

    Example:
        >>> net = ImageNet("doubles", lambda path: np.full((3, 2, 2), len(path), np.float32), nn.Flatten())
        >>> report = compare(net, ["eager", "bf16"], [Path("a.jpg"), Path("bb.jpg")])
        >>> [(one.name, one.status, one.flips) for one in report.differences]
        [('eager', 'equal', 0), ('bf16', 'equal', 0)]
    """
    if places is None:
        with CallPlaces() as places:
            return compare(reference, asked, paths, labels, others=others, places=places, options=options)
    made = _Comparison(reference, asked, others or {}, places, options or ParityOptions())
    return made.run([str(path) for path in paths], labels)


@dataclass
class _Comparison:
    """A reference, and lowerings while they are compared with it, a batch at a time."""

    reference: ImageNet
    asked: Sequence[str]
    others: Mapping[str, ImageNet | TightropeError]
    places: CallPlaces
    options: ParityOptions
    tracks: list[_Track] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    example: Tensor = field(default_factory=lambda: torch.empty(0))
    floor: float = _SMALLEST_FLOOR
    images: int = 0
    right: int = 0
    unread: list[str] = field(default_factory=list)

    def run(self, paths: Sequence[str], labels: Sequence[int] | None) -> ParityReport:
        known = torch.tensor(labels or [-1] * len(paths))[:, None]
        size = self.options.batch
        for at in range(0, len(paths), size):
            with self.places.watched() as calls:
                rows, samples, errors = _read(self.reference, paths[at : at + size])
            self.unread += errors
            if rows:
                self._batch([paths[at + row] for row in rows], samples, known[at : at + size][rows], calls)
        if not self.images:
            raise TightropeError(f"no image can be read. First: {[*self.unread, 'none was given'][0]}.")
        return self._report(labelled=labels is not None)

    def _batch(
        self, paths: list[str], samples: list[Tensor], labels: Tensor, calls: Sequence[PlaceCall]
    ) -> None:
        shapes = {tuple(one.shape) for one in samples}
        if self.images:
            shapes.add(tuple(self.example.shape[1:]))
        if len(shapes) > 1:
            said = ", ".join(map(str, sorted(shapes)))
            raise TightropeError(f"preprocess returns shapes {said}: return one shape for all images.")
        batch = torch.stack(samples)
        try:
            results = self._results(self.reference.net, batch)
            answers = self.reference.answers(results)
        except Exception as error:  # of the user's net or of what reads answers from it
            shape = tuple(batch.shape)
            where = where_it_failed(error)
            raise TightropeError(
                f"{self.reference.name!r} fails on a batch of shape {shape}: {where}."
            ) from error
        for path, *rows in zip(paths, *results, strict=True):
            if not all(row.isfinite().all() for row in rows):
                raise TightropeError(f"the net returns NaN or infinity for {path!r}: nothing was judged.")
        self._check_null(paths, batch, results)
        if not self.images:
            self.example = filled(batch, self.options.batch)
            self.scales = [1e-30] * len(results)
            self.tracks = [self._track(name, calls) for name in self.asked]
        self.scales = [
            max(float(r.abs().max()), scale) for r, scale in zip(results, self.scales, strict=True)
        ]
        right = (answers == labels).all(1)
        self.images, self.right = self.images + len(batch), self.right + int(right.sum())
        for track in self.tracks:
            if track.found.status == "equal":
                with _stopping(track.found):
                    self._one(track, paths, batch, (results, answers, labels, right))

    def _results(self, call: Call, batch: Tensor) -> tuple[Tensor, ...]:
        return tuple(one[: len(batch)] for one in run(call, filled(batch, self.options.batch)))

    def _check_null(self, paths: Sequence[str], batch: Tensor, results: tuple[Tensor, ...]) -> None:
        again = torch.stack([self.reference.sample(path) for path in paths])
        same = np.array_equal(again, batch, equal_nan=True)
        if not same or not all(map(torch.equal, results, self._results(self.reference.net, again))):
            what = "the net" if same else "preprocess"
            raise TightropeError(
                f"two runs of {self.reference.name!r} differ: {what} is random. "
                "Nothing was judged. Fix its seed, or take the random part out."
            )
        parts = [run(self.reference.net, part) for part in torch.split(batch, len(batch) // 3 + 1)]
        for one, *divided in zip(results, *parts, strict=True):
            gap = float((one.double() - torch.cat(divided).double()).abs().max())
            self.floor = max(self.floor, gap / max(float(one.abs().max()), 1e-30))

    @cached_property
    def _graph(self) -> fx.GraphModule:
        assert isinstance(self.reference.net, nn.Module)
        return capture_net(self.reference.net, self.example)

    def _track(self, name: str, calls: Sequence[PlaceCall]) -> _Track:
        """Make what runs a lowering, where it has a place in this pipeline."""
        group = next((group for group, members in groups().items() if name in members), "other")
        accepted = bool({name, group} & set(self.options.accepted))
        found = LoweringDifference(name=name, group=group, status="equal", accepted=accepted)
        track = _Track(found, self.reference, self.reference.net)
        with _stopping(found):
            other, net, absent = self.others.get(name), self.reference.net, ""
            if noise := IMAGE_NOISES.get(name):
                if missing := [one for one in noise.needs if not find_spec(one)]:
                    raise TightropeError(
                        f"{name} needs {missing[0]}: pip install 'tightrope-differ[images]'."
                    )
                kind = DECODE if noise.kind == COLOUR else noise.kind
                track.swap = noise.swap
                found.line = next((call.line or "?" for call in calls if call.kind == kind), "")
                absent = "" if found.line else f"preprocess calls no {kind} of Pillow or OpenCV"
            elif isinstance(other, TightropeError):
                raise other
            elif other is not None:
                track.net, track.call, track.swap = other, other.net, ImageSwap()
            elif name.endswith(".onnx"):
                track.call = OnnxCall(name)
            elif not isinstance(net, nn.Module):
                absent = "the net is a file in ONNX, not a torch.nn.Module"
            elif name in GRAPH_NOISES:
                track.call, found.line = with_noise(self._graph, name)
                absent = "" if found.line else "the net has no such op"
            else:
                track.call = LOWERINGS[name](net, self.example)
                found.note = getattr(track.call, "note", "")
            if absent:
                found.status, found.note = "no place", absent
        return track

    def _one(self, track: _Track, paths: list[str], batch: Tensor, wanted: tuple[Any, ...]) -> None:
        """Run one lowering on one batch and add up what differs; images that it cannot read are named."""
        found, rows, given = track.found, list(range(len(batch))), batch
        if track.swap is not None:
            with self.places.using(track.swap):
                rows, samples, errors = _read(track.net, paths)
            found.undecoded += errors
            if not rows:
                return
            given = torch.stack(samples)
        results = tuple(one[rows] for one in wanted[0])
        answers, labels, right = (one[rows] for one in wanted[1:])
        noise = track.swap is not None and track.call is self.reference.net
        made = results if noise and torch.equal(given, batch[rows]) else self._results(track.call, given)
        gaps, flipped, mine = torch.ones(len(rows)), torch.ones(len(rows)), torch.zeros(len(rows)).bool()
        if [one.shape for one in made] != [one.shape for one in results]:
            found.note = "its results have another shape"
        else:
            moved = [
                (one.double() - other.double()).abs().reshape(len(rows), -1).amax(1) / scale
                for one, other, scale in zip(made, results, self.scales, strict=True)
            ]
            gaps = torch.stack(moved).amax(0).nan_to_num(nan=1.0, posinf=1.0)
            flipped = (self.reference.answers(made) != answers).double().mean(1) > _POSITIONS
            mine = (self.reference.answers(made) == labels).all(1)
        found.images += len(rows)
        found.flips += int(flipped.sum())
        found.distance += float(gaps.sum())
        track.won += int((mine & ~right).sum())
        track.lost += int((right & ~mine).sum())
        if float(gaps.max()) >= found.largest:
            found.largest, track.worst = float(gaps.max()), paths[rows[int(gaps.argmax())]]

    def _report(self, *, labelled: bool) -> ParityReport:
        for track in self.tracks:
            found, size = track.found, max(track.found.images, 1)
            found.distance, found.p = found.distance / size, mcnemar(found.flips, 0)
            if labelled and found.images:
                found.accuracy = (track.won - track.lost) / size * 100
                found.p_accuracy = mcnemar(track.won, track.lost)
            if found.undecoded:
                found.note += f"{len(found.undecoded)} images are not decoded"
                found.undecoded = found.undecoded[:_NAMED]
        judged = [track.found for track in self.tracks if track.found.status == "equal"]
        for found, adjusted in zip(judged, holm([one.p for one in judged]), strict=True):
            found.adjusted = adjusted
            if adjusted < self.options.alpha:
                found.status = "flips"
            elif found.undecoded or found.largest > _TIMES_NULL * self.floor:
                found.status = "differs"
            elif found.largest > 0:
                found.status = "rounding"
        for track in self.tracks:
            if self.options.walk and track.found.status in FLAGGED and track.worst:
                self._locate(track)
        return ParityReport(
            target=self.reference.name,
            images=self.images,
            unread=self.unread,
            null_flips=0,
            floor=self.floor,
            alpha=self.options.alpha,
            accuracy=self.right / self.images * 100 if labelled else None,
            differences=[track.found for track in self.tracks],
        )

    def _locate(self, track: _Track) -> None:
        """Find where values part on the worst image; where the walk fails, the figures stand without it."""
        try:
            with quiet():
                track.found.parting = self._parting(track, track.worst)
        except Exception as error:  # of a library
            track.found.note = f"{track.found.note} not walked: {where_it_failed(error)}".strip()[:300]

    def _parting(self, track: _Track, path: str) -> PartingPoint | None:
        name, sample = track.found.name, self.reference.sample(path)
        if track.swap is not None:
            mine = walk_lines(self.reference.front, path, self.places)
            with self.places.using(track.swap):
                found = parting(mine, walk_lines(track.net.front, path, self.places), "preprocessing")
                different = not torch.equal(track.net.sample(path), sample)
            if found is not None or different or track.net is self.reference:
                return found
        batch = filled(sample[None], self.options.batch)
        own = self._walked(self.reference.net, batch)
        if name not in LOWERINGS:
            other = self._walked(track.call, batch)
        else:
            try:
                other = walk_graph(self._graph, batch, LOWERINGS[name])
            except Exception:  # it returns one value at a time
                other = walk_in_turn(self._graph, batch, LOWERINGS[name], own)
        return parting(own, other, "model")

    def _walked(self, call: Call, batch: Tensor) -> list[WalkedValue]:
        if isinstance(call, OnnxCall):
            return walk_onnx(call, batch)
        assert isinstance(call, nn.Module)
        graph = self._graph if call is self.reference.net else call
        graph = graph if isinstance(graph, fx.GraphModule) else capture_net(graph, batch)
        return walk_graph(graph, batch, LOWERINGS["eager"])
