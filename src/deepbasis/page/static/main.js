// SPDX-License-Identifier: Apache-2.0
// The page of `deepbasis serve`: connects everything and starts.

import { complete, forgetCompletion, isCompleting } from "./answers.js";
import { download, listenForFiles } from "./files.js";
import { percent } from "./format.js";
import { buildViews, layOut, showChips } from "./layout.js";
import { listPoints } from "./list.js";
import { colourTable, photo } from "./maps.js";
import { showMeasure, suggest } from "./measure.js";
import { describe, openSample, refresh, restore, takeExtra, takeFiles } from "./opening.js";
import { repaint, repaintSoon, soon } from "./paint.js";
import { fromRows } from "./points.js";
import { forgetAfter, forgetFrames, isFiltering, listenToTimeline } from "./sequence.js";
import { find, link, PHONE, state, views } from "./state.js";
import { ask, attempt, isWorking, notice, say, sentence } from "./talk.js";
import { chooseTool, pressKey } from "./tools.js";

const listSoon = soon(listPoints);

function listen() {
  for (const name of ["room", "road"]) {
    for (const button of [find(`sample-${name}`), document.querySelector(`[data-sample=${name}]`)]) {
      button.onclick = () => openSample(name);
    }
  }
  find("model").onchange = async () => {
    if (!state.shown) return;
    const found = await attempt(() => ask("model", { model: find("model").value }));
    if (!found) return;
    state.image.model = found.header.model;
    state.scaled = false;
    describe(found.header, found.arrays);
    refresh();
  };
  for (const button of find("tools").children) button.onclick = () => chooseTool(button.dataset.tool);
  find("tools").onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const buttons = [...find("tools").children], at = buttons.indexOf(event.target);
    const next = buttons[(at + step + buttons.length) % buttons.length];
    chooseTool(next.dataset.tool);
    next.focus();
  };
  find("undo").onclick = () => state.points.undo();
  find("redo").onclick = () => state.points.redo();
  find("clear").onclick = () => state.points.set([]);
  find("next").onclick = suggest;
  find("draw").onclick = async () => {
    const seed = Math.floor(Math.random() * 1e6);
    const found = await attempt(() => ask("draw", { pattern: find("pattern").value, seed }));
    if (found) state.points.set(fromRows(found.header.rows));
  };
  for (const button of find("saves").children) {
    button.onclick = async () => {
      const found = await attempt(() => ask("save", { what: button.dataset.save }));
      if (found) download(found.header.name, found.arrays.file.values);
    };
  }
  for (const kind of ["command", "python"]) {
    find(`copy-${kind}`).onclick = async () => {
      const found = await attempt(() => ask("recipe"));
      if (!found) return;
      find("recipe").hidden = false;
      find("recipe").textContent = found.header[kind];
      // Browsers let only pages of this computer, or of https, write to the clipboard.
      const copied = await navigator.clipboard?.writeText(found.header[kind]).then(() => true, () => false);
      say(copied ? "copied" : "select the text to copy it");
    };
  }
  find("camera").onsubmit = (event) => {
    event.preventDefault();
    const values = Object.fromEntries([...new FormData(find("camera"))].map(([name, value]) => [name, Number(value)]));
    takeExtra("camera", values, null);
  };
  find("help").onclick = () => find("keys").showModal();
  find("theme").onclick = () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    showMeasure();
  };
  find("notice").lastElementChild.onclick = () => notice("");
  state.points.addEventListener("change", () => {
    state.next = [];
    state.outliers = state.outliers.filter(isThere);
    if (state.sequence) forgetAfter(state.sequence.number, state.points.rows);
    complete();
    listSoon();
    repaintSoon();
  });
  state.points.addEventListener("load", () => { listPoints(); repaint(); });
  listenToTimeline();
  state.lens.addEventListener("change", repaint);
  addEventListener("keydown", pressKey);
  new ResizeObserver(() => layOut()).observe(document.querySelector("main"));
  PHONE.addEventListener("change", showChips);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showMeasure);
  listenForFiles((files) => attempt(async () => takeFiles(await files)));
}

/** Whether an outlier is still among the points, as it was. */
const isThere = ({ u, v, depth }) =>
  state.points.list.some((point) => point.u === u && point.v === v && Math.abs(point.m - depth) < 1e-6);

function drawThumbnail(canvas, small) {
  [canvas.width, canvas.height] = [small.width, small.height];
  canvas.getContext("2d").drawImage(small, 0, 0);
}

/** Whether everything that was asked for has been answered; for the tests. */
Object.defineProperty(state, "idle", { get: () => link.ready && !isWorking() && !isCompleting() && !isFiltering() && !state.asking });

state.reopen = restore;

link.addEventListener("hello", ({ header, arrays }) => {
  const before = find("model").value;
  state.level = header.level;
  state.limits = header;
  state.samples = header.samples;
  state.colours = { depth: colourTable(arrays.depth_colours), error: colourTable(arrays.error_colours) };
  views.closer.showBar(state.colours.error, [0, 1], "", percent);
  find("model").replaceChildren(...header.models.map((name) => new Option(name)));
  if (before) find("model").value = before;
  for (const [name, model] of Object.entries(header.samples)) {
    if (!header.models.includes(model)) state.samples[name] = header.models[0];
    drawThumbnail(document.querySelector(`[data-sample=${name}] canvas`), photo(arrays[name]));
  }
  say("ready");
  document.body.dataset.connected = "yes";
  restore();
});

link.addEventListener("lost", () => {
  document.body.dataset.connected = "no";
  forgetCompletion();
  forgetFrames();
  say("connection lost, trying again…", true);
});

link.addEventListener("waiting", () => say("waiting for another page…", true));

link.addEventListener("full", ({ header }) => notice(sentence(header.error)));

find("local").hidden = !["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);

buildViews();
listen();
chooseTool("point");
listPoints();
showChips();
