import { Cluster, Redis } from 'ioredis';
import { RedisLockError } from '@redis-lock/client';
import {
  DeadlockError,
  type Grant,
  type Lock,
  LockLostError,
  Locks,
  NotAcquiredError,
} from '@redis-lock/client/ioredis';

export async function first(redis: Redis, cluster: Cluster): Promise<number> {
  new Locks(cluster);
  const locks = new Locks(redis);
  const shared: Lock = locks.lock(['a', 'b'], {
    shared: true,
    limit: 3,
    permits: 2,
    onLost: (grant) => grant.token,
  });
  await using grant = await shared.acquire({ waitMs: 1000, signal: AbortSignal.timeout(9) });
  if (!grant) return 0;
  const fence: number = grant.fence;
  const told: boolean = await grant.release();
  const tried: Grant | undefined = await shared.tryAcquire();
  const observed = new Locks(redis, {
    commandTimeoutMs: 500,
    observer: {
      waited: (lock, ms, outcome) => console.log(lock.keys, ms, outcome),
      lost: ({ fence }) => fence,
    },
  });
  const count: number = await observed.releaseAll();
  // @ts-expect-error: the name of a time contains its unit
  locks.lock('orders:42', { lease: 5000 });
  // @ts-expect-error: the fence is the server's
  grant.fence = 1;
  const word: string = await shared.using(
    async ({ fence }, signal) => `${fence} ${signal.aborted}`,
    { waitMs: 5 },
  );
  const result: number = await locks.once(
    'k',
    async () => undefined as number | undefined,
    () => 5,
  );
  for (const kind of [DeadlockError, LockLostError, NotAcquiredError])
    if (new kind() instanceof RedisLockError) return word.length + count;
  return Number(told) + fence + (tried?.fence ?? 0) + result;
}
