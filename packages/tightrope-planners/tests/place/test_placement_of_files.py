"""Families of the benchmark that are made from files, and the example."""

import subprocess
import sys
from pathlib import Path

from benchmarks.placement.families import case
from tightrope_planners.place import read_csv

EXAMPLE = Path(__file__).parents[2] / "examples" / "place_a_file.py"


def test_files_are_changed_too(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("id,lower,upper,size\n0,0,2,8\n1,1,3,4\n")
    file = tmp_path / "two.csv"
    made = [case("permuted", seed, [file]) for seed in range(8)]
    assert any(sorted(one.buffers) == sorted(read_csv(file).buffers) and one.known == 12 for one in made)


def test_the_example_prints_what_it_promises() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "optimal: 512 bytes, at least 512 are needed" in done.stdout
