// SPDX-License-Identifier: Apache-2.0
// The list of points.

import { metres, percent } from "./format.js";
import { repaint } from "./paint.js";
import { find, state } from "./state.js";

const LISTED = 100; // points in the list

export function listPoints() {
  const { points, outliers } = state;
  find("count").textContent = points.list.length || "";
  find("undo").disabled = !points.past.length;
  find("redo").disabled = !points.future.length;
  find("clear").hidden = !points.list.length;
  find("points-hint").hidden = points.list.length > 2;
  const wrong = (point) => outliers.find((one) => one.u === point.u && one.v === point.v);
  const order = points.list.map((point, i) => [wrong(point) ? 0 : 1, i]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const shown = order.slice(0, LISTED).map(([, i]) => [points.list[i], i, wrong(points.list[i])]);
  if (points.list.length > LISTED) shown.push([points.list.length - LISTED]);
  fill(find("points"), shown);
}

/** Make the items of a list; those that say the same as before stay, as most do after a click. */
function fill(list, shown) {
  shown.forEach((told, at) => {
    const key = JSON.stringify(told), old = list.children[at];
    if (old && old.key === key) return;
    const made = Object.assign(told.length === 1 ? remainder(...told) : item(...told), { key });
    if (!old) return list.append(made);
    old.replaceWith(made);
    state.chosen = -1;
  });
  while (list.children.length > shown.length) {
    list.lastChild.remove();
    state.chosen = -1;
  }
}

function remainder(count) {
  const element = document.createElement("li");
  element.className = "muted";
  element.textContent = `and ${count} more`;
  return element;
}

function item(point, index, outlier) {
  const element = document.createElement("li");
  element.innerHTML = '<span class="muted place"></span><input type="number" step="any" min="0.001">' +
    '<span>m</span><button class="plain">×</button>';
  const [place, input, , remove] = element.children;
  place.textContent = `${+point.u.toFixed(1)}, ${+point.v.toFixed(1)}`;
  place.title = "column, row";
  const reset = () => { input.value = +point.m.toFixed(4); };
  reset();
  input.setAttribute("aria-label", `metres at column ${point.u}, row ${point.v}`);
  input.onchange = () => (input.value > 0 ? state.points.change(index, { m: Number(input.value) }) : reset());
  remove.setAttribute("aria-label", "Remove this point");
  remove.onclick = () => state.points.remove(index);
  element.onpointerenter = () => { state.chosen = index; repaint(); };
  element.onpointerleave = () => { state.chosen = -1; repaint(); };
  if (outlier) {
    element.className = "outlier";
    const note = document.createElement("p");
    note.textContent = `Outlier (${percent(outlier.probability)} sure): ` +
      `the other points expect ${metres(outlier.expected)} m.`;
    element.append(note);
  }
  return element;
}
