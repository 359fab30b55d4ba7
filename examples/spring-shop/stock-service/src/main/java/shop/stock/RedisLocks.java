package shop.stock;

import io.github.redislock.LockOptions;
import io.github.redislock.Locks;
import io.github.redislock.Observer;
import io.github.redislock.lettuce.LettuceLink;
import io.lettuce.core.RedisClient;
import java.time.Duration;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

@Configuration(proxyBeanMethods = false)
class RedisLocks {
  @Bean
  Locks locks(LettuceConnectionFactory connections, @Value("${redis-lock.lease}") Duration lease) {
    LettuceLink link = new LettuceLink((RedisClient) connections.getRequiredNativeClient());
    return new Locks(link, Duration.ofSeconds(1), Observer.LOGGING, LockOptions.defaults().lease(lease));
  }
}
