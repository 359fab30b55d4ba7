package shop.stock;

import io.github.redislock.Hold;
import io.github.redislock.Locks;
import java.util.concurrent.locks.ReentrantLock;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import shop.stock.StockService.Settings;

/** The three kinds of locks. The property {@code shop.lock} picks one. */
@Configuration(proxyBeanMethods = false)
class ItemLocks {
  @Bean
  @ConditionalOnProperty(name = "shop.lock", havingValue = "none")
  ItemLock none() {
    return (item, sale) -> sale.test(ItemLock.NO_FENCE);
  }

  /** Returns one lock for all items of this JVM. Another instance of the service has its own. */
  @Bean
  @ConditionalOnProperty(name = "shop.lock", havingValue = "jvm")
  ItemLock jvm() {
    ReentrantLock lock = new ReentrantLock(true);
    return (item, sale) -> {
      lock.lockInterruptibly();
      try {
        return sale.test(ItemLock.NO_FENCE);
      } finally {
        lock.unlock();
      }
    };
  }

  /** Returns locks that all instances share. */
  @Bean
  @ConditionalOnProperty(name = "shop.lock", havingValue = "redis-lock")
  ItemLock redisLock(Locks locks, Shelf shelf, Settings settings) {
    return (item, sale) -> {
      try (Hold hold = locks.lock("stock:" + item).acquire(settings.patience())) {
        shelf.raiseFence(item, hold.fence());
        return sale.test(hold.fence());
      }
    };
  }
}
