// SPDX-License-Identifier: Apache-2.0
// Distances, regions and profiles, and where to measure next.

import { interval, metres, percent } from "./format.js";
import { repaint } from "./paint.js";
import { drawProfile, sample } from "./profile.js";
import { find, state } from "./state.js";
import { ask, attempt, say } from "./talk.js";

/** The place in the image that is nearest to a place beside it. */
export const clampTo = (u, v) => {
  const { width, height } = state.lens;
  return [Math.min(Math.max(u, 0), width - 1), Math.min(Math.max(v, 0), height - 1)];
};

export const rounded = (place) => place.map(Math.round);

export function clickLine(place) {
  const { measure, tool } = state;
  if (!measure || measure.done) state.measure = { tool, places: [place] };
  else {
    measure.places = [measure.places[0], place];
    finishLine();
  }
  showMeasure();
  repaint();
}

export function finishLine() {
  state.measure.places = state.measure.places.map(rounded);
  const [a, b] = state.measure.places;
  if (a[0] === b[0] && a[1] === b[1]) state.measure.places = [a];
  else {
    state.measure.done = true;
    remeasure();
  }
}

export function finishRegion() {
  if (!state.measure || state.measure.places.length < 3) state.measure = null;
  else {
    state.measure.done = true;
    remeasure();
  }
  repaint();
}

/** Measure again what is drawn, after it or the completion changed. */
export async function remeasure() {
  const { measure } = state;
  if (!measure || !measure.done || !state.maps.depth) return;
  if (measure.tool === "profile") {
    measure.rows = sample(measure.places, state.maps);
    measure.text = `Depth along the line; the band is the ${percent(state.level)} interval` +
      (state.maps.truth ? ", dashed is the ground truth." : ".");
  } else if (measure.tool === "distance") {
    const found = await attempt(() => ask("distance", { ends: measure.places }));
    if (!found) return;
    const { value, low, high, std } = found.header.distance;
    Object.assign(measure, { label: `${metres(value)} m`, value: found.header.distance });
    measure.text = `${interval(value, low, high, state.level)} m, std ${metres(std)} m. ${cameraNote()}`;
  } else {
    const found = await attempt(() => ask("region", { corners: measure.places, metres: state.closer }));
    if (!found) return;
    const { depth, width, height, closer, pixels } = found.header;
    Object.assign(measure, { label: `${metres(depth.value)} m`, value: found.header });
    measure.text = `Mean depth ${interval(depth.value, depth.low, depth.high, state.level)} m. ` +
      `Probability that any of it is closer than ${metres(found.header.metres)} m: ${percent(closer)}. ` +
      `About ${metres(width.value)} m wide and ${metres(height.value)} m high (${pixels} pixels). ${cameraNote()}`;
  }
  if (measure === state.measure) showMeasure();
}

const cameraNote = () => (state.shown.camera_known ? "" : "The camera is assumed, not known.");

const HINTS = {
  distance: "Click two places, or drag from one to the other.",
  region: "Draw around a region with the button held down.",
  profile: "Click two places, or drag a line: depth along it, with its interval.",
};

export function showMeasure() {
  const { measure, tool } = state;
  const title = { distance: "Distance", region: "Region", profile: "Profile" }[tool];
  find("measure-card").hidden = !title;
  if (!title) return;
  find("measure-title").textContent = title;
  const profile = measure && measure.rows;
  find("measure-text").textContent = (measure && measure.text) || HINTS[tool];
  find("profile-chart").hidden = !profile;
  if (profile) drawProfile(find("profile-chart"), measure.rows);
  repaint();
}

export async function suggest() {
  const found = await attempt(() => ask("next", { count: 5 }));
  if (!found) return;
  state.next = found.header.pixels;
  say("measure at 1 first");
  repaint();
}
