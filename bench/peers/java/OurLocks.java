import io.github.redislock.Locks;
import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;

/** This project's client with its defaults: waits in the server's queue, renews the lease. */
public final class OurLocks {
  private OurLocks() {}

  /** Runs the locks on Lettuce or on Jedis. */
  public static void main(String[] arguments) throws Exception {
    String address = "redis://127.0.0.1:" + arguments[1];
    Locks locks = new Locks(arguments[0].equals("Lettuce")
        ? new LettuceLink(io.lettuce.core.RedisClient.create(address))
        : new JedisLink(redis.clients.jedis.RedisClient.create(address)));
    Contenders.run(arguments, () -> locks.lock(Contenders.KEY));
  }
}
