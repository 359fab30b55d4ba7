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
 * default for a minute.
 */
final class Nodes {
  private static final long ASK_MS = 200;

  private final RedisClusterClient client;
  private final StatefulRedisClusterConnection<byte[], byte[]> connection;

  Nodes(RedisClusterClient client, StatefulRedisClusterConnection<byte[], byte[]> connection) {
    this.client = client;
    this.connection = connection;
  }

  /** Asks all nodes for the slots, and adopts what has changed. The future is true if something has. */
  CompletableFuture<Boolean> ask() {
    List<CompletableFuture<Boolean>> replies = new ArrayList<>();
    for (RedisClusterNode node : client.getPartitions()) {
      replies.add(connection.getConnectionAsync(node.getUri().getHost(), node.getUri().getPort())
          .thenCompose(one -> one.async().clusterNodes())
          .thenApply(this::adopt)
          .orTimeout(ASK_MS, TimeUnit.MILLISECONDS)
          .exceptionally(silent -> false));
    }
    return CompletableFuture.allOf(replies.toArray(CompletableFuture[]::new))
        .thenApply(done -> replies.stream().anyMatch(CompletableFuture::join));
  }

  private synchronized boolean adopt(String told) {
    Partitions known = client.getPartitions();
    boolean isChanged = false;
    for (RedisClusterNode node : ClusterPartitionParser.parse(told)) {
      RedisClusterNode before = known.getPartitionByNodeId(node.getNodeId());
      if (before == null || before.getSlots().equals(node.getSlots())) continue;
      before.setFlags(node.getFlags());
      before.setSlots(node.getSlots());
      isChanged = true;
    }
    if (!isChanged) return false;
    known.updateCache();
    if (connection instanceof StatefulRedisClusterConnectionImpl<?, ?> cached) cached.setPartitions(known);
    return true;
  }
}
