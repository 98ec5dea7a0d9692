// SPDX-License-Identifier: Apache-2.0
// What mouse, fingers and keys do with the tool that is chosen.

import { clampTo, clickLine, finishLine, finishRegion, rounded, showMeasure, suggest } from "./measure.js";
import { repaint, repaintSoon } from "./paint.js";
import { addPoint, closePopover, editPoint, movedTo } from "./popover.js";
import { goTo, play, stop } from "./sequence.js";
import { find, state, views } from "./state.js";

const NEAR = 12; // screen pixels within which a click takes a point

export function chooseTool(tool) {
  state.tool = tool;
  state.measure = null;
  for (const button of find("tools").children) {
    button.setAttribute("aria-checked", button.dataset.tool === tool);
    button.tabIndex = button.dataset.tool === tool ? 0 : -1;
  }
  document.body.dataset.tool = tool;
  closePopover();
  showMeasure();
  repaint();
}

/** What a press, a drag and a click do with the present tool. */
export const act = {
  get pans() { return state.tool === "move"; },
  hover(u, v, isPressed = false) {
    state.cursor = [u, v];
    if (isPressed) repaintSoon(); // it may become a click
    else repaint();
  },
  leave() {
    state.cursor = null;
    repaint();
  },
  press(u, v, pixelSize) {
    closePopover();
    act.held = state.tool === "point" ? state.points.near(u, v, NEAR * pixelSize) : -1;
    act.dragged = false;
    act.start = [u, v];
    if (state.tool === "region" && state.shown) state.measure = { tool: "region", places: [[u, v]] };
  },
  drag(u, v) {
    if (state.tool === "point") {
      if (act.held < 0 || !state.lens.inside(u, v)) return;
      if (!act.dragged) state.points.remember();
      act.dragged = true;
      state.points.change(act.held, movedTo(...rounded([u, v])), false);
    } else if (state.tool === "region" && state.measure) {
      state.measure.places.push(clampTo(u, v));
    } else if (state.tool !== "region") {
      state.measure = { tool: state.tool, places: [clampTo(...act.start), clampTo(u, v)] };
    }
    repaint();
  },
  release(u, v, moved, event) {
    if (!state.shown) return;
    if (state.tool === "point") {
      if (act.dragged || moved || !state.lens.inside(u, v)) return;
      if (act.held >= 0) editPoint(act.held, event.clientX, event.clientY);
      else addPoint(...rounded([u, v]), event.clientX, event.clientY);
    } else if (state.tool === "region") finishRegion();
    else if (moved && state.measure) finishLine();
    else if (state.tool !== "move") clickLine(clampTo(u, v));
  },
  cancel() {
    if (state.measure && !state.measure.done) state.measure = null;
    act.held = -1;
    repaint();
  },
};

export function pressKey(event) {
  const typing = event.target.matches("input:not([type=range]), select, textarea") || document.querySelector("dialog[open]");
  if (event.key === "Escape") {
    closePopover();
    act.cancel();
    state.measure = null;
    showMeasure();
    repaint();
    return;
  }
  if (typing) return;
  const tools = ["point", "distance", "region", "profile", "move"];
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const onView = event.target.matches("canvas.stage") || event.target === document.body;
  const control = event.ctrlKey || event.metaKey, key = event.key.toLowerCase();
  if (control && key === "z") state.points[event.shiftKey ? "redo" : "undo"]();
  else if (control && key === "y") state.points.redo();
  else if (control || event.altKey) return;
  else if (tools[event.key - 1]) chooseTool(tools[event.key - 1]);
  else if (onView && arrows[event.key]) moveCursor(arrows[event.key], event.shiftKey ? 10 : 1);
  else if (onView && event.key === "Enter") useTool();
  else if (event.key === "Delete" || event.key === "Backspace") removeAtCursor();
  else if (event.key === "+" || event.key === "=") state.lens.zoomAt(1.25, ...(state.cursor || []));
  else if (event.key === "-") state.lens.zoomAt(0.8, ...(state.cursor || []));
  else if (event.key === "0") state.lens.reset();
  else if (key === "n") suggest();
  else if (key === "c" && state.tool === "region") finishRegion();
  else if (event.key === "?") find("keys").showModal();
  else if (state.sequence && event.key === " " && !event.target.matches("button, summary")) play();
  else if (state.sequence && (event.key === "," || event.key === ".")) {
    stop();
    goTo(state.sequence.number + (event.key === "." ? 1 : -1));
  }
  else return;
  event.preventDefault();
}

function moveCursor([du, dv], steps) {
  const { lens } = state;
  const [u, v] = state.cursor ? rounded(state.cursor) : [Math.round(lens.u), Math.round(lens.v)];
  state.cursor = clampTo(u + du * steps, v + dv * steps);
  lens.show(...state.cursor);
}

/** What a click does, at the cursor of the keyboard. */
function useTool() {
  if (!state.cursor || !state.shown) return;
  const place = rounded(state.cursor), view = views.image.canvas.getBoundingClientRect();
  const [x, y] = state.lens.toScreen(...place, view.width, view.height);
  if (state.tool === "point") {
    const index = state.points.near(...place, 3);
    if (index >= 0) editPoint(index, view.left + x, view.top + y);
    else addPoint(...place, view.left + x, view.top + y);
  } else if (state.tool === "region") {
    if (!state.measure || state.measure.done) state.measure = { tool: "region", places: [] };
    state.measure.places.push(place);
    repaint();
  } else if (state.tool !== "move") clickLine(place);
}

function removeAtCursor() {
  const index = state.cursor ? state.points.near(...state.cursor, 4) : -1;
  if (index >= 0) state.points.remove(index);
}
