// From the block in the page to columns of numbers.

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
  return bytes;
}

/** Undo byte planes, zigzag and differences; up to 4 bytes stay in 32-bit arithmetic. */
function readColumn(block, position, length, width, delta) {
  const column = width < 4 && !delta ? new Int32Array(length) : new Float64Array(length);
  const plane = (k) => block.subarray(position + k * length, position + (k + 1) * length);
  const planes = Array.from({ length: width }, (_, k) => plane(k));
  let total = 0;
  if (width < 4) {
    const [a, b, c] = planes;
    for (let i = 0; i < length; i++) {
      const raw = a[i] | (b ? b[i] << 8 : 0) | (c ? c[i] << 16 : 0);
      const value = (raw >>> 1) ^ -(raw & 1);
      total = delta ? total + value : value;
      column[i] = total;
    }
    return column;
  }
  for (let i = 0; i < length; i++) {
    let raw = 0;
    for (let k = width - 1; k >= 0; k--) raw = raw * 256 + planes[k][i];
    const value = raw % 2 ? -(raw + 1) / 2 : raw / 2;
    total = delta ? total + value : value;
    column[i] = total;
  }
  return column;
}

async function decode(text) {
  const block = await inflate(fromBase64(text.trim()));
  const size = new DataView(block.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(block.subarray(4, 4 + size)));
  if (header.version !== 1) throw new Error(`unknown version ${header.version}`);
  const columns = {};
  let position = 4 + size;
  for (const [name, length, width, delta] of header.columns) {
    columns[name] = readColumn(block, position, length, width, delta);
    position += length * width;
  }
  if (position !== block.length) throw new Error("the data of this page is incomplete");
  return { header, columns };
}
