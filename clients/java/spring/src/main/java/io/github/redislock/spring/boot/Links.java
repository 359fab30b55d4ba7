package io.github.redislock.spring.boot;

import io.github.redislock.spi.Link;
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
      return LettuceLinks.open(lettuce);
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
}
