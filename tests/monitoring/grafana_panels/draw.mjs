// Draws a dashboard in headless Chromium from a live Prometheus, with the page beside this program.
//
// Usage: node draw.mjs SETTINGS.json, a file with: prometheus (its URL), dashboard (a file), chromium
// (the program), out (a folder for pictures), from_ms, to_ms, step_s, rate_interval, theme.
// Prints what each panel shows, as JSON. The exit status is 1 if the page failed.
import { createReadStream } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { dirname, extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

import { launch } from 'puppeteer-core';

const HERE = dirname(fileURLToPath(import.meta.url));
const LONGEST_MS = 240_000; // for a busy host
const KINDS = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' };
const PAGE =
  '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">' +
  '<link rel="stylesheet" href="/page.css"><div id="root"></div>' +
  '<script src="/recorder.js"></script><script type="module" src="/page.js"></script>';

async function answer(request, response, settings) {
  const url = new URL(request.url, 'http://127.0.0.1');
  const send = (kind, body, status = 200) => {
    response.writeHead(status, { 'Content-Type': kind });
    response.end(body);
  };
  if (url.pathname === '/') {
    send('text/html', PAGE);
  } else if (url.pathname === '/settings.json') {
    send('application/json', JSON.stringify(settings));
  } else if (url.pathname === '/dashboard.json') {
    send('application/json', await readFile(settings.dashboard));
  } else if (url.pathname.startsWith('/api/v1/')) {
    const told = await fetch(settings.prometheus + request.url);
    send('application/json', await told.text(), told.status);
  } else {
    const file = createReadStream(join(HERE, normalize(url.pathname)));
    file.on('error', () => send('text/plain', 'no such file', 404));
    file.on('open', () => {
      response.writeHead(200, { 'Content-Type': KINDS[extname(url.pathname)] ?? 'application/octet-stream' });
      file.pipe(response);
    });
  }
}

const fileName = (title) => title.toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '');

async function pictures(page, drawn, out) {
  await mkdir(out, { recursive: true });
  const dashboard = await page.$('#dashboard');
  await dashboard.screenshot({ path: join(out, 'dashboard.png') });
  for (const { title } of drawn.panels) {
    const panel = await page.$(`[data-title="${title}"]`);
    await panel.screenshot({ path: join(out, `${fileName(title)}.png`) });
    const svg = await page.evaluate((name) => window.panelSvg(name), title);
    await writeFile(join(out, `${fileName(title)}.svg`), svg);
  }
}

async function draw(settings, url) {
  const browser = await launch({
    executablePath: settings.chromium,
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars'],
    protocolTimeout: LONGEST_MS,
    timeout: LONGEST_MS,
  });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(LONGEST_MS);
    await page.setViewport({ width: 1300, height: 900 });
    const errors = [];
    page.on('pageerror', (error) => errors.push(String(error.stack ?? error)));
    await page.goto(url, { waitUntil: 'domcontentloaded' });
    await page.waitForFunction(() => window.drawn);
    const drawn = await page.evaluate(() => window.drawn);
    if (drawn.panels) {
      await pictures(page, drawn, settings.out);
    }
    return { ...drawn, errors };
  } finally {
    await browser.close();
  }
}

const settings = JSON.parse(await readFile(process.argv[2]));
const server = createServer((request, response) => {
  answer(request, response, settings).catch((error) => {
    response.writeHead(502);
    response.end(String(error));
  });
});
await new Promise((go) => server.listen(0, '127.0.0.1', go));
try {
  const drawn = await draw(settings, `http://127.0.0.1:${server.address().port}/`);
  process.stdout.write(`${JSON.stringify(drawn)}\n`);
  process.exitCode = drawn.error || drawn.errors.length > 0 ? 1 : 0;
} finally {
  server.close();
  server.closeAllConnections();
}
