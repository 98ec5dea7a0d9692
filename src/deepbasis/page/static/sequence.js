// SPDX-License-Identifier: Apache-2.0
// Sequences: the frame that is shown, the frames that were filtered already, and playing them.

import { finish, show, showCloser } from "./answers.js";
import { showChips } from "./layout.js";
import { NumberMap, photo, thin } from "./maps.js";
import { repaint } from "./paint.js";
import { fromRows } from "./points.js";
import { find, link, state, views } from "./state.js";
import { ask, attempt, say } from "./talk.js";

const KEPT = ["depth", "std", "low", "high", "closer", "image"];
const PLAYED = 110; // milliseconds that a frame is shown which was filtered before

let running = null; // the frame that was asked for last
let playing = false;

export const isFiltering = () => running !== null;

/** What was asked for will not be answered any more. */
export function forgetFrames() {
  running = null;
  stop();
}

/** Show the frames of what was opened, or no sequence. */
export function startSequence(names) {
  stop();
  running = null;
  state.points.locked = false;
  // `kept` has small maps of frames that were filtered, `edited` the points that the user changed.
  state.sequence = names ? { names, number: 0, kept: [], edited: {}, range: null } : null;
  find("timeline").hidden = !names;
  if (!names) return;
  find("scrub").max = names.length - 1;
  showPosition();
}

/** Show a frame; frames before it that were not filtered yet are filtered first. */
export async function goTo(number) {
  const { sequence, points } = state;
  if (!sequence) return;
  sequence.number = Math.min(Math.max(number, 0), sequence.names.length - 1);
  state.outliers = [];
  state.next = [];
  points.load([]);
  points.locked = true; // until the points of this frame are known
  showKept(sequence.number);
  showPosition();
  if (running && !running.answered) {
    running.stale = true;
    return;
  }
  const mine = { answered: false, stale: false }, wanted = sequence.number;
  running = mine;
  const done = await attempt(() => ask("frame", { number: wanted, metres: state.closer }, null, (header, arrays) => {
    mine.answered = true;
    keep(header, arrays);
    if (mine !== running) return;
    say(`filtering frame ${header.frame + 1} of ${sequence.names.length}…`, true);
    if (playing) sequence.number = header.frame;
    showKept(header.frame);
    showPosition();
    if (mine.stale) goTo(sequence.number); // the server leaves out the rest of this answer
  }));
  if (mine !== running) return;
  running = null;
  if (mine.stale) goTo(sequence.number);
  else if (done && !done.header.skipped) showFrame(done.header, done.arrays);
  else if (!done && link.ready) leaveFrame(wanted); // if not, it is asked for again
}

/** A frame could not be shown: back to one that was, if there is one. */
function leaveFrame(number) {
  const { sequence } = state;
  stop();
  let other = sequence.kept.findLastIndex((frame, i) => frame && i < number);
  if (other < 0) other = sequence.kept.findIndex((frame, i) => frame && i > number);
  if (other >= 0) goTo(other);
}

function showFrame(header, arrays) {
  const { sequence, maps } = state;
  if (playing) sequence.number = header.frame;
  const had = state.shown.truth_known;
  state.shown = { ...state.shown, ...header };
  delete maps.truth;
  if (arrays.truth) maps.truth = new NumberMap(arrays.truth);
  if (had !== header.truth_known) showChips();
  Object.assign(state, { photo: arrays.image, photoStep: 1 });
  views.image.show(photo(arrays.image));
  keep(header, arrays);
  state.points.locked = false;
  state.points.load(fromRows(header.rows));
  show(header, arrays);
  finish(header);
  showPosition();
  if (header.frame === sequence.names.length - 1) stop();
}

/** Keep a small copy of a frame for scrubbing. */
function keep({ frame, step, metres }, arrays) {
  const by = step > 1 ? 1 : Math.ceil(Math.sqrt(arrays.depth.values.length / 20000));
  const small = { step: step * by, metres };
  for (const name of KEPT) small[name] = thin(arrays[name], by);
  state.sequence.kept[frame] = small;
}

function showKept(number) {
  const small = state.sequence.kept[number];
  if (!small) return;
  Object.assign(state, { photo: small.image, photoStep: small.step });
  views.image.show(photo(small.image), small.step);
  show(small, small);
  if (small.metres === state.closer) showCloser(small.closer, small.step);
}

/** The points of the shown frame changed: what was known of those after it is outdated. */
export function forgetAfter(number, rows) {
  const { sequence } = state;
  sequence.edited[number] = rows;
  sequence.kept.length = Math.min(sequence.kept.length, number + 1);
  showPosition();
}

export function play() {
  if (playing) {
    stop();
    goTo(state.sequence.number);
    return;
  }
  playing = true;
  showPosition();
  const { sequence } = state, last = sequence.names.length - 1;
  if (sequence.number === last) sequence.number = -1;
  const step = () => {
    if (!playing || sequence !== state.sequence) return;
    if (sequence.number < last && sequence.kept[sequence.number + 1]) {
      sequence.number++;
      state.points.load([]);
      state.points.locked = true;
      showKept(sequence.number);
      showPosition();
      setTimeout(step, PLAYED);
    } else goTo(last);
  };
  step();
}

export function stop() {
  playing = false;
  find("play").textContent = "▶ Play";
}

function showPosition() {
  const { sequence } = state;
  find("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
  find("scrub").value = sequence.number;
  const name = sequence.names[Math.max(sequence.number, 0)];
  find("scrub").setAttribute("aria-valuetext", `frame ${sequence.number + 1}, ${name}`);
  find("frame-name").textContent = `${sequence.number + 1} / ${sequence.names.length}`;
  find("frame-name").title = name;
  drawTrack();
  repaint();
}

/** Which frames are filtered, and which have points of the user. */
function drawTrack() {
  const canvas = find("track"), { names, kept, edited } = state.sequence;
  const style = getComputedStyle(document.documentElement);
  [canvas.width, canvas.height] = [names.length * 4, 6];
  const context = canvas.getContext("2d");
  names.forEach((_, i) => {
    context.fillStyle = style.getPropertyValue(kept[i] ? "--accent" : "--line");
    context.fillRect(4 * i, 2, 4, 2);
    if (!edited[i] || !edited[i].length) return;
    context.fillStyle = style.getPropertyValue("--text");
    context.fillRect(4 * i, 0, 4, 6);
  });
}

export function listenToTimeline() {
  find("scrub").oninput = () => { stop(); goTo(Number(find("scrub").value)); };
  find("play").onclick = play;
  find("previous").onclick = () => { stop(); goTo(state.sequence.number - 1); };
  find("following").onclick = () => { stop(); goTo(state.sequence.number + 1); };
}
