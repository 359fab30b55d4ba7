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

  static Link open(LettuceConnectionFactory factory) {
    AbstractRedisClient client = factory.getRequiredNativeClient();
    if (client instanceof RedisClusterClient cluster) return new LettuceLink(cluster);
    return new LettuceLink((RedisClient) client);
  }
}
