// SPDX-License-Identifier: Apache-2.0
// Opening images, and what belongs to them: points, camera, ground truth.

import { complete } from "./answers.js";
import { fitPhoto, sortOut } from "./files.js";
import { showChips } from "./layout.js";
import { NumberMap, photo } from "./maps.js";
import { showMeasure } from "./measure.js";
import { fromRows } from "./points.js";
import { find, state, views } from "./state.js";
import { ask, attempt, notice, sentence } from "./talk.js";

async function open(image) {
  const fields = { model: image.model || find("model").value, ...image.fields };
  const found = await attempt(() => ask("open", fields, image.content));
  if (!found) return;
  notice(image.note || "");
  state.image = { ...image, model: found.header.model };
  state.extras = {};
  Object.assign(state, { outliers: [], next: [], measure: null, chosen: -1, maps: {}, scaled: false });
  state.photo = found.arrays.image;
  document.body.dataset.open = "yes";
  views.image.show(photo(found.arrays.image));
  document.documentElement.style.setProperty("--aspect", found.header.size[1] / found.header.size[0]);
  const [height, width] = found.header.size;
  state.lens.setSize(height, width);
  describe(found.header, found.arrays);
  showMeasure();
  state.points.forget();
  state.points.set([], false);
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
  for (const { role, file, scale } of await sortOut(files, Boolean(state.shown))) {
    if (file.size > state.limits.max_bytes) {
      notice(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; the limit is ${state.limits.max_bytes / 1e6} MB.`);
    } else if (role === "image") {
      const fitted = await fitPhoto(file, state.limits.max_pixels);
      await open({ fields: { name: fitted.name }, content: fitted.content, note: fitted.note });
    } else if (role === "points") await takePoints(file, scale);
    else await takeExtra(role, { name: file.name, depth_scale: scale || depthScale() }, await file.arrayBuffer());
  }
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
  complete();
  return true;
}

/** Open everything again, after the connection broke. */
export async function restore() {
  if (!state.image) return;
  const found = await attempt(() => ask("open", { model: find("model").value, ...state.image.fields }, state.image.content));
  if (!found) return;
  describe(found.header, found.arrays);
  for (const [role, { fields, content }] of Object.entries(state.extras)) {
    const extra = await attempt(() => ask(role, fields, content));
    if (extra) describe(extra.header, extra.arrays);
  }
  complete();
}
