"""Place the buffers of a file, then place them again after an edit, moving as little as possible."""

import tempfile
from pathlib import Path

from tightrope.core import Space
from tightrope_planners.place import Block, draw_svg, place_blocks, place_file, repack, write_csv

CSV = """id,lower,upper,size
weights,0,9,64
input,0,2,128
hidden,1,6,256
output,5,9,128
scratch,2,4,192
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "buffers.csv"
        file.write_text(CSV)
        instance, placement = place_file(file, capacity=512)
        print(f"{placement.status}: {placement.peak} bytes, at least {placement.lower_bound} are needed")
        write_csv(file.with_name("placed.csv"), instance, placement.offsets)
        picture = draw_svg(instance.buffers, placement.offsets, names=instance.names)
        file.with_name("placed.svg").write_text(picture)

    edited = [(size + 32 * (name == "scratch"), start, end) for (size, start, end), name in zip(
        instance.buffers, instance.names, strict=True)]  # fmt: skip
    again = repack(edited, dict(enumerate(placement.offsets)), capacity=576)
    print(f"after the edit {len(again.moved)} of {len(edited)} buffers moved")

    ring = Block.alias(64, ((0, 2), (4, 6)))  # one address, two lives
    bucket = Block.bucket(((60, 0, 3), (60, 1, 6)), alignment=64)  # neighbours
    found = place_blocks([ring, bucket], spaces=[Space("fast", 128), Space("slow", 1024)])
    print(f"blocks: offsets {found.offsets} in spaces {found.spaces}")


if __name__ == "__main__":
    main()
