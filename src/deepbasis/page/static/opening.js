// SPDX-License-Identifier: Apache-2.0
// Opening images, and what belongs to them: points, camera, ground truth.

import { complete } from "./answers.js";
import { fitPhoto, join, sortOut } from "./files.js";
import { plural } from "./format.js";
import { fillRoom, showChips } from "./layout.js";
import { NumberMap, photo } from "./maps.js";
import { showMeasure } from "./measure.js";
import { fromRows } from "./points.js";
import { goTo, startSequence } from "./sequence.js";
import { find, state, views } from "./state.js";
import { ask, attempt, notice, say, sentence } from "./talk.js";

async function open(image) {
  const fields = { model: image.model || find("model").value, ...image.fields };
  const found = await attempt(() => ask("open", fields, image.content));
  if (!found) return false;
  notice([image.note, reductionNote(found.header)].filter(Boolean).join(" "));
  state.image = { ...image, model: found.header.model };
  state.extras = {};
  Object.assign(state, { outliers: [], next: [], measure: null, chosen: -1, maps: {}, scaled: false });
  Object.assign(state, { photo: found.arrays.image, photoStep: 1 });
  document.body.dataset.open = "yes";
  views.image.show(photo(found.arrays.image));
  document.documentElement.style.setProperty("--aspect", found.header.size[1] / found.header.size[0]);
  const [height, width] = found.header.size;
  state.lens.setSize(height, width);
  fillRoom();
  document.querySelector("aside").scrollTop = 0;
  describe(found.header, found.arrays);
  showMeasure();
  state.points.locked = false;
  state.points.load([]);
  startSequence(found.header.frames);
  refresh();
  return true;
}

/** Complete again, after anything but the points changed. */
export function refresh() {
  if (!state.sequence) return complete();
  state.sequence.kept = [];
  return goTo(state.sequence.number);
}

function reductionNote({ name, reduced, frames, frames_in_all: all }) {
  const notes = [];
  if (frames && frames.length < all) notes.push(`The first ${frames.length} of ${all} frames of ${name} are used.`);
  if (reduced > 1) notes.push(`The frames of ${name} are reduced ${reduced} times in width and height.`);
  return notes.join(" ");
}

export const openSample = (name) => open({ fields: { sample: name }, model: state.samples[name] });

/** What the server knows of the image besides its pixels. */
export function describe(header, arrays) {
  state.shown = header;
  find("model").value = header.model;
  if (arrays.truth) state.maps.truth = new NumberMap(arrays.truth);
  for (const id of ["auto-field", "draw-field"]) find(id).hidden = !header.truth_known;
  const form = find("camera");
  ["fx", "fy", "cx", "cy"].forEach((name, i) => { form.elements[name].value = +header.camera[i].toFixed(3); });
  find("camera-note").textContent = header.camera_known
    ? "Focal lengths and principal point in pixels of this image."
    : "The camera is not known, so a field of view of 60° is assumed. Distances, sizes and the 3-D view depend on it.";
  showChips();
}

export async function takeFiles(files) {
  notice("");
  const { sequence, singles } = await sortOut(files, Boolean(state.shown));
  const camera = sequence && singles.find(({ role }) => role === "camera");
  if (sequence && !(await openSequence(sequence, camera ? [camera.file] : []))) return;
  for (const { role, file, scale } of singles) {
    if (camera && role === "camera") continue;
    if (file.size > state.limits.max_bytes) {
      notice(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; the limit is ${state.limits.max_bytes / 1e6} MB.`);
    } else if (role === "image") {
      const fitted = await fitPhoto(file, state.limits.max_pixels);
      await open({ fields: { name: fitted.name }, content: fitted.content, note: fitted.note });
    } else if (role === "points") await takePoints(file, scale);
    else await takeExtra(role, { name: file.name, depth_scale: scale || depthScale() }, await file.arrayBuffer());
  }
}

/** All files of a sequence go in one message. */
async function openSequence({ name, frames, points, truth, scales }, camera) {
  const { max_frames: most, max_bytes: limit, max_pixels: pixels } = state.limits;
  const order = new Intl.Collator("en", { numeric: true }).compare;
  const used = [...frames].sort((a, b) => order(a.name, b.name)).slice(0, most);
  const listed = [];
  say(`reading ${plural(used.length, "file")}…`, true);
  for (const file of used) {
    // What is measured is in pixels of the frames, so these are reduced only by themselves.
    const alone = !points.length && !truth.length;
    const fitted = alone ? await fitPhoto(file, pixels) : { name: file.name, content: await file.arrayBuffer() };
    listed.push(["frames", fitted.name, fitted.content]);
  }
  for (const [role, files] of Object.entries({ points, truth, camera })) {
    for (const file of files) listed.push([role, file.name, await file.arrayBuffer()]);
  }
  const size = listed.reduce((sum, [, , content]) => sum + content.byteLength, 0);
  if (size > limit) {
    notice(`${plural(listed.length, "file")} of ${name} have ${(size / 1e6).toFixed(1)} MB together; the limit is ${limit / 1e6} MB.`);
    say("ready");
    return false;
  }
  const note = used.length < frames.length ? `The first ${most} of ${frames.length} frames of ${name} are used.` : "";
  const files = listed.map(([role, file, content]) => [role, file, content.byteLength]);
  const fields = { name, files, depth_scale: scales.points || depthScale(), truth_scale: scales.truth || depthScale() };
  return open({ fields, content: join(listed.map(([, , content]) => content)), note });
}

const depthScale = () => Number(find("depth-scale").value) || null;

async function takePoints(file, scale) {
  const fields = { name: file.name, depth_scale: scale || depthScale() };
  const content = await file.arrayBuffer();
  const found = await attempt(() => ask("points", fields, content));
  if (!found) return;
  const dropped = Object.entries(found.header.dropped).map(([why, count]) => `${count} ${why}`);
  if (dropped.length) notice(sentence(`${file.name}: ${dropped.join(", ")}`));
  const fresh = fromRows(found.header.rows);
  state.points.set(file.name === "pasted.csv" ? [...state.points.list, ...fresh] : fresh);
}

/** Camera or ground truth. */
export async function takeExtra(role, fields, content) {
  const found = await attempt(() => ask(role, fields, content));
  if (!found) return false;
  state.extras[role] = { fields, content };
  describe(found.header, found.arrays);
  refresh();
  return true;
}

/** Open everything again, after the connection broke. */
export async function restore() {
  if (!state.image) return;
  const fields = { model: find("model").value, ...state.image.fields, edited: state.sequence?.edited };
  const found = await attempt(() => ask("open", fields, state.image.content));
  if (!found) return;
  describe(found.header, found.arrays);
  for (const [role, { fields, content }] of Object.entries(state.extras)) {
    const extra = await attempt(() => ask(role, fields, content));
    if (extra) describe(extra.header, extra.arrays);
  }
  refresh();
}
