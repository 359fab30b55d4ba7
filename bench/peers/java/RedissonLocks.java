import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/**
 * Redisson: a waiter subscribes to a channel, and the watchdog renews the lease. Each waiter of an
 * RFairLock has a channel of its own, so its pool has a connection for each five of them. All other
 * settings are the defaults.
 */
public final class RedissonLocks {
  private RedissonLocks() {}

  /** Runs the library RLock or RFairLock. */
  public static void main(String[] arguments) throws Exception {
    Config config = new Config();
    SingleServerConfig server = config.useSingleServer().setAddress("redis://127.0.0.1:" + arguments[1]);
    boolean isFair = arguments[0].equals("RFairLock");
    int channels = Integer.parseInt(arguments[2]);
    if (isFair && channels > server.getSubscriptionConnectionPoolSize() * server.getSubscriptionsPerConnection()) {
      server.setSubscriptionConnectionPoolSize(channels / server.getSubscriptionsPerConnection() + 1);
    }
    RedissonClient client = Redisson.create(config);
    Contenders.run(
        arguments, () -> isFair ? client.getFairLock(Contenders.KEY) : client.getLock(Contenders.KEY));
  }
}
