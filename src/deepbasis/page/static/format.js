// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.

/** Metres with as many decimals as tell something. */
export function metres(value) {
  if (!Number.isFinite(value)) return "?";
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 20 ? 1 : size >= 0.095 ? 2 : 3);
}

/** Numbers beside a colour bar or an axis that ends at `largest`. */
export const tick = (largest) => (value) => value.toFixed(largest >= 20 ? 0 : largest >= 5 ? 1 : largest >= 0.2 ? 2 : 3);

export function percent(share) {
  if (share > 0 && share < 0.0005) return "under 0.1 %";
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** "2.31 m, 90 %: 2.17 to 2.48"; with a millimetre if the bounds would look the same without. */
export function interval(value, low, high, level) {
  const close = high - low < 0.02 && high < 20, write = close ? (one) => one.toFixed(3) : metres;
  return `${write(value)} m, ${percent(level)}: ${write(low)} to ${write(high)}`;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
