package io.github.redislock;

import static java.util.Map.entry;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.resource.ClientResources;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.UnifiedJedis;

/**
 * The driver of the conformance suite: see docs/internals/client-tests.md. Each order has a thread
 * of its own.
 */
final class Driver {
  private static final Gson GSON = new Gson();
  /** The names of errors. The first one that fits counts. */
  private static final List<Map.Entry<Class<?>, String>> ERRORS = List.of(
      entry(NotAcquiredException.class, "not_acquired"),
      entry(LockLostException.class, "lost"),
      entry(WaitCancelledException.class, "cancelled"),
      entry(InterruptedException.class, "cancelled"),
      entry(DeadlockException.class, "deadlock"),
      entry(UnavailableException.class, "unavailable"),
      entry(ModuleMissingException.class, "module_missing"),
      entry(NotReplicatedException.class, "not_replicated"),
      entry(IllegalMonitorStateException.class, "misuse"),
      entry(IllegalArgumentException.class, "argument"),
      entry(NullPointerException.class, "argument"),
      entry(Unrepresentable.class, "unrepresentable"),
      entry(WorkFailed.class, "failed"));

  private Locks locks;
  private final Map<String, Order> orders = Map.ofEntries(
      entry("connect", (order, one) -> connect(order)),
      entry("lock", (order, one) -> lock(order)),
      entry("acquire", (order, one) -> one.acquire(order)),
      entry("cancel", (order, one) -> cancel(order)),
      entry("release", (order, one) -> answer("ok", one.held().release())),
      entry("extend", (order, one) ->
          answer("ok", one.held().extend(duration(order.get("lease_ms"))))),
      entry("left", (order, one) -> answer("ok", true, "ms", one.leftMs())),
      entry("state", (order, one) -> one.state()),
      entry("owned", (order, one) -> answer("ok", one.hold != null && one.hold.isOwned())),
      entry("release_all", (order, one) -> answer("ok", true, "count", locks.releaseAll())),
      entry("texts", (order, one) -> answer("ok", true, "text",
          one.lock + "\n" + one.options + "\n" + locks + "\n" + one.hold)),
      entry("block", (order, one) -> block(one, order)),
      entry("write", (order, one) -> write(one, order)),
      entry("storm", (order, one) -> new Storm(one.lock, order).run()));
  private final String client;
  private final Map<String, Named> named = new ConcurrentHashMap<>();
  private final Map<RedisLock, String> names = new ConcurrentHashMap<>();
  private final Map<Long, Thread> threads = new ConcurrentHashMap<>();
  /** Appends a value to a list, by the program's own Redis client. */
  private Pushes pushes;

  private interface Order {
    JsonObject answer(JsonObject order, Named one) throws Exception;
  }

  private interface Pushes {
    void push(String list, String value);
  }

  private Driver(String client) {
    this.client = client;
  }

  public static void main(String[] arguments) throws Exception {
    Driver driver = new Driver(arguments[0]);
    ExecutorService threads = Executors.newCachedThreadPool();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonObject order = JsonParser.parseString(line).getAsJsonObject();
      if (List.of("connect", "lock").contains(text(order, "do"))) driver.obey(order);
      else threads.execute(() -> driver.obey(order));
    }
    // The held locks are not released.
    Runtime.getRuntime().halt(0);
  }

  private void obey(JsonObject order) {
    long id = order.get("id").getAsLong();
    JsonObject answer;
    threads.put(id, Thread.currentThread());
    try {
      Named one = has(order, "lock") ? named.get(text(order, "lock")) : null;
      answer = orders.get(text(order, "do")).answer(order, one);
    } catch (Throwable error) {
      answer = answerOf(error);
    } finally {
      threads.remove(id);
    }
    answer.addProperty("id", id);
    say(answer);
  }

  private static JsonObject answerOf(Throwable error) {
    String text = String.valueOf(error.getMessage());
    String name = ERRORS.stream().filter(known -> known.getKey().isInstance(error))
        .map(Map.Entry::getValue).findFirst().orElse("other");
    boolean isRefused = error instanceof RefusedException;
    if (isRefused && text.matches("(NOPERM|NOAUTH|WRONGPASS)[\\s\\S]*")) name = "denied";
    for (Throwable cause = error; cause != null; cause = cause.getCause()) text += "\n" + cause;
    return answer("error", name, "text", text);
  }

  private static final class Unrepresentable extends RuntimeException {}

  private static final class WorkFailed extends RuntimeException {
    WorkFailed(String text) {
      super(text);
    }
  }

  // --- connections -------------------------------------------------------------------------------

  private JsonObject connect(JsonObject order) throws Exception {
    warmUp();
    Duration timeout = has(order, "command_timeout_ms")
        ? duration(order.get("command_timeout_ms"))
        : Duration.ofSeconds(1);
    locks = new Locks(link(order), timeout, new Observer());
    return answer("ok", true);
  }

  private Link link(JsonObject order) throws InterruptedException {
    List<HostAndPort> servers = new ArrayList<>();
    order.getAsJsonArray("servers").forEach(at -> servers.add(HostAndPort.from(at.getAsString())));
    return client.equals("jedis") ? jedisLink(servers, order) : lettuceLink(servers, order);
  }

  private Link jedisLink(List<HostAndPort> servers, JsonObject order) throws InterruptedException {
    CountDownLatch isMade = new CountDownLatch(1);
    JedisLink link = new JedisLink(() -> {
      UnifiedJedis jedis = jedis(servers, order);
      pushes = jedis::rpush;
      isMade.countDown();
      return jedis;
    });
    // There may be no server.
    isMade.await(500, TimeUnit.MILLISECONDS);
    return link;
  }

  private static UnifiedJedis jedis(List<HostAndPort> servers, JsonObject order) {
    JedisClientConfig config = DefaultJedisClientConfig.builder()
        .user(text(order, "username")).password(text(order, "password")).build();
    Set<HostAndPort> all = new HashSet<>(servers);
    if (has(order, "sentinel")) {
      return RedisSentinelClient.builder()
          .masterName(text(order, "sentinel")).sentinels(all).clientConfig(config).build();
    }
    if (is(order, "cluster")) {
      return redis.clients.jedis.RedisClusterClient.builder()
          .nodes(all).clientConfig(config).build();
    }
    return redis.clients.jedis.RedisClient.builder()
        .hostAndPort(servers.get(0)).clientConfig(config).build();
  }

  /** The threads of all Lettuce clients. */
  private static final class Threads {
    static final ClientResources OF_LETTUCE = ClientResources.create();
  }

  private Link lettuceLink(List<HostAndPort> servers, JsonObject order) {
    List<RedisURI> uris = servers.stream().map(at -> uri(at, order)).toList();
    if (is(order, "cluster")) {
      RedisClusterClient client = RedisClusterClient.create(Threads.OF_LETTUCE, uris);
      pushes = pushing(() -> client.connect().sync()::rpush);
      return new LettuceLink(client);
    }
    RedisURI.Builder sentinels = RedisURI.builder();
    servers.forEach(at -> sentinels.withSentinel(at.getHost(), at.getPort()));
    RedisURI uri = has(order, "sentinel")
        ? sentinels.withSentinelMasterId(text(order, "sentinel")).build()
        : uris.get(0);
    RedisClient client = RedisClient.create(Threads.OF_LETTUCE, uri);
    pushes = pushing(() -> client.connect().sync()::rpush);
    return new LettuceLink(client);
  }

  /** Returns what connects at its first use, because there may be no server now. */
  private Pushes pushing(Supplier<Pushes> connected) {
    return (list, value) -> {
      pushes = connected.get();
      pushes.push(list, value);
    };
  }

  private static RedisURI uri(HostAndPort at, JsonObject order) {
    RedisURI.Builder builder = RedisURI.builder().withHost(at.getHost()).withPort(at.getPort());
    String password = text(order, "password");
    String user = text(order, "username");
    if (user != null) builder.withAuthentication(user, password.toCharArray());
    else if (password != null) builder.withPassword(password.toCharArray());
    return builder.build();
  }

  /**
   * Asks a server of this process for a lock that somebody else has. On a busy machine the JVM
   * needs seconds to load the classes of a Redis client at its first connection.
   */
  private void warmUp() throws IOException, InterruptedException {
    try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
      inBackground(() -> {
        while (true) {
          Socket client = server.accept();
          inBackground(() -> replyLikeAServer(client));
        }
      });
      JsonArray servers = new JsonArray();
      servers.add("127.0.0.1:" + server.getLocalPort());
      JsonObject order = new JsonObject();
      order.add("servers", servers);
      try (Locks cold = new Locks(link(order), Duration.ofSeconds(15), LockObserver.LOGGING)) {
        cold.lock("k").tryAcquire();
        cold.lock("k").tryAcquire(Duration.ofMillis(1));
      } catch (LockException busy) {
        // It is as warm as it gets.
      }
    }
  }

  private static void inBackground(Callable<?> work) {
    Thread thread = new Thread(() -> {
      try {
        work.call();
      } catch (Exception closed) {
        // It is warm.
      }
    });
    thread.setDaemon(true);
    thread.start();
  }

  private static Object replyLikeAServer(Socket client) throws IOException {
    BufferedReader lines = new BufferedReader(new InputStreamReader(client.getInputStream()));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String reply = switch (line) {
        case "HELLO" -> "-NOPROTO cold\r\n";
        case "PING", "CLIENT" -> "+PONG\r\n";
        case "LOCK.ACQUIRE", "LOCK.WAIT" -> "*-1\r\n";
        case "LOCK.RELEASE" -> ":1\r\n";
        default -> "";
      };
      client.getOutputStream().write(reply.getBytes());
    }
    return null;
  }

  // --- locks -------------------------------------------------------------------------------------

  private static final class Named {
    final RedisLock lock;
    final LockOptions options;
    /** The latest grant. */
    volatile Hold hold;

    Named(RedisLock lock, LockOptions options) {
      this.lock = lock;
      this.options = options;
    }

    JsonObject acquire(JsonObject order) throws InterruptedException {
      Optional<Hold> granted = has(order, "wait_ms")
          ? lock.tryAcquire(duration(order.get("wait_ms")))
          : Optional.of(lock.acquire());
      if (granted.isEmpty()) return answer("ok", false);
      hold = granted.get();
      return answer("ok", true, "fence", hold.fence(), "token", hold.token());
    }

    long leftMs() {
      return hold == null ? 0 : hold.left().plusNanos(999_999).toMillis();
    }

    JsonObject state() {
      if (hold == null) return answer("ok", true, "lost", false);
      return answer(
          "ok", true, "lost", hold.isLost(), "fence", hold.fence(), "token", hold.token());
    }

    Hold held() {
      if (hold == null) throw new IllegalMonitorStateException("never acquired");
      return hold;
    }
  }

  private JsonObject lock(JsonObject order) {
    String name = text(order, "lock");
    LockOptions options = optionsOf(order)
        .onLost(hold -> say(answer("event", "lost", "lock", name)));
    List<String> keys = new ArrayList<>();
    for (JsonElement key : order.getAsJsonArray("keys")) {
      if (!key.getAsJsonPrimitive().isString()) throw new Unrepresentable();
      keys.add(key.getAsString());
    }
    RedisLock lock = locks.lock(options, keys.toArray(String[]::new));
    named.put(name, new Named(lock, options));
    names.put(lock, name);
    return answer("ok", true);
  }

  private interface Times {
    LockOptions of(LockOptions options, Duration time);
  }

  private static final Map<String, Times> TIMES = Map.of(
      "lease_ms", LockOptions::lease,
      "keep_ms", LockOptions::keep,
      "margin_ms", LockOptions::margin,
      "max_hold_ms", LockOptions::longestHold,
      "wait_ms", LockOptions::longestWait,
      "at_least_ms", LockOptions::leastHold);

  private static LockOptions optionsOf(JsonObject order) {
    LockOptions options = LockOptions.defaults();
    for (var time : TIMES.entrySet()) {
      String name = time.getKey();
      if (has(order, name)) options = time.getValue().of(options, duration(order.get(name)));
    }
    if (has(order, "data")) options = options.data(text(order, "data"));
    if (has(order, "replicas")) options = options.replicas(order.get("replicas").getAsInt());
    if (is(order, "shared")) options = options.shared();
    if (has(order, "permits") && !has(order, "limit")) throw new Unrepresentable();
    if (has(order, "limit")) {
      long permits = has(order, "permits") ? whole(order.get("permits")) : 1;
      options = options.limit(whole(order.get("limit")), permits);
    }
    if (is(order, "session")) options = options.session();
    return has(order, "renew") && !is(order, "renew") ? options.withoutRenewal() : options;
  }

  private JsonObject cancel(JsonObject order) {
    Thread thread = threads.get(order.get("of").getAsLong());
    if (thread != null) thread.interrupt();
    return answer("ok", true);
  }

  private JsonObject block(Named one, JsonObject order) throws Exception {
    try (Hold hold = entered(one, order)) {
      say(answer("event", "in", "lock", text(order, "lock")));
      Thread.sleep(order.get("work_ms").getAsLong());
      if (has(order, "fail")) throw new WorkFailed(text(order, "fail"));
      return answer("ok", true, "fence", hold.fence());
    }
  }

  private static Hold entered(Named one, JsonObject order) throws InterruptedException {
    return has(order, "wait_ms")
        ? one.lock.acquire(duration(order.get("wait_ms")))
        : one.lock.acquire();
  }

  private JsonObject write(Named one, JsonObject order) throws Exception {
    try (Hold hold = entered(one, order)) {
      while (!hold.isLost()) {
        pushes.push(text(order, "list"), Long.toString(hold.fence()));
        Thread.sleep(2);
      }
    }
    return answer("ok", true);
  }

  /** Threads that acquire a lock with short limits, again and again. */
  private record Storm(RedisLock lock, JsonObject order, Queue<Double> releasesMs) {
    Storm(RedisLock lock, JsonObject order) {
      this(lock, order, new ConcurrentLinkedQueue<>());
    }

    JsonObject run() throws InterruptedException {
      long end = System.nanoTime() + order.get("seconds").getAsLong() * 1_000_000_000L;
      List<Thread> threads = new ArrayList<>();
      int tasks = order.get("tasks").getAsInt();
      while (threads.size() < tasks) threads.add(new Thread(() -> acquireUntil(end)));
      threads.forEach(Thread::start);
      for (Thread thread : threads) thread.join();
      List<Double> sorted = releasesMs.stream().sorted().toList();
      double p99 = sorted.isEmpty() ? 0 : sorted.get((int) (sorted.size() * 0.99));
      return answer("ok", true, "grants", sorted.size(), "release_p99_ms", p99);
    }

    private void acquireUntil(long end) {
      long mostMs = order.get("most_wait_ms").getAsLong();
      try {
        while (System.nanoTime() < end) {
          long limitMs = ThreadLocalRandom.current().nextLong(mostMs + 1);
          Optional<Hold> hold = tried(Duration.ofMillis(limitMs));
          if (hold.isEmpty()) continue;
          Thread.sleep(1);
          long began = System.nanoTime();
          hold.get().release();
          releasesMs.add((System.nanoTime() - began) / 1e6);
        }
      } catch (InterruptedException interrupt) {
        Thread.currentThread().interrupt();
      }
    }

    private Optional<Hold> tried(Duration limit) throws InterruptedException {
      try {
        return lock.tryAcquire(limit);
      } catch (UnavailableException outage) {
        return Optional.empty();
      }
    }
  }

  private final class Observer implements LockObserver {
    @Override
    public void waited(RedisLock lock, Duration waited, Outcome outcome) {
      say(answer("event", "waited", "lock", names.get(lock), "ms", waited.toMillis(),
          "outcome", outcome.name().toLowerCase().replace('_', ' ')));
    }

    @Override
    public void granted(Hold hold) {
      say(answer("event", "granted", "lock", names.get(hold.lock())));
    }

    @Override
    public void unavailable(UnavailableException outage) {
      say(answer("event", "unavailable", "text", outage.getMessage()));
    }
  }

  // --- JSON --------------------------------------------------------------------------------------

  /** Returns an object of names and values. */
  private static JsonObject answer(Object... fields) {
    JsonObject answer = new JsonObject();
    for (int at = 0; at < fields.length; at += 2) {
      answer.add((String) fields[at], GSON.toJsonTree(fields[at + 1]));
    }
    return answer;
  }

  private static synchronized void say(JsonObject line) {
    System.out.println(line);
  }

  private static boolean has(JsonObject order, String name) {
    return order.has(name) && !order.get(name).isJsonNull();
  }

  private static boolean is(JsonObject order, String name) {
    return has(order, name) && order.get(name).getAsBoolean();
  }

  private static String text(JsonObject order, String name) {
    return has(order, name) ? order.get(name).getAsString() : null;
  }

  /** Returns a time that a Duration can express. */
  private static Duration duration(JsonElement ms) {
    double value;
    try {
      value = ms.getAsDouble();
    } catch (NumberFormatException word) {
      throw new Unrepresentable();
    }
    if (!(Math.abs(value) < 1e19)) throw new Unrepresentable();
    return Duration.ofSeconds((long) (value / 1000)).plusNanos((long) (value % 1000 * 1e6));
  }

  private static long whole(JsonElement number) {
    double value = number.getAsDouble();
    if (value != Math.rint(value) || Math.abs(value) > 1e18) throw new Unrepresentable();
    return (long) value;
  }
}
