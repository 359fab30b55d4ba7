package io.github.redislock.spring.boot;

import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.RedisClient;
import io.lettuce.core.cluster.RedisClusterClient;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.util.ClassUtils;

/** Opens links with the settings of the application's connection factory. */
final class Links {
  private static final boolean HAS_LETTUCE = isPresent("io.lettuce.core.RedisClient");
  private static final boolean HAS_JEDIS = isPresent("redis.clients.jedis.UnifiedJedis");

  private Links() {}

  static Link open(RedisConnectionFactory factory) {
    if (HAS_LETTUCE && factory instanceof LettuceConnectionFactory lettuce) {
      return OfLettuce.open(lettuce);
    }
    if (HAS_JEDIS && factory instanceof JedisConnectionFactory jedis) {
      return JedisLinks.open(jedis);
    }
    throw new IllegalStateException(
        "redis-lock knows the connection factories of Lettuce and of Jedis, and not "
            + factory.getClass().getName() + ": define a bean of type " + Link.class.getName());
  }

  private static boolean isPresent(String type) {
    return ClassUtils.isPresent(type, Links.class.getClassLoader());
  }

  /** A class of its own, because an application may lack Lettuce. */
  private static final class OfLettuce {
    /** Opens a link with the native client of the factory, which has all settings. */
    static Link open(LettuceConnectionFactory factory) {
      AbstractRedisClient client = factory.getRequiredNativeClient();
      if (client instanceof RedisClusterClient cluster) return new LettuceLink(cluster);
      return new LettuceLink((RedisClient) client);
    }
  }
}
