// The packed package, installed in a separate folder next to chosen versions of the clients.

import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const packageFolder = join(import.meta.dirname, '..');
const modules = join(packageFolder, 'node_modules');

function pack() {
  const folder = mkdtempSync(join(tmpdir(), 'redis-lock-packed-'));
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
  const words = ['pack', '--ignore-scripts', '--silent', '--pack-destination', folder];
  const name = execFileSync('npm', words, { cwd: packageFolder, encoding: 'utf8' })
    .trim()
    .split('\n')
    .pop();
  return join(folder, name);
}

let archive;

/** Makes a project with the packed package. `installed` maps names to folders of node_modules. */
export function project(installed) {
  const folder = mkdtempSync(join(tmpdir(), 'redis-lock-project-'));
  archive ??= pack();
  const target = join(folder, 'node_modules/@redis-lock/client');
  mkdirSync(target, { recursive: true });
  execFileSync('tar', ['-xzf', archive, '-C', target, '--strip-components=1']);
  for (const [name, there] of Object.entries(installed)) {
    mkdirSync(join(folder, 'node_modules', name, '..'), { recursive: true });
    symlinkSync(join(modules, there), join(folder, 'node_modules', name));
  }
  return { folder, remove: () => rmSync(folder, { recursive: true, force: true }) };
}
