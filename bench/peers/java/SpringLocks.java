import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.integration.redis.util.RedisLockRegistry.RedisLockType;

/**
 * Spring's registry with the shared Lettuce connection of Spring Data. The threads of a process first
 * contend for a ReentrantLock of the JVM.
 */
public final class SpringLocks {
  private SpringLocks() {}

  /** Runs the library SPIN_LOCK, which is the default and polls every 100 ms, or PUB_SUB_LOCK. */
  public static void main(String[] arguments) throws Exception {
    LettuceConnectionFactory connections = new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(arguments[1]));
    connections.afterPropertiesSet();
    connections.start();
    RedisLockRegistry registry = new RedisLockRegistry(connections, "registry", Contenders.LEASE_MS);
    registry.setRedisLockType(RedisLockType.valueOf(arguments[0]));
    Contenders.run(arguments, () -> registry.obtain(Contenders.KEY));
  }
}
