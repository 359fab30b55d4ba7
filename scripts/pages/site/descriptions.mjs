// Gives each page of a built site its own description for search engines: its first paragraph.
//
// descriptions.mjs SITE

import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

// Search engines show about this many characters.
const LONGEST = 160;

const site = process.argv[2];
for (const name of readdirSync(site, { recursive: true })) {
  if (!name.endsWith('.html')) continue;
  const path = join(site, name);
  const page = readFileSync(path, 'utf8');
  const [, paragraph] = /<main>[\s\S]*?<p>([\s\S]*?)<\/p>/.exec(page) ?? [];
  if (paragraph === undefined) continue;
  writeFileSync(path, page.replace(/(<meta name="description" content=")[^"]*/, `$1${short(paragraph)}`));
}

// Returns the text of a paragraph, cut after a whole word.
function short(paragraph) {
  const text = paragraph.replace(/<[^>]*>/g, '').replace(/\s+/g, ' ').replaceAll('"', '&quot;').trim();
  return text.length <= LONGEST ? text : `${text.slice(0, text.lastIndexOf(' ', LONGEST))} ...`;
}
