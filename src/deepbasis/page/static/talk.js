// SPDX-License-Identifier: Apache-2.0
// Asking the server, and telling the user what is done and what went wrong.

import { plural } from "./format.js";
import { Lost } from "./link.js";
import { find, link, state } from "./state.js";

const fitting = () => `fitting ${plural(state.points.list.length, "point")}…`;
const BUSY = {
  open: () => "running the network…", model: () => "running the network…",
  complete: fitting, rest: fitting,
  region: () => "drawing maps of the region…", next: () => "searching the best pixels…",
  frame: () => `filtering frame ${state.sequence.number + 1} of ${state.sequence.names.length}…`,
  distance: () => "measuring…", save: () => "writing the file…", points: () => "reading points…",
  truth: () => "reading the ground truth…", camera: () => "reading the camera…", draw: () => "drawing points…",
};

// What is usually done before it could be read is said only if it takes more milliseconds than this.
const FAST = ["complete", "rest"], SLOW = 200;

let working = 0;
export const isWorking = () => working > 0;

/** Ask, and say what is being done meanwhile. An error is one sentence on the page. */
export async function ask(action, fields, content, parts) {
  working++;
  const tell = () => BUSY[action] && say(BUSY[action](), true);
  const timer = FAST.includes(action) ? setTimeout(tell, SLOW) : tell();
  try {
    return await link.ask(action, fields, content, parts);
  } finally {
    working--;
    clearTimeout(timer);
    if (!working && link.ready) say("ready");
  }
}

export function say(text, busy = false) {
  if (find("status").textContent !== text) find("status").textContent = text; // or it is laid out again
  find("status").classList.toggle("busy", busy);
}

export function notice(text) {
  find("notice").hidden = !text;
  find("notice").firstChild.textContent = text;
}

/** Run something the user asked for; what goes wrong is shown, unless all is asked again anyway. */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Lost)) notice(sentence(error.message));
    return null;
  }
}

/** A sentence with its capital letter and its full stop; names of files stay as they are. */
export function sentence(text) {
  const start = /^[a-z]+ /.test(text) ? text.charAt(0).toUpperCase() : text.charAt(0);
  return start + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");
}
