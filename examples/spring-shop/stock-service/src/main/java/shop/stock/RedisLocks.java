package shop.stock;

import io.github.redislock.Locks;
import io.github.redislock.lettuce.LettuceLink;
import io.lettuce.core.RedisClient;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

@Configuration(proxyBeanMethods = false)
class RedisLocks {
  @Bean
  Locks locks(LettuceConnectionFactory connections) {
    return new Locks(new LettuceLink((RedisClient) connections.getRequiredNativeClient()));
  }
}
