package io.github.redislock.lettuce;

import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.models.partitions.ClusterPartitionParser;
import io.lettuce.core.cluster.models.partitions.Partitions;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode.NodeFlag;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * The nodes of a cluster while one of them is silent. Lettuce's own refresh waits for that one, by
 * default for 10 s, and so does a new connection that begins with it.
 */
final class Nodes {
  private static final long ASK_MS = 200;

  private Nodes() {}

  /** Asks the nodes for the slots by a connection that is closed afterwards. */
  static CompletableFuture<Void> lookAndClose(StatefulConnection<byte[], byte[]> connection) {
    StatefulRedisClusterConnection<byte[], byte[]> all =
        (StatefulRedisClusterConnection<byte[], byte[]>) connection;
    Partitions known = all.getPartitions();
    return CompletableFuture.completedFuture(known)
        .thenCompose(nodes -> CompletableFuture.allOf(nodes.stream()
            .map(node -> all.getConnectionAsync(node.getUri().getHost(), node.getUri().getPort())
                .thenCompose(one -> one.async().clusterNodes())
                .thenAccept(reply -> adopt(reply, known)))
            .toArray(CompletableFuture[]::new)))
        .orTimeout(ASK_MS, TimeUnit.MILLISECONDS)
        .handle((done, silent) -> all.closeAsync())
        .thenCompose(closing -> closing);
  }

  /** Moves the node that replied to the front, and sets the slots of all nodes. */
  private static void adopt(String reply, Partitions known) {
    synchronized (known) {
      List<RedisClusterNode> nodes = new ArrayList<>();
      for (RedisClusterNode node : known) nodes.add(new RedisClusterNode(node));
      for (RedisClusterNode told : ClusterPartitionParser.parse(reply)) {
        for (RedisClusterNode node : nodes) {
          if (!node.getNodeId().equals(told.getNodeId())) continue;
          node.setFlags(told.getFlags());
          node.setSlots(told.getSlots());
        }
      }
      nodes.sort(Comparator.comparing(node -> !node.is(NodeFlag.MYSELF)));
      known.reload(nodes);
    }
  }
}
