package io.github.redislock.jedis;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.github.redislock.spi.OutageException;
import io.github.redislock.spi.ServerError;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import redis.clients.jedis.Connection;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisAskDataException;
import redis.clients.jedis.exceptions.JedisRedirectionException;
import redis.clients.jedis.providers.ConnectionProvider;

/**
 * Locks on Jedis: every command has a connection to itself, so a wait may block in LOCK.WAIT. The
 * connections have the settings of the program's Jedis and are apart from its pool, so that waits
 * can't exhaust the pool, nor the pool delay renewals.
 */
public final class JedisLink implements Link {
  private static final int MOST_REDIRECTIONS = 8;

  private final Supplier<Servers> made;
  private @Nullable CompletableFuture<Servers> opening;
  private boolean isClosed;

  /** Makes a link to the server, the cluster, or the primary that Sentinel names. */
  public JedisLink(UnifiedJedis jedis) {
    this(Servers.providerOf(jedis));
  }

  /** Makes a link over a provider of connections. */
  public JedisLink(ConnectionProvider provider) {
    Servers servers = new Servers(provider);
    made = () -> servers;
    opening = CompletableFuture.completedFuture(servers);
  }

  /**
   * Makes a link that makes its client in the background, and again at a command if that failed.
   * The clients of a cluster and of Sentinel connect as soon as they are made.
   */
  public JedisLink(Supplier<? extends UnifiedJedis> jedis) {
    made = () -> new Servers(Servers.providerOf(jedis.get()));
    opening();
  }

  @Override
  public @Nullable Object send(Command command, Call call, long until)
      throws InterruptedException {
    Servers servers = call.await(opening(), until, Node::told);
    Node node = servers.of(command, call);
    boolean isAsking = false;
    for (int redirections = 0; ; redirections++) {
      boolean asks = isAsking;
      try {
        return node.exchange(command, call, until,
            connection -> exchange(connection, command, asks, call, until));
      } catch (ServerError reply) {
        boolean isMoved = reply.getCause() instanceof JedisRedirectionException;
        if (!isMoved || redirections == MOST_REDIRECTIONS) throw servers.noted(reply);
        isAsking = reply.getCause() instanceof JedisAskDataException;
        node = servers.at((JedisRedirectionException) reply.getCause(), call, until);
      } catch (OutageException outage) {
        servers.refresh();
        throw outage;
      }
    }
  }

  private static @Nullable Object exchange(
      Connection connection, Command command, boolean isAsking, Call call, long until)
      throws InterruptedException {
    return call.read(() -> Node.disconnect(connection), () -> {
      connection.setSoTimeout(millisUntil(until));
      if (isAsking) connection.executeCommand(Protocol.Command.ASKING);
      connection.sendCommand(() -> command.name().getBytes(UTF_8), wordsOf(command));
      return flat(connection.getOne());
    });
  }

  private static byte[][] wordsOf(Command command) {
    List<byte[]> words = new ArrayList<>();
    if (command.keys().size() > 1) words.add(("" + command.keys().size()).getBytes(UTF_8));
    words.addAll(command.keys());
    words.addAll(command.arguments());
    return words.toArray(byte[][]::new);
  }

  private static int millisUntil(long until) {
    return (int) Math.min(Math.max((until - Clock.now()) / 1_000_000, 1), Integer.MAX_VALUE);
  }

  /** Returns a reply with each map of RESP3 as a list of its names and values. */
  private static @Nullable Object flat(@Nullable Object reply) {
    if (!(reply instanceof List<?> list)) return reply;
    List<@Nullable Object> flat = new ArrayList<>(list.size());
    for (Object each : list) {
      if (each instanceof Map.Entry<?, ?> field) {
        flat.add(field.getKey());
        flat.add(flat(field.getValue()));
      } else {
        flat.add(flat(each));
      }
    }
    return flat;
  }

  /** Returns the program's client, or the failure to make it, which the next call repeats. */
  private synchronized CompletableFuture<Servers> opening() {
    if (isClosed) throw OutageException.closed();
    CompletableFuture<Servers> current = opening;
    if (current == null || current.isCompletedExceptionally()) {
      // In a thread of the library, because a client connects while it is made.
      current = CompletableFuture.supplyAsync(made, Background::run);
      opening = current;
    }
    return current;
  }

  @Override
  public void close() {
    CompletableFuture<Servers> last;
    synchronized (this) {
      isClosed = true;
      last = opening;
    }
    if (last != null) last.thenAccept(Servers::close);
  }
}
