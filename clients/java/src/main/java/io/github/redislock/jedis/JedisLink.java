package io.github.redislock.jedis;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Fault;
import io.github.redislock.spi.Link;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
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
  private CompletableFuture<Servers> opening;
  private boolean isClosed;

  /** Makes a link to the server, the cluster, or the primary that Sentinel names. */
  public JedisLink(UnifiedJedis jedis) {
    this(Servers.providerOf(jedis));
  }

  /** Makes a link over a provider of connections. */
  public JedisLink(ConnectionProvider provider) {
    Servers servers = new Servers(provider, () -> {});
    made = () -> servers;
    opening = CompletableFuture.completedFuture(servers);
  }

  /**
   * Makes a link that makes its client in the background, again at a command if that failed, and
   * closes it. The clients of a cluster and of Sentinel connect as soon as they are made.
   */
  public JedisLink(Supplier<? extends UnifiedJedis> jedis) {
    made = () -> {
      UnifiedJedis own = jedis.get();
      return new Servers(Servers.providerOf(own), own::close);
    };
    opening = CompletableFuture.supplyAsync(made, Background.THREADS);
  }

  @Override
  public @Nullable Object send(Command command, Call call, long until)
      throws InterruptedException {
    Servers servers = servers(call, until);
    JedisRedirectionException redirection = null;
    for (int redirections = 0; ; redirections++) {
      try {
        Node node = redirection == null
            ? servers.of(command, call)
            : servers.at(redirection, call, until);
        return node.send(command, redirection instanceof JedisAskDataException, call, until);
      } catch (Fault fault) {
        boolean isMoved = fault.getCause() instanceof JedisRedirectionException;
        boolean isReply = fault.kind() == Fault.Kind.REPLY;
        if (!isReply || fault.code().equals("CLUSTERDOWN")) servers.refresh();
        if (!isMoved || redirections == MOST_REDIRECTIONS) throw fault;
        redirection = (JedisRedirectionException) fault.getCause();
      }
    }
  }

  private Servers servers(Call call, long until) throws InterruptedException {
    try {
      return call.await(opening(), until);
    } catch (CompletionException failure) {
      throw Fault.of(failure, Node::meaningOf);
    }
  }

  /** Returns the program's client, or the failure to make it, which the next call repeats. */
  private synchronized CompletableFuture<Servers> opening() {
    if (isClosed) throw Fault.outage("these connections are closed");
    if (opening.isCompletedExceptionally()) {
      opening = CompletableFuture.supplyAsync(made, Background.THREADS);
    }
    return opening;
  }

  @Override
  public synchronized void close() {
    isClosed = true;
    opening.thenAccept(Servers::close);
  }
}
