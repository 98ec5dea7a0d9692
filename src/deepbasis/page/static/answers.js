// SPDX-License-Identifier: Apache-2.0
// Completing from the present points, and showing what the server answers.

import { metres, percent, plural } from "./format.js";
import { listPoints } from "./list.js";
import { NumberMap, paint, picture, pixel } from "./maps.js";
import { remeasure } from "./measure.js";
import { paintNow, repaint } from "./paint.js";
import { find, space, state, views } from "./state.js";
import { ask, attempt, sentence } from "./talk.js";

const OUTSIDE = [pixel(70, 130, 220), pixel(222, 73, 104)];

let running = null; // the completion that was asked for last

export const isCompleting = () => running !== null;

/** What was asked for will not be answered any more. */
export function forgetCompletion() {
  running = null;
}

/** Complete from the present points. Until the first answer has come, further requests wait.
    All pixels are asked for when the preview is drawn, for which the browser needs a core too. */
export async function complete() {
  if (!state.shown || state.points.locked) return;
  if (running && !running.answered) {
    running.stale = true;
    return;
  }
  const mine = { answered: false, stale: false };
  running = mine;
  let done = await attempt(() => ask("complete", { points: state.points.rows, ...frame() }));
  mine.answered = true;
  if (mine !== running) return;
  if (done && !done.header.done) {
    show(done.header, done.arrays);
    done = mine.stale ? null : await attempt(() => ask("rest"));
    if (mine !== running) return;
  }
  running = null;
  if (done && !done.header.skipped) {
    show(done.header, done.arrays);
    finish(done.header);
  }
  if (mine.stale) complete();
}

const frame = () => (state.sequence ? { frame: state.sequence.number } : {});

export async function askCloser() {
  if (!state.maps.depth || state.asking) return;
  state.asking = true;
  const wanted = state.closer;
  const found = await attempt(() => ask("closer", { metres: wanted }));
  state.asking = false;
  if (found && wanted === state.closer) showCloser(found.arrays.closer);
  if (wanted !== state.closer) askCloser();
}

/** The probability that pixels are closer than the slider's distance. */
export function showCloser(array, step = 1) {
  state.maps.closer = new NumberMap(array, step);
  views.closer.show(picture(state.maps.closer, state.colours.error, [0, 1]), step);
  repaint();
}

export function show({ step }, arrays) {
  const { maps, range, colours } = state;
  for (const name of ["depth", "std", "low", "high"]) maps[name] = new NumberMap(arrays[name], step);
  range.depth = depthRange(maps.depth);
  // The scale of std stays as it was without points, so that its fall is seen; a change of the
  // image or of the unit sets it anew.
  const most = maps.std.quantile(0.98);
  if (!state.scaled || most > 1.3 * range.std[1] || most < 0.2 * range.std[1]) range.std = [0, most];
  if (!state.scaled) fitCloser(maps.depth.quantile(0.5));
  state.scaled = true;
  views.depth.show(picture(maps.depth, colours.depth, range.depth), step);
  views.std.show(picture(maps.std, colours.error, range.std), step);
  if (step === 1) showTruth();
  state.fresh = step === 1 ? "all" : "some";
  paintNow(); // before anything else is changed, whose layout would have to be computed first
  views.depth.showBar(colours.depth, range.depth, "m");
  views.std.showBar(colours.error, range.std, "m");
  if (views.space.shown && (step === 1 || state.sequence)) showSpace();
}

/** A distance of another image says nothing if all of this one is far nearer or farther. */
function fitCloser(usual) {
  if (usual < 4 * state.closer && usual > state.closer / 4) return;
  const slider = find("closer");
  slider.value = Math.log(usual);
  slider.oninput();
}

/** From near to far; of a sequence, of all frames so far, so that colours keep their meaning. */
function depthRange(depth) {
  const own = [depth.quantile(0.01), depth.quantile(0.99)], { sequence } = state;
  if (!sequence) return own;
  const before = sequence.range || own;
  sequence.range = [Math.min(before[0], own[0]), Math.max(before[1], own[1])];
  return sequence.range;
}

function showTruth() {
  const { maps, colours, range } = state;
  if (!maps.truth) return;
  const shape = [maps.truth.height, maps.truth.width];
  const compare = (judge) => {
    const values = maps.truth.values.map((truth, i) => (truth > 0 ? judge(truth, i) : NaN));
    return new NumberMap({ values, shape });
  };
  maps.error = compare((truth, i) => Math.abs(maps.depth.values[i] - truth));
  views.error.show(picture(maps.error, colours.error, range.std));
  views.error.showBar(colours.error, range.std, "m");
  const sides = compare((truth, i) => (truth < maps.low.values[i] ? -1 : truth > maps.high.values[i] ? 1 : 0));
  const inside = pixel(214, 224, 214);
  const colour = (value) => (value === 0 ? inside : OUTSIDE[value < 0 ? 0 : 1]);
  views.coverage.show(paint(sides, (value) => (Number.isNaN(value) ? 0 : colour(value))));
  views.coverage.showLegend([
    ["rgb(214 224 214)", "inside"], ["rgb(70 130 220)", "nearer"], ["rgb(222 73 104)", "farther"],
  ]);
}

/** What comes with the last part of an answer. */
export function finish(header) {
  state.outliers = header.outliers;
  state.summary = header;
  find("recipe").hidden = true; // it was that of other points
  const facts = [
    ["Points", header.points + (header.outlier_count ? `, ${plural(header.outlier_count, "outlier")}` : "")],
    ["Median std", `${metres(header.median_std)} m`],
  ];
  if (header.score) {
    facts.push(["Mean error", `${metres(header.score.mae)} m`]);
    facts.push(["90 % coverage", percent(header.score.coverage)]);
  }
  for (const [why, count] of Object.entries(header.dropped)) facts.push([sentence(why).slice(0, -1), count]);
  find("facts").replaceChildren(...facts.flatMap(([name, value]) => {
    const [term, definition] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    definition.textContent = value;
    return [term, definition];
  }));
  find("warnings").replaceChildren(...header.warnings.map((text) => {
    const item = document.createElement("li");
    item.textContent = sentence(text);
    return item;
  }));
  listPoints();
  askCloser();
  remeasure();
  repaint();
}

export function showSpace() {
  const { maps, colours, range, photo: { values, shape: [, width] } } = state;
  const { depth, std } = maps, by = depth.step / state.photoStep;
  const byStd = (i, shade) => {
    const value = colours.error[Math.min(255, Math.round((255 * std.values[i]) / Math.max(range.std[1], 1e-9)))];
    [shade[0], shade[1], shade[2]] = [value & 255, (value >> 8) & 255, (value >> 16) & 255];
  };
  const byImage = (i, shade) => {
    const at = 3 * by * (Math.floor(i / depth.width) * width + (i % depth.width));
    [shade[0], shade[1], shade[2]] = [values[at], values[at + 1], values[at + 2]];
  };
  space.set(depth, state.shown.camera, state.spaceColour === "std" ? byStd : byImage);
}
