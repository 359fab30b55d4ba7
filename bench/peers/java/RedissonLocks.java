import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson with its defaults: a waiter subscribes to a channel, and the watchdog renews the lease. */
public final class RedissonLocks {
  private RedissonLocks() {}

  /** Runs the library RLock or RFairLock. */
  public static void main(String[] arguments) throws Exception {
    Config config = new Config();
    config.useSingleServer().setAddress("redis://127.0.0.1:" + arguments[1]);
    RedissonClient client = Redisson.create(config);
    boolean isFair = arguments[0].equals("RFairLock");
    Contenders.run(
        arguments, () -> isFair ? client.getFairLock(Contenders.KEY) : client.getLock(Contenders.KEY));
  }
}
