// SPDX-License-Identifier: Apache-2.0
// What is drawn on top of the maps: points, cursor, lines, regions, suggestions.

import { css } from "./maps.js";
import { metres } from "./format.js";

// More points than these are drawn as small squares, without their metres; and beyond the second
// number, on the image only.
const MANY = 40, TOO_MANY = 400;
const LABELLED = 4; // outliers up to this number have a label
const DOWN = "#d01f4c", LINE = "#ff5d8f", NEXT = "#35d0ff";

export function drawOverlay(state, view, context, toScreen, scale) {
  const { points, lens } = state;
  if (state.measure) drawMeasure(state.measure, context, toScreen);
  if (view.name === "image") drawPoints(state, context, toScreen);
  else if (points.list.length <= TOO_MANY) {
    const radius = points.list.length > MANY ? 1.5 : 3;
    for (const point of points.list) dot(context, toScreen(point.u, point.v), radius, "#fff", "#000");
  }
  if (view.name === "image") state.next.forEach(([u, v], i) => drawNext(context, toScreen(u, v), i + 1));
  if (state.measure && view.name === "image") labelMeasure(state.measure, context, toScreen);
  if (state.cursor && lens.inside(...state.cursor)) drawCursor(context, toScreen(...state.cursor), scale);
}

function drawPoints(state, context, toScreen) {
  const { points, colours, range } = state;
  const many = points.list.length > MANY;
  context.globalAlpha = points.list.length > 10 * TOO_MANY ? 0.6 : 1;
  const wrong = new Set(state.outliers.map(({ u, v }) => `${u} ${v}`));
  points.list.forEach((point, i) => {
    const at = toScreen(point.u, point.v);
    const share = (point.m - range.depth[0]) / Math.max(range.depth[1] - range.depth[0], 1e-9);
    const colour = css(colours.depth, share);
    if (many) square(context, at, points.list.length > TOO_MANY ? 1 : 3, colour);
    else dot(context, at, 6, colour, "#fff", 2);
    if (i === state.chosen) ring(context, at, 11, "#fff");
    if (!many && !wrong.has(`${point.u} ${point.v}`)) label(context, `${metres(point.m)} m`, at);
  });
  context.globalAlpha = 1;
  for (const { u, v, depth, expected } of state.outliers) {
    const at = toScreen(u, v);
    ring(context, at, many ? 6 : 10, DOWN);
    if (state.outliers.length <= LABELLED) label(context, `${metres(depth)} m? others: ${metres(expected)} m`, at, "#fff", DOWN);
  }
}

function drawMeasure(measure, context, toScreen) {
  const places = measure.places.map(([u, v]) => toScreen(u, v));
  if (!places.length) return;
  context.beginPath();
  places.forEach(([x, y]) => context.lineTo(x, y));
  if (measure.tool === "region" && measure.done) {
    context.closePath();
    context.fillStyle = "rgb(255 93 143 / 18%)";
    context.fill();
  }
  outline(context, LINE);
  if (measure.tool !== "region") places.forEach((at) => dot(context, at, 3.5, LINE, "#fff", 1));
}

function labelMeasure({ places, label: text }, context, toScreen) {
  if (!text) return;
  const all = places.map(([u, v]) => toScreen(u, v));
  const middle = [0, 1].map((i) => all.reduce((sum, at) => sum + at[i], 0) / all.length);
  label(context, text, middle, LINE);
}

function drawNext(context, [x, y], rank) {
  context.beginPath();
  context.arc(x, y, 9, 0, 7);
  context.fillStyle = "rgb(0 0 0 / 55%)";
  context.fill();
  outline(context, NEXT);
  context.fillStyle = NEXT;
  context.font = "600 11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(String(rank), x, y + 0.5);
}

function drawCursor(context, [x, y], scale) {
  const reach = Math.max(7, scale / 2 + 5), gap = Math.max(2.5, scale / 2);
  context.beginPath();
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    context.moveTo(x + gap * dx, y + gap * dy);
    context.lineTo(x + reach * dx, y + reach * dy);
  }
  outline(context, "#fff", 1.25);
}

function dot(context, [x, y], radius, fill, stroke, width = 1) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.fillStyle = fill;
  context.fill();
  context.lineWidth = width;
  context.strokeStyle = stroke;
  context.stroke();
}

function square(context, [x, y], half, fill) {
  if (half > 1) {
    context.fillStyle = "#fff";
    context.fillRect(x - half - 0.5, y - half - 0.5, 2 * half + 1, 2 * half + 1);
  }
  context.fillStyle = fill;
  context.fillRect(x - half, y - half, 2 * half, 2 * half);
}

function ring(context, [x, y], radius, colour) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  outline(context, colour);
}

/** A line that is seen on any ground. */
function outline(context, colour, width = 2) {
  context.lineJoin = "round";
  context.lineWidth = width + 2;
  context.strokeStyle = "rgb(0 0 0 / 60%)";
  context.stroke();
  context.lineWidth = width;
  context.strokeStyle = colour;
  context.stroke();
}

function label(context, text, [x, wantedY], colour = "#fff", ground = "rgb(12 14 20 / 78%)") {
  const height = context.canvas.clientHeight, isSeen = wantedY >= 0 && wantedY <= height;
  const y = isSeen ? Math.min(Math.max(wantedY, 10), height - 10) : wantedY;
  context.font = "600 12px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  const width = context.measureText(text).width;
  const right = x + 10 + width + 4 > context.canvas.clientWidth;
  const left = right ? x - 10 - width : x + 10;
  context.fillStyle = ground;
  context.beginPath();
  context.roundRect(left - 4, y - 9, width + 8, 18, 5);
  context.fill();
  context.fillStyle = colour;
  context.fillText(text, left, y + 0.5);
}
