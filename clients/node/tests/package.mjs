// The packed package, installed in a separate folder next to chosen versions of the clients.

import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const packageFolder = join(import.meta.dirname, '..');
const modules = join(packageFolder, 'node_modules');

/** Makes a folder that is removed at the end of this process. */
export function temporary() {
  const folder = mkdtempSync(join(tmpdir(), 'redis-lock-'));
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

function pack() {
  const folder = temporary();
  const words = ['pack', '--ignore-scripts', '--silent', '--pack-destination', folder];
  const said = execFileSync('npm', words, { cwd: packageFolder, encoding: 'utf8' });
  return join(folder, said.trim().split('\n').pop());
}

let archive;

/** Makes a project with the packed package. `installed` maps names to folders of node_modules. */
export function project(installed) {
  const folder = temporary();
  archive ??= pack();
  const target = join(folder, 'node_modules/@redis-lock/client');
  mkdirSync(target, { recursive: true });
  execFileSync('tar', ['-xzf', archive, '-C', target, '--strip-components=1']);
  for (const [name, there] of Object.entries(installed)) {
    mkdirSync(join(folder, 'node_modules', name, '..'), { recursive: true });
    symlinkSync(join(modules, there), join(folder, 'node_modules', name));
  }
  /** Runs a program in the folder, and returns what it prints. */
  const run = (program, words, env = {}) =>
    execFileSync(program, words, {
      cwd: folder,
      encoding: 'utf8',
      stdio: 'pipe',
      timeout: 60_000,
      env: { ...process.env, ...env },
    });
  /** Runs the text of a program with Node, and returns what it prints. */
  const evaluate = (text, type = 'module', env = {}) =>
    run(process.execPath, [`--input-type=${type}`, '--eval', text], env);
  return { folder, run, evaluate };
}

/** Compiles a project's file as strictly as possible, and fails with what the compiler says. */
export function compile({ run }, words) {
  const options = '--strict --target es2022 --lib es2022,esnext.disposable --skipLibCheck';
  const types = `--types node --typeRoots ${join(modules, '@types')}`;
  const tsc = join(modules, 'typescript/bin/tsc');
  try {
    run(process.execPath, [tsc, ...`${options} ${types} ${words}`.split(' ')]);
  } catch (error) {
    throw new Error(error.stdout);
  }
}
