// npm ci && npm run build: one file for the browser, with the licences of what is in it at its end.
import { build } from "esbuild";

await build({
  entryPoints: ["editor.mjs"],
  outfile: "../../../static/panel/editor.js",
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome111", "firefox115", "safari16.4"],
  legalComments: "eof",
  banner: { js: "// Built from apps/panel/editor by its build.mjs; CodeMirror 6 is (c) Marijn Haverbeke and others, MIT licence." },
});
