// Build codemirror.min.js with the licences of all that is in it, and note version and hash in VENDORED.json.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";

// style-mod puts a document's styles into a <style> element, which `default-src 'self'` forbids; like a shadow root, a
// document can adopt a style sheet that a script made, which it allows.
const adopted = {
  name: "adopted-style-sheets",
  setup: (build) => build.onLoad({ filter: /style-mod\.js$/ }, ({ path }) => {
    const source = readFileSync(path, "utf8");
    const contents = source.replace("if (!root.head && root.adoptedStyleSheets", "if (root.adoptedStyleSheets");
    if (contents === source) throw new Error("style-mod has changed: see whether its styles are allowed without this");
    return { contents };
  }),
};
const vendor = new URL("../static/vendor/", import.meta.url);
const { metafile, outputFiles: [built] } = await build({
  entryPoints: ["codemirror.js"], bundle: true, minify: true, format: "iife", globalName: "CodeMirror", target: "es2022",
  legalComments: "none", metafile: true, write: false, plugins: [adopted], outfile: "codemirror.min.js",
});
const bytes = Object.values(metafile.outputs)[0].inputs;
const folders = [...new Set(Object.keys(bytes).map((file) => file.match(/^node_modules\/(?:@[^/]+\/)?[^/]+/)?.[0]).filter(Boolean))].sort();
const named = folders.map((folder) => {
  const { name, version, license } = JSON.parse(readFileSync(`${folder}/package.json`));
  if (license !== "MIT") throw new Error(`${name} has the licence ${license}; see whether it may be shipped`);
  return { folder, label: `${name}@${version}` };
});
const licences = named.map(({ folder, label }) => {
  const file = ["LICENSE", "LICENSE.md"].map((name) => `${folder}/${name}`).find(existsSync);
  if (!file) throw new Error(`${label} has no licence file`);
  return `${label}\n\n${readFileSync(file, "utf8").trim()}\n`;
});
writeFileSync(new URL("codemirror.min.js", vendor), built.contents);
writeFileSync(new URL("codemirror.LICENSE", vendor), licences.join(`\n${"-".repeat(80)}\n\n`));
const list = new URL("VENDORED.json", vendor);
const listed = JSON.parse(readFileSync(list));
const version = (name) => named.find(({ label }) => label.startsWith(`${name}@`)).label.split("@").at(-1);
listed["codemirror.min.js"] = {
  package: "@codemirror/view",
  version: version("@codemirror/view"),
  source: `npm, by gateway/parts/console/editor (npm ci && npm run build; style-mod adopts its style sheet): ${named.map(({ label }) => label).join(", ")}`,
  licence: "MIT",
  licence_file: "codemirror.LICENSE",
  sha256: createHash("sha256").update(built.contents).digest("hex"),
};
writeFileSync(list, `${JSON.stringify(listed, null, 1)}\n`);
console.log(`${named.length} packages, ${built.contents.length} bytes`);
