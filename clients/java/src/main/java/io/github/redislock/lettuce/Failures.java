package io.github.redislock.lettuce;

import io.github.redislock.spi.OutageException;
import io.github.redislock.spi.ServerError;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisCommandTimeoutException;
import io.lettuce.core.RedisConnectionException;
import io.lettuce.core.RedisException;
import io.lettuce.core.cluster.PartitionSelectorException;
import io.lettuce.core.cluster.UnknownPartitionException;
import java.io.IOException;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;

/** The failures of Lettuce. */
final class Failures {
  private Failures() {}

  /** Returns the {@link ServerError} or the {@link OutageException} of an error, or the error. */
  static Throwable told(Throwable error) {
    boolean isOutage = false;
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof LinkageError) return cause;
      if (cause instanceof RedisCommandExecutionException reply) {
        return new ServerError(reply.getMessage(), reply);
      }
      if (cause instanceof RedisCommandTimeoutException) return OutageException.late(error);
      // Each node of a cluster may have replied with an error.
      for (Throwable also : cause.getSuppressed()) {
        if (told(also) instanceof ServerError reply) return reply;
      }
      isOutage |= isOutage(cause);
    }
    return isOutage ? OutageException.failed(error) : unwrapped(error);
  }

  private static boolean isOutage(Throwable cause) {
    // A closed connection and a full queue are bare RedisExceptions. A connection that is being
    // closed cancels its commands.
    return cause instanceof CancellationException
        || cause instanceof RedisConnectionException
        || cause instanceof PartitionSelectorException
        || cause instanceof UnknownPartitionException
        || cause instanceof IOException
        || cause.getClass() == RedisException.class;
  }

  private static Throwable unwrapped(Throwable error) {
    boolean isWrapper = error instanceof CompletionException || error instanceof ExecutionException;
    return isWrapper && error.getCause() != null ? unwrapped(error.getCause()) : error;
  }
}
