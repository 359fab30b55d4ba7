import { Redis } from 'ioredis';
import { LockLostError, Locks } from '@redis-lock/client/ioredis';

const redis = new Redis(process.argv[2]!);
const lock = new Locks(redis).lock('k');

async function check(isHeld: boolean) {
  if (Boolean(await redis.exists('k')) !== isHeld) throw new Error(`held, not ${isHeld}`);
}

/** Returns the error of a block that does some work under the lock. */
async function caught(work: () => unknown): Promise<any> {
  try {
    await using grant = await lock.acquire();
    await check(grant !== undefined);
    await work();
  } catch (error) {
    return error;
  }
}

function fail(): never {
  throw new RangeError('mine');
}

if (await caught(() => {})) throw new Error('it fails');
await check(false);
const lost = await caught(() => redis.del('k'));
if (!(lost instanceof LockLostError)) throw new Error('the loss is not told');
const plain = await caught(fail);
if (!(plain instanceof RangeError)) throw new Error('the error of the block is gone');
await check(false);
const both = await caught(() => redis.del('k').then(fail));
if (!(both.error instanceof LockLostError && both.suppressed instanceof RangeError))
  throw new Error('not both are told');
console.log('all is well');
redis.disconnect();
