package io.github.redislock;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.resource.ClientResources;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.UnifiedJedis;

/**
 * The driver of the conformance suite: see docs/internals/client-tests.md. Each order has a thread
 * of its own. The orders of a reentrant lock have one thread together, which owns the lock.
 */
final class Driver {
  private final String client;
  private final Map<String, Named> named = new ConcurrentHashMap<>();
  private final Map<Long, Thread> acquires = new ConcurrentHashMap<>();
  private final Map<RedisLock, String> names = new ConcurrentHashMap<>();
  private Locks locks;
  private UnifiedJedis jedis;
  /** Opens the program's own connection of Lettuce. */
  private Runnable connection;
  private StatefulRedisConnection<String, String> lettuce;
  private StatefulRedisClusterConnection<String, String> lettuceOfCluster;

  private static final class Named {
    final RedisLock lock;
    final LockOptions options;
    /** The thread of a reentrant lock, or null. */
    final ExecutorService owner;
    /** The latest grant. */
    volatile Hold hold;

    Named(RedisLock lock, LockOptions options, boolean isReentrant) {
      this.lock = lock;
      this.options = options;
      owner = isReentrant ? Executors.newSingleThreadExecutor() : null;
    }
  }

  /** The threads of all Lettuce clients. */
  private static final class Threads {
    static final ClientResources OF_LETTUCE = ClientResources.create();
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
    acquires.put(id, Thread.currentThread());
    try {
      answer = answerTo(order);
    } catch (Throwable error) {
      answer = answerOf(error);
    } finally {
      acquires.remove(id);
    }
    answer.addProperty("id", id);
    say(answer);
  }

  private JsonObject answerTo(JsonObject order) throws Exception {
    String name = order.has("lock") ? text(order, "lock") : "";
    return switch (text(order, "do")) {
      case "connect" -> {
        Duration commandTimeout = ms(order, "command_timeout_ms", 1000);
        warmUp(is(order, "cluster"));
        locks = new Locks(link(order), commandTimeout, new Observer());
        yield ok(true);
      }
      case "lock" -> makeLock(name, order);
      case "acquire" -> acquire(named.get(name), limitOf(order));
      case "cancel" -> {
        Thread thread = acquires.get(order.get("of").getAsLong());
        if (thread != null) thread.interrupt();
        yield ok(true);
      }
      case "block" -> block(name, named.get(name), order);
      case "write" -> write(named.get(name), order);
      case "storm" -> new Storm(named.get(name).lock, order).run();
      case "release" -> release(named.get(name));
      case "extend" -> extend(named.get(name), duration(order.get("lease_ms")));
      case "left" -> left(named.get(name));
      case "owned" -> ok(named.get(name).hold != null && named.get(name).hold.isOwned());
      case "release_all" -> {
        JsonObject answer = ok(true);
        answer.addProperty("count", locks.releaseAll());
        yield answer;
      }
      case "state" -> state(named.get(name));
      case "texts" -> {
        Named one = named.get(name);
        JsonObject answer = ok(true);
        answer.addProperty("text", one.lock + "\n" + one.options + "\n" + locks + "\n" + one.hold);
        yield answer;
      }
      default -> throw new IllegalStateException("no such order: " + order);
    };
  }

  /**
   * Asks a server, or a cluster, of this process for a lock that somebody else has. On a busy machine the JVM needs
   * seconds to load the classes of a Redis client at its first connection.
   */
  private void warmUp(boolean isCluster) throws IOException, InterruptedException {
    JsonObject order = new JsonObject();
    try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
      Thread replies = new Thread(() -> replyLikeAServer(server));
      replies.setDaemon(true);
      replies.start();
      JsonArray servers = new JsonArray();
      servers.add("127.0.0.1:" + server.getLocalPort());
      order.add("servers", servers);
      order.addProperty("cluster", isCluster);
      try (Locks cold = new Locks(link(order), Duration.ofSeconds(15), LockObserver.LOGGING)) {
        cold.lock("k").tryAcquire();
        cold.lock("k").tryAcquire(Duration.ofMillis(1));
      } catch (LockException | InterruptedException busy) {
        // It is as warm as it gets.
      }
    }
  }

  /** Returns the reply to a command that this word decides, else an empty text. */
  private static String replyTo(String word, int port) {
    String id = "0123456789012345678901234567890123456789";
    String node = id + " 127.0.0.1:" + port + "@1 myself,master - 0 0 1 connected 0-16383\n";
    String clients = "connected_clients:1\r\n";
    return switch (word) {
      case "HELLO" -> "-NOPROTO cold\r\n";
      case "PING", "CLIENT" -> "+PONG\r\n";
      case "NODES" -> "$" + node.length() + "\r\n" + node + "\r\n";
      case "SLOTS" -> "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:" + port + "\r\n$40\r\n" + id + "\r\n";
      case "INFO" -> "$" + clients.length() + "\r\n" + clients + "\r\n";
      case "LOCK.ACQUIRE", "LOCK.WAIT" -> "*-1\r\n";
      case "LOCK.QUEUE", "LOCK.CANCEL", "LOCK.RELEASE" -> ":1\r\n";
      default -> "";
    };
  }

  private static void replyLikeAServer(ServerSocket server) {
    try {
      while (true) {
        Socket client = server.accept();
        Thread replies = new Thread(() -> {
          try (client; BufferedReader lines = new BufferedReader(new InputStreamReader(client.getInputStream()))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
              client.getOutputStream().write(replyTo(line, server.getLocalPort()).getBytes());
            }
          } catch (IOException closed) {
            // The client has left.
          }
        });
        replies.setDaemon(true);
        replies.start();
      }
    } catch (IOException closed) {
      // It is warm.
    }
  }

  private Link link(JsonObject order) throws InterruptedException {
    List<HostAndPort> servers = new ArrayList<>();
    order.getAsJsonArray("servers").forEach(server -> servers.add(HostAndPort.from(server.getAsString())));
    boolean isCluster = order.get("cluster").getAsBoolean();
    String sentinel = text(order, "sentinel");
    if (client.equals("jedis")) {
      CountDownLatch isMade = new CountDownLatch(1);
      JedisLink link = new JedisLink(() -> {
        jedis = jedis(servers, isCluster, sentinel, order);
        isMade.countDown();
        return jedis;
      });
      // There may be no server.
      isMade.await(500, TimeUnit.MILLISECONDS);
      return link;
    }
    if (isCluster) {
      RedisClusterClient client =
          RedisClusterClient.create(Threads.OF_LETTUCE, servers.stream().map(at -> uri(at, order)).toList());
      connection = () -> lettuceOfCluster = client.connect();
      return new LettuceLink(client);
    }
    RedisURI uri = uri(servers.get(0), order);
    if (sentinel != null) {
      RedisURI.Builder builder = RedisURI.builder().withSentinelMasterId(sentinel);
      servers.forEach(at -> builder.withSentinel(at.getHost(), at.getPort()));
      uri = builder.build();
    }
    RedisClient client = RedisClient.create(Threads.OF_LETTUCE, uri);
    connection = () -> lettuce = client.connect();
    return new LettuceLink(client);
  }

  private static RedisURI uri(HostAndPort at, JsonObject order) {
    RedisURI.Builder builder = RedisURI.builder().withHost(at.getHost()).withPort(at.getPort());
    String password = text(order, "password");
    String user = text(order, "username");
    if (user != null) builder.withAuthentication(user, password.toCharArray());
    else if (password != null) builder.withPassword(password.toCharArray());
    return builder.build();
  }

  private static UnifiedJedis jedis(List<HostAndPort> servers, boolean isCluster, String sentinel, JsonObject order) {
    JedisClientConfig config =
        DefaultJedisClientConfig.builder().user(text(order, "username")).password(text(order, "password")).build();
    if (sentinel != null) {
      return RedisSentinelClient.builder().masterName(sentinel).sentinels(java.util.Set.copyOf(servers)).clientConfig(config).build();
    }
    if (isCluster) {
      return redis.clients.jedis.RedisClusterClient.builder().nodes(java.util.Set.copyOf(servers)).clientConfig(config).build();
    }
    return redis.clients.jedis.RedisClient.builder().hostAndPort(servers.get(0)).clientConfig(config).build();
  }

  private JsonObject makeLock(String name, JsonObject order) {
    LockOptions options = optionsOf(order).onLost(hold -> event("lost", "lock", name));
    List<String> keys = new ArrayList<>();
    for (JsonElement key : order.getAsJsonArray("keys")) {
      if (!key.getAsJsonPrimitive().isString()) throw new Unrepresentable();
      keys.add(key.getAsString());
    }
    RedisLock lock = locks.lock(options, keys.toArray(String[]::new));
    named.put(name, new Named(lock, options, is(order, "reentrant")));
    names.put(lock, name);
    return ok(true);
  }

  private static LockOptions optionsOf(JsonObject order) {
    LockOptions options = LockOptions.defaults();
    if (has(order, "lease_ms")) options = options.lease(duration(order.get("lease_ms")));
    if (has(order, "keep_ms")) options = options.keep(duration(order.get("keep_ms")));
    if (has(order, "margin_ms")) options = options.margin(duration(order.get("margin_ms")));
    if (has(order, "max_hold_ms")) options = options.longestHold(duration(order.get("max_hold_ms")));
    if (has(order, "wait_ms")) options = options.longestWait(duration(order.get("wait_ms")));
    if (has(order, "at_least_ms")) options = options.leastHold(duration(order.get("at_least_ms")));
    if (has(order, "data")) options = options.data(text(order, "data"));
    if (has(order, "replicas")) options = options.replicas(order.get("replicas").getAsInt());
    if (is(order, "shared")) options = options.shared();
    if (has(order, "limit")) {
      long permits = has(order, "permits") ? whole(order.get("permits")) : 1;
      options = options.limit(whole(order.get("limit")), permits);
    } else if (has(order, "permits")) {
      throw new Unrepresentable();
    }
    if (is(order, "session")) options = options.session();
    if (!is(order, "renew") && has(order, "renew")) options = options.withoutRenewal();
    return options;
  }

  private static Optional<Duration> limitOf(JsonObject order) {
    return has(order, "wait_ms") ? Optional.of(duration(order.get("wait_ms"))) : Optional.empty();
  }

  private JsonObject acquire(Named one, Optional<Duration> limit) throws Exception {
    if (one.owner != null) return acquireByThread(one, limit);
    Optional<Hold> hold = limit.isEmpty()
        ? Optional.of(one.lock.acquire())
        : one.lock.tryAcquire(limit.get());
    if (hold.isEmpty()) return ok(false);
    one.hold = hold.get();
    return granted(one.hold.fence(), one.hold.token());
  }

  private static JsonObject acquireByThread(Named one, Optional<Duration> limit) throws Exception {
    return onOwner(one, () -> {
      if (limit.isEmpty()) one.lock.lock();
      else if (!one.lock.tryLock(limit.get())) return ok(false);
      return granted(one.lock.fence(), "");
    });
  }

  private static JsonObject granted(long fence, String token) {
    JsonObject answer = ok(true);
    answer.addProperty("fence", fence);
    answer.addProperty("token", token);
    return answer;
  }

  private static Hold entered(Named one, JsonObject order) throws InterruptedException {
    Optional<Duration> limit = limitOf(order);
    one.hold = limit.isEmpty() ? one.lock.acquire() : one.lock.acquire(limit.get());
    return one.hold;
  }

  private JsonObject block(String name, Named one, JsonObject order) throws Exception {
    try (Hold hold = entered(one, order)) {
      event("in", "lock", name);
      Thread.sleep(order.get("work_ms").getAsLong());
      if (has(order, "fail")) throw new WorkFailed(text(order, "fail"));
      JsonObject answer = ok(true);
      answer.addProperty("fence", hold.fence());
      return answer;
    }
  }

  /** Writes the fence to a list until the loss of the lock. */
  private JsonObject write(Named one, JsonObject order) throws Exception {
    try (Hold hold = entered(one, order)) {
      while (!hold.isLost()) {
        push(text(order, "list"), Long.toString(hold.fence()));
        Thread.sleep(2);
      }
    }
    return ok(true);
  }

  private void push(String list, String value) {
    if (jedis == null) connect();
    if (jedis != null) jedis.rpush(list, value);
    else if (lettuce != null) lettuce.sync().rpush(list, value);
    else lettuceOfCluster.sync().rpush(list, value);
  }

  private synchronized void connect() {
    if (lettuce == null && lettuceOfCluster == null) connection.run();
  }

  /** Threads that acquire a lock with short limits, again and again. */
  private static final class Storm {
    private final RedisLock lock;
    private final JsonObject order;
    private final long endNanos;
    private final List<Long> releaseNanos = new ArrayList<>();
    private long mostLateNanos;

    Storm(RedisLock lock, JsonObject order) {
      this.lock = lock;
      this.order = order;
      endNanos = System.nanoTime() + order.get("seconds").getAsLong() * 1_000_000_000L;
    }

    JsonObject run() throws InterruptedException {
      List<Thread> threads = new ArrayList<>();
      int tasks = order.get("tasks").getAsInt();
      while (threads.size() < tasks) threads.add(new Thread(this::acquire));
      threads.forEach(Thread::start);
      for (Thread thread : threads) thread.join();
      List<Long> releases = releaseNanos.stream().sorted().toList();
      JsonObject answer = ok(true);
      answer.addProperty("grants", releases.size());
      long p99 = releases.isEmpty() ? 0 : releases.get((int) (releases.size() * 0.99));
      answer.addProperty("release_p99_ms", p99 / 1e6);
      answer.addProperty("most_late_ms", mostLateNanos / 1e6);
      return answer;
    }

    private void acquire() {
      ThreadLocalRandom random = ThreadLocalRandom.current();
      try {
        while (System.nanoTime() < endNanos) {
          long mostMs = order.get("most_wait_ms").getAsLong();
          Duration limit = Duration.ofMillis(random.nextLong(mostMs + 1));
          long began = System.nanoTime();
          Optional<Hold> hold = tried(limit);
          noteLate(System.nanoTime() - began - limit.toNanos());
          if (hold.isEmpty()) continue;
          Thread.sleep(1);
          began = System.nanoTime();
          hold.get().release();
          noteRelease(System.nanoTime() - began);
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

    private synchronized void noteLate(long nanos) {
      mostLateNanos = Math.max(mostLateNanos, nanos);
    }

    private synchronized void noteRelease(long nanos) {
      releaseNanos.add(nanos);
    }
  }

  private static Hold held(Named one) {
    if (one.hold == null) throw new IllegalMonitorStateException("never acquired");
    return one.hold;
  }

  private JsonObject release(Named one) throws Exception {
    if (one.owner == null) return ok(held(one).release());
    return onOwner(one, () -> {
      try {
        one.lock.unlock();
        return ok(true);
      } catch (LockLostException lost) {
        return ok(false);
      }
    });
  }

  private JsonObject extend(Named one, Duration lease) throws Exception {
    if (one.owner == null) return ok(held(one).extend(lease));
    return onOwner(one, () -> ok(one.lock.extend(lease)));
  }

  private JsonObject left(Named one) {
    JsonObject answer = ok(true);
    answer.addProperty("ms", one.hold == null ? 0 : one.hold.left().plusNanos(999_999).toMillis());
    return answer;
  }

  private JsonObject state(Named one) throws Exception {
    if (one.owner != null) return onOwner(one, () -> state(one.lock.isLost(), null, null));
    Hold hold = one.hold;
    if (hold == null) return state(false, null, null);
    return state(hold.isLost(), hold.fence(), hold.token());
  }

  private static JsonObject state(boolean isLost, Long fence, String token) {
    JsonObject answer = ok(true);
    answer.addProperty("lost", isLost);
    answer.addProperty("fence", fence);
    answer.addProperty("token", token);
    return answer;
  }

  private static <T> T onOwner(Named one, Callable<T> work) throws Exception {
    var running = one.owner.submit(work);
    try {
      return running.get();
    } catch (InterruptedException interrupt) {
      running.cancel(true);
      throw interrupt;
    } catch (java.util.concurrent.ExecutionException failed) {
      throw failed.getCause() instanceof Exception cause ? cause : failed;
    }
  }

  private static JsonObject answerOf(Throwable error) {
    String name = "other";
    if (error instanceof NotAcquiredException) name = "not_acquired";
    else if (error instanceof LockLostException) name = "lost";
    else if (error instanceof WaitCancelledException || error instanceof InterruptedException) name = "cancelled";
    else if (error instanceof DeadlockException) name = "deadlock";
    else if (error instanceof UnavailableException) name = "unavailable";
    else if (error instanceof ModuleMissingException) name = "module_missing";
    else if (error instanceof NotReplicatedException) name = "not_replicated";
    else if (error instanceof RefusedException && error.getMessage().matches("(NOPERM|NOAUTH|WRONGPASS)[\\s\\S]*")) name = "denied";
    else if (error instanceof IllegalMonitorStateException) name = "misuse";
    else if (error instanceof IllegalArgumentException || error instanceof NullPointerException) name = "argument";
    else if (error instanceof Unrepresentable) name = "unrepresentable";
    else if (error instanceof WorkFailed) name = "failed";
    JsonObject answer = new JsonObject();
    answer.addProperty("error", name);
    StringBuilder text = new StringBuilder(String.valueOf(error.getMessage()));
    for (Throwable cause = error; name.equals("other") && cause != null; cause = cause.getCause()) text.append("\n").append(cause);
    if (error instanceof LockException) for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) text.append("\n").append(cause);
    answer.addProperty("text", text.toString());
    return answer;
  }

  private static final class Unrepresentable extends RuntimeException {}

  private static final class WorkFailed extends RuntimeException {
    WorkFailed(String text) {
      super(text);
    }
  }

  private final class Observer implements LockObserver {
    @Override
    public void waited(RedisLock lock, Duration waited, Outcome outcome) {
      JsonObject event = new JsonObject();
      event.addProperty("event", "waited");
      event.addProperty("lock", names.get(lock));
      event.addProperty("ms", waited.toMillis());
      event.addProperty("outcome", outcome.name().toLowerCase().replace('_', ' '));
      say(event);
    }

    @Override
    public void granted(Hold hold) {
      event("granted", "lock", names.get(hold.lock()));
    }

    @Override
    public void unavailable(UnavailableException outage) {
      event("unavailable", "text", outage.getMessage());
    }
  }

  private static void event(String event, String key, String value) {
    JsonObject line = new JsonObject();
    line.addProperty("event", event);
    line.addProperty(key, value);
    say(line);
  }

  private static JsonObject ok(boolean ok) {
    JsonObject answer = new JsonObject();
    answer.addProperty("ok", ok);
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

  private static Duration ms(JsonObject order, String name, long otherwise) {
    return has(order, name) ? duration(order.get(name)) : Duration.ofMillis(otherwise);
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
    return Duration.ofNanos(0).plusSeconds((long) (value / 1000)).plusNanos((long) (value % 1000 * 1e6));
  }

  private static long whole(JsonElement number) {
    double value = number.getAsDouble();
    if (value != Math.rint(value) || Math.abs(value) > 1e18) throw new Unrepresentable();
    return (long) value;
  }
}
