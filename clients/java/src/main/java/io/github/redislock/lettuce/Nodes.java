package io.github.redislock.lettuce;

import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.StatefulRedisClusterConnectionImpl;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.models.partitions.ClusterPartitionParser;
import io.lettuce.core.cluster.models.partitions.Partitions;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * The nodes of a cluster while one of them is silent. Lettuce's own refresh waits for that one, by
 * default for 10 s.
 */
final class Nodes {
  private static final long ASK_MS = 200;

  private final RedisClusterClient client;

  Nodes(RedisClusterClient client) {
    this.client = client;
  }

  /** Asks the nodes for the slots by a connection, and tells the client what has changed. */
  CompletableFuture<Void> ask(StatefulRedisClusterConnection<byte[], byte[]> connection) {
    List<CompletableFuture<?>> replies = new ArrayList<>();
    for (RedisClusterNode node : connection.getPartitions()) {
      replies.add(connection.getConnectionAsync(node.getUri().getHost(), node.getUri().getPort())
          .thenCompose(one -> one.async().clusterNodes())
          .thenAccept(nodes -> adopt(nodes, connection))
          .orTimeout(ASK_MS, TimeUnit.MILLISECONDS)
          .exceptionally(silent -> null));
    }
    return CompletableFuture.allOf(replies.toArray(CompletableFuture[]::new));
  }

  private synchronized void adopt(
      String told, StatefulRedisClusterConnection<byte[], byte[]> connection) {
    Partitions known = client.getPartitions();
    boolean isChanged = false;
    for (RedisClusterNode node : ClusterPartitionParser.parse(told)) {
      RedisClusterNode before = known.getPartitionByNodeId(node.getNodeId());
      if (before == null || before.getSlots().equals(node.getSlots())) continue;
      before.setFlags(node.getFlags());
      before.setSlots(node.getSlots());
      isChanged = true;
    }
    if (!isChanged) return;
    known.updateCache();
    if (connection instanceof StatefulRedisClusterConnectionImpl<?, ?> cached) {
      cached.setPartitions(known);
    }
  }
}
