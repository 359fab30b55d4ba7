// A proxy before a server, which loses, holds back or replaces what passes through it.

import { createConnection, createServer } from 'node:net';

/**
 * Splits a client's bytes, which may have several commands. The tests' commands are short ASCII
 * texts.
 */
const commandsIn = (bytes) => bytes.toString().split(/(?=\*\d+\r\n\$)/);

/**
 * Starts a proxy. Its property `request` may be set to a function, which gets the text of a request
 * and the client's socket. The request is forwarded unless the function returns the reply, or
 * `null` for none.
 */
export async function startProxy(server) {
  const sockets = new Set();
  const requests = [];
  const proxy = {
    request: () => undefined,
    /** Returns the number of requests so far that have the word. */
    count: (word) => requests.filter((text) => text.toLowerCase().includes(word)).length,
    async stop() {
      listener.close();
      sockets.forEach((each) => each.destroy());
    },
    start: (port) => new Promise((listening) => listener.listen(port, '127.0.0.1', listening)),
  };
  const listener = createServer((near) => {
    const far = createConnection(server.port, '127.0.0.1');
    near.on('data', (bytes) => commandsIn(bytes).forEach(pass));
    function pass(text) {
      requests.push(text);
      const reply = proxy.request(text, near, far);
      if (reply === undefined) far.write(text);
      else if (reply !== null) near.write(reply);
    }
    far.on('data', (bytes) => near.write(bytes));
    for (const [end, other] of [
      [near, far],
      [far, near],
    ]) {
      sockets.add(end);
      end
        .on('error', () => {})
        .on('close', () => {
          sockets.delete(end);
          other.destroy();
        });
    }
  });
  await proxy.start(0);
  proxy.port = listener.address().port;
  return proxy;
}
