// SPDX-License-Identifier: Apache-2.0
// One view: a title with a line of explanation, a canvas, and a colour bar.

import { css } from "./maps.js";
import { tick } from "./format.js";

const TICKS = 5;

export class View {
  constructor(name, title, explanation) {
    this.name = name;
    this.element = document.createElement("figure");
    this.element.className = "view";
    this.element.dataset.view = name;
    this.element.innerHTML =
      '<figcaption><h2></h2><p class="muted"></p></figcaption>' +
      '<div class="body"><canvas class="stage" role="application" tabindex="0"></canvas><div class="colours"></div></div>';
    this.caption = this.element.querySelector("figcaption");
    this.canvas = this.element.querySelector("canvas");
    this.colours = this.element.querySelector(".colours");
    this.setTitle(title, explanation);
    this.picture = null;
    this.step = 1;
  }

  setTitle(title, explanation) {
    this.caption.querySelector("h2").textContent = title;
    this.caption.querySelector("p").textContent = explanation;
    this.caption.title = explanation;
    this.canvas.setAttribute("aria-label", `${title}. ${explanation}`);
  }

  get shown() { return !this.element.hidden; }

  /** Show a picture of every `step`-th pixel. */
  show(picture, step = 1) {
    this.picture = picture;
    this.step = step;
  }

  /** A bar from low to high in the colours of a table. */
  showBar(table, [low, high], unit, format = tick(high)) {
    const shares = [...Array(TICKS).keys()].map((i) => i / (TICKS - 1));
    const stops = [...Array(17).keys()].map((i) => css(table, i / 16)).join(", ");
    this.colours.innerHTML = '<div class="gradient"></div><div class="ticks"></div>';
    this.colours.firstChild.style.setProperty("--stops", stops);
    const labels = shares.map((share, i) => {
      const label = document.createElement("span");
      label.textContent = format(low + share * (high - low)) + (i === TICKS - 1 ? ` ${unit}` : "");
      return label;
    });
    this.colours.lastChild.append(...labels);
  }

  /** Coloured squares with their meaning. */
  showLegend(entries) {
    this.colours.innerHTML = '<div class="legend"></div>';
    for (const [colour, text] of entries) {
      const entry = document.createElement("span");
      entry.innerHTML = "<i></i>";
      entry.firstChild.style.background = colour;
      entry.append(text);
      this.colours.firstChild.append(entry);
    }
  }

  /** Fit the canvas to its place; returns context, width and height in CSS pixels. */
  prepare() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height };
  }

  /** Draw the picture as the lens shows it; `overlay` draws on top. */
  draw(lens, overlay) {
    if (!this.shown || !this.canvas.clientWidth) return;
    const { context, width, height } = this.prepare();
    if (!this.picture) return;
    const scale = lens.scale(width, height);
    const [x, y] = lens.toScreen(-this.step / 2, -this.step / 2, width, height);
    context.imageSmoothingEnabled = scale < 4;
    const size = [this.picture.width, this.picture.height].map((n) => n * this.step * scale);
    context.drawImage(this.picture, x, y, ...size);
    overlay(this, context, (u, v) => lens.toScreen(u, v, width, height), scale);
  }
}
