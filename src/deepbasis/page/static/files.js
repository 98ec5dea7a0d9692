// SPDX-License-Identifier: Apache-2.0
// Files that are dropped, chosen or pasted: what each of them is, and photos that are too large.
// Files of a folder have a `folder`: the path to it.

const ROLES = {
  image: "the image", frames: "the frames", points: "points", truth: "ground truth", camera: "the camera",
};
const VIDEOS = ["mp4", "mov", "avi", "mkv", "webm", "m4v"];
const PHOTOS = ["jpg", "jpeg", "png"];
// This many files of one kind are the frames of a sequence.
const SEVERAL = 3;
const BY_SUFFIX = {
  jpg: ["image"], jpeg: ["image"], png: ["image", "points", "truth"],
  csv: ["points"], ply: ["points"], pcd: ["points"], bin: ["points"], xyz: ["points"],
  txt: ["points", "camera"], json: ["camera"],
  npy: ["points", "truth"], npz: ["points", "truth"], pfm: ["points", "truth"],
  tif: ["points", "truth"], tiff: ["points", "truth"],
};
const SCALED = ["png", "tif", "tiff", "npy", "npz"];

const stem = ({ name }) => name.replace(/\.[^.]*$/, "");
const suffix = (name) => name.toLowerCase().split(".").pop();

/** What a file may be; other files are taken for images, and the server says what it thinks. */
function rolesOf(name) {
  if (/\.txt$/i.test(name) && /cam|calib|intrin/i.test(name)) return ["camera"];
  return BY_SUFFIX[suffix(name)] || ["image"];
}

/** What was dropped: a sequence or none, and single files with what they are, the image first. */
export async function sortOut(files, hasImage) {
  const known = files.filter(({ name, folder }) =>
    !/^\.|^Thumbs\.db$|^scale\.txt$/.test(name) && (!folder || BY_SUFFIX[suffix(name)] || VIDEOS.includes(suffix(name))));
  const sequence = await findSequence(known);
  const rest = known.filter((file) => !sequence || !sequence.all.has(file));
  return { sequence, singles: await sortSingles(rest, hasImage || Boolean(sequence)) };
}

/** A video, or many frames of one folder with measurements named like them. */
async function findSequence(files) {
  const none = { points: [], truth: [], scales: {} };
  const video = files.find((file) => VIDEOS.includes(suffix(file.name)));
  if (video) return { ...none, name: video.name, frames: [video], all: new Set([video]) };
  const groups = new Map();
  for (const file of files) {
    const key = `${file.folder || ""} ${suffix(file.name)}`;
    groups.set(key, [...(groups.get(key) || []), file]);
  }
  const several = [...groups.values()].filter((group) => group.length >= SEVERAL);
  const photos = several.filter(([file]) => PHOTOS.includes(suffix(file.name)));
  if (!photos.length) return null;
  const stems = new Set(photos.flat().map(stem));
  const series = [...groups.values()].filter((group) => several.includes(group) || group.every((file) => stems.has(stem(file))));
  const found = { ...none, all: new Set(series.flat()) };
  const sure = photos.find(([file]) => suffix(file.name) !== "png") || (photos.length === 1 ? photos[0] : null);
  if (sure) found.frames = sure;
  for (const group of series) {
    if (group === sure) continue;
    const [{ name, folder }] = group;
    const roles = rolesOf(name).map((role) => (role === "image" ? "frames" : role))
      .filter((role) => role === "points" || role === "truth" || (role === "frames" && !found.frames));
    const title = `${folder || "dropped"} (${group.length} .${suffix(name)} files)`;
    const answer = roles.length > 1 ? await askRole(title, roles, name) : { role: roles[0] };
    if (!answer || !answer.role) continue;
    found[answer.role] = group;
    found.scales = { ...found.scales, [answer.role]: answer.scale };
  }
  if (!found.frames) return null;
  found.name = (found.frames[0].folder || "frames").split("/").pop();
  return found;
}

/** [{role, file, scale}], the image first; the user is asked if unclear. */
async function sortSingles(files, hasImage) {
  const found = [];
  for (const file of files) {
    let roles = rolesOf(file.name);
    const first = !hasImage && !found.some((one) => one.role === "image");
    if (first && roles.includes("image")) roles = ["image"];
    const answer = roles.length === 1 ? { role: roles[0] } : await askRole(file.name, roles, file.name);
    if (answer) found.push({ ...answer, file });
  }
  const order = Object.keys({ image: 0, camera: 0, truth: 0, points: 0 });
  return found.sort((a, b) => order.indexOf(a.role) - order.indexOf(b.role));
}

function askRole(title, roles, name) {
  const dialog = document.getElementById("role");
  dialog.querySelector("strong").textContent = title;
  const row = dialog.querySelector(".row"), field = dialog.querySelector(".field");
  row.replaceChildren(...roles.map((role) => {
    const button = document.createElement("button");
    button.value = role;
    button.textContent = ROLES[role];
    return button;
  }));
  field.hidden = !SCALED.includes(suffix(name));
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const scale = Number(field.querySelector("input").value) || null;
      resolve(dialog.returnValue ? { role: dialog.returnValue, scale } : null);
    }, { once: true });
  });
}

/** A photo of at most this many pixels: {name, content, note}; the note says if it was reduced. */
export async function fitPhoto(file, most) {
  const asIs = async () => ({ name: file.name, content: await file.arrayBuffer(), note: "" });
  if (!PHOTOS.includes(suffix(file.name))) return asIs();
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return asIs(); // the server says what is wrong with it
  }
  const { width, height } = bitmap;
  if (width * height <= most) return asIs();
  const factor = Math.sqrt(most / (width * height));
  const size = [width, height].map((n) => Math.floor(n * factor));
  const canvas = new OffscreenCanvas(...size);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, ...size);
  const blob = await canvas.convertToBlob({ type: "image/png" });
  const name = file.name.replace(/\.\w+$/, "") + "-reduced.png";
  const note = `${file.name} was reduced from ${width} × ${height} to ${size.join(" × ")} pixels; ` +
    "points and camera are those of the reduced image.";
  return { name, content: await blob.arrayBuffer(), note };
}

/** Several contents one after the other. */
export function join(contents) {
  const joined = new Uint8Array(contents.reduce((sum, one) => sum + one.byteLength, 0));
  let at = 0;
  for (const one of contents) {
    joined.set(new Uint8Array(one), at);
    at += one.byteLength;
  }
  return joined.buffer;
}

/** The files of what was dropped, with those of folders. */
async function filesOf(entries) {
  const found = [];
  for (const entry of entries) {
    if (entry.isFile) {
      const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
      file.folder = entry.fullPath.split("/").slice(1, -1).join("/");
      found.push(file);
      continue;
    }
    const reader = entry.createReader();
    const next = () => new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    // A browser lists a folder in parts.
    for (let some = await next(); some.length; some = await next()) found.push(...await filesOf(some));
  }
  return found;
}

/** Let the user save bytes. */
export function download(name, bytes) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Call `take` with files, or a promise of them, that are dropped anywhere, chosen, or pasted. */
export function listenForFiles(take) {
  const veil = document.getElementById("drop"), input = document.getElementById("file");
  let inside = 0;
  const show = (on) => { veil.hidden = !on; };
  addEventListener("dragenter", (event) => { event.preventDefault(); inside++; show(true); });
  addEventListener("dragleave", () => { inside = Math.max(0, inside - 1); show(inside > 0); });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    show(false);
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    if (entries.some((entry) => entry.isDirectory)) take(filesOf(entries));
    else if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
  document.getElementById("open").onclick = () => input.click();
  input.onchange = () => { take([...input.files]); input.value = ""; };
  const folder = document.getElementById("folder");
  document.getElementById("open-folder").onclick = () => folder.click();
  folder.onchange = () => {
    const files = [...folder.files];
    for (const file of files) file.folder = file.webkitRelativePath.split("/").slice(0, -1).join("/");
    take(files);
    folder.value = "";
  };
  addEventListener("paste", (event) => {
    if (event.target.matches("input, textarea")) return;
    const files = [...event.clipboardData.files], text = event.clipboardData.getData("text");
    if (files.length) take(files);
    else if (text.trim()) take([new File([text], "pasted.csv")]);
  });
}
