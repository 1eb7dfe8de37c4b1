"""The same C as a library for Arduino, with a sketch that keeps storage on an SD card."""

from collections.abc import Mapping
from typing import Final

_PROPERTIES: Final = """name=TightropeStep
version=1.0.0
author=Tightrope
maintainer=Tightrope
sentence={what} within a fixed number of bytes of RAM.
paragraph=Written by tightrope micro; no heap.
category=Data Processing
url=https://example.org
architectures=*
includes=tightrope_micro.h
depends=SD
"""
_SKETCH: Final = """// Copy storage.bin, which lies beside this library's folder, to an SD card.
#include <SD.h>
#include <tightrope_micro.h>

static File storage;

// The card has failed: stop, so that no step goes on with wrong numbers.
static void check(bool fine) {{
  while (!fine) {{
  }}
}}

extern "C" void tr_storage_read(uint32_t offset, void *to, uint32_t bytes) {{
  check(storage.seek(offset) && (uint32_t)storage.read(static_cast<uint8_t *>(to), bytes) == bytes);
}}

extern "C" void tr_storage_write(uint32_t offset, const void *from, uint32_t bytes) {{
  check(storage.seek(offset) && (uint32_t)storage.write(static_cast<const uint8_t *>(from), bytes) == bytes);
}}

void setup() {{
  Serial.begin(115200);
  check(SD.begin());
  storage = SD.open("storage.bin", O_READ | O_WRITE);
  check(storage);
}}

// Before each call, write the inputs to their places: tr_storage_write(tr_inputs[k].offset, data,
// tr_inputs[k].bytes). Those of storage.bin are the ones that it was compiled with.
void loop() {{
{call}
  storage.flush();
}}
"""
_STEP: Final = "  Serial.println(tightrope_step(), 6);"
_INFER: Final = """  const uint8_t *found = static_cast<const uint8_t *>(tightrope_infer());
  for (uint32_t k = 0; k < TR_OUTPUT_BYTES; k++) {
    Serial.println(found[k]);
  }"""


def arduino(texts: Mapping[str, str], *, step: bool) -> dict[str, str]:
    """Write the files of a library for Arduino, by name.

    Args:
        texts: of the C library.
        step: whether it is a training step; else inference.
    """
    code = {name: text for name, text in texts.items() if name != "host_main.c"}
    return {
        "arduino/library.properties": _PROPERTIES.format(what="A training step" if step else "Inference"),
        "arduino/examples/run/run.ino": _SKETCH.format(call=_STEP if step else _INFER),
        **{f"arduino/src/{name}": text for name, text in code.items()},
    }
