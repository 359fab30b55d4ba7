// The built site in headless Chromium: target/site, and a small site with one of each defect.
// `make test-site` runs this.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { accessSync, constants, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { delimiter, dirname, extname, join, resolve } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { chromium } from 'playwright-core';

const ROOT = resolve(import.meta.dirname, '../../..');
const TARGET = resolve(ROOT, process.env.CARGO_TARGET_DIR ?? 'target');
// The width of a small phone, in pixels.
const NARROW = 400;
// The time in which a page must have drawn its diagrams or listed what it found, in ms.
const PATIENCE = 30_000;

// A drawn diagram. Mermaid draws a picture of an error, too.
const DRAWING = '.mermaid > svg:not([aria-roledescription="error"])';

const TYPES = {
  '.css': 'text/css', '.html': 'text/html', '.js': 'text/javascript', '.png': 'image/png',
  '.svg': 'image/svg+xml', '.woff2': 'font/woff2',
};

function chromiumPath() {
  const names = ['chromium', 'chromium-browser', 'google-chrome'];
  const folders = (process.env.PATH ?? '').split(delimiter);
  const paths = names.flatMap((name) => folders.map((folder) => join(folder, name)));
  const found = paths.find((path) => {
    try { accessSync(path, constants.X_OK); return true; } catch { return false; }
  });
  assert.ok(found, 'no Chromium in PATH: install it (Debian: apt-get install chromium)');
  return found;
}

let browser;

before(async () => {
  // No name has an address, so nothing leaves the machine.
  const args = ['--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'];
  browser = await chromium.launch({ executablePath: chromiumPath(), args });
});

after(() => browser?.close());

// Serves a folder on a free port.
async function serve(folder) {
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
    const file = join(folder, path.endsWith('/') ? `${path}index.html` : path);
    try {
      const content = readFileSync(file);
      response.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'application/octet-stream' });
      response.end(content);
    } catch {
      response.writeHead(404).end('not found');
    }
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  return server;
}

// Runs in the page: returns its links, the ids that links can lead to, the number of visible diagrams,
// and what reaches out of the window without an element around it that scrolls.
function look(drawing) {
  const main = document.querySelector('main');
  const scrolls = (element) => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
  // A text has no box of its own, and may be wider than the element that it is in.
  const boxOf = (node) => {
    if (node.nodeType === Node.ELEMENT_NODE) return node;
    const text = document.createRange();
    text.selectNode(node);
    return text;
  };
  const reachesOut = (node) => {
    if (boxOf(node).getBoundingClientRect().right <= window.innerWidth + 1) return false;
    for (let around = node.parentElement; around !== main; around = around.parentElement) {
      if (scrolls(around)) return false;
    }
    return true;
  };
  const wide = [];
  const nodes = document.createTreeWalker(main, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const node = nodes.currentNode;
    if (reachesOut(node)) wide.push(`${node.nodeName} ${node.textContent.trim().slice(0, 60)}`);
  }
  const drawings = [...document.querySelectorAll(drawing)].map((svg) => svg.getBoundingClientRect());
  return {
    links: [...document.querySelectorAll('a[href]')].map((link) => link.href),
    ids: [...document.querySelectorAll('[id]')].map((element) => element.id),
    drawn: drawings.filter(({ width, height }) => width > 0 && height > 0).length,
    tiny: [...document.querySelectorAll(`${drawing} :is(text, foreignObject p)`)]
      .filter((text) => text.getBoundingClientRect().height < 9).map((text) => text.textContent),
    wide,
  };
}

// Opens a page, waits for its diagrams, and returns what it shows and what it requested.
async function visit(context, origin, path) {
  const page = await context.newPage();
  const requests = new Set();
  const failed = [];
  page.on('request', (request) => requests.add(request.url()));
  page.on('response', (response) => { if (!response.ok()) failed.push(response.url()); });
  const error = page.waitForEvent('pageerror', { timeout: 0 }).catch(() => {});
  try {
    const response = await page.goto(origin + path);
    if (!response.ok()) return { isMissing: true, links: [] };
    const source = await response.text();
    const blocks = source.split('class="language-mermaid"').length - 1;
    const hasDrawings = ([drawing, count]) => document.querySelectorAll(drawing).length === count;
    const drawn = page.waitForFunction(hasDrawings, [DRAWING, blocks], { timeout: PATIENCE });
    await Promise.race([error, drawn]);
    return { blocks, requests, failed, ...await page.evaluate(look, DRAWING) };
  } finally {
    await page.close();
  }
}

// Visits each page that links lead to, beginning with the first page.
async function crawl(origin) {
  const context = await browser.newContext({ viewport: { width: NARROW, height: 800 } });
  const pages = new Map();
  const open = ['/README.html'];
  while (open.length > 0) {
    const path = open.pop();
    if (pages.has(path)) continue;
    const page = await visit(context, origin, path);
    pages.set(path, page);
    open.push(...page.links.filter((link) => isAt(link, origin)).map((link) => new URL(link).pathname));
  }
  await context.close();
  return pages;
}

function write(path, text) {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
}

// Returns true if an address is on a site.
const isAt = (link, origin) => new URL(link).origin === origin;

// A site that is served here, with what was seen on its pages.
class Site {
  static async open(folder) {
    const site = new Site();
    site.server = await serve(folder);
    site.origin = `http://127.0.0.1:${site.server.address().port}`;
    site.pages = await crawl(site.origin);
    return site;
  }

  close() {
    this.server.close();
  }

  // Returns what `list` returns for the pages, with the path of the page before each item.
  each(list) {
    const found = [...this.pages].filter(([, page]) => !page.isMissing);
    return found.flatMap(([path, page]) => list(page).map((it) => `${path}: ${it}`));
  }

  isDead(link) {
    const { pathname, hash } = new URL(link);
    const page = this.pages.get(pathname);
    return page.isMissing || (hash !== '' && !page.ids.includes(decodeURIComponent(hash.slice(1))));
  }

  deadLinks() {
    const own = ({ links }) => links.filter((link) => isAt(link, this.origin) && this.isDead(link));
    return this.each(own).map((found) => found.replace(this.origin, ''));
  }

  undrawn() {
    return this.each(({ blocks, drawn }) => (blocks === drawn ? [] : [`${drawn} of ${blocks} drawn`]));
  }

  foreignRequests() {
    const isForeign = (url) => !url.startsWith('data:') && !isAt(url, this.origin);
    return this.each(({ requests }) => [...requests].filter(isForeign));
  }

  failedRequests() {
    const own = ({ failed }) => failed.filter((url) => isAt(url, this.origin));
    return this.each(own).map((found) => found.replace(this.origin, ''));
  }

  tooSmall() {
    return this.each(({ tiny }) => tiny);
  }

  tooWide() {
    return this.each(({ wide }) => wide);
  }

  // Returns the addresses that a search finds, best first.
  async found(words) {
    const page = await browser.newPage();
    await page.goto(this.origin);
    await page.click('#mdbook-search-toggle');
    await page.locator('#mdbook-searchbar').pressSequentially(words);
    await page.locator('#mdbook-searchresults-header', { hasText: words }).waitFor({ timeout: PATIENCE });
    const results = page.locator('#mdbook-searchresults a');
    const links = await results.evaluateAll((found) => found.map((link) => link.href));
    await page.close();
    return links;
  }

  // Returns the texts of the pages that a search finds.
  async search(word) {
    const page = await browser.newPage();
    const texts = [];
    for (const link of await this.found(word)) {
      await page.goto(link);
      texts.push(await page.locator('main').innerText());
    }
    await page.close();
    return texts;
  }
}

describe('the site', () => {
  let site;
  before(async () => { site = await Site.open(join(TARGET, 'site')); });
  after(() => site?.close());

  test('has all pages', () => {
    const summary = readFileSync(join(TARGET, 'site-book/src/SUMMARY.md'), 'utf8');
    const linked = [...summary.matchAll(/\]\((.*)\.md\)/g)].map(([, path]) => `/${path}.html`);
    assert.ok(linked.length > 40, `only ${linked.length} pages`);
    assert.deepEqual([...site.pages.keys()].sort(), linked.sort());
  });

  test('has its contents and all commands for those who read by machine', () => {
    const contents = readFileSync(join(TARGET, 'site/llms.txt'), 'utf8');
    assert.match(contents, /^# redis-lock\n\n> A module [^\n]+\n/);
    assert.match(contents, /\[The queue\]\(docs\/concepts\/queue\.html\)/);
    const commands = readFileSync(join(TARGET, 'site/commands.txt'), 'utf8');
    for (const name of ['ACQUIRE', 'WAIT', 'MRELEASE']) assert.match(commands, new RegExp(`^# LOCK\\.${name}$`, 'm'));
  });

  test('finds the pages about an error', async () => {
    const texts = await site.search('MAXWAITERS');
    assert.ok(texts.length > 0);
    for (const text of texts) assert.match(text, /MAXWAITERS/);
  });

  for (const [words, path] of [
    ['unlock', '/docs/commands/release.html'],
    ['delete lock', '/docs/operate/monitor.html'],
    ['failover two holders', '/docs/operate/high-availability.html'],
    ['once in a fleet', '/docs/guides/cron.html'],
  ]) {
    test(`finds the page about "${words}" first`, async () => {
      const [first] = await site.found(words);
      assert.equal(new URL(first).pathname, path);
    });
  }

  test('has no dead link', () => assert.deepEqual(site.deadLinks(), []));
  test('draws each diagram', () => assert.deepEqual(site.undrawn(), []));
  test('requests nothing from elsewhere', () => assert.deepEqual(site.foreignRequests(), []));
  test('requests nothing that is missing', () => assert.deepEqual(site.failedRequests(), []));
  test('has diagrams that a phone shows in readable letters', () => assert.deepEqual(site.tooSmall(), []));
  test('has plots that a phone shows in readable letters', async () => {
    const page = await browser.newPage({ viewport: { width: NARROW, height: 800 } });
    await page.goto(`${site.origin}/docs/performance.html`);
    const plots = page.locator('main label > img[src*="plots"]');
    const widths = await plots.evaluateAll((found) => found.map((plot) => plot.getBoundingClientRect().width));
    assert.ok(widths.length > 0 && Math.min(...widths) > 600, widths.join());
    await page.close();
  });
  test('describes each page in its own words', () => {
    const described = [...site.pages.keys()].map((path) => {
      const page = readFileSync(join(TARGET, 'site', path), 'utf8');
      return /<meta name="description" content="([^"]*)"/.exec(page)[1];
    });
    assert.ok(new Set(described).size > 0.9 * described.length, described.sort().join('\n'));
  });
  test('fits a narrow window', () => assert.deepEqual(site.tooWide(), []));
  test('darkens each plot in a dark theme', async () => {
    const page = await browser.newPage({ colorScheme: 'dark' });
    for (const path of ['/README.html', '/docs/performance.html', '/docs/performance/redis-8.6.3.html']) {
      await page.goto(site.origin + path);
      const plots = page.locator('main img[src*="plots"]');
      const filters = await plots.evaluateAll((found) => found.map((plot) => getComputedStyle(plot).filter));
      assert.ok(filters.length > 0 && !filters.includes('none'), path);
    }
    await page.close();
  });
});

describe('a site with defects', () => {
  const LONG = 'long '.repeat(100);
  const PAGES = {
    'README.md': `# Sound\n\n${LONG}\n\n\`\`\`\n${LONG}\n\`\`\`\n\n| a | b |\n|---|---|\n| \`${LONG}\` | ${'b'.repeat(200)} |
\n\`\`\`mermaid\nflowchart LR\n  A[${LONG}] --> B --> C\n\`\`\`\n\n[itself](#sound), [all](docs/README.md)\n
| a link | in code |\n|---|---|\n| [x](docs/x.sh#L1), [y](y/) (y) | \`[x](docs/README.md)\` |\n`,
    'CHANGELOG.md': '# Changes\n',
    'docs/README.md': '# All\n\n[sound](../README.md#sound)\n',
    'docs/anchor.md': '# Anchor\n\n[gone](../README.md#gone)\n',
    'clients/c/README.md': '# Client\n\n[x](../../docs/x.sh), [sound](../../README.md), [all](../../docs/README.md)\n',
    'docs/diagram.md': '# Diagram\n\n```mermaid\nflowchart LR\n  A -->\n```\n\n```mermaid\nflowchart LR\n  A --> B\n```\n',
    'docs/foreign.md': '# Foreign\n\n![picture](https://example.org/a.png)\n',
    'docs/image.md': '# Image\n\n<img src="gone.png">\n',
    'docs/page.md': '# Page\n\n<a href="gone.html">gone</a>\n',
    'docs/text.md': '# Text\n\n<p style="white-space: nowrap">long</p>\n'.replace('long', LONG),
    'docs/wide.md': '# Wide\n\n<div style="width: 900px">wide</div>\n',
  };
  let site;

  before(async () => {
    const clone = join(TARGET, 'site-sample');
    rmSync(clone, { recursive: true, force: true });
    for (const [name, text] of Object.entries(PAGES)) {
      write(join(clone, name), text);
    }
    const list = Object.keys(PAGES).map((page) => `- [${page}](${page})\n`);
    write(join(clone, 'scripts/pages/site/SUMMARY.md'), list.join(''));
    const folder = join(clone, 'site');
    write(join(`${folder}-book`, 'src/docs/gone.html'), 'left by an earlier build');
    execFileSync('sh', [join(ROOT, 'scripts/site.sh'), clone, folder], { stdio: 'inherit' });
    site = await Site.open(folder);
  });
  after(() => site?.close());

  test('has dead links', () => assert.deepEqual(site.deadLinks().sort(), [
    '/docs/anchor.html: /README.html#gone',
    '/docs/page.html: /docs/gone.html',
  ]));
  test('leads to the repository for other files', () => {
    const repository = 'https://github.com/redis-lock/redis-lock/blob/main';
    const others = ({ links }) => links.filter((link) => link.startsWith(`${repository}/`));
    assert.deepEqual(site.each(others).sort(), [
      `/README.html: ${repository}/docs/x.sh#L1`,
      `/README.html: ${repository}/y`,
      `/clients/c/README.html: ${repository}/docs/x.sh`,
    ]);
  });
  test('draws the other diagrams', () => assert.deepEqual(site.undrawn(), ['/docs/diagram.html: 1 of 2 drawn']));
  test('requests something from elsewhere', () => assert.deepEqual(
    site.foreignRequests(), ['/docs/foreign.html: https://example.org/a.png']));
  test('requests something that is missing', () => assert.deepEqual(
    site.failedRequests(), ['/docs/image.html: /docs/gone.png']));
  test('has wide pages', () => assert.deepEqual(site.tooWide().sort(), [
    `/docs/text.html: #text ${LONG.slice(0, 60)}`,
    '/docs/wide.html: DIV wide',
  ]));
  test('finds only what is there', async () => {
    assert.equal((await site.search('anchor')).length, 1);
    assert.deepEqual(await site.search('nowhere'), []);
  });
});
