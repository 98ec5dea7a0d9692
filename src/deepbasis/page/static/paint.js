// SPDX-License-Identifier: Apache-2.0
// Drawing all views, and the line that reads the pixel at the cursor.

import { interval, metres, percent } from "./format.js";
import { drawOverlay } from "./overlay.js";
import { find, state, views } from "./state.js";

// Milliseconds in which most clicks are answered. Until then browser and server, which may share the
// cores of one computer, do nothing else.
const SOON = 50;

let asked = 0; // the frame at which views are drawn

/** Draw all views at the next frame. */
export function repaint() {
  asked ||= requestAnimationFrame(paintNow);
}

/** A function that does some work soon, once however often it is called until then. */
export function soon(work) {
  let timer = 0;
  return () => {
    timer ||= setTimeout(() => { timer = 0; work(); }, SOON);
  };
}

/** Draw all views soon: what is answered meanwhile draws them too. */
export const repaintSoon = soon(repaint);

/** Draw all views. What a user waits for is drawn as soon as it is there, so that the next frame
    shows it. */
export function paintNow() {
  cancelAnimationFrame(asked);
  asked = 0;
  for (const view of Object.values(views)) {
    if (view.name !== "space") view.draw(state.lens, (...where) => drawOverlay(state, ...where));
  }
  if (state.fresh) document.dispatchEvent(new CustomEvent("answered", { detail: state.fresh }));
  state.fresh = null;
  readOut();
}

function readOut() {
  const [strong, span] = find("readout").children;
  const { maps, cursor, lens } = state;
  if (!cursor || !maps.depth || !lens.inside(...cursor)) {
    strong.textContent = "Point at a pixel to read its depth";
    span.textContent = `${percent(state.level)} interval: the true depth is inside in 9 of 10 cases`;
    return;
  }
  const [u, v] = cursor.map(Math.round);
  const at = (name) => maps[name].at(u, v);
  strong.textContent = interval(at("depth"), at("low"), at("high"), state.level);
  const rest = [`std ${metres(at("std"))} m`];
  if (maps.closer) rest.push(`closer than ${metres(state.closer)} m: ${percent(at("closer"))}`);
  if (maps.truth) rest.push(at("truth") > 0 ? `ground truth ${metres(at("truth"))} m` : "no ground truth");
  rest.push(`column ${u}, row ${v}`);
  span.textContent = rest.join(" · ");
}
