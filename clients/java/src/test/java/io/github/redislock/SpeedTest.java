package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.OperatingSystemMXBean;
import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** Speed. These tests run alone, and the best of some rounds counts. */
@Tag("alone")
class SpeedTest {
  private static final int COUNT = 5000;
  private static final int ROUNDS = 6;

  @Test
  @SuppressWarnings("deprecation")
  void aPairOnJedisTakesAtMostTwiceTheCpuOfRawCommands() throws Exception {
    try (TestServer server = new TestServer();
        UnifiedJedis jedis = TestServer.jedis(
            new PooledConnectionProvider(new HostAndPort("localhost", server.port())));
        Locks locks = new Locks(new JedisLink(jedis))) {
      compare(locks.lock("k"), () -> {
        jedis.sendCommand("LOCK.ACQUIRE"::getBytes, "raw", "t", "PX", "30000");
        jedis.sendCommand("LOCK.RELEASE"::getBytes, "raw", "t");
      });
    }
  }

  @Test
  void aPairOnLettuceTakesAtMostTwiceTheCpuOfRawCommands() throws Exception {
    try (TestServer server = new TestServer()) {
      String address = "redis://localhost:" + server.port();
      RedisClient client = RedisClient.create(TestServer.RESOURCES, address);
      try (StatefulRedisConnection<String, String> raw = client.connect();
          Locks locks = new Locks(new LettuceLink(client))) {
        compare(locks.lock("k"), () -> {
          send(raw, "LOCK.ACQUIRE", "t", "PX", "30000");
          send(raw, "LOCK.RELEASE", "t");
        });
      }
    }
  }

  private record Name(String word) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return word.getBytes();
    }
  }

  private static void send(
      StatefulRedisConnection<String, String> on, String name, String... words) {
    CommandArgs<String, String> arguments = new CommandArgs<>(StringCodec.UTF8).addKey("raw");
    for (String word : words) arguments.add(word);
    on.sync().dispatch(new Name(name), new NestedMultiOutput<>(StringCodec.UTF8), arguments);
  }

  private static void compare(RedisLock lock, Runnable raw) throws Exception {
    List<Double> ratios = new ArrayList<>();
    for (int round = 0; round < ROUNDS; round++) {
      double rawNanos = cpuOf(raw);
      ratios.add(cpuOf(() -> lock.tryAcquire().orElseThrow().release()) / rawNanos);
    }
    assertTrue(ratios.stream().anyMatch(ratio -> ratio < 2), ratios.toString());
  }

  private static double cpuOf(Runnable work) {
    OperatingSystemMXBean system =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long began = system.getProcessCpuTime();
    for (int count = 0; count < COUNT; count++) work.run();
    return system.getProcessCpuTime() - began;
  }
}
