import { Cluster, Redis } from 'ioredis';
import { RedisLockError } from '@redis-lock/client';
import { type Grant, type Lock, LockLostError, Locks } from '@redis-lock/client/ioredis';

export async function first(redis: Redis, cluster: Cluster): Promise<number> {
  const locks = new Locks(redis, {
    commandTimeoutMs: 500,
    observer: {
      waited: (lock, ms, outcome) => console.log(lock.keys, ms, outcome),
      lost: ({ fence }) => fence,
    },
  });
  const options = { shared: true, limit: 3, permits: 2, onLost: (grant: Grant) => grant.token };
  const shared: Lock = new Locks(cluster).lock(['a', 'b'], options);
  await using grant = await shared.acquire({ waitMs: 1000, signal: AbortSignal.timeout(9) });
  const tried: Grant | undefined = await shared.tryAcquire();
  if (!grant || !tried) return locks.releaseAll();
  const told: boolean = await grant.release();
  // @ts-expect-error: the name of a time contains its unit
  locks.lock('orders:42', { lease: 5000 });
  // @ts-expect-error: the fence is the server's
  grant.fence = 1;
  const work = async ({ fence }: Grant, signal: AbortSignal) => `${fence} ${signal.aborted}`;
  const word: string = await shared.using(work, { waitMs: 5 });
  const read = async () => undefined as number | undefined;
  const result: number = await locks.once('k', read, () => 5);
  const error: RedisLockError = new LockLostError();
  return told ? grant.fence + word.length : result + error.message.length;
}
