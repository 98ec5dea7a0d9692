// SPDX-License-Identifier: Apache-2.0
// Adding and editing points: a small form where the user clicked.

import { metres } from "./format.js";
import { find, state, views } from "./state.js";

/** A point that is moved keeps its metres, or measures the ground truth at its new place. */
export function movedTo(u, v) {
  const known = automatic(u, v);
  return known ? { u, v, m: known } : { u, v };
}

/** Ground truth at a pixel, if clicks measure it; 0 otherwise. */
function automatic(u, v) {
  const { truth } = state.maps;
  return truth && find("auto").checked && truth.at(u, v) > 0 ? +truth.at(u, v).toFixed(3) : 0;
}

export function addPoint(u, v, x, y) {
  if (state.points.locked) return;
  const known = automatic(u, v);
  if (known) {
    state.points.add({ u, v, m: known });
    return;
  }
  const expected = state.maps.depth ? state.maps.depth.at(u, v) : 1;
  openPopover(x, y, {
    value: "", placeholder: metres(expected), note: `Expected ${metres(expected)} m, along the camera's axis.`,
    keep: (m) => state.points.add({ u, v, m }),
  });
}

export function editPoint(index, x, y) {
  if (state.points.locked) return;
  const point = state.points.list[index];
  openPopover(x, y, {
    value: +point.m.toFixed(4), note: `column ${point.u}, row ${point.v}`,
    keep: (m) => state.points.change(index, { m }), remove: () => state.points.remove(index),
  });
}

function openPopover(x, y, { value, placeholder = "", note, keep, remove }) {
  const form = find("popover"), input = form.querySelector("input");
  const [, , drop] = form.elements;
  form.hidden = false;
  input.value = value;
  input.placeholder = placeholder;
  form.querySelector("p").textContent = note;
  drop.hidden = !remove;
  form.style.left = `${Math.min(Math.max(x + 12, 8), innerWidth - form.offsetWidth - 8)}px`;
  form.style.top = `${Math.min(Math.max(y + 12, 8), innerHeight - form.offsetHeight - 8)}px`;
  form.onsubmit = (event) => {
    event.preventDefault();
    closePopover();
    keep(Number(input.value));
  };
  drop.onclick = () => { closePopover(); remove(); };
  form.elements[3].onclick = closePopover;
  input.focus();
  input.select();
}

export function closePopover() {
  if (find("popover").hidden) return;
  find("popover").hidden = true;
  views.image.canvas.focus({ preventScroll: true });
}
