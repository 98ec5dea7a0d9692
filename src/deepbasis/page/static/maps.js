// SPDX-License-Identifier: Apache-2.0
// Maps of numbers: what is at a pixel, which range they have, and their colours.

/** A map of every `step`-th row and column of the image. */
export class NumberMap {
  constructor({ values, shape }, step = 1) {
    this.values = values;
    [this.height, this.width] = shape;
    this.step = step;
  }

  at(u, v) {
    const column = Math.min(Math.max(Math.round(u / this.step), 0), this.width - 1);
    const row = Math.min(Math.max(Math.round(v / this.step), 0), this.height - 1);
    return this.values[row * this.width + column];
  }

  /** The value below which this share of the numbers is. */
  quantile(share) {
    const some = this.sorted;
    return some.length ? some[Math.round(share * (some.length - 1))] : 0;
  }

  /** Some of the numbers, from small to large. */
  get sorted() {
    if (!this.kept) {
      const every = Math.max(1, Math.floor(this.values.length / 20000));
      this.kept = this.values.filter((value, i) => i % every === 0 && Number.isFinite(value)).sort();
    }
    return this.kept;
  }
}

/** Every n-th row and column of an array. */
export function thin({ values, shape }, by) {
  if (by === 1) return { values: values.slice(), shape };
  const [height, width, depth = 1] = shape;
  const small = [Math.ceil(height / by), Math.ceil(width / by)];
  const found = new values.constructor(small[0] * small[1] * depth);
  for (let row = 0, at = 0; row < height; row += by) {
    for (let column = 0; column < width; column += by) {
      const from = (row * width + column) * depth;
      for (let k = 0; k < depth; k++) found[at++] = values[from + k];
    }
  }
  return { values: found, shape: [...small, ...shape.slice(2)] };
}

/** A table of 256 colours as pixels of a canvas, from [256, 3] bytes. */
export function colourTable({ values }) {
  const table = new Uint32Array(256);
  for (let i = 0; i < 256; i++) table[i] = pixel(values[3 * i], values[3 * i + 1], values[3 * i + 2]);
  return table;
}

export const pixel = (red, green, blue) => (255 << 24) | (blue << 16) | (green << 8) | red;

/** A picture of a map: numbers from `low` to `high` go through the table; others are transparent. */
export function picture(map, table, [low, high]) {
  const factor = 255 / Math.max(high - low, 1e-9);
  return paint(map, (value) => {
    if (!Number.isFinite(value)) return 0;
    return table[Math.min(Math.max(Math.round((value - low) * factor), 0), 255)];
  });
}

/** A picture of a map by a function from numbers to pixels. */
export function paint(map, colour) {
  const canvas = new OffscreenCanvas(map.width, map.height);
  const context = canvas.getContext("2d");
  const image = context.createImageData(map.width, map.height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) pixels[i] = colour(map.values[i]);
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The photo itself, from [height, width, 3] bytes. */
export function photo({ values, shape: [height, width] }) {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) {
    pixels[i] = pixel(values[3 * i], values[3 * i + 1], values[3 * i + 2]);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** A colour of a table as CSS. */
export function css(table, share) {
  const value = table[Math.min(Math.max(Math.round(255 * share), 0), 255)];
  return `rgb(${value & 255} ${(value >> 8) & 255} ${(value >> 16) & 255})`;
}
