// SPDX-License-Identifier: Apache-2.0
// Which views are shown, and how large.

import { askCloser, showSpace } from "./answers.js";
import { metres } from "./format.js";
import { remeasure } from "./measure.js";
import { repaint } from "./paint.js";
import { listenTo } from "./pointer.js";
import { find, NEED_TRUTH, PHONE, space, state, views } from "./state.js";
import { act } from "./tools.js";

// Room beside and above the canvas of a view for colour bar and title, between views, and the least
// height of a canvas; all in screen pixels.
const BESIDE = 76, ABOVE = 46, GAP = 10, SMALLEST = 120;
const WIDE = 2; // width over height of images that leave room for more views

const SHORT = {
  image: "Image", depth: "Depth", std: "Std", closer: "Closer", error: "Error", coverage: "Coverage", space: "3-D",
};
const on = new Set(["image", "depth", "std", "closer"]);
let single = "depth"; // the view beside the image on a phone
let chosenByUser = false;

export function buildViews() {
  for (const view of Object.values(views)) {
    find("views").append(view.element);
    if (view.name !== "space") listenTo(view, state.lens, act);
  }
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: -2.3, max: 4.61, step: 0.01, value: Math.log(2), id: "closer" });
  slider.setAttribute("aria-label", "Distance in metres");
  slider.oninput = () => {
    state.closer = +Math.exp(slider.value).toPrecision(3);
    views.closer.setTitle(`Closer than ${metres(state.closer)} m`, "Probability.");
    askCloser();
  };
  slider.onchange = remeasure;
  views.closer.caption.append(slider);
  const choice = document.createElement("select");
  choice.innerHTML = '<option value="image">by image</option><option value="std">by std</option>';
  choice.setAttribute("aria-label", "Colours of the points");
  choice.id = "space-colour";
  choice.onchange = () => { state.spaceColour = choice.value; if (state.maps.depth) showSpace(); };
  views.space.caption.append(choice);
  if (!space.gl) views.space.setTitle("3-D", "This browser has no WebGL, so the points cannot be shown.");
}

/** Wide images leave room for more views, unless the user has chosen some. */
export function fillRoom() {
  if (chosenByUser) return;
  const wide = state.lens.width > WIDE * state.lens.height;
  for (const name of ["error", "space"]) on[wide ? "add" : "delete"](name);
}

export function showChips() {
  const known = state.shown && state.shown.truth_known;
  const possible = Object.keys(views).filter((name) => known || !NEED_TRUTH.includes(name));
  const chosen = (name) => (PHONE.matches ? name === "image" || name === single : on.has(name)) && possible.includes(name);
  for (const [name, view] of Object.entries(views)) view.element.hidden = !chosen(name);
  find("chips").replaceChildren(...possible.filter((name) => !PHONE.matches || name !== "image").map((name) => {
    const button = document.createElement("button");
    button.textContent = SHORT[name];
    button.setAttribute("aria-pressed", chosen(name));
    button.dataset.chip = name;
    button.onclick = () => {
      chosenByUser = true;
      if (PHONE.matches) single = name;
      else if (!on.delete(name)) on.add(name);
      showChips();
      find("chips").querySelector(`[data-chip="${name}"]`).focus();
    };
    return button;
  }));
  // What was measured is read below the image on a phone, where the rest of the column is far away.
  if (PHONE.matches) views.image.element.after(find("measure-card"), find("chips"));
  else {
    document.querySelector(".bar").append(find("chips"));
    find("summary").after(find("measure-card"));
  }
  layOut(possible.filter(chosen).length);
  if (views.space.shown && state.maps.depth) showSpace();
  repaint();
}

/** Choose columns and size such that the views are as large as the window allows. */
export function layOut(count = layOut.count) {
  layOut.count = count;
  const grid = find("views"), style = document.documentElement.style;
  const aspect = state.lens.width / state.lens.height;
  const [width, height] = [grid.clientWidth, grid.parentElement.clientHeight - 26];
  let best = { size: 0, columns: 1 };
  for (let columns = 1; columns <= count; columns++) {
    const rows = Math.ceil(count / columns);
    const wide = (width - GAP * (columns - 1)) / columns - BESIDE;
    const high = (height - GAP * (rows - 1)) / rows - ABOVE;
    const size = Math.min(high, wide / aspect);
    if (size > best.size) best = { size, columns };
  }
  const size = Math.floor(Math.max(best.size, SMALLEST));
  style.setProperty("--columns", best.columns);
  style.setProperty("--stage-height", `${size}px`);
  style.setProperty("--stage-width", `${Math.floor(size * aspect)}px`);
  repaint();
  space.draw();
}
