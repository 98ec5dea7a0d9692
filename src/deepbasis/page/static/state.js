// SPDX-License-Identifier: Apache-2.0
// What the page shows: one object, the connection, and the views.

import { Lens } from "./lens.js";
import { Link } from "./link.js";
import { Points } from "./points.js";
import { Space } from "./space.js";
import { View } from "./view.js";

export const find = (id) => document.getElementById(id);
export const PHONE = matchMedia("(max-width: 760px)");

export const state = {
  lens: new Lens(), points: new Points(), maps: {}, colours: null, range: { depth: [0, 1], std: [0, 1] },
  cursor: null, chosen: -1, outliers: [], next: [], tool: "point", measure: null, level: 0.9,
  image: null, // what the user opened, to open it again after the connection broke
  extras: {}, // camera and ground truth that were dropped, for the same reason
  sequence: null, // frames of what was opened, see sequence.js
  shown: null, // what the server says of it
  closer: 2, photo: null, photoStep: 1, spaceColour: "image",
};

window.deepbasis = state; // for tests and for the console

// The token, if there is one, is a part of the page's own address.
const { protocol, host, pathname, search } = location;
export const link = new Link(`${protocol.replace("http", "ws")}//${host}${pathname}ws${search}`);

export const views = {
  image: new View("image", "Image", "Click where you know the depth."),
  depth: new View("depth", "Depth", "Median, in metres along the camera's axis."),
  std: new View("std", "Std", "Depth is right to ± this in 2 of 3 cases."),
  closer: new View("closer", "Closer than 2.00 m", "Probability."),
  error: new View("error", "Error", "Difference from the ground truth."),
  coverage: new View("coverage", "Coverage", "Is the true depth in the 90 % interval?"),
  space: new View("space", "3-D", "Drag to turn, scroll to zoom."),
};

export const NEED_TRUTH = ["error", "coverage"];

export const space = new Space(views.space.canvas);
