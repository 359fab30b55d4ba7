import { createClient, createCluster } from 'redis';
import { Locks } from '@redis-lock/client/node-redis';

export async function first(): Promise<void> {
  const client = createClient();
  const cluster = createCluster({ rootNodes: [{ url: 'redis://localhost:7001' }] });
  await using one = await new Locks(client).lock('orders:42').acquire();
  await using other = await new Locks(cluster).lock(['{a}1', '{a}2'], { session: true }).acquire();
  console.log(one?.fence, other?.fence);
  // @ts-expect-error: an object that is no client
  new Locks({});
}
