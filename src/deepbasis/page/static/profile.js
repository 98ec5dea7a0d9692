// SPDX-License-Identifier: Apache-2.0
// Depth along a line: the median, its interval as a band, and the ground truth if there is one.

import { metres } from "./format.js";

const SAMPLES = 200, MARGIN = { left: 48, right: 10, top: 10, bottom: 30 };

/** Rows of {at, depth, low, high, truth} from one place to another; `at` is in pixels. */
export function sample([a, b], maps) {
  const length = Math.hypot(b[0] - a[0], b[1] - a[1]);
  const count = Math.max(2, Math.min(SAMPLES, Math.round(length) + 1));
  return [...Array(count).keys()].map((i) => {
    const share = i / (count - 1);
    const [u, v] = [a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])];
    const row = { at: share * length };
    for (const name of ["depth", "low", "high", "truth"]) row[name] = maps[name] ? maps[name].at(u, v) : NaN;
    return row;
  });
}

export function drawProfile(canvas, rows) {
  const ratio = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name);
  const truths = rows.map((row) => row.truth).filter((value) => value > 0);
  const bottom = Math.min(...rows.map((row) => row.low), ...truths);
  const top = Math.max(...rows.map((row) => row.high), ...truths);
  const length = rows[rows.length - 1].at || 1;
  const x = (at) => MARGIN.left + (at / length) * (width - MARGIN.left - MARGIN.right);
  const y = (value) => {
    const share = (value - bottom) / Math.max(top - bottom, 1e-9);
    return height - MARGIN.bottom - share * (height - MARGIN.top - MARGIN.bottom);
  };

  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colour("--muted");
  context.strokeStyle = colour("--line");
  context.textBaseline = "middle";
  for (const share of [0, 0.5, 1]) {
    const value = bottom + share * (top - bottom);
    context.textAlign = "right";
    context.fillText(metres(value) + (share === 1 ? " m" : ""), MARGIN.left - 6, y(value));
    context.beginPath();
    context.moveTo(MARGIN.left, y(value));
    context.lineTo(width - MARGIN.right, y(value));
    context.stroke();
  }
  context.fillText(`${Math.round(length)} pixels`, width - MARGIN.right, height - 9);

  context.beginPath();
  rows.forEach((row) => context.lineTo(x(row.at), y(row.high)));
  [...rows].reverse().forEach((row) => context.lineTo(x(row.at), y(row.low)));
  context.closePath();
  context.fillStyle = colour("--band");
  context.fill();
  line("depth", colour("--accent"), []);
  line("truth", colour("--text"), [4, 3]);

  function line(name, stroke, dashes) {
    context.beginPath();
    let pen = false;
    for (const row of rows) {
      if (row[name] > 0) context[pen ? "lineTo" : "moveTo"](x(row.at), y(row[name]));
      pen = row[name] > 0;
    }
    context.setLineDash(dashes);
    context.lineWidth = 2;
    context.strokeStyle = stroke;
    context.stroke();
  }
}
