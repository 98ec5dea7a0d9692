// SPDX-License-Identifier: Apache-2.0
// Files that are dropped, chosen or pasted: what each of them is, and photos that are too large.

const ROLES = { image: "the image", points: "points", truth: "ground truth", camera: "the camera" };
const BY_SUFFIX = {
  jpg: ["image"], jpeg: ["image"], png: ["image", "points", "truth"],
  csv: ["points"], ply: ["points"], pcd: ["points"], bin: ["points"], xyz: ["points"],
  txt: ["points", "camera"], json: ["camera"],
  npy: ["points", "truth"], npz: ["points", "truth"], pfm: ["points", "truth"],
  tif: ["points", "truth"], tiff: ["points", "truth"],
};
const SCALED = ["png", "tif", "tiff", "npy", "npz"];

const suffix = (name) => name.toLowerCase().split(".").pop();

/** What a file may be; other files are taken for images, and the server says what it thinks. */
export const rolesOf = (name) => BY_SUFFIX[suffix(name)] || ["image"];

/** Files with what they are: [{role, file, scale}], the image first; the user is asked if unclear. */
export async function sortOut(files, hasImage) {
  const found = [];
  for (const file of files) {
    let roles = rolesOf(file.name);
    const first = !hasImage && !found.some((one) => one.role === "image");
    if (first && roles.includes("image")) roles = ["image"];
    const answer = roles.length === 1 ? { role: roles[0] } : await askRole(file.name, roles);
    if (answer) found.push({ ...answer, file });
  }
  const order = Object.keys({ image: 0, camera: 0, truth: 0, points: 0 });
  return found.sort((a, b) => order.indexOf(a.role) - order.indexOf(b.role));
}

function askRole(name, roles) {
  const dialog = document.getElementById("role");
  dialog.querySelector("strong").textContent = name;
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

/** A photo of at most so many pixels: {name, content, note}; the note says if it was reduced. */
export async function fitPhoto(file, most) {
  const asIs = async () => ({ name: file.name, content: await file.arrayBuffer(), note: "" });
  if (!["jpg", "jpeg", "png"].includes(suffix(file.name))) return asIs();
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

/** Let the user save bytes. */
export function download(name, bytes) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Call `take` with files that are dropped anywhere, chosen, or pasted. */
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
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
  document.getElementById("open").onclick = () => input.click();
  input.onchange = () => { take([...input.files]); input.value = ""; };
  addEventListener("paste", (event) => {
    if (event.target.matches("input, textarea")) return;
    const files = [...event.clipboardData.files], text = event.clipboardData.getData("text");
    if (files.length) take(files);
    else if (text.trim()) take([new File([text], "pasted.csv")]);
  });
}
