// Bundles page and program into a folder: node build.mjs FOLDER, where node_modules is installed.
import { cp } from 'node:fs/promises';
import { join } from 'node:path';

import { build } from 'esbuild';

const out = process.argv[2];
const common = { bundle: true, outdir: out, logLevel: 'warning', logLimit: 20 };
await build({
  ...common,
  entryPoints: ['page.jsx'],
  format: 'esm',
  platform: 'browser',
  target: 'chrome110',
  jsx: 'automatic',
  minify: true,
  define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  loader: { '.svg': 'dataurl', '.png': 'dataurl', '.ttf': 'dataurl', '.woff': 'dataurl', '.woff2': 'dataurl' },
});
await build({ ...common, entryPoints: ['recorder.js'], format: 'iife', platform: 'browser' });
await build({
  ...common,
  entryPoints: ['draw.mjs'],
  outExtension: { '.js': '.mjs' },
  format: 'esm',
  platform: 'node',
  target: 'node18',
  banner: { js: "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);" },
});
const icons = join('node_modules', '@grafana', 'ui', 'dist', 'public');
await cp(icons, join(out, 'public'), { recursive: true });
