// The texts of failures of a connection, without a server.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Connection } from '../dist/connection.js';

test('a command without an answer names its whole time, even if connecting took most of it', async () => {
  const silent = { send: () => new Promise(() => {}), close() {} };
  const link = { open: true, address: 'the server', connect: () => ({ ...silent, ready: sleep(250) }), onClose() {} };
  const connection = new Connection(link, 1000, () => {});
  const message = 'no answer from the server within 0.3 s';
  await assert.rejects(connection.send('k', [], 300), { message });
  // The wire is ready now.
  await assert.rejects(connection.send('k', [], 300), { message });
});
