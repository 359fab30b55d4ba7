import { Cluster, Redis } from 'ioredis';
import { createClient, createCluster } from 'redis';
import Redlock, {
  type ExecutionResult,
  ExecutionError,
  Lock,
  type RedlockAbortSignal,
  ResourceLockedError,
  type Settings,
} from '@redis-lock/client/redlock';

export async function first(redis: Redis, cluster: Cluster): Promise<number> {
  for (const client of [redis, cluster, createClient(), createCluster({ rootNodes: [] })])
    new Redlock([client]);
  const settings: Partial<Settings> = { driftFactor: 0.01, retryCount: -1, retryDelay: 200 };
  const redlock: Redlock = new Redlock([redis], settings);
  redlock.on('error', (error) => error instanceof ResourceLockedError || console.error(error));
  let lock: Lock = await redlock.acquire(['a'], 5000, { retryCount: 5 });
  lock = await lock.extend(5000);
  const { attempts }: ExecutionResult = await lock.release();
  const { votesFor, votesAgainst } = await attempts[0]!;
  const passedOn = new Lock(redlock, lock.resources, lock.value, [], lock.expiration);
  await passedOn.release().catch((error) => error instanceof ExecutionError && error.attempts);
  const word: string = await redlock.using(['a'], 5000, async (signal: RedlockAbortSignal) => {
    if (signal.aborted) throw signal.error;
    return 'word';
  });
  const fence = await redlock.using(['a'], 5000, settings, async (_, { lock }) => lock.fence);
  // @ts-expect-error: there is no script to change
  new Redlock([redis], {}, { acquireScript: 'return 1' });
  // @ts-expect-error: an object that is no client
  new Redlock([{}]);
  await redlock.quit();
  return votesFor.size + votesAgainst.size + word.length + (fence ?? 0);
}
