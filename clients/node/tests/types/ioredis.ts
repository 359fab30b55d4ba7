import { Cluster, Redis } from 'ioredis';
import { RedisLockError } from '@redis-lock/client';
import { DeadlockError, type Lock, LockLostError, Locks, NotAcquiredError } from '@redis-lock/client/ioredis';

export async function first(redis: Redis, cluster: Cluster): Promise<number> {
  new Locks(cluster);
  const locks = new Locks(redis);
  await using lock = await locks.acquire('orders:42', { leaseMs: 5000, waitMs: 1000, signal: AbortSignal.timeout(9) });
  const fence: number | undefined = lock.fence;
  const told: boolean = await lock.release();
  const shared: Lock = locks.lock(['a', 'b'], { shared: true, limit: 3, permits: 2, onLost: (which) => which.token });
  const tried: number | undefined = await shared.tryAcquire();
  const observed = new Locks(redis, { commandTimeoutMs: 500, observer: { waited: (which, ms, outcome) => console.log(which.keys, ms, outcome) } });
  const count: number = await observed.releaseAll();
  // @ts-expect-error: the name of a time contains its unit
  await locks.acquire('orders:42', { lease: 5000 });
  // @ts-expect-error: the fence is the server's
  lock.fence = 1;
  const word: string = await locks.using('orders:42', {}, async (signal) => String(signal.aborted));
  for (const kind of [DeadlockError, LockLostError, NotAcquiredError]) if (new kind() instanceof RedisLockError) return word.length + count;
  return Number(told) + (fence ?? 0) + (tried ?? 0);
}
