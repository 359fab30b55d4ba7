package io.github.redislock.spring.boot;

import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.RedisClient;
import io.lettuce.core.cluster.RedisClusterClient;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** Opens links with the native client of a connection factory, which has all settings. */
final class LettuceLinks {
  private LettuceLinks() {}

  static LifecycleLink.Opened open(LettuceConnectionFactory factory) {
    return new LifecycleLink.Opened(linkOf(factory.getRequiredNativeClient()), () -> {});
  }

  private static Link linkOf(AbstractRedisClient client) {
    if (client instanceof RedisClusterClient cluster) return new LettuceLink(cluster);
    return new LettuceLink((RedisClient) client);
  }
}
